"""Time to the first token, measured and forecast.

``python benchmarks/first_token.py`` forecasts the points of tier A whose source gives this time and prints, by source,
the median of measured over forecast; then the median and the quartiles over sources. Three minutes.

``python benchmarks/first_token.py sglang`` (or ``vllm``) lists the points of one request at a time, of any tier: what
an eager prompt's launches cost. Milliseconds measured and forecast, launches of an eager pass over the prompt, and the
microseconds of each in what was measured less `FRONT_END_MS`. A minute.
"""

import argparse
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from draftcast.errors import InputError
from draftcast.scenarios.evidence.point import EvidencePoint, points
from draftcast.scenarios.evidence.question import scenarios_of
from draftcast.scenarios.evidence.summary import grouped
from draftcast.scenarios.run.deployment import cached_deployment
from draftcast.scenarios.run.simulate import simulate_together
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.show.tables import aligned

FRONT_END_MS = 8.0
FIGURES = {"median_ttft_ms": "median_ttft_s", "mean_ttft_ms": "mean_ttft_s", "ttft_ms": "median_ttft_s"}


def timed() -> Iterator[tuple[EvidencePoint, Scenario, str]]:
    """Points with a measured time to the first token that can be expressed, and the name of that time."""
    for point in points():
        name = next((name for name in FIGURES if name in point.more), None)
        question = scenarios_of(point)
        scenario = question.off if point.off is not None else question.on
        if name is None or scenario is None or not question.is_expressed:
            continue
        with suppress(InputError):  # `draftcast evidence` lists what the engine refuses, with the reason
            cached_deployment(scenario)
            yield point, scenario, name


def forecast_ms(scenario: Scenario, name: str) -> float:
    (result,) = simulate_together([scenario])
    return 1e3 * float(result.summary["figures"][FIGURES[name]].mean)


def by_source() -> list[tuple[str, ...]]:
    pairs = ((p.source, p.more[name] / forecast_ms(scenario, name)) for p, scenario, name in timed() if p.tier == "A")
    summary = {source: (len(ratios), float(np.median(ratios))) for source, ratios in grouped(pairs).items()}
    medians = [ratio for _, ratio in summary.values()]
    low, middle, high = np.percentile(medians, (25, 50, 75))
    rows = [(source, str(count), f"{ratio:.2f}") for source, (count, ratio) in sorted(summary.items())]
    last = ("median over sources (quartiles)", str(len(summary)), f"{middle:.2f} ({low:.2f} to {high:.2f})")
    return [("source", "points", "measured / forecast"), *rows, last]


def one_at_a_time(engine: str) -> list[tuple[str, ...]]:
    rows = [("point", "measured, ms", "forecast, ms", "launches", "us a launch")]
    for point, scenario, name in timed():
        if point.engine == engine and point.load.kind in ("concurrency", "batch") and point.load.value == 1:
            deployment = cached_deployment(scenario)
            params, launch_s = deployment.cost.params[0], deployment.settings.generation.constants.eager_launch_s.value
            launches = float(params["target_launch_s"] + params["prompt_launch_s"]) / launch_s
            measured_ms, each_us = point.more[name], 1e3 * (point.more[name] - FRONT_END_MS) / launches
            forecast = f"{forecast_ms(scenario, name):.1f}"
            rows.append((point.id, f"{measured_ms:.1f}", forecast, f"{launches:.0f}", f"{each_us:.0f}"))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", nargs="?", choices=("vllm", "sglang", "trtllm", "lmdeploy"))
    arguments = parser.parse_args()
    print("\n".join(aligned(one_at_a_time(arguments.engine) if arguments.engine else by_source())))
