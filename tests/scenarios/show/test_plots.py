"""The picture of a comparison: figures only of sides that have them."""

from __future__ import annotations

from draftcast.scenarios.compare.comparison import compare
from draftcast.scenarios.schema.load import load_scenario
from draftcast.scenarios.show.run_report import comparison_figure


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
