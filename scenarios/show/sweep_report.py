"""A sweep for people: its table, and what to say under it."""

from __future__ import annotations

from rich.table import Table

from draftcast.scenarios.show.tables import show, title
from draftcast.scenarios.sweep.result import GPU, USER, SweepCell, SweepProgress, SweepResult

COLUMNS = (
    ("TTFT ms", "mean_ttft_s", 1e3),
    ("TPOT ms", "mean_tpot_s", 1e3),
    ("E2E s", "mean_e2el_s", 1.0),
    ("tok/s/user", USER, 1.0),
    ("tok/s/GPU", GPU, 1.0),
)
ADVANTAGE = (
    "advantage: mean E2E latency of the cell without speculation / with it, same requests; above 1 it is faster with."
)
# A longer table is cut to the Pareto front; the CSV holds all.
MOST_ROWS = 60


def swept_title(result: SweepResult) -> str:
    """The base scenario and what varies in it, on one line."""
    return f"{title(result.scenario)}; swept: {', '.join(axis.name for axis in result.axes)}"


def sweep_table(result: SweepResult) -> Table:
    """One row a cell (of a large sweep, of its Pareto front), half widths of the intervals behind ±."""
    table = Table(title=swept_title(result), title_justify="left")
    head = sweep_head(result)
    for name in head[:-3]:
        table.add_column(name, justify="right")
    for name in head[-3:-1]:
        table.add_column(name)
    table.add_column(head[-1], justify="center")
    table.caption = ADVANTAGE
    for _, row in sweep_rows(result):
        table.add_row(*row)
    return table


def sweep_head(result: SweepResult) -> list[str]:
    """Names of the table's columns."""
    return [*(axis.name for axis in result.axes), *(name for name, _, _ in COLUMNS), "state", "advantage", "Pareto"]


def sweep_rows(result: SweepResult) -> list[tuple[SweepCell, list[str]]]:
    """The cells of the table (all, or of a large sweep its Pareto front), each with the texts of its row."""
    front = {id(cell) for cell in result.pareto}
    rows = []
    for cell in result.cells if len(result.cells) <= MOST_ROWS else result.pareto:
        figures = [show(cell.figures.get(key), factor) for _, key, factor in COLUMNS]
        star = "*" if id(cell) in front else ""
        rows.append((cell, [*cell.point, *figures, cell.state, advantage_text(cell), star]))
    return rows


def advantage_text(cell: SweepCell) -> str:
    """The verdict with the advantage, or with the reason why there is none; empty without speculation."""
    known = cell.cell
    if known is None or known.verdict is None:
        return ""
    reason = f"{show(known.advantage)} x" if known.advantage is not None else known.why
    return f"{known.verdict}: {reason}" if reason else known.verdict


def summary_line(result: SweepResult) -> str:
    """What was done, in one sentence."""
    counts = f"{result.computed} cells computed, {result.reused} found in the data set"
    cut = "" if len(result.cells) <= MOST_ROWS else f"; the table shows the Pareto front of {len(result.cells)} cells"
    kept = f"; kept in {result.folder}" if result.folder is not None else ""
    return f"{counts}, {result.elapsed_s:.1f} s{cut}{kept}"


def error_lines(result: SweepResult) -> list[str]:
    """Cells without figures: one line for each error, with all the cells that have it."""
    labels: dict[str, list[str]] = {}
    for cell in result.errors:
        labels.setdefault(cell.error, []).append(cell.label)
    return [f"{'; '.join(cells)}: {error}" for error, cells in labels.items()]


def progress_line(now: SweepProgress) -> str:
    """How far a sweep is, for a log."""
    left = "" if now.left_s is None else f", {time_text(now.left_s)} left"
    failed = f", {now.failed} without figures" if now.failed else ""
    nobody = ", no workers yet" if now.workers == 0 and now.done < now.total else ""
    return f"{now.done} of {now.total} cells{failed}{left}{nobody}"


def time_text(seconds: float) -> str:
    """``1:05:09`` or ``5:09``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
