"""The Sweep page without a browser: background jobs, cancel and resume, whose folder, what a link may ask."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from paths import APP

pytest.importorskip("streamlit")
from app_pages import control_of, told
from streamlit.testing.v1 import AppTest

from draftcast.dashboards.pages.sweep import JOB, MOST_CELLS, TURN, SweepJob, proposed_grid, read_grid
from draftcast.dashboards.session.link import read_link
from draftcast.dashboards.session.session import ScenarioPair, Session
from draftcast.errors import InputError
from draftcast.scenarios.schema.load import load_scenario, scenario_hash
from draftcast.scenarios.sweep.grid import SweepAxis
from draftcast.scenarios.sweep.run import sweep

pytestmark = pytest.mark.usefixtures("sweeps_here")
WAIT_S = 1800  # the first page of a fresh checkout compiles the engine
SMALL = {"page": "sweep", "workload.num_requests": "100", "statistics.replications": "2"}
GRID = "view.sweep.grid"


def open_page(grid: str | None = None, **query: str) -> AppTest:
    app = AppTest.from_file(str(APP), default_timeout=WAIT_S)
    for key, value in (SMALL | ({GRID: grid} if grid else {}) | query).items():
        app.query_params[key] = value
    return shown(app.run())


def shown(app: AppTest) -> AppTest:
    assert not app.exception, app.exception
    return app


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def job_of(app: AppTest) -> SweepJob:
    found: SweepJob = app.session_state[JOB]
    return found


def finished(app: AppTest) -> AppTest:
    """The page once its job has ended."""
    until(lambda: not job_of(app).is_alive())
    return shown(app.run())


def html(app: AppTest) -> str:
    return "".join(each.proto.body for each in app.get("html"))


def test_a_sweep_gives_what_the_command_gives_and_its_link_reproduces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page("rate=5,20;k=0,2")
    assert JOB not in app.session_state  # nothing computes before it is asked for
    app.button(key="sweep.start").click().run()
    finished(app)
    found = job_of(app).result
    assert found is not None
    assert found.complete
    question = app.session_state["session"].question
    direct = sweep(question.scenario, ["rate=5,20", "k=0,2"], workers=2)
    assert found.frame().equals(direct.frame())
    assert app.code[0].value.endswith("--grid rate=5,20 --grid k=0,2")
    assert "data-cells='4' data-computed='4' data-reused='0'" in html(app)
    assert found.folder == app.session_state["session"].path / "sweep"
    # A cell whose queue grows has no figures, and no marker.
    assert not any("Open markers" in text for text in told(app.caption))

    # A row's link asks in What-if what the cell asked.
    links = [unescape(href) for href in re.findall(r"<a href='([^']*)'", html(app))]
    assert len(links) == 4
    state: dict[str, Any] = {}
    other = Session(question)
    with monkeypatch.context() as patched:
        patched.setattr("streamlit.session_state", state)
        state["session"] = other
        read_link(other, parse_qs(links[-1].removeprefix("?")))
    assert not other.warnings
    asked = other.question.scenario
    assert (asked.workload.arrivals.request_rate_rps, asked.num_speculative_tokens) == (20.0, 2)  # type: ignore[union-attr]

    # In another session, which has nothing yet, the link begins the same sweep by itself.
    link = dict(app.query_params)
    assert "view.sweep.run" in link
    second = open_page(**link)
    finished(second)
    again = job_of(second).result
    assert again is not None
    assert (again.computed, again.reused) == (4, 0)
    assert again.frame().equals(found.frame())
    assert again.folder != found.folder

    # Another figure along the first axis is another picture; another seed another question.
    before = [each.proto.spec for each in second.get("plotly_chart")]
    second.selectbox(key="control:view.sweep.metric").set_value("p99_ttft_s").run()
    after = [each.proto.spec for each in shown(second).get("plotly_chart")]
    assert after[0] == before[0]
    assert after[1] != before[1]
    second.number_input(key="control:statistics.seed").set_value(9).run()
    assert not shown(second).get("plotly_chart")
    assert "view.sweep.run" not in second.query_params


def test_a_cancelled_sweep_goes_on_where_it_was() -> None:
    app = open_page("rate=2..40:12;k=0,1,2,3", **{"workload.num_requests": "1000"})
    app.button(key="sweep.start").click().run()
    job = job_of(app)
    until(lambda: job.progress is not None and job.progress.done >= 1)
    app.run()
    shown(app).button(key="sweep.cancel").click().run()
    assert job.stopping.is_set()
    finished(app)
    stopped = job.result
    assert stopped is not None
    assert not stopped.complete
    assert 1 <= stopped.computed < 48
    assert "view.sweep.run" not in app.query_params
    assert any(
        text.startswith(f"Stopped: {stopped.computed} of {stopped.computed} cells") for text in told(app.caption)
    )
    assert app.button(key="sweep.start").label == "Resume"
    app.button(key="sweep.start").click().run()
    resumed = job_of(app)
    assert resumed is not job
    until(lambda: resumed.progress is not None)
    assert resumed.progress is not None
    assert resumed.progress.reused == stopped.computed
    # A changed question ends it.
    app.number_input(key="control:statistics.seed").set_value(5).run()
    assert resumed.stopping.is_set()
    until(lambda: not resumed.is_alive())


def test_the_editor_changes_the_grid() -> None:
    app = open_page()
    assert app.text_input(key="control:sweep.values.0").value == "4,8,16,32"
    assert GRID not in app.query_params
    app.text_input(key="control:sweep.values.0").set_value("1..9:3").run()
    assert app.query_params[GRID] == "rate=1..9:3;k=0,1,3"
    assert shown(app).button(key="sweep.start").label == "Run 9 cells"
    app.selectbox(key="control:sweep.axis.1").set_value("tp").run()
    app.button(key="sweep.add").click().run()
    assert app.query_params[GRID] == "rate=1..9:3;tp=1,2;k=0,1,3"
    assert shown(app).button(key="sweep.start").label == "Run 18 cells"
    app.button(key="sweep.remove.0").click().run()
    assert app.query_params[GRID] == "tp=1,2;k=0,1,3"
    control_of(app, app.text_input, "sweep.values.0").set_value("one").run()
    assert "engine.tensor_parallel_size" in told(shown(app).error)[0]
    assert not [each for each in app.button if each.key == "sweep.start"]


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ("rate", "must look like rate=1..20:8"),
        ("rate=1..50:300", f"at most {MOST_CELLS} cells here"),
        ("rate=1,2;k=0,1;tp=1,2;batch=4,8;seed=0,1", "1 to 4 axes"),
        ("policy=os:system,fixed", "no other file or code"),
        ("model=/etc/passwd,llama-3.1-8b", "no other file or code"),
        ("profile=/etc,default", "no other file or code"),
        ("engine.no_such=1", "no_such"),
    ],
)
def test_a_bad_grid_in_a_link_is_said_and_not_run(grid: str, said: str) -> None:
    app = open_page(grid, **{"view.sweep.run": "0123456789ab"})
    assert any(said in each for each in told(app.error)), told(app.error)
    assert JOB not in app.session_state
    assert app.text_input(key="control:sweep.values.0").label == "Values 1"


@pytest.mark.parametrize("base", ["default", "ngram-code-editing", "closed-loop-classes"])
def test_the_proposed_grid_can_be_asked(alone: Session, base: str) -> None:
    alone.question = ScenarioPair.opening(base)
    grid = read_grid(alone, proposed_grid(alone.question.scenario))
    assert len(grid.points) >= 3
    assert not [point.error for point in grid.points if point.error]
    assert len({scenario_hash(point.scenario) for point in grid.points if point.scenario}) == len(grid.points)


class Owner:
    """Stands for a session."""


def test_a_job_ends_with_its_session_and_waits_for_its_turn(tmp_path: Path) -> None:
    scenario = load_scenario("default", overrides=["workload.num_requests=50", "statistics.replications=1"])
    axes = [SweepAxis("rate", (5.0, 10.0))]
    owner = Owner()
    with TURN:
        job = SweepJob("one", owner, scenario, axes, tmp_path / "one")
        job.join(0.5)
        assert (job.is_alive(), job.progress, job.stopping.is_set()) == (True, None, False)
        del owner
        gc.collect()
        assert job.stopping.is_set()
        until(lambda: not job.is_alive())
    assert (job.result, job.error) == (None, None)
    keeper = Owner()
    other = SweepJob("two", keeper, scenario, axes, tmp_path / "two")
    until(lambda: not other.is_alive())
    assert other.result is not None
    assert other.result.complete
    # What cannot be swept is told, and the next one's turn comes.
    broken = SweepJob("three", keeper, scenario, [SweepAxis("engine.block_size", (-1,))], tmp_path / "three")
    until(lambda: not broken.is_alive())
    assert isinstance(broken.error, InputError)
    assert TURN.acquire(blocking=False)
    TURN.release()
