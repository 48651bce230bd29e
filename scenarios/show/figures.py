"""The figure of every answer that has one, by its type."""

from functools import singledispatch
from typing import Any

from draftcast.scenarios.compare.comparison import Comparison
from draftcast.scenarios.compare.slo_answer import measured_requests
from draftcast.scenarios.cutover.answer import Cutover
from draftcast.scenarios.cutover.map import SpeedupMap
from draftcast.scenarios.plan.sizing import CapacityPlan
from draftcast.scenarios.run.simulate import RunResult
from draftcast.scenarios.show.cutover_plots import cutover_figure, map_figure
from draftcast.scenarios.show.plan_report import sizing_figure
from draftcast.scenarios.show.run_plots import comparison_figure, latency_figure
from draftcast.scenarios.show.sweep_report import sweep_figure
from draftcast.scenarios.sweep.result import SweepResult


@singledispatch
def figure_of(answer: Any) -> Any:
    """Raises TypeError: an answer without a picture."""
    raise TypeError(f"{type(answer).__name__} has no picture")


@figure_of.register
def _(answer: RunResult) -> Any:
    return latency_figure({"run": measured_requests(answer)}, answer.manifest["scenario"]["slo"] or {})


figure_of.register(Comparison, comparison_figure)
figure_of.register(SpeedupMap, map_figure)
figure_of.register(CapacityPlan, sizing_figure)
figure_of.register(Cutover, lambda answer: cutover_figure([answer]))
figure_of.register(SweepResult, lambda answer: sweep_figure(answer, "mean_e2el_s"))
