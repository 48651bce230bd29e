"""Published results: the cases hide no assumption, the forecast is the simulator's, the docs show what it says."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from paths import ROOT
from typer.testing import CliRunner

from draftcast import simulate
from draftcast.errors import InputError, ScenarioError
from draftcast.scenarios.cli.main import app
from draftcast.scenarios.compare.candidate import alpha_of
from draftcast.scenarios.evidence.cases import PublishedCase, parse_case, published_cases
from draftcast.scenarios.evidence.forecast import forecast_case, point_scenario
from draftcast.scenarios.schema.load import without_speculation
from draftcast.scenarios.show.published_report import COLUMNS, HEAD, published_text

CASES = published_cases()
run = CliRunner().invoke


def case_with(**changes: Any) -> PublishedCase:
    """A small case: one request at a time, half of its drafts accepted."""
    data: dict[str, Any] = {
        "schema_version": 1,
        "title": "Small",
        "source": "this test",
        "url": "",
        "engine_version": "any",
        "metric": "tpot",
        "scenario": {
            "engine": {"model": "Llama-3.1-8B", "speculative_config": {"method": "eagle", "num_speculative_tokens": 1}},
            "hardware": "h100-sxm",
            "workload": {
                "arrivals": {"process": "closed_loop", "concurrency": 1},
                "num_requests": 20,
                "lengths": {"prompt_tokens": 64, "output_tokens": 64},
            },
            "acceptance": {"model": "constant", "alpha": 0.5},
            "statistics": {"replications": 2},
        },
        "given": {"engine": "as it is", "hardware": "as it is"},
        "assumed": {"workload": "as it is", "acceptance": "half"},
        "points": [{"label": "one", "published": 1.5}],
    }
    return parse_case(yaml.safe_dump({**data, **changes}), "small.yaml")


@pytest.mark.parametrize("name", CASES)
def test_every_bundled_case_can_be_asked(name: str) -> None:
    case = CASES[name]
    assert case.url.startswith("https://") or name == "opt-2.7b"
    for point in case.points:
        scenario = point_scenario(case, point)
        assert scenario.statistics.warmup == "none"  # a finite run, measured as the source measured: over all requests
        assert scenario.speculative_config is not None
        if point.without_sd is not None and point.with_sd is not None:
            pair = (point.without_sd, point.with_sd)
            ratio = pair[1] / pair[0] if case.metric == "throughput" else pair[0] / pair[1]
            assert point.bounds[0] == pytest.approx(ratio, abs=0.011)  # the sources round to two digits


def test_the_published_numbers_are_those_of_the_issue() -> None:
    numbers = {(name, p.label): p.published for name, case in CASES.items() for p in case.points}
    assert numbers["vllm-blog-draft-model", "QPS 1"] == 1.5
    assert numbers["vllm-blog-draft-model", "high QPS"] == pytest.approx(1 / 1.4, abs=1e-3)
    assert numbers["vllm-blog-ngram", "QPS 1"] == 2.8
    assert numbers["vllm-blog-ngram", "high QPS"] == pytest.approx(1 / 1.8, abs=1e-3)
    assert numbers["opt-2.7b", "k = 5"] == 1.35
    assert numbers["arctic-inference", "k = 3"] == (2.05, 2.45)
    assert numbers["specdecode-bench-gsm8k", "batch 128"] == 1.21
    assert numbers["vllm-pr-16937", "EAGLE-3, k = 2"] == 1.65


def test_a_key_that_is_neither_given_nor_assumed_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"small\.yaml: .*acceptance\.\w+.*neither given nor assumed"):
        case_with(assumed={"workload": "as it is"})
    with pytest.raises(ScenarioError, match="neither given nor assumed"):
        case_with(points=[{"label": "one", "published": 1.5, "set": {"cluster.replicas": 2}}])
    said = {"label": "one", "published": 1.5, "set": {"cluster.replicas": 2}, "assumed": {"cluster": "two"}}
    case = case_with(points=[said])
    assert case.assumptions(case.points[0]) == {"workload": "as it is", "acceptance": "half", "cluster": "two"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"points": [{"label": "one", "published": 1.5, "over": "none"}]}, "no such point; there are one"),
        ({"points": [{"label": "one", "published": -1}]}, "points.0.published"),
        ({"metric": "luck"}, "metric"),
        ({"colour": 1}, "unknown key"),
    ],
)
def test_a_bad_case_names_file_and_key(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=r"^small\.yaml: ") as caught:
        case_with(**changes)
    assert said in str(caught.value)


def test_the_forecast_is_the_simulator_s_ratio() -> None:
    case = case_with(points=[{"label": "one", "published": 1.2}, {"label": "two", "published": [1.1, 3.0]}])
    first, second = forecast_case("small", case)
    scenario = point_scenario(case, case.points[0])
    on, off = simulate(scenario), simulate(without_speculation(scenario))
    assert (on.state, off.state) == ("finite", "finite")
    assert [r["completed"] for r in on.replications] == [20, 20]
    means = [r.summary["figures"]["mean_tpot_s"].mean for r in (off, on)]
    assert first.forecast.mean == pytest.approx(means[0] / means[1])
    assert (first.without_sd, first.with_sd) == pytest.approx((means[0] * 1e3, means[1] * 1e3), rel=1e-12)
    assert first.unit == "ms"
    assert first.error == pytest.approx(first.forecast.mean / 1.2 - 1)
    assert first.error_low < first.error < first.error_high
    assert second.error == 0.0  # inside the published range
    assert first.mean_acceptance_length == pytest.approx(1.5, abs=0.1)


def test_throughput_over_another_point() -> None:
    more = {"workload.arrivals.concurrency": 64, "workload.num_requests": 300}
    points = [
        {"label": "alone", "published": None},
        {"label": "many", "published": 1.0, "over": "alone", "set": more},
        {"label": "many alone", "published": 1.0, "set": more},
        {"label": "alone again", "published": 1.0},
    ]
    ratio, many, alone = forecast_case("small", case_with(metric="throughput", points=points))
    assert ratio.forecast.mean == pytest.approx(many.forecast.mean / alone.forecast.mean, rel=1e-3)
    assert alone.without_sd < many.without_sd  # tokens a second


def test_a_mean_acceptance_length_becomes_a_probability() -> None:
    assert alpha_of(1.5, 1) == pytest.approx(0.5)
    assert alpha_of(1 + 0.5 + 0.25 + 0.125, 3) == pytest.approx(0.5)
    point = {"label": "one", "published": 1.0, "mean_acceptance_length": 1.75, "set": {}}
    case = case_with(points=[{**point, "set": {"engine.speculative_config.num_speculative_tokens": 2}}])
    acceptance = point_scenario(case, case.points[0]).acceptance
    assert acceptance is not None
    assert acceptance.model_dump(exclude_none=True) == {"model": "constant", "alpha": pytest.approx(0.5)}


def docs_rows() -> list[dict[str, str]]:
    """The table of docs/published.md."""
    text = (ROOT / "docs" / "published.md").read_text("utf-8")
    assert text.startswith(HEAD)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert tuple(cells[0]) == COLUMNS
    return [dict(zip(COLUMNS, row, strict=True)) for row in cells[2:]]


def test_the_docs_hold_every_case_and_no_other_inputs() -> None:
    shown = [(row["case"], row["point"], row["published"]) for row in docs_rows()]
    points = [(case.title, point) for case in CASES.values() for point in case.points if point.published is not None]
    assert shown == [(title, point.label, published_text(point)) for title, point in points]
    text = (ROOT / "docs" / "published.md").read_text("utf-8")
    for case in CASES.values():
        assert f"## {case.title}\n\n{case.source}; {case.engine_version}.\n" in text
        for key, said in {**case.given, **case.assumed}.items():
            assert f"- `{key}`: {said}" in text
        assert " ".join(case.explanation.split()) in text


def test_the_command_says_what_the_docs_show() -> None:
    result = run(app, ["published", "opt-2.7b", "vllm-pr-16937"])
    assert result.exit_code == 0
    assert "opt-2.7b with opt-125m: assumed engine.async_scheduling, hardware" in result.stdout
    assert "of 5 forecasts within 10%" in result.stdout
    answer = json.loads(run(app, ["published", "opt-2.7b", "--json"]).stdout)
    (forecast,) = answer["forecasts"]
    assert forecast["published"] == 1.35
    assert forecast["forecast"]["low"] < forecast["forecast"]["mean"]
    assert "acceptance" in forecast["assumed"]
    assert answer["cases"]["opt-2.7b"]["explanation"]
    (row,) = [row for row in docs_rows() if row["case"] == forecast["title"]]
    shown = re.match(r"[\d.]+", row["forecast"])
    assert shown is not None
    # A change of the engine or a profile that moves this by more asks for a new page: the command stands in its head.
    assert float(shown[0]) == pytest.approx(forecast["forecast"]["mean"], rel=0.02)


def test_an_unknown_case_is_one_line() -> None:
    result = run(app, ["published", "no-such-case"])
    assert isinstance(result.exception, InputError)
    assert "there are arctic-inference" in str(result.exception)
