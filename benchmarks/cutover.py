"""How long `draftcast cutover` takes on the demo scenario, and how often its interval holds a crossing that is known.

    python benchmarks/cutover.py [--axes] [--coverage 100] [--shortfall]

``--axes``: every ``--over`` with every ``--metric``, the answer and its CPU seconds; the bar is ten on one core.
``--coverage``: so many seeds look for the crossing that a formula gives, see ``tests/closed_form_crossing.py``.
``--shortfall``: by how much short runs close to the capacity fall short of long ones, beside the formula of
`draftcast.sim.output.steady_state.shortfall`.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from closed_form_crossing import closed_form, easy

from draftcast.scenarios.compare.capacity import capacity
from draftcast.scenarios.compare.comparison import simulate
from draftcast.scenarios.compare.metric import Price
from draftcast.scenarios.cutover.axis import AXES
from draftcast.scenarios.cutover.search import CUTOVER_METRICS, Cutover, CutoverQuestion, cutover
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import load_scenario, with_rate, with_values, without_speculation
from draftcast.scenarios.show.cutover_report import detail_lines, headline
from draftcast.sim.output import steady_state

BAR_S = 10.0
SLO_TPOT_MS = 20.0
PRICE = Price(2.49, "2026-11-01")


def main(coverage: int = 0, shortfall: bool = False, axes: bool = False) -> None:
    cutover(CutoverQuestion(load_scenario()))  # compiles, or loads what is compiled
    wall, cpu = time.perf_counter(), time.process_time()
    (answer,) = cutover(CutoverQuestion(load_scenario()))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(headline(answer), *detail_lines(answer), sep="\n")
    print(f"{wall:.1f} s, {cpu:.1f} s of one core")
    span = [answer.crossing.low, answer.crossing.high]
    result = {"cutover_rps": span, "seconds": round(wall, 2), "core_seconds": round(cpu, 2)}
    if axes:
        result |= every_axis()
    if coverage:
        result |= covered(coverage)
    if shortfall:
        short_runs()
    print(json.dumps(result))


def every_axis() -> dict[str, object]:
    """CPU seconds of every axis with every metric, and what was answered."""
    print(f"{'over':<13}{'metric':<14}{'CPU s':>6}{'of bar':>8}  answer")
    spent: dict[str, float] = {}
    for over in AXES:
        for metric in CUTOVER_METRICS:
            scenario = load_scenario(overrides=[f"slo.tpot_ms={SLO_TPOT_MS}"] if metric == "slo_goodput" else [])
            cpu = time.process_time()
            (answer,) = cutover(CutoverQuestion(scenario, over, metric, price=PRICE if metric == "cost" else None))
            cpu = spent[f"{over} {metric}"] = round(time.process_time() - cpu, 2)
            print(f"{over:<13}{metric:<14}{cpu:>6.1f}{cpu / BAR_S:>8.2f}  {headline(answer)}", flush=True)
    return {"axes_core_seconds": spent, "slowest_axis_core_seconds": max(spent.values())}


def covered(seeds: int) -> dict[str, object]:
    """How many of so many seeds' intervals hold the closed form's crossing, and how wide they are."""
    exact = closed_form()
    answers: list[Cutover] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            alike = easy(Path(folder), f"statistics={{replications: 5, seed: {seed}}}")
            answers += cutover(CutoverQuestion(alike, "concurrency", at=[4, 12, 20, 28]))
    crossings = [answer.crossing for answer in answers if answer.verdict == "crosses"]
    holding = sum(crossing.low <= exact <= crossing.high for crossing in crossings)
    width = float(np.median([crossing.relative_width for crossing in crossings]))
    value = float(np.mean([crossing.value for crossing in crossings]))
    print(f"closed form: {exact:.3f} clients; {holding} of {seeds} intervals hold it; ", end="")
    print(f"mean value {value:.3f}, median width {width:.1%}")
    return {"closed_form": exact, "seeds": seeds, "held": holding, "mean_value": value}


def short_runs() -> None:
    """Mean latency of short runs over that of a long one, with and without speculation, beside the bound.

    The bound goes by the lower end of the capacity's interval, as `cutover` asks for it.
    """
    print(f"{'':>16}{'rho':>7}{'requests':>10}{'falls short by':>16}{'bound':>8}")
    for name, scenario in (("with", load_scenario()), ("without", without_speculation(load_scenario()))):
        most = capacity(scenario).estimate
        for rho in (0.9, 0.95, 0.983):
            rate = rho * most.mean
            rated = with_rate(scenario, rate)
            long_s = _latency_s(rated, 400_000, 1)
            for requests in (1000, 6000, 24_000):
                missing = long_s / _latency_s(rated, requests, max(5, 60_000 // requests)) - 1
                bound = steady_state.shortfall(requests, rate * long_s, rate / most.low)
                print(f"{name:>16}{rho:>7}{requests:>10,}{missing:>16.1%}{bound:>8.1%}", flush=True)


def _latency_s(scenario: Scenario, requests: int, replications: int) -> float:
    values = {"workload.num_requests": requests, "statistics.replications": replications}
    return float(np.mean([row["mean_e2el_s"] for row in simulate(with_values(scenario, values)).replications]))


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
