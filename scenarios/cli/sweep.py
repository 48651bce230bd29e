"""``draftcast sweep``: options to a grid, the answer to a table, CSV, a plot or JSON."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftcast.files import written
from draftcast.scenarios.cli.options import Question, check_target, option_groups
from draftcast.scenarios.cli.terminal import CELLS_WITHOUT_FIGURES, INTERRUPTED, progress_bar

if TYPE_CHECKING:
    from draftcast.scenarios.sweep.run import SweepProgress

DEFAULT_FOLDER = Path("draftcast-sweep")


@dataclass(frozen=True, kw_only=True)
class Output:
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Data set of the sweep; cells it already holds are not simulated again.")
    ] = DEFAULT_FOLDER
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one row per cell here.")] = None
    plot: Annotated[Path | None, typer.Option(metavar="HTML", help="Write the Pareto plot here.")] = None
    metric: Annotated[str, typer.Option(help="Figure drawn along the first axis by --plot.")] = "mean_e2el_s"


@option_groups
def sweep(
    *,
    grid: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=VALUES",
            help="An axis, e.g. rate=1..20:8, rate=1..64:7log, k=0,1,3,5, or any key of --set; repeatable.",
        ),
    ],
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes. Default: one per core.")] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on this Dask scheduler's workers, e.g. tcp://host:8786.")
    ] = None,
    question: Question,
    output: Output,
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
