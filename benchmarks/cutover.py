"""How long `draftcast cutover` takes on the demo scenario, and how often its interval holds a crossing that is known.

    python benchmarks/cutover.py [--axes] [--coverage 100] [--shortfall] [--fluid]

``--axes``: every ``--over`` with every ``--metric``, the answer and its CPU seconds; the bar is ten on one core.
``--coverage``: so many seeds look for the crossing that a formula gives, see ``tests/closed_form_crossing.py``.
``--shortfall``: by how much short runs close to the capacity fall short of long ones, beside the formula of
`draftcast.sim.output.steady_state.shortfall`.
``--fluid``: the fluid estimate beside the simulation: by setting, with speculation and without, the error of its
capacity, and of the mean E2E latency at shares of the simulated capacity; three minutes.
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
from draftcast.scenarios.run.fluid import FluidModel
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import load_scenario, with_rate, with_values, without_speculation
from draftcast.scenarios.show.cutover_report import detail_lines, headline
from draftcast.scenarios.show.tables import aligned
from draftcast.sim.output import steady_state

BAR_S = 10.0
SLO_TPOT_MS = 20.0
PRICE = Price(2.49, "2026-11-01")
MTP = ("engine.speculative_config={method: mtp, num_speculative_tokens: 2}", "acceptance={model: chain, alpha: 0.8}")
DEEPSEEK = ("engine.model=DeepSeek-V3", "hardware=h200", *MTP)
SETTINGS: dict[str, tuple[str, ...]] = {
    "Llama-3.1-8B, H100": (),
    "the same, prompts of 6,000 tokens": ("workload.lengths={prompt_tokens: 6000, output_tokens: 200}",),
    "the same, SGLang": ("engine.version=sglang 0.5.9",),
    "DeepSeek-V3, 8 x H200": (*DEEPSEEK, "engine.tensor_parallel_size=8"),
    "the same, 8 data-parallel ranks": (*DEEPSEEK, "engine.data_parallel_size=8", "engine.enable_expert_parallel=true"),
    "Qwen3.5-27B, B200": ("engine.model=Qwen3.5-27B", "hardware=b200", *MTP),
}
SHARES = (0.02, 0.3, 0.7, 0.85)


def main(coverage: int = 0, shortfall: bool = False, axes: bool = False, fluid: bool = False) -> None:
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
    if fluid:
        result["fluid_errors"] = fluid_estimates()
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


def fluid_estimates() -> dict[str, list[float]]:
    """Errors of the capacity, then of the latency at `SHARES` of it, by setting and side."""
    answers = {}
    for name, overrides in SETTINGS.items():
        loaded = load_scenario(overrides=overrides)
        for side, scenario in (("on", loaded), ("off", without_speculation(loaded))):
            estimate, most_rps = FluidModel.of(scenario), capacity(scenario).estimate.mean
            errors = answers[f"{name}, {side}"] = [estimate.capacity_rps() / most_rps - 1]
            for rate_rps in (share * most_rps for share in SHARES):
                latency_s = estimate.in_system(rate_rps) / rate_rps
                errors.append(latency_s / _latency_s(with_rate(scenario, rate_rps), 3000, 2) - 1)
    rows = [(*name.rsplit(", ", 1), *(f"{error:+.0%}" for error in row)) for name, row in answers.items()]
    titles = ("setting", "speculation", "capacity", *(f"latency at {share:.0%}" for share in SHARES))
    print(*aligned([titles, *rows]), sep="\n")
    return answers


def _latency_s(scenario: Scenario, requests: int, replications: int) -> float:
    values = {"workload.num_requests": requests, "statistics.replications": replications}
    return float(np.mean([row["mean_e2el_s"] for row in simulate(with_values(scenario, values)).replications]))


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
