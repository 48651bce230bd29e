"""The pages' logic without a browser: state, links, uploads, what is refused, what the command line gives."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("streamlit")
from app_pages import APP, SMALL, WAIT_S, control_of, html_of, known, open_page, sent_by_browser, told
from samples import SHORT_REQUESTS
from streamlit.delta_generator import DeltaGenerator
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from draftcast.dashboards import start
from draftcast.dashboards.session import answers
from draftcast.dashboards.session.link import link_of, read_link
from draftcast.dashboards.session.session import NUM_REQUESTS, ScenarioPair, Session, check_names
from draftcast.dashboards.session.uploads import SCENARIO, TRACE, UploadResult, keep, receive
from draftcast.dashboards.widgets import verdict_card
from draftcast.dashboards.widgets.controls import label_of
from draftcast.dashboards.widgets.page import Report
from draftcast.errors import InputError
from draftcast.scenarios.cli import main as cli
from draftcast.scenarios.compare.capacity import settling_requests
from draftcast.scenarios.run.choices import OFF
from draftcast.scenarios.schema.load import dump_scenario, load_scenario, scenario_hash, to_mapping


def take_scenario(session: Session, name: str, content: bytes) -> UploadResult:
    return receive(session, SCENARIO, {name: content})


def take_trace(session: Session, name: str, content: bytes) -> UploadResult:
    return receive(session, TRACE, {name: content})


K = "control:engine.speculative_config.num_speculative_tokens"


def test_a_page_opens_with_a_quick_run_and_an_empty_link() -> None:
    app = AppTest.from_file(str(APP), default_timeout=WAIT_S).run()
    asked = known(app).question.scenario
    assert (asked.workload.num_requests, asked.statistics.replications) == (2000, 4)
    assert dict(app.query_params) == {}


def test_a_control_changes_the_question_and_the_link() -> None:
    app = open_page()
    app.slider(key=K).set_value(2).run()
    assert known(app).question.scenario.num_speculative_tokens == 2
    assert dict(app.query_params) == {**SMALL, K.removeprefix("control:"): "2"}


def test_k_of_zero_is_off_and_the_method_comes_back_with_its_acceptance() -> None:
    app = open_page()
    app.selectbox(key="control:method").set_value("ngram").run()
    app.text_input(key="control:acceptance.of.ngram").set_value("0.5, 0.4, 0.2").run()
    draft_length = K.removeprefix("control:")
    control_of(app, app.slider, draft_length).set_value(0).run()
    assert known(app).question.scenario.speculative_config is None
    control_of(app, app.slider, draft_length).set_value(8).run()
    found = known(app).question.scenario
    assert (found.method, found.num_speculative_tokens) == ("ngram", 8)
    assert found.acceptance.rates == (0.5, 0.4, 0.2)  # type: ignore[union-attr]
    (strip,) = [each.proto.body for each in app.get("html") if "<div class='dc-ks'" in each.proto.body]
    assert "acceptance was given for 3" in strip
    # Of a link that opens without speculation it is the scenario's own.
    app = open_page({"engine.speculative_config": "null"})
    app.slider(key=K).set_value(2).run()
    assert dict(app.query_params) == {**SMALL, K.removeprefix("control:"): "2"}


def test_the_length_of_a_run_follows_the_load_until_the_reader_gives_one() -> None:
    app = AppTest.from_file(str(APP), default_timeout=WAIT_S)
    app.query_params["workload.arrivals.request_rate_rps"] = "55"
    app.run()
    asked = known(app).question
    needed = settling_requests(asked.scenario)
    assert asked.scenario.workload.num_requests == needed > 2000
    assert dict(app.query_params) == {"workload.arrivals.request_rate_rps": "55"}
    assert f"workload.num_requests={needed}" in asked.command("simulate")
    assert control_of(app, app.number_input, NUM_REQUESTS).value == needed
    app.number_input(key="control:workload.arrivals.request_rate_rps").set_value(10.0).run()
    assert known(app).question.scenario.workload.num_requests == 2000
    # A number that is given stands, also where it is the default, and in the link.
    control_of(app, app.number_input, NUM_REQUESTS).set_value(400).run()
    app.number_input(key="control:workload.arrivals.request_rate_rps").set_value(55.0).run()
    assert known(app).question.scenario.workload.num_requests == 400
    control_of(app, app.number_input, NUM_REQUESTS).set_value(2000).run()
    assert known(app).question.scenario.workload.num_requests == 2000
    assert app.query_params["workload.num_requests"] == "2000"


def test_a_refused_change_changes_nothing_and_says_so() -> None:
    app = open_page()
    before = known(app).question
    app.text_input(key="control:other").set_value("engine.block_size=-1").run()
    assert known(app).question == before
    assert "engine.block_size = -1: must be at least 1" in told(app.error)[0]
    app.text_input(key="control:other").set_value("engine.block_size=32").run()
    assert known(app).question.scenario.engine.block_size == 32
    assert not app.error


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("engine.max_num_sequences", "8", "did you mean max_num_seqs?"),
        ("engine.speculative_config.num_speculative_tokens", "99", "must be at most 64"),
        ("page", "nowhere", "choose from start, what-if, cutover"),
        ("scenario", "nothing", "choose from azure-conversation"),
        ("baseline", "{", "not a run of this dashboard"),
        ("policy.name", "os:system", "no other file or code"),
        ("engine.model", "/etc/passwd", "no other file or code"),
        ("workload.lengths", "{path: /etc/passwd}", "no other file or code"),
        ("acceptance", "[", "not valid YAML"),
    ],
)
def test_a_bad_link_names_its_key_and_the_page_stands(key: str, value: str, said: str) -> None:
    app = open_page({key: value, "statistics.seed": "5"})
    asked = known(app).question
    (warning,) = [each for each in told(app.warning) if each.startswith(key.partition(" ")[0])]
    assert said in warning
    assert "left out" in warning or key == "scenario"
    assert key not in app.query_params
    assert asked.scenario.statistics.seed == 5
    assert asked.scenario.num_speculative_tokens == 3
    assert not app.error


@pytest.mark.parametrize(
    "changes",
    [
        {"engine.speculative_config": "null"},
        {"acceptance": '{"model": "constant", "alpha": 0.6}', "workload.arrivals.request_rate_rps": "12.5"},
        {"scenario": "ngram-code-editing", "slo": '{"ttft_ms": 200.0, "attainment": 0.9}'},
    ],
)
def test_a_link_says_what_it_was_made_of(alone: Session, changes: dict[str, str]) -> None:
    read_link(alone, {key: [value] for key, value in changes.items()})
    assert not alone.warnings
    assert link_of(alone) == {key: [value] for key, value in changes.items()}


def test_a_link_carries_the_baseline_and_the_runs(alone: Session) -> None:
    alone.baseline = alone.question
    alone.change(lambda: {"statistics.seed": 4})
    alone.runs = [alone.question, alone.baseline]
    link = link_of(alone)
    other = Session(alone.baseline)
    read_link(other, link)
    assert (other.question, other.baseline, other.runs) == (alone.question, alone.baseline, alone.runs)


def test_an_uploaded_scenario_keeps_its_hash(alone: Session) -> None:
    asked = load_scenario("closed-loop-classes", overrides=["statistics.seed=7"])
    receipt = take_scenario(alone, "../my scenario.yaml", dump_scenario(asked).encode())
    assert receipt.good, receipt.text
    assert scenario_hash(alone.question.scenario) == scenario_hash(asked)
    assert [path.name for path in alone.path.iterdir()] == ["my_scenario.yaml"]
    link = link_of(alone)
    other = Session(alone.question)
    read_link(other, link)
    assert scenario_hash(other.question.scenario) == scenario_hash(asked)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema_version: 1\nengine: {model: llama-3.1-8b}\n", "bad.yaml: hardware: required"),
        ("a: !!python/object/apply:os.system [id]\n", "not valid YAML"),
        ("a: 1\na: 2\n", "bad.yaml:2: a: duplicate key"),
    ],
)
def test_a_bad_scenario_is_told_by_line_or_key(alone: Session, text: str, said: str) -> None:
    before = alone.question
    receipt = take_scenario(alone, "bad.yaml", text.encode())
    assert not receipt.good
    assert said in receipt.text
    assert str(alone.path) not in receipt.text
    assert alone.question == before


def test_an_upload_reaches_no_file_of_the_server(alone: Session, tmp_path: Path) -> None:
    secret = tmp_path / "trace.csv"
    secret.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,10,20\n")
    asked = load_scenario("azure-conversation", overrides=[f"workload.arrivals.path={secret}"])
    receipt = take_scenario(alone, "s.yaml", dump_scenario(asked).encode())
    assert not receipt.good
    assert "workload.arrivals.path" in receipt.text
    assert "no other file or code" in receipt.text


def test_uploads_have_a_limit(alone: Session) -> None:
    receipt = take_scenario(alone, "big.yaml", b"#" * (2**20 + 1))
    assert not receipt.good
    assert "larger than the 1 MB" in receipt.text
    assert list(alone.path.iterdir()) == []


def test_a_trace_is_served_and_named_in_the_command(alone: Session) -> None:
    rows = "".join(f"2023-11-16 18:15:{second:02d},100,{50 + second}\n" for second in range(40))
    receipt = take_trace(alone, "my trace.csv", f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}".encode())
    assert receipt.text.startswith("my_trace.csv: 40 requests over 39 s; mean prompt 100, mean output 70 tokens")
    # A list that ends, as on the command line.
    assert alone.question.scenario.workload.num_requests is None
    assert answers.answer(alone.question.scenario).run.state == "finite"
    command = alone.question.command("simulate")
    assert '"path": "my_trace.csv"' in command
    assert str(alone.path) not in command
    link = link_of(alone)
    assert "upload:my_trace.csv" in link["workload.arrivals"][0]
    corrupt = take_trace(alone, "bad.csv", b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,ten,20\n")
    assert not corrupt.good
    assert corrupt.text.startswith("bad.csv:2: ContextTokens = 'ten'")


def test_of_a_long_trace_the_beginning_is_served(alone: Session) -> None:
    rows = "".join(f"2023-11-16 18:{i // 60:02}:{i % 60:02},100,20\n" for i in range(2001))
    take_trace(alone, "long.csv", f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}".encode())
    assert alone.question.scenario.workload.num_requests == 2000


def test_what_is_cut_of_a_trace_stands_on_every_page(tmp_path: Path) -> None:
    rows = "".join(f"2023-11-16 18:{i // 60:02}:{i % 60:02},{9000 if i < 3 else 100},20\n" for i in range(200))
    app = open_page()
    session = known(app)
    receipt = take_trace(session, "long.csv", f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}".encode())
    clipped = "clipped 3 of 200 requests longer than max_model_len 8192"
    assert receipt.text.endswith(f"{clipped}.")
    app.run()
    assert told(app.warning) == [clipped]
    session.change(lambda: {"workload.num_requests": 150})
    session.go("sweep")
    app.run()
    served = "long.csv: the first 150 of its 200 requests are served"
    assert told(app.warning) == [served, clipped.replace("200", "150")]
    session.change(lambda: {"workload.num_requests": 200, "engine.max_model_len": 16384})
    app.run()
    assert not app.warning


def test_files_to_take_away_name_an_upload_by_its_own_name_and_open_again(
    alone: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,100,20\n2023-11-16 18:15:47,100,20\n"
    take_trace(alone, "mine.csv", trace)
    asked, place = alone.question, f"{alone.path}/mine.csv"
    made: dict[str, Callable[[], bytes]] = {}
    monkeypatch.setattr("streamlit.container", lambda **_: nullcontext())
    monkeypatch.setattr("streamlit.download_button", lambda label, make, **_: made.update({label: make}))
    report = Report(alone, DeltaGenerator(), title=place, lines=[place])
    report.downloads("run", pd.DataFrame, lambda: {"notes": [place]})
    for label in ("JSON", "Scenario YAML", "HTML report"):
        content = made[label]()
        assert b"mine.csv" in content, label
        assert str(alone.path).encode() not in content, label
    assert take_scenario(alone, "again.yaml", made["Scenario YAML"]()).good
    assert scenario_hash(alone.question.scenario) == scenario_hash(asked.scenario)
    assert alone.missing_of(alone.question) == []
    # In a session without that file the page asks for it.
    other = made["Scenario YAML"]().replace(b"mine.csv", b"other.csv")
    assert take_scenario(alone, "other.yaml", other).good
    assert alone.missing_of(alone.question) == ["other.csv"]


def test_a_link_to_an_upload_of_another_session_says_so(alone: Session) -> None:
    arrivals = json.dumps({"process": "trace", "path": "upload:gone.csv"})
    read_link(alone, {"workload.arrivals": [arrivals], "workload.lengths": ["null"]})
    assert not alone.warnings
    assert alone.missing_of(alone.question) == ["gone.csv"]
    (alone.path / "gone.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    assert alone.missing_of(alone.question) == []


def test_sessions_do_not_see_each_other() -> None:
    first, second = open_page(), open_page()
    first.slider(key=K).set_value(1).run()
    second.slider(key=K).set_value(2).run()
    first.run()
    assert known(first).question.scenario.num_speculative_tokens == 1
    assert known(second).question.scenario.num_speculative_tokens == 2
    assert known(first).path != known(second).path


@pytest.mark.parametrize(
    "change",
    [
        {"control:method": "off"},
        {"control:acceptance.model": "constant"},
        {"control:workload.arrivals.process": "closed_loop"},
        {"control:hardware": "mi300x"},
        {"control:engine.model": "Qwen3-8B"},
        {"control:scenario": "closed-loop-classes"},
        {"control:scenario": "azure-conversation"},
    ],
)
def test_every_choice_leaves_a_page(change: dict[str, str]) -> None:
    app = open_page()
    before = scenario_hash(known(app).question.scenario)
    for key, value in change.items():
        app.selectbox(key=key).set_value(value).run()
    assert scenario_hash(known(app).question.scenario) != before
    assert not known(app).refused
    said = [each.value for each in app.error]
    # The recorded trace is not part of the package: the page stands and says what is missing.
    assert bool(said) == (change == {"control:scenario": "azure-conversation"}), said


def test_another_method_asks_for_its_acceptance_before_it_is_forecast() -> None:
    app = open_page()
    asked = known(app).question
    app.selectbox(key="control:method").set_value("ngram").run()
    # Nothing is forecast with the acceptance of EAGLE-3, and nothing has changed yet.
    assert known(app).question == asked
    assert "Give the acceptance of ngram" in app.info[0].value
    assert not [each for each in app.get("html") if "data-verdict" in each.proto.body]
    field = app.text_input(key="control:acceptance.of.ngram")
    assert field.value == ""
    field.set_value("0.5, 0.6").run()
    assert "unconditional rates never rise" in app.error[0].value
    assert known(app).wanted_method == "ngram"
    app.text_input(key="control:acceptance.of.ngram").set_value("0.5, 0.4, 0.2").run()
    found = known(app).question.scenario
    assert (found.method, found.acceptance.rates) == ("ngram", (0.5, 0.4, 0.2))  # type: ignore[union-attr]
    assert not app.error
    assert [each for each in app.get("html") if "data-verdict" in each.proto.body]
    link = dict(app.query_params)
    assert "acceptance.rates" in " ".join(link)
    again = open_page({key: value[0] if isinstance(value, list) else value for key, value in link.items()})
    assert known(again).question == known(app).question
    # The scenario's own method comes back with its own acceptance.
    app.selectbox(key="control:method").set_value("eagle3").run()
    assert known(app).question.scenario.acceptance == asked.scenario.acceptance


def test_a_method_that_waits_is_forgotten_with_the_page() -> None:
    app = open_page()
    app.selectbox(key="control:method").set_value("suffix").run()
    known(app).go("cutover")
    assert known(app).wanted_method == ""
    assert known(app).question.scenario.method == "eagle3"


def test_a_link_with_another_method_needs_its_acceptance(alone: Session) -> None:
    method, acceptance = '{"method": "ngram", "num_speculative_tokens": 3}', '{"model": "constant", "alpha": 0.5}'
    read_link(alone, {"engine.speculative_config": [method], "statistics.seed": ["4"]})
    (warning,) = alone.warnings
    assert warning.startswith("engine.speculative_config: ")
    assert "was given for eagle3, and the method is now ngram" in warning
    assert (alone.question.scenario.method, alone.question.scenario.statistics.seed) == ("eagle3", 4)
    # With it the link holds, and what else is wrong in it takes neither away.
    link = {"engine.speculative_config": [method], "acceptance": [acceptance], "policy.name": ["os:system"]}
    read_link(alone, link)
    assert [warning.partition(" = ")[0] for warning in alone.warnings] == ["policy.name"]
    assert alone.question.scenario.method == "ngram"


def test_the_page_gives_the_figures_of_the_command_it_shows() -> None:
    app = open_page({"engine.speculative_config.num_speculative_tokens": "2", "statistics.seed": "3"})
    asked = known(app).question
    command = asked.command("simulate", "--json")
    assert command.startswith("draftcast simulate default --set ")
    figures = json.loads(CliRunner().invoke(cli.app, [*command.split()[1:]]).stdout)["figures"]
    tiles = html_of(app)
    for name in ("p50_ttft_s", "p95_tpot_s", "p99_e2el_s", "mean_acceptance_length"):
        assert f"data-figure='{name}' data-value='{figures[name]['mean']!r}'" in tiles


def test_names_from_outside_are_those_of_the_base_alone() -> None:
    base = load_scenario("azure-conversation")
    check_names(base, "azure-conversation", Path("/nowhere"))
    with pytest.raises(InputError, match=r"workload\.arrivals\.path"):
        check_names(base, "default", Path("/nowhere"))


HOSTILE = "![x](http://example.org/a.png) `a` $x$ :red[b] <b>"


def test_text_of_links_uploads_and_names_is_shown_as_it_is() -> None:
    """No page makes a picture, a link, a colour or a formula of what a link or an upload says."""
    app = open_page({"view.trust.operator": "norm", "scenario": HOSTILE, "engine.model": HOSTILE})
    shown = [*app.warning, *app.error, *app.caption, *app.markdown]
    assert HOSTILE in " ".join(told(shown))
    app.text_input(key="control:other").set_value(f"hardware='{HOSTILE}'").run()
    shown += [*app.warning, *app.error, *app.caption, *app.markdown]
    assert sum("example.org" in text for text in told(shown)) >= 2
    for element in shown:
        assert not re.search(r"(?<!\\)[\[\]`$<]", element.value) or "example" not in element.value, element.value


def test_an_uploaded_file_is_never_run(tmp_path: Path) -> None:
    """Neither a scenario nor a link can name an upload as a policy, whatever it is called."""
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w').close()".encode()
    app = open_page()
    session = known(app)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamlit.session_state", {"session": session})
        keep(session, "half.py", code)
        scenario = dump_scenario(load_scenario(overrides=[f"policy.name={session.path}/half.py:Half"]))
        receipt = take_scenario(session, "mine.yaml", scenario.encode())
    assert not receipt.good
    assert "no other file or code" in receipt.text
    linked = open_page({"policy.name": "upload:half.py:Half"})
    assert any("no other file or code" in text for text in told(linked.warning))
    assert not ran.exists()


def test_the_server_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    for name in ("yaml", "half", "streamlit", "table", "session"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working directory')")
    interpreter, *flags = cli.streamlit_command([])
    before_module = flags[: flags.index("-m")]
    script = "import sys; import yaml, streamlit; assert '' not in sys.path; print('clean')"
    command = [interpreter, *before_module, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "clean", done.stderr


def test_the_server_knows_the_answer_that_the_first_page_asks_for() -> None:
    app = AppTest.from_file(str(APP), default_timeout=WAIT_S).run()
    key = answers.question_key(known(app).question.scenario)
    answers._answers.clear()
    verdict_card._estimates.clear()
    verdict_card._checked.cache_clear()
    assert answers._answers.known(key) is None
    thread = start.warm()
    assert verdict_card._estimates.known(key) is not None
    assert verdict_card._checked.cache_info().currsize == 1
    thread.join()
    assert answers._answers.known(key) is not None


@pytest.mark.parametrize("running", [True, False])
def test_a_page_that_waits_for_the_engine_to_be_compiled_says_so(running: bool) -> None:
    def page(running: bool) -> None:
        import streamlit as st

        from draftcast.dashboards.session.answers import simulating
        from draftcast.sim.compiled.cache import engine_compilation

        with simulating() as look:
            look()
            engine_compilation.running = running
            look()
            look()
            engine_compilation.running = False
            st.stop()

    app = AppTest.from_function(page, args=(running,), default_timeout=WAIT_S).run()
    assert not app.exception
    said = ["Compiling the engine, once (half a minute to a minute)."] if running else []
    assert [info.value for info in app.info] == said


def test_the_slo_s_line_is_explained_where_there_is_one() -> None:
    app = open_page()
    (shown,) = [text for text in told(app.caption) if text.startswith("Share of requests")]
    assert "dotted" not in shown
    known(app).change(lambda: {"slo": {"ttft_ms": 500.0}})
    app.run()
    (shown,) = [text for text in told(app.caption) if text.startswith("Share of requests")]
    assert shown.endswith("; dotted: the SLO.")


SHORT = {"workload.lengths": SHORT_REQUESTS, "statistics.model_error": "none"}


@pytest.mark.parametrize(("rate", "alpha", "advice"), [("2", "0.8", "on"), ("8", "0.0", "off")])
def test_the_page_says_where_speculation_pays(rate: str, alpha: str, advice: str) -> None:
    cell = {"workload.arrivals.request_rate_rps": rate, "acceptance": f"{{model: constant, alpha: {alpha}}}"}
    app = open_page(SHORT | cell | {"workload.num_requests": "400", "statistics.replications": "3"})
    html = html_of(app)
    (verdict,) = re.findall(r"<p class='dc-verdict'.*?</p>", html)
    assert f"data-advice='{advice}'" in verdict
    assert f"Recommended: {advice}." in verdict
    if advice == "on":
        assert float(verdict.split("data-low='")[1].split("'")[0]) > 1.0


def test_overload_shows_the_capacity_and_no_latency() -> None:
    app = open_page(SHORT | {"workload.num_requests": "1500", "workload.arrivals.request_rate_rps": "4000"})
    html = html_of(app)
    assert "Overloaded at 4000 req/s" in html
    (said,) = told(app.error)
    assert said.startswith("OVERLOADED")
    assert "It completes at most" in said
    tiles = dict(re.findall(r"data-figure='(\w+)' data-value='([^']*)'", html))
    assert [tiles[name] for name in ("p99_ttft_s", "p99_tpot_s", "p99_e2el_s", "tokens_per_s_per_gpu")] == [""] * 4
    assert not re.search("class='[^']*dc-(better|diff dc-worse)", html)


@pytest.mark.parametrize(
    "workload",
    [
        {"arrivals": {"process": "trace", "path": "mine.csv", "request_rate_rps": 5.0}, "lengths": None},
        {"lengths": {"path": "mine.csv"}},
    ],
)
def test_a_file_that_a_scenario_names_is_served_as_the_scenario_says(
    alone: Session, tmp_path: Path, workload: dict[str, object]
) -> None:
    trace = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,100,20\n2023-11-16 18:15:47,100,20\n"
    (tmp_path / "mine.csv").write_bytes(trace)
    scenario = to_mapping(load_scenario(overrides=["workload.num_requests=300"]))
    scenario["workload"] |= workload
    (tmp_path / "my.yaml").write_text(json.dumps(scenario))
    assert take_scenario(alone, "my.yaml", (tmp_path / "my.yaml").read_bytes()).good
    asked = alone.question
    # What cannot be read is still asked for.
    assert not receive(alone, TRACE, {"mine.csv": b"a,b\n1,2\n"}).good
    assert alone.missing_of(alone.question) == ["mine.csv"]
    receipt = receive(alone, TRACE, {"mine.csv": trace})
    assert (receipt.good, receipt.text) == (True, "mine.csv: taken for the scenario that names it")
    assert alone.question == asked
    assert alone.missing_of(alone.question) == []
    assert scenario_hash(alone.question.scenario) == scenario_hash(load_scenario(tmp_path / "my.yaml"))


def test_a_bad_file_leaves_the_good_one_of_its_name(alone: Session) -> None:
    trace = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,100,20\n2023-11-16 18:15:47,100,20\n"
    assert take_trace(alone, "mine.csv", trace).good
    asked = scenario_hash(alone.question.scenario)
    assert not take_trace(alone, "mine.csv", b"a,b\n1,2\n").good
    assert scenario_hash(alone.question.scenario) == asked
    assert not take_trace(alone, "other.csv", b"a,b\n1,2\n").good
    assert [path.name for path in alone.path.iterdir()] == ["mine.csv"]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("engine.block_size", "-1", "engine.block_size = -1: must be at least 1; left out"),
        ("engine.max_num_sequences", "8", "engine.max_num_sequences = 8: unknown key; did you mean max_num_seqs?"),
        ("acceptance", "[", "acceptance:1: not valid YAML"),
        ("policy.name", "os:system", "policy.name = 'os:system': the dashboard takes"),
    ],
)
def test_a_warning_of_a_link_names_its_key_once(alone: Session, key: str, value: str, said: str) -> None:
    read_link(alone, {key: [value]})
    (warning,) = alone.warnings
    assert warning.startswith(said)
    assert warning.count(key) == 1


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("workload.arrivals.path", "trace of the arrivals"),
        ("workload.lengths.output_tokens.min", "output tokens min"),
        ("engine.block_size", "block size"),
        ("statistics.seed", "Seed"),
        ("acceptance", "acceptance"),
    ],
)
def test_a_key_is_called_by_what_it_holds(key: str, label: str) -> None:
    assert label_of(key) == label


def test_controls_that_a_browser_shows_late_change_no_new_question(monkeypatch: pytest.MonkeyPatch) -> None:
    app, changes = open_page(), [f"{key}={value}" for key, value in SMALL.items()]
    late = sent_by_browser(app)
    asked = ScenarioPair("default", load_scenario("ngram-code-editing", overrides=changes))
    known(app).ask(asked)
    app.run()
    monkeypatch.setattr(app._tree, "get_widget_states", lambda: late)
    app.run()
    assert known(app).question == asked


def test_what_a_browser_sends_late_changes_nothing() -> None:
    """A page that looks whether a search has ended sends all controls as its browser shows them, perhaps the old ones.

    The number of requests follows the load, and k the method; a closed loop has no load. Only their controls are drawn
    anew.
    """
    app = AppTest.from_file(str(APP), default_timeout=WAIT_S)
    for key, value in SHORT.items():
        app.query_params[key] = value
    app.run()
    load, process, draft_length = "workload.arrivals.request_rate_rps", "workload.arrivals.process", K.split(":")[1]

    def turns() -> set[tuple[str, int]]:
        return set(known(app).turns.items())

    changes = (
        (load, 400.0, {NUM_REQUESTS}),
        ("method", OFF, {draft_length, NUM_REQUESTS}),
        (process, "closed_loop", {load, NUM_REQUESTS}),
    )
    for name, value, followers in changes:
        before, drawn = known(app).question, turns()
        control_of(app, (*app.number_input, *app.selectbox), name).set_value(value)
        late = sent_by_browser(app)
        app.run()
        after = known(app).question
        assert after.scenario != before.scenario
        assert {name for name, turn in turns() if turn and (name, turn) not in drawn} == followers
        app._run(late)
        assert known(app).question == after
        assert not known(app).refused
    assert known(app).question.own_length is False
    # What is not the reader's doing on this page either: an upload's scenario, a link to another page.
    late, uploaded = sent_by_browser(app), ScenarioPair.opening("ngram-code-editing")
    known(app).ask(uploaded)
    known(app).go("trust")
    app.run()
    app._run(late)
    assert (known(app).question, known(app).page) == (uploaded, "trust")


def test_a_refused_change_leaves_its_control_in_place() -> None:
    """With the keyboard's focus: its reader types again."""
    app = open_page()
    control_of(app, app.number_input, NUM_REQUESTS).set_value(2.5).run()
    assert known(app).refused
    assert control_of(app, app.number_input, NUM_REQUESTS).key == f"control:{NUM_REQUESTS}"
