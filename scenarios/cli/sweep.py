"""``draftcast sweep``: options to a grid, the answer to a table, CSV, a plot or JSON."""

import sys
from functools import partial
from pathlib import Path

import typer

from draftcast.errors import InputError
from draftcast.files import written
from draftcast.scenarios.cli.options import QuestionOptions, check_target
from draftcast.scenarios.cli.terminal import CELLS_FAILED, INTERRUPTED, exit_without_figures, progress_bar


def sweep(
    *,
    grid: list[str],
    workers: int | None = None,
    cluster: str | None = None,
    question: QuestionOptions,
    out: Path = Path("draftcast-sweep"),
    csv: Path | None = None,
    plot: Path | None = None,
    metric: str | None = None,
) -> None:
    """Simulate every point of a grid, in parallel and resumable, and show the Pareto front."""
    from draftcast.scenarios.show import sweep_report as report
    from draftcast.scenarios.show.plots import check_picture, write_figure
    from draftcast.scenarios.sweep.run import sweep as run

    scenario = question.load()
    check_target("--csv", csv, question)
    check_target("--plot", plot, question)
    check_picture(plot, "--plot")
    if metric is not None and plot is None:
        raise InputError("is drawn by --plot: give both", file="--metric", value=metric)
    try:
        with progress_bar("sweep") as show:
            compute = partial(run, scenario, grid, folder=out, workers=workers, cluster=cluster)
            result = compute(progress=lambda now: show(now.done / now.total, report.progress_line(now)))
    except KeyboardInterrupt:
        print(f"draftcast: stopped; finished cells are in {out}, the same command continues", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if csv is not None:
        with written(csv) as file:
            result.frame().to_csv(file, index=False)
    parts = (report.sweep_table(result), *(f"note: {note}" for note in result.notes), report.summary_line(result))
    question.print_answer(scenario, result.summary, parts)
    for line in report.error_lines(result):
        print(f"draftcast: no figures: {line}", file=sys.stderr)
    if plot is not None:  # last: which figures there are is known now, and a wrong --metric takes no answer away
        write_figure(report.sweep_figure(result, metric or "mean_e2el_s"), plot)
    if result.errors:
        raise typer.Exit(CELLS_FAILED)
    exit_without_figures(result.cells)
