"""Cutover without a browser: the search waits for its button, the answers are those of the scenarios' functions."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

pytest.importorskip("streamlit")
from app_pages import html_of, known, open_page, told
from streamlit.testing.v1 import AppTest

from draftcast.dashboards.session.session import View
from draftcast.scenarios.compare.comparison import simulate
from draftcast.scenarios.compare.limits import operating_tracks
from draftcast.scenarios.compare.recommend import recommend
from draftcast.scenarios.cutover.search import CutoverQuestion, cutover
from draftcast.scenarios.run.deployment import deploy
from draftcast.scenarios.schema.load import load_scenario
from draftcast.scenarios.show.cutover_report import headline
from draftcast.scenarios.show.device_plots import roofline_figure
from draftcast.scenarios.show.recommend_report import paste_lines

# Few slots: a capacity is found with few requests.
CUTOVER = {
    "page": "cutover",
    "engine.max_num_seqs": "16",
    "workload.lengths.prompt_tokens": "{distribution: constant, value: 64}",
    "workload.lengths.output_tokens": "{distribution: constant, value: 32}",
}


def press(app: AppTest, label: str) -> None:
    next(button for button in app.button if label in button.label).click().run()


def test_the_search_waits_for_its_button_and_for_this_question() -> None:
    app = open_page(CUTOVER)
    asked = known(app).question.scenario
    assert "data-verdict" not in html_of(app)
    press(app, "Find the cutover")
    (expected,) = cutover(CutoverQuestion(asked))
    assert f"data-verdict='{expected.verdict}'" in html_of(app)
    assert headline(expected) in html_of(app).replace("&#x27;", "'")
    assert View.CUTOVER_ASKED in app.query_params
    again = open_page({**CUTOVER, View.CUTOVER_ASKED: app.query_params[View.CUTOVER_ASKED]})
    assert f"data-verdict='{expected.verdict}'" in html_of(again)
    app.number_input(key="control:statistics.seed").set_value(5).run()
    assert "data-verdict" not in html_of(app)


def test_the_recommended_setting_is_that_of_the_command_line() -> None:
    app = open_page(CUTOVER)
    expected = recommend(known(app).question.scenario)
    assert f"data-setting='{expected.chosen.candidate.label}'" in html_of(app)
    shown = [each.value for each in app.code]
    assert any(paste_lines(expected, "vllm") in text for text in shown)
    command = next(text for text in shown if text.startswith("draftcast cutover"))
    first, second = command.splitlines()
    assert first.endswith("--over rate --metric e2e")
    assert second == known(app).question.command("recommend", "--metric", "e2e")


def test_a_map_is_drawn_when_asked_for() -> None:
    app = open_page(CUTOVER)
    before = len(app.get("plotly_chart"))
    press(app, "against draft tokens k")
    assert not known(app).warnings
    assert len(app.get("plotly_chart")) == before + 1
    (command,) = [each.value for each in app.code if each.value.startswith("draftcast cutover")]
    assert command.endswith("--over rate --metric e2e --map k --budget 900000")


def test_a_metric_that_needs_an_slo_is_offered_with_one() -> None:
    app = open_page(CUTOVER)
    assert "slo_goodput" not in app.selectbox(key=f"control:{View.CUTOVER_METRIC}").options
    bad = open_page({**CUTOVER, View.CUTOVER_METRIC: "slo_goodput"})
    assert any(text.startswith(View.CUTOVER_METRIC) for text in told(bad.warning))


def test_without_speculation_there_is_nothing_to_look_for() -> None:
    app = open_page({"page": "cutover", "engine.speculative_config": "null"})
    known(app)
    assert "Speculation is off" in app.info[0].value
    assert len(app.get("plotly_chart")) == 1


def test_more_drafts_move_along_the_roofline() -> None:
    scenario = load_scenario(overrides=["workload.num_requests=150", "statistics.replications=2"])
    deployment, run = deploy(scenario), simulate(scenario)
    tracks = operating_tracks(scenario, deployment, run)
    assert min(tracks) == 1
    for points in tracks.values():
        assert [point.k for point in points] == list(range(8))
        intensities = [point.intensity for point in points]
        assert intensities == sorted(intensities)
    drawn = roofline_figure(deployment.profile.hardware, scenario.engine.weight_dtype, tracks)
    assert len(drawn.data) == 1 + len(tracks)
    first = next(iter(tracks.values()))
    assert drawn.data[1].x[3] == pytest.approx(first[3].intensity, rel=1e-3)
    width = math.log10(drawn.data[0].x[-1] / drawn.data[0].x[0]) / 300  # decades a pixel on a phone
    for line in drawn.data[1:]:
        labelled = [math.log10(x) / width for x, text in zip(line.x, line.text, strict=True) if text]
        assert labelled
        assert all(later - earlier > 8 for earlier, later in pairwise(labelled))  # a digit takes 7


def test_a_link_that_asks_without_the_button_is_told() -> None:
    app = open_page({**CUTOVER, View.CUTOVER_ASKED: "yes"})
    (warning,) = told(app.warning)
    assert warning.startswith(f"{View.CUTOVER_ASKED}: 'yes': must be the 12 hexadecimal digits that its button writes")
    assert View.CUTOVER_ASKED not in app.query_params
