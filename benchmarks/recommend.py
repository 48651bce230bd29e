"""Is the recommended setting ever significantly worse than the best fixed k, or than off? Bundled scenarios and loads.

    python benchmarks/recommend.py [--replications 5]

The recommendation is made with one seed and judged with another, so that it cannot profit from its own noise.
A recorded trace is the same under any seed: there only the drawn acceptance differs. Seconds are processor time, those
that compile left out.
"""

import json
import time
from typing import Any

import numpy as np
import typer
from engine import AZURE

from draftcast.scenarios.compare.comparison import simulate
from draftcast.scenarios.compare.metric import METRICS
from draftcast.scenarios.compare.recommend import ComparedLoad, recommend
from draftcast.scenarios.schema.load import load_scenario, with_values
from draftcast.sim.statistics.intervals import replication_interval

RATE, CLIENTS = "workload.arrivals.request_rate_rps", "workload.arrivals.concurrency"
CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *(("default", f"{rate:g} req/s", {RATE: rate}) for rate in (2.0, 10.0, 30.0, 50.0, 60.0, 66.0)),
    *(("ngram-code-editing", f"{rate:g} req/s", {RATE: rate}) for rate in (1.0, 4.0, 8.0)),
    *(("closed-loop-classes", f"{clients} clients", {CLIENTS: clients}) for clients in (8, 64, 256)),
    ("azure-conversation", "recorded", {}),
    ("azure-conversation", "20 req/s", {RATE: 20.0}),
)
TRACES = {"azure-conversation": AZURE}  # not bundled: left out where they are not there


def main(replications: int = 5) -> None:
    worse = 0
    seconds = []
    recommend(with_values(load_scenario("closed-loop-classes"), {"workload.num_requests": 50}))  # compiles, or loads
    print(f"{'scenario':<22}{'load':>12}  {'recommended':<58}{'over off':>16}{'over best fixed k':>26}{'CPU s':>7}")
    for name, label, values in CASES:
        trace = TRACES.get(name)
        if trace is not None and not trace.exists():
            print(f"{name:<22}{label:>12}  not run, {trace} is absent")
            continue
        scenario = with_values(load_scenario(name, trace=trace), {**values, "statistics.replications": replications})
        start = time.process_time()
        answer = recommend(scenario, loads=[ComparedLoad(label, {})])
        seconds.append(time.process_time() - start)
        best = next(outcome for outcome in answer.outcomes if " k=" in outcome.candidate.label)
        off = next(outcome for outcome in answer.outcomes if outcome.candidate.label == "off")
        fresh = {"statistics.seed": scenario.statistics.seed + 1000}
        logs = [
            np.log([r[METRICS["e2e"].figure] for r in simulate(with_values(o.candidate.scenario, fresh)).replications])
            for o in (answer.chosen, best, off)
        ]
        over_best, over_off = (replication_interval(other - logs[0]) for other in logs[1:])
        significant = max(over_best.high, over_best.mean) < 0 or max(over_off.high, over_off.mean) < 0
        worse += significant
        shown = f"{np.exp(over_best.mean):.4f} [{np.exp(over_best.low):.4f}, {np.exp(over_best.high):.4f}]"
        mark = "  WORSE" if significant else ""
        figures = f"{np.exp(over_off.mean):>16.3f}{shown:>26}{seconds[-1]:>7.1f}{mark}"
        print(f"{name:<22}{label:>12}  {answer.chosen.candidate.label:<58}{figures}", flush=True)
    print(json.dumps({"cases": len(seconds), "significantly_worse": worse, "slowest_s": round(max(seconds), 1)}))


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
