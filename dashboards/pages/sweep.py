"""Sweep: every point of a grid around the question, in the background; the Pareto picture leads to What-if.

A sweep goes on while its reader looks at other pages and ends with the session: nothing computes for a page that nobody
has open. One sweep computes at a time on a server, the others wait for their turn; all use the machine's cores already.
"""

import dataclasses
import hashlib
import json
import math
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import streamlit as st

from draftcast.dashboards.session.answers import question_key
from draftcast.dashboards.session.session import ScenarioPair, Session, View, check_names, literal, token
from draftcast.dashboards.widgets.controls import WORDS, button, control, filled, label_of, view_choice
from draftcast.dashboards.widgets.page import Report, cannot_run, clicked, html_table, link, verdict_line
from draftcast.errors import InputError
from draftcast.scenarios.compare.candidate import longest_draft
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.changes import SHORT, SPECIAL
from draftcast.scenarios.show import sweep_report
from draftcast.scenarios.sweep.grid import GridPoint, SweepAxis, grid_points, parse_axis
from draftcast.scenarios.sweep.run import SweepProgress, SweepResult, sweep

JOB, GRID = "sweep-job", "sweep-grid"
METRIC = "mean_e2el_s"
PARETO = "pareto"
POLL_S = 0.5
TURN = threading.Semaphore(1)
LOOK_EVERY_S = 0.2
# A page is for looking; the command line takes grids a hundred times as large.
MOST_CELLS, MOST_AXES = 240, 4
BETWEEN = ";"
AXIS_KEYS = SHORT | WORDS["keys"]  # keys whose control names an axis
PROPOSED = WORDS["values"]  # what a new axis begins with


@dataclass(frozen=True)
class SweepGrid:
    axes: tuple[SweepAxis, ...]
    points: tuple[GridPoint, ...]

    @property
    def labels(self) -> list[str]:
        """Of the axes, in words and with units."""
        return [label_of(AXIS_KEYS.get(axis.name, axis.name)) for axis in self.axes]


class SweepJob(threading.Thread):
    """One run of a sweep that has begun; the end of ``owner``, which it does not keep alive, ends it.

    What the folder holds is not computed again, and what is done is kept when the job is told to stop. ``progress`` is
    None while it waits for its turn; in the end ``result`` is there, complete or not, or ``error`` says why it is not.
    """

    def __init__(self, key: str, owner: object, scenario: Scenario, axes: Sequence[SweepAxis], folder: Path) -> None:
        super().__init__(name=f"sweep-{key[:8]}", daemon=True)
        self.key = key
        self.stopping = threading.Event()
        self.progress: SweepProgress | None = None
        self.result: SweepResult | None = None
        self.error: InputError | None = None
        self._sweep = partial(sweep, scenario, {axis.name: axis.values for axis in axes}, folder=folder)
        weakref.finalize(owner, self.stopping.set)
        self.start()

    def run(self) -> None:
        while not TURN.acquire(timeout=LOOK_EVERY_S):
            if self.stopping.is_set():
                return
        try:
            self.result = self._sweep(progress=partial(setattr, self, "progress"), stop=self.stopping.is_set)
        except InputError as error:
            self.error = error
        finally:
            TURN.release()


def render(session: Session, report: Report) -> None:
    text = session.views.get(View.SWEEP_GRID, proposed_grid(session.question.scenario))
    key = hashlib.sha256(json.dumps([*question_key(session.question.scenario), text]).encode()).hexdigest()[:12]
    editor(session, text)
    result: SweepResult | None = None
    try:
        grid = _grid(session, key, text)
    except InputError as error:
        st.error(f"No grid yet: {literal(error)}", icon=":material/grid_off:")
    else:
        result = _run(session, key, grid)
        if result is not None:
            _show(session, report, result, grid)
    options = [word for axis in _axes(text) for word in ("--grid", axis)]
    report.footer(key, session.question.command("sweep", *options))
    if result is not None:
        report.downloads(f"draftcast-sweep-{key}", result.frame, result.summary)


def _grid(session: Session, key: str, text: str) -> SweepGrid:
    """The grid of this question, its points made once."""
    grids: dict[str, SweepGrid] = st.session_state.get(GRID, {})
    if key not in grids:
        grids = st.session_state[GRID] = {key: read_grid(session, text)}
    return grids[key]


def _run(session: Session, key: str, grid: SweepGrid) -> SweepResult | None:
    """Buttons to run, cancel or resume; what was found once that has ended."""
    job = _job(session, key, grid)
    if job is not None and job.is_alive():
        _running(session, job)
        return None
    if job is None or job.result is None or not job.result.complete:
        cells, replications = len(grid.points), session.question.scenario.statistics.replications
        with st.container(horizontal=True, vertical_alignment="center"):
            label = "Resume" if job is not None and job.stopping.is_set() else f"Run {cells} cells"
            button(label, "play_arrow", _start, session, key, grid, key="sweep.start", type="primary")
            st.caption(WORDS["help"]["cells"].format(cells=cells, replications=replications))
    if job is not None and job.error is not None:
        cannot_run(session, job.error)
    # The folder is the session's own business.
    return dataclasses.replace(job.result, folder=None) if job is not None and job.result is not None else None


def _job(session: Session, key: str, grid: SweepGrid) -> SweepJob | None:
    """The job of this very question; begun here when a link asks for its figures."""
    job: SweepJob | None = st.session_state.get(JOB)
    if job is not None and job.key == key:
        if not job.stopping.is_set():
            session.views[View.SWEEP_RUN] = key
        return job
    if job is not None:
        job.stopping.set()
    if session.view(View.SWEEP_RUN, "", token) == key:
        _start(session, key, grid)
        begun: SweepJob = st.session_state[JOB]
        return begun
    session.views.pop(View.SWEEP_RUN, None)
    return None


def _start(session: Session, key: str, grid: SweepGrid) -> None:
    st.session_state[JOB] = SweepJob(key, session, session.question.scenario, grid.axes, session.path / "sweep")
    session.see(View.SWEEP_RUN, key)


def _cancel(session: Session, job: SweepJob) -> None:
    job.stopping.set()
    session.see(View.SWEEP_RUN, "")


@st.fragment(run_every=POLL_S)
def _running(session: Session, job: SweepJob) -> None:
    """Progress, looked at again and again while the rest of the page stands."""
    if not job.is_alive():
        st.rerun()
    now = job.progress
    text = "Waiting for another session's sweep" if now is None else sweep_report.progress_line(now)
    st.progress(now.done / now.total if now is not None else 0.0, text="Stopping" if job.stopping.is_set() else text)
    button("Cancel", "stop", _cancel, session, job, key="sweep.cancel", disabled=job.stopping.is_set())


def _show(session: Session, report: Report, result: SweepResult, grid: SweepGrid) -> None:
    report.badge([cell.figures for cell in result.cells])
    cells = len(result.cells)
    text = f"{len(result.pareto)} of {cells} cells are Pareto-optimal in tokens/s/user and tokens/s/GPU."
    verdict_line(text, cells=cells, computed=result.computed, reused=result.reused)
    done = "" if result.complete else f"Stopped: {sum(cell.state != 'not run' for cell in result.cells)} of "
    report.title, report.lines = sweep_report.swept_title(result), [f"{done}{sweep_report.summary_line(result)}."]
    st.caption(literal(report.lines[0]))
    for text in sweep_report.error_lines(result):
        st.warning(literal(f"No figures: {text}"), icon=":material/error:")
    if sweep_report.metrics_of(result):
        _pictures(session, report, result, grid)
    numbers = {id(cell): number for number, cell in enumerate(result.cells)}
    rows = []
    for cell, texts in sweep_report.sweep_rows(result):
        scenario = grid.points[numbers[id(cell)]].scenario
        href = ScenarioPair(session.question.base, scenario).href if scenario is not None else ""
        rows.append([*texts, link("What-if", href, cell.label) if href else "–"])
    # The style sheet counts the columns from the end: the advantage is the third, which holds words.
    head = [*grid.labels, *sweep_report.sweep_head(result)[len(grid.axes) :], "open"]
    st.html(html_table(head, rows, look="cells", name="Cells of the sweep"))
    frame = result.frame()
    report.tables["Pareto front"] = frame[frame["pareto"]]


def _pictures(session: Session, report: Report, result: SweepResult, grid: SweepGrid) -> None:
    def open_cell() -> None:
        number = clicked(PARETO)
        scenario = grid.points[int(number)].scenario if number is not None else None
        if scenario is not None:
            session.ask(ScenarioPair(session.question.base, scenario))
            session.go("what-if")

    st.subheader("What one user sees against what a GPU delivers")
    report.figure(PARETO, sweep_report.pareto_figure(result), open_cell)
    axis, words = grid.labels[0], sweep_report.figure_label
    st.subheader(f"Along {literal(axis)}")
    metric = view_choice(session, View.SWEEP_METRIC, sweep_report.metrics_of(result), default=METRIC, words=words)
    picture = sweep_report.metric_figure(result, metric).update_xaxes(title_text=axis)
    report.figure("metric", picture, metric=words(metric), axis=axis)


def proposed_grid(scenario: Scenario) -> str:
    """A first grid: the load around the scenario's own, and the number of drafts."""
    arrivals = scenario.workload.arrivals
    rate = getattr(arrivals, "request_rate_rps", None)
    if rate is not None:
        axes = [f"rate={','.join(f'{share * rate:g}' for share in (0.5, 1, 2, 4))}"]
    elif arrivals.process == "closed_loop":
        axes = [f"concurrency={','.join(str(max(1, int(share * arrivals.concurrency))) for share in (0.5, 1, 2, 4))}"]
    else:
        axes = [f"batch={PROPOSED['batch']}"]
    if scenario.speculative_config is not None:
        longest = longest_draft(scenario, 3)
        axes.append(f"k={','.join(str(k) for k in (0, 1, 3) if k <= longest)}")
    return BETWEEN.join(axes)


def read_grid(session: Session, text: str) -> SweepGrid:
    """Raises InputError: no grid, too many cells for a page, or names of files or code that the session may not use."""
    scenario = session.question.scenario
    texts = _axes(text)
    if not 1 <= len(texts) <= MOST_AXES:
        raise InputError(f"must have 1 to {MOST_AXES} axes", key=View.SWEEP_GRID, value=text)
    axes = tuple(parse_axis(part, scenario) for part in texts)
    cells = math.prod(len(axis.values) for axis in axes)
    if cells > MOST_CELLS:
        raise InputError(f"at most {MOST_CELLS} cells here; the command takes more", key=View.SWEEP_GRID, value=cells)
    points = tuple(grid_points(scenario, axes))
    for point in points:
        if point.scenario is not None:
            check_names(point.scenario, session.question.base, session.path)
    return SweepGrid(axes, points)


def _axes(text: str) -> list[str]:
    return [part.strip() for part in text.split(BETWEEN) if part.strip()]


def editor(session: Session, text: str) -> None:
    """Rows of axes; every change is written to the link, also one that is no grid yet."""
    rows = [[side.strip() for side in axis.partition("=")[::2]] for axis in _axes(text)]

    def write(changed: Sequence[Sequence[str]]) -> None:
        joined = BETWEEN.join(f"{name}={values.replace(BETWEEN, ',')}" for name, values in changed)
        session.see(View.SWEEP_GRID, joined, proposed_grid(session.question.scenario))

    def replace(index: int, name: str, values: str) -> None:
        write([*rows[:index], [name, values], *rows[index + 1 :]])

    def rename(index: int, name: str | None) -> None:
        if name:
            replace(index, name, PROPOSED.get(name, rows[index][1]))

    with st.container(border=True, key="grid"):
        for index, (name, values) in enumerate(rows):
            with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
                offered = list(dict.fromkeys([*SPECIAL, *SHORT, name]))
                write_name, look = partial(rename, index), filled("sweep.axis", number=index + 1)
                control(st.selectbox, f"sweep.axis.{index}", name, write_name, look, options=offered)
                write_values, look = partial(replace, index, name), filled("sweep.values", number=index + 1)
                control(st.text_input, f"sweep.values.{index}", values, write_values, look)
                key, others = f"sweep.remove.{index}", [*rows[:index], *rows[index + 1 :]]
                button(f"Remove axis {index + 1}", "remove", write, others, key=key, disabled=not others)
        fresh = next((name for name in PROPOSED if name not in dict(rows)), "seed")
        longer, full = [*rows, [fresh, PROPOSED[fresh]]], len(rows) >= MOST_AXES
        button("Add an axis", "add", write, longer, key="sweep.add", disabled=full)
