"""How often the intervals of short runs hold the truth: 200 trials of six stable scenarios, against long runs.

``python benchmarks/coverage.py`` prints, for every scenario and effort, the coverage of the nominal 95 % intervals of
five figures and their mean half widths, then one JSON line. A trial that did not settle counts as a miss. The truth is
a run so long that its half width is under a quarter of a trial's; the benchmark refuses to judge by a shorter one.
``--scenario NAME`` (repeatable) and ``--trials N`` ask for less. All of it takes about half an hour of two cores.
"""

import argparse
import itertools
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
ADVANTAGE = "advantage"
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


def scenario_of(name: str) -> Scenario:
    share, overrides = CASES[name]
    scenario = load_scenario("default", overrides=[*overrides, "statistics.model_error=none"])
    return with_rate(scenario, share * smaller_capacity(scenario))


def figures(scenario: Scenario) -> tuple[bool, dict[str, Estimate]]:
    """Whether the scenario settled, and the five figures of its own setting."""
    on, off = simulate_together([scenario, without_speculation(scenario)])
    verdict = judge(scenario, on, off)
    found = {name: on.summary["figures"][key] for name, key in FIGURES.items()}
    if verdict.advantage is not None:
        found[ADVANTAGE] = verdict.advantage
    return verdict.advantage is not None, found


def trial(scenario: Scenario, seed: int) -> tuple[bool, dict[str, Estimate]]:
    """`figures` with another seed."""
    return figures(with_values(scenario, {"statistics.seed": seed}))


def cover(
    scenario: Scenario, truth: Mapping[str, Estimate], trials: int, workers: ProcessPoolExecutor
) -> dict[str, dict[str, float]]:
    """Coverage, mean half width and mean error of each figure, both as shares of the truth, and what did not settle."""
    found = list(workers.map(trial, itertools.repeat(scenario), range(1, trials + 1)))
    rows: dict[str, dict[str, float]] = {}
    for name, true in truth.items():
        known = [values[name] for settled, values in found if settled and name in values]
        half = float(np.mean([each.half_width for each in known]))
        if not true.half_width < REFERENCE_SHARE * half:
            raise SystemExit(f"{name}: the long run is too short to judge by ({true} against ± {half:.3g})")
        rows[name] = {
            "coverage": sum(each.contains(true.mean) for each in known) / trials,
            "half_width": half / true.mean,
            "error": float(np.mean([each.mean for each in known])) / true.mean - 1.0,
        }
    rows["not settled"] = {"share": sum(not settled for settled, _ in found) / trials}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--scenario", action="append", choices=list(CASES))
    asked = parser.parse_args()
    answer: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    print(f"{'scenario':30} {'effort':12} {'figure':13} coverage  half width  mean error", flush=True)
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        for case in asked.scenario or CASES:
            scenario = scenario_of(case)
            _, truth = workers.submit(figures, with_values(scenario, LONG)).result()
            for effort in EFFORTS:
                sized = scenario if effort == "file" else with_values(scenario, page_effort(scenario))
                size = f"{sized.statistics.replications} x {sized.workload.num_requests}"
                rows = cover(sized, truth, asked.trials, workers)
                answer.setdefault(case, {})[effort] = rows
                for name in truth:
                    row = rows[name]
                    numbers = f"{row['coverage']:7.1%} {row['half_width']:10.2%} {row['error']:+11.2%}"
                    print(f"{case:30} {size:12} {name:13} {numbers}", flush=True)
                print(f"{case:30} {size:12} not settled   {rows['not settled']['share']:7.1%}", flush=True)
    by_effort = (rows for efforts in answer.values() for rows in efforts.values())
    cells = [row["coverage"] for rows in by_effort for row in rows.values() if "error" in row]
    print(f"{len(cells)} cells: {min(cells):.1%} to {max(cells):.1%}, mean {np.mean(cells):.2%}")
    print(json.dumps({"trials": asked.trials, "cases": answer}))


if __name__ == "__main__":
    main()
