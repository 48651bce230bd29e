"""How often the intervals of short runs hold the truth: 200 trials of six stable scenarios, against long runs.

``python benchmarks/coverage.py`` prints, for every scenario and effort, the coverage of the nominal 95 % intervals of
five figures and their mean half widths, then one JSON line. A trial that did not settle counts as a miss. The truth is
a run so long that its half width is under a quarter of a trial's; the benchmark refuses to judge by a shorter one.
``--scenario NAME`` (repeatable) and ``--trials N`` ask for less. All of it takes about half an hour of two cores.
"""

import argparse
import json
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from verdicts import smaller_capacity

from draftcast import load_scenario
from draftcast.scenarios.compare.capacity import page_effort
from draftcast.scenarios.compare.verdict import judge
from draftcast.scenarios.run.simulate import simulate_together
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import with_rate, with_values, without_speculation
from draftcast.sim.statistics.intervals import Estimate

FIGURES = {"E2E": "mean_e2el_s", "TTFT": "mean_ttft_s", "TPOT": "mean_tpot_s", "output tok/s": "output_throughput"}
LONG = {"statistics.replications": 24, "workload.num_requests": 48_000, "statistics.seed": 1_000_000}
REFERENCE_SHARE = 0.25
BURSTS = (
    "workload.arrivals={process: gamma, request_rate_rps: 8, burstiness: 0.5}",
    "cluster={replicas: 2, router: least_loaded}",
)
# Load as a share of the smaller capacity, with speculation or without, and changes of the scenario.
CASES: dict[str, tuple[float, tuple[str, ...]]] = {
    **{f"chat at {share} %": (share / 100, ()) for share in (10, 45, 80, 85)},
    "64 slots at 70 %": (0.70, ("engine.max_num_seqs=64",)),
    "two replicas, bursts, at 60 %": (0.60, BURSTS),
}
EFFORTS = ("file", "page")


def figures(scenario: Scenario) -> dict[str, Estimate] | None:
    """The five figures of the scenario's own setting; None where it did not settle."""
    on, off = simulate_together([scenario, without_speculation(scenario)])
    advantage = judge(scenario, on, off).advantage
    if advantage is None:
        return None
    return {name: on.summary["figures"][key] for name, key in FIGURES.items()} | {"advantage": advantage}


def cover(
    scenario: Scenario, truth: Mapping[str, Estimate], trials: int, workers: ProcessPoolExecutor
) -> dict[str, dict[str, float]]:
    """Coverage, mean half width and mean error of each figure, both as shares of the truth, and what did not settle."""
    seeded = (with_values(scenario, {"statistics.seed": seed}) for seed in range(1, trials + 1))
    settled = [values for values in workers.map(figures, seeded) if values is not None]
    rows = {"not settled": {"share": 1 - len(settled) / trials}}
    for name, true in truth.items():
        known = [values[name] for values in settled]
        half = float(np.mean([each.half_width for each in known]))
        if not true.half_width < REFERENCE_SHARE * half:
            raise SystemExit(f"{name}: the long run is too short to judge by ({true} against ± {half:.3g})")
        rows[name] = {
            "coverage": sum(each.contains(true.mean) for each in known) / trials,
            "half_width": half / true.mean,
            "error": float(np.mean([each.mean for each in known])) / true.mean - 1.0,
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--scenario", action="append", choices=list(CASES))
    asked = parser.parse_args()
    answer: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    cells = []
    print(f"{'scenario':30} {'effort':12} {'figure':13} coverage  half width  mean error", flush=True)
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        for case in asked.scenario or CASES:
            share, overrides = CASES[case]
            scenario = load_scenario("default", overrides=[*overrides, "statistics.model_error=none"])
            scenario = with_rate(scenario, share * smaller_capacity(scenario))
            truth = workers.submit(figures, with_values(scenario, LONG)).result()
            assert truth is not None, f"{case}: the long run has not settled"
            for effort in EFFORTS:
                sized = scenario if effort == "file" else with_values(scenario, page_effort(scenario))
                size = f"{sized.statistics.replications} x {sized.workload.num_requests}"
                rows = cover(sized, truth, asked.trials, workers)
                answer.setdefault(case, {})[effort] = rows
                for name in truth:
                    row = rows[name]
                    cells.append(row["coverage"])
                    numbers = f"{row['coverage']:7.1%} {row['half_width']:10.2%} {row['error']:+11.2%}"
                    print(f"{case:30} {size:12} {name:13} {numbers}", flush=True)
                print(f"{case:30} {size:12} not settled   {rows['not settled']['share']:7.1%}", flush=True)
    print(f"{len(cells)} cells: {min(cells):.1%} to {max(cells):.1%}, mean {np.mean(cells):.2%}")
    print(json.dumps({"trials": asked.trials, "cases": answer}))


if __name__ == "__main__":
    main()
