"""Compare without a browser: pairs, the reference, measured runs by upload, what a link carries."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("streamlit")
from app_pages import SMALL, html_of, known, open_page, told
from bench_results import BENCH, bench_file
from streamlit.testing.v1 import AppTest

from draftcast.calibration.live.imported_runs import import_bench_result
from draftcast.dashboards.pages import compare
from draftcast.dashboards.session.link import link_of
from draftcast.dashboards.session.session import MOST_RUNS, ScenarioPair, Session, View
from draftcast.dashboards.session.uploads import MEASURED, receive
from draftcast.scenarios.run.measured_run import read_measured_run
from draftcast.scenarios.run.simulate import simulate_together
from draftcast.scenarios.schema.load import load_scenario, with_values, without_speculation

COMPARE = {"page": "compare"}


def cells(app: AppTest) -> list[tuple[str, str, str]]:
    """Verdict, difference and what is compared of every difference on the page."""
    html = html_of(app)
    found = re.findall(r"data-against='(\w)' data-verdict='([^']+)' data-difference='([^']+)'", html)
    return [(against, verdict, value) for against, verdict, value in found]


def test_a_run_alone_asks_for_another() -> None:
    app = open_page(COMPARE)
    known(app)
    assert "Add a run to compare with" in app.info[0].value
    assert cells(app) == []


def test_a_run_beside_itself_differs_in_nothing() -> None:
    app = open_page(COMPARE)
    next(button for button in app.button if button.label == "Add the same run").click().run()
    assert len(known(app).runs) == 1
    found = cells(app)
    assert len(found) >= 10
    assert {(verdict, float(value)) for _, verdict, value in found} == {("cannot tell", 0.0), ("as offered", 0.0)}
    assert app.query_params["run"] == json.dumps(SMALL)


def test_differences_are_paired_and_turn_with_the_reference() -> None:
    app = open_page(COMPARE)
    next(button for button in app.button if button.label == "Add it with speculation off").click().run()
    asked = known(app).question.scenario
    on, off = simulate_together([asked, without_speculation(asked)])
    gap = sum(a["p50_tpot_s"] - b["p50_tpot_s"] for a, b in zip(off.replications, on.replications, strict=True)) / 2
    values = [float(value) for _, _, value in cells(app)]
    assert any(value == pytest.approx(gap, rel=1e-9) for value in values)
    app.selectbox(key=f"control:{View.COMPARE_REFERENCE}").set_value("B").run()
    turned = [float(value) for against, _, value in cells(app) if against == "B"]
    assert any(value == pytest.approx(-gap, rel=1e-9) for value in turned)
    assert app.query_params[View.COMPARE_REFERENCE] == "B"
    next(button for button in app.button if button.label == "Remove B").click().run()
    assert known(app).runs == []
    assert View.COMPARE_REFERENCE not in app.query_params


def test_a_link_with_too_many_runs_says_so() -> None:
    crowded = open_page({**COMPARE, "run": [json.dumps(SMALL)] * 7})
    assert len(known(crowded).runs) == MOST_RUNS - 1
    assert any("at most 6 runs" in each.value for each in crowded.warning)


def test_a_bench_result_stands_beside_the_simulation(alone: Session, tmp_path: Path) -> None:
    receipt = receive(alone, MEASURED, {"my bench.json": json.dumps(BENCH).encode()})
    assert receipt.good, receipt.text
    assert alone.measured == ["my_bench.json"]
    assert receipt.text == "my_bench.json: 2, 1 req/s sent"
    assert link_of(alone)["measured"] == ["my_bench.json"]
    assert receive(alone, MEASURED, {"my bench.json": json.dumps(BENCH).encode()}).good
    assert len(alone.measured) == 1


def test_a_live_run_directory_is_taken_whole(alone: Session, tmp_path: Path) -> None:
    import_bench_result(bench_file(tmp_path), tmp_path / "run", name="on a")
    files = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    receipt = receive(alone, MEASURED, files)
    assert receipt.good, receipt.text
    assert alone.measured[0].startswith("on_a-")
    assert alone.measured_folder(alone.measured[0]).parent == alone.path


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"bench.json": b"{"}, "bench.json:1: not valid JSON"),
        ({"bench.json": b"{}"}, "input_lens"),
        ({"a.json": b"{}", "b.json": b"{}"}, "give one result of vllm bench serve"),
        ({"manifest.json": b"{}"}, "not the manifest of a live run"),
        ({"manifest.json": b"["}, "manifest.json:1: not valid JSON"),
        ({"bench.json": json.dumps(BENCH | {"ttfts": [0.2, "x", 0.0]}).encode()}, "request 1"),
    ],
)
def test_a_bad_measured_run_leaves_nothing(alone: Session, files: dict[str, bytes], said: str) -> None:
    receipt = receive(alone, MEASURED, files)
    assert not receipt.good
    assert said in receipt.text
    assert str(alone.path) not in receipt.text
    assert alone.measured == []
    assert not [path for path in alone.path.iterdir() if path.is_dir()]


def test_a_link_to_a_measured_run_asks_for_it_again() -> None:
    app = open_page(COMPARE | {"measured": "gone.json"})
    assert known(app).measured == ["gone.json"]
    assert any("Upload gone.json: neither a link nor" in text for text in told(app.error))
    next(button for button in app.button if button.label == "Remove B").click().run()
    assert known(app).measured == []
    bad = open_page(COMPARE | {"measured": "../etc"})
    assert any(text.startswith("measured = '../etc'") for text in told(bad.warning))


def test_another_question_keeps_what_was_kept() -> None:
    app = open_page(COMPARE)
    next(button for button in app.button if button.label == "Add the same run").click().run()
    app.number_input(key="control:statistics.seed").set_value(9).run()
    kept = known(app).runs[0].scenario
    assert kept.statistics.seed == load_scenario().statistics.seed
    html = html_of(app)
    assert "<td>Seed</td>" in html


@pytest.mark.parametrize(
    "changes",
    [
        {"workload.arrivals.request_rate_rps": 16.0},
        {"workload.num_requests": 120},
        {"statistics.seed": 9},
        {"statistics.replications": 3},
    ],
)
def test_runs_of_other_requests_are_not_paired(changes: dict[str, object]) -> None:
    app = open_page(COMPARE)
    next(button for button in app.button if button.label == "Add the same run").click().run()
    assert any(text.startswith("Paired by replication with A: B (") for text in told(app.caption))
    known(app).change(lambda: changes)
    app.run()
    assert not any("Paired by" in text for text in told(app.caption))
    assert any(text.startswith("Not paired with A: B (another load") for text in told(app.caption))
    assert {verdict for _, verdict, _ in cells(app)} <= {"cannot tell", "as offered"}
    assert " to " not in "".join(re.findall(r"data-difference='[^']+' title='([^']+)'", html_of(app)))


@pytest.mark.parametrize(
    ("run", "said", "runs"),
    [
        ({"scenario": "nothing"}, "run: scenario = 'nothing': unknown scenario; choose from azure", 0),
        ({"engine.block_size": "-1"}, "run: engine.block_size = -1: must be at least 1", 1),
    ],
)
def test_a_bad_run_in_a_link_is_named(run: dict[str, str], said: str, runs: int) -> None:
    app = open_page(COMPARE | {"run": json.dumps(SMALL | run)})
    assert len(known(app).runs) == runs
    (warning,) = told(app.warning)
    assert warning.startswith(said)
    assert warning.endswith("left out")


def test_measured_runs_are_given_one_after_another(tmp_path: Path) -> None:
    app = open_page(COMPARE)
    for name in ("a.json", "b.json"):
        uploader = next(each for each in app.get("file_uploader") if each.label == "Upload a measured run")
        assert not uploader.value  # a browser's uploader adds to the files that it holds
        uploader.set_value([(name, json.dumps(BENCH).encode(), "application/json")]).run()
    assert known(app).measured == ["a.json", "b.json"]
    # Drafts were counted, and one simulated run has nothing to differ from.
    assert html_of(app).count("speculation on, setting not recorded") == 2
    assert "the simulated runs ask the same" not in html_of(app)


def test_a_reference_that_waits_for_its_file_stays_the_reference() -> None:
    trace = {"workload.arrivals": '{"process": "trace", "path": "upload:gone.csv"}', "workload.lengths": "null"}
    link = COMPARE | {"run": [json.dumps(SMALL | trace), json.dumps(SMALL)], View.COMPARE_REFERENCE: "B"}
    app = open_page(link)
    assert not known(app).warnings
    assert app.query_params[View.COMPARE_REFERENCE] == "B"
    assert any("Upload gone.csv on Start" in text for text in told(app.error))
    assert any("Until B is available, the others are compared with A." in each.value for each in app.info)
    assert {against for against, _, _ in cells(app)} == {"A"}
    (known(app).path / "gone.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"2023-11-16 18:15:{i:02},100,20\n" for i in range(40))
    )
    app.run()
    assert {against for against, _, _ in cells(app)} == {"B"}


def test_a_bad_measured_run_leaves_the_good_one_of_its_name(alone: Session) -> None:
    good = json.dumps(BENCH).encode()
    assert receive(alone, MEASURED, {"bench.json": good}).good
    figures = read_measured_run(alone.measured_folder("bench.json")).figures
    for bad in (b"{}", json.dumps(BENCH | {"ttfts": [0.2, "x", 0.0]}).encode()):
        assert not receive(alone, MEASURED, {"bench.json": bad}).good
        assert read_measured_run(alone.measured_folder("bench.json")).figures == figures
    assert (alone.path / "bench.json").read_bytes() == good
    assert len(list(alone.path.iterdir())) == 2


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "as A"),
        ({"engine.speculative_config": None}, "SD off"),
        ({"engine.speculative_config.num_speculative_tokens": 2, "engine.max_num_seqs": 64}, "eagle3 k=2, batch=64"),
        ({"workload.arrivals.request_rate_rps": 16.0, "statistics.seed": 9, "hardware": "l4"}, "hardware=l4, rate=16"),
        ({"acceptance": {"model": "constant", "alpha": 0.6}}, "acceptance=constant 0.6"),
        ({"workload.arrivals": {"process": "closed_loop", "concurrency": 16}}, "arrivals=closed_loop 16"),
        ({"slo": {"ttft_ms": 200.0}}, "slo"),
        ({"workload.lengths": {"path": "/tmp/mine.csv"}}, "lengths.path=/tmp/mine.csv"),
    ],
)
def test_a_run_is_named_by_what_it_changes(changes: dict[str, object], name: str) -> None:
    question = ScenarioPair.opening("default")
    changed = ScenarioPair("default", with_values(question.scenario, changes))
    assert compare.about(question, changed).startswith(name)
    assert ("and 1 more" in compare.about(question, changed)) == (len(changes) > 2)


def test_a_run_of_another_scenario_is_named_by_it() -> None:
    runs = [ScenarioPair.opening(name) for name in ("default", "ngram-code-editing")]
    assert compare.about(*runs) == "ngram-code-editing, ngram k=5"
