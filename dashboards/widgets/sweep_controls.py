"""The grid editor of Sweep: one row an axis, its name and its values as ``draftcast sweep --grid`` takes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import streamlit as st

from draftcast.dashboards.session.question import check_names
from draftcast.dashboards.session.session import Session, View
from draftcast.dashboards.widgets.controls import Look, button, control
from draftcast.errors import InputError
from draftcast.scenarios.run.choices import longest_k
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.sweep.grid import SHORT, SPECIAL, Axis, GridPoint, grid_points, parse_axis

# A page is for looking; the command line takes grids a hundred times as large.
MOST_CELLS, MOST_AXES = 240, 4
BETWEEN = ";"
AXIS_HELP = "A short name, or any key that `--set` takes, for example engine.block_size."
VALUES_HELP = "1,2,5 or 1..20:8 (evenly spaced), 1..64:7log (in the logarithm), 0..5 (whole numbers)."
# What a new axis begins with.
PROPOSED = {
    "k": "0,1,3",
    "tp": "1,2",
    "batch": "32,128,512",
    "replicas": "1,2,4",
    "acceptance": "0.4,0.6,0.8",
    "concurrency": "4,16,64",
    "prompt_tokens": "256,1024",
    "output_tokens": "64,256",
    "seed": "0,1",
}


@dataclass(frozen=True)
class Grid:
    """A grid that can be asked: its axes, and its points in order."""

    texts: tuple[str, ...]
    axes: tuple[Axis, ...]
    points: tuple[GridPoint, ...]


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
        longest = longest_k(scenario) or 3
        axes.append(f"k={','.join(str(k) for k in (0, 1, 3) if k <= longest)}")
    return BETWEEN.join(axes)


def read_grid(session: Session, text: str) -> Grid:
    """Axes and points.

    Raises:
        InputError: no grid, too many cells for a page, or names of files or code that the session may not use.
    """
    scenario = session.question.scenario
    texts = tuple(part.strip() for part in text.split(BETWEEN) if part.strip())
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
    return Grid(texts, axes, points)


def editor(session: Session, text: str) -> None:
    """Rows of axes; every change is written to the link, also one that is no grid yet."""
    rows = [[side.strip() for side in part.partition("=")[::2]] for part in text.split(BETWEEN) if part.strip()]
    names = list(dict.fromkeys([*SPECIAL, *SHORT]))

    def write(changed: Sequence[Sequence[str]]) -> None:
        joined = BETWEEN.join(f"{name}={values.replace(BETWEEN, ',')}" for name, values in changed)
        session.see(View.SWEEP_GRID, joined, proposed_grid(session.question.scenario))

    def replace(index: int, *row: Sequence[str]) -> None:
        write([*rows[:index], *row, *rows[index + 1 :]])

    def rename(index: int, name: str | None) -> None:
        if name:
            replace(index, [name, PROPOSED.get(name, rows[index][1])])

    def revalue(index: int, values: str) -> None:
        replace(index, [rows[index][0], values])

    with st.container(border=True, key="grid"):
        for index, (name, values) in enumerate(rows):
            with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
                offered = list(dict.fromkeys([*names, name]))
                look, write_name = Look(f"Axis {index + 1}", AXIS_HELP, 190), partial(rename, index)
                extra = {"options": offered, "accept_new_options": True}
                control(st.selectbox, f"sweep.axis.{index}", name, write_name, look, **extra)
                look = Look(f"Values {index + 1}", VALUES_HELP, 300, placeholder="1..20:8")
                control(st.text_input, f"sweep.values.{index}", values, partial(revalue, index), look)
                key, few = f"sweep.remove.{index}", len(rows) < 2
                button(f"Remove axis {index + 1}", "remove", replace, index, key=key, disabled=few)
        used = [name for name, _ in rows]
        fresh = next((name for name in PROPOSED if name not in used), "seed")
        longer, full = [*rows, [fresh, PROPOSED[fresh]]], len(rows) >= MOST_AXES
        button("Add an axis", "add", write, longer, key="sweep.add", disabled=full)
