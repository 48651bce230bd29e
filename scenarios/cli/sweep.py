"""``draftcast sweep``: options to a grid, the answer to a table, CSV, a plot or JSON."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from draftcast.files import written
from draftcast.scenarios.cli.options import Question, check_target
from draftcast.scenarios.cli.terminal import CELLS_WITHOUT_FIGURES, INTERRUPTED, progress_bar

if TYPE_CHECKING:
    from draftcast.scenarios.sweep.run import SweepProgress

DEFAULT_FOLDER = Path("draftcast-sweep")


@dataclass(frozen=True, kw_only=True)
class Output:
    out: Path = DEFAULT_FOLDER
    csv: Path | None = None
    plot: Path | None = None
    metric: str = "mean_e2el_s"


def sweep(
    *, grid: list[str], workers: int | None = None, cluster: str | None = None, question: Question, output: Output
) -> None:
    """Simulate every point of a grid, in parallel and resumable, and show the Pareto front."""
    from draftcast.scenarios.show import sweep_report as report
    from draftcast.scenarios.show.plots import write_figure
    from draftcast.scenarios.sweep.run import sweep as run

    scenario = question.load()
    check_target("--csv", output.csv)
    check_target("--plot", output.plot)
    try:
        with progress_bar("sweep") as show:

            def progress(now: "SweepProgress") -> None:
                show(now.done / now.total, report.progress_line(now))

            result = run(scenario, grid, folder=output.out, workers=workers, cluster=cluster, progress=progress)
    except KeyboardInterrupt:
        print(f"draftcast: stopped; finished cells are in {output.out}, the same command continues", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if output.csv is not None:
        with written(output.csv) as partial:
            result.frame().to_csv(partial, index=False)
    if output.plot is not None:
        write_figure(report.sweep_figure(result, output.metric), output.plot)
    question.print_answer(scenario, result.summary, (report.sweep_table(result), report.summary_line(result)))
    for line in report.error_lines(result):
        print(f"draftcast: no figures: {line}", file=sys.stderr)
    if result.errors:
        raise typer.Exit(CELLS_WITHOUT_FIGURES)
