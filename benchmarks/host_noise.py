"""How steady a host's cores are: the same matrix products over and over, and by how much their times differ.

    OMP_NUM_THREADS=1 python benchmarks/host_noise.py [--core 0] [--seconds 10]

No engine, no forecast: without knowing a core's speed from moment to moment no forecast of single steps beats their own
median, and by how much that errs is printed. The weights are those of the live validation's target (54 M parameters in
float32, `benchmarks/live.py`, read from memory at every pass), for steps of one and of sixteen rows, and of ten passes
each, as a model ten times as large would take. Beside each stand the difference of a step from the one before and from
the median of all, at the median and the ninth decile; the bars of the validation are 5 % and 15 %.
"""

from __future__ import annotations

import json
import os
import time

import numpy as np
import typer

HIDDEN, INTERMEDIATE, MATRICES = 640, 1920, 40
STEPS = ((1, 1), (16, 1), (1, 10), (16, 10))  # rows, passes


def main(core: int = 0, seconds: float = 10.0) -> None:
    if os.environ.get("OMP_NUM_THREADS") != "1":
        raise typer.BadParameter("set OMP_NUM_THREADS=1: several threads wait for the slowest core")
    os.sched_setaffinity(0, {core})
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((HIDDEN, INTERMEDIATE), dtype=np.float32) for _ in range(MATRICES)]
    found = []
    print(f"{'rows':>5}{'passes':>8}{'steps':>7}{'median ms':>11}{'from the one before':>22}{'from the median':>18}")
    for rows, passes in STEPS:
        batch = rng.standard_normal((rows, HIDDEN), dtype=np.float32)
        step_s = timed(batch, weights, passes, seconds)
        before, median = np.abs(step_s[1:] / step_s[:-1] - 1), np.abs(step_s / np.median(step_s) - 1)
        row = {"rows": rows, "passes": passes, "steps": len(step_s), "median_ms": 1e3 * float(np.median(step_s))}
        row |= {"from_before": np.quantile(before, [0.5, 0.9]).tolist()}
        row |= {"from_median": np.quantile(median, [0.5, 0.9]).tolist()}
        found.append(row)
        shown = [f"{a:.1%}, {b:.1%}" for a, b in (row["from_before"], row["from_median"])]
        print(f"{rows:>5}{passes:>8}{len(step_s):>7}{row['median_ms']:>11.1f}{shown[0]:>22}{shown[1]:>18}", flush=True)
    print(json.dumps({"core": core, "steps": found}))


def timed(batch: np.ndarray, weights: list[np.ndarray], passes: int, seconds: float) -> np.ndarray:
    """Seconds of each step within so many seconds, a first one left out."""
    step_s: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(step_s) < 3:
        start = time.perf_counter()
        for _ in range(passes):
            for weight in weights:
                batch @ weight
        step_s.append(time.perf_counter() - start)
    return np.array(step_s[1:])


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
