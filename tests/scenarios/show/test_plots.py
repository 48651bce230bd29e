"""The picture of a comparison: figures only of sides that have them."""

from __future__ import annotations

from importlib import import_module

import pytest

from draftcast.scenarios.compare.comparison import Comparison, compare
from draftcast.scenarios.cutover.map import SpeedupMap
from draftcast.scenarios.cutover.search import Cutover
from draftcast.scenarios.plan.sizing import CapacityPlan
from draftcast.scenarios.run.simulate import HasPicture, RunResult
from draftcast.scenarios.schema.load import load_scenario
from draftcast.scenarios.show.run_report import comparison_figure
from draftcast.scenarios.sweep.result import SweepResult


def test_a_picture_shows_no_figures_of_a_side_that_has_none() -> None:
    sizes = ["workload.num_requests=400", "statistics.replications=2"]
    answer = compare(load_scenario(overrides=sizes), [10, 400])
    verdicts = [point.verdict for point in answer.points if point.verdict is not None]
    assert [(v.on.state, v.off.state) for v in verdicts] == [("steady", "steady"), ("overloaded", "overloaded")]
    traces = comparison_figure(answer).data
    assert [trace.name for trace in traces] == ["advantage", "SD on", "SD off", "SD on", "SD off"]
    for trace in traces:
        assert trace.y[0] > 0
        assert trace.y[1] is None


@pytest.mark.parametrize("kind", [RunResult, Comparison, SpeedupMap, CapacityPlan, Cutover, SweepResult])
def test_an_answer_names_the_function_that_draws_it(kind: type[HasPicture]) -> None:
    module, _, function = kind.picture.partition(".")
    assert callable(getattr(import_module(f"draftcast.scenarios.show.{module}"), function))
