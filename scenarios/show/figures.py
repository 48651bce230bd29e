"""The figure of every answer that has one, by its type."""

from collections.abc import Callable
from typing import Any

from draftcast.scenarios.compare.comparison import Comparison
from draftcast.scenarios.compare.slo_answer import measured_requests
from draftcast.scenarios.cutover.map import SpeedupMap
from draftcast.scenarios.cutover.search import Cutover
from draftcast.scenarios.plan.sizing import CapacityPlan
from draftcast.scenarios.run.simulate import RunResult
from draftcast.scenarios.show.cutover_report import cutover_figure, map_figure
from draftcast.scenarios.show.plan_report import sizing_figure
from draftcast.scenarios.show.run_report import comparison_figure, latency_figure
from draftcast.scenarios.show.sweep_report import sweep_figure
from draftcast.scenarios.sweep.result import SweepResult

FIGURES: dict[type, Callable[[Any], Any]] = {
    RunResult: lambda run: latency_figure({"run": measured_requests(run)}, run.manifest["scenario"]["slo"] or {}),
    Comparison: comparison_figure,
    SpeedupMap: map_figure,
    CapacityPlan: sizing_figure,
    Cutover: lambda answer: cutover_figure([answer]),
    SweepResult: lambda answer: sweep_figure(answer, "mean_e2el_s"),
}
