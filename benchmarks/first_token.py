"""Time to the first token of one request, measured and forecast: what an eager prompt's launches cost.

``python benchmarks/first_token.py [sglang|vllm]`` lists the evidence's points of one request at a time whose source
gives this time: milliseconds measured and forecast, launches of an eager pass over the prompt, and the microseconds of
each in what was measured less `FRONT_END_MS`. A minute.
"""

import sys

from draftcast.scenarios.evidence.point import points
from draftcast.scenarios.evidence.question import scenarios_of
from draftcast.scenarios.run.deployment import cached_deployment
from draftcast.scenarios.run.simulate import simulate_together
from draftcast.scenarios.show.tables import aligned

FRONT_END_MS = 8.0
NAMES = ("median_ttft_ms", "mean_ttft_ms", "ttft_ms")


def main() -> None:
    engine = sys.argv[1] if len(sys.argv) > 1 else "sglang"
    rows = [("point", "measured, ms", "forecast, ms", "launches", "us a launch")]
    for point in points():
        measured_ms = next((point.more[name] for name in NAMES if name in point.more), None)
        question = scenarios_of(point)
        scenario = question.off if point.off is not None else question.on
        alone = point.load.kind in ("concurrency", "batch") and point.load.value == 1
        if point.engine != engine or not alone or measured_ms is None or scenario is None or not question.is_expressed:
            continue
        (result,) = simulate_together([scenario])
        params = cached_deployment(scenario).cost.params[0]
        launch_s = cached_deployment(scenario).settings.generation.constants.eager_launch_s.value
        launches = float(params["target_launch_s"] + params["prompt_launch_s"]) / launch_s
        forecast_ms = 1e3 * result.summary["figures"]["median_ttft_s"].mean
        each_us = 1e3 * (measured_ms - FRONT_END_MS) / launches
        rows.append((point.id, f"{measured_ms:.1f}", f"{forecast_ms:.1f}", f"{launches:.0f}", f"{each_us:.0f}"))
    print("\n".join(aligned(rows)))


if __name__ == "__main__":
    main()
