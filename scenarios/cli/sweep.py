"""``draftcast sweep``: options to a grid, the answer to a table, CSV, a picture or JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftcast.errors import InputError
from draftcast.files import written
from draftcast.scenarios.cli.terminal import asked_changes, print_json, progress_bar

if TYPE_CHECKING:
    from draftcast.scenarios.sweep.run import SweepProgress

CELLS_WITHOUT_FIGURES, INTERRUPTED = 7, 130
DEFAULT_FOLDER = Path("draftcast-sweep")


def sweep(
    scenario: Annotated[str, typer.Argument(help="A YAML file, or an embedded scenario (draftcast scenarios).")],
    grid: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=VALUES",
            help="An axis, e.g. rate=1..20:8, rate=1..64:7log, k=0,1,3,5, or any key of --set; repeatable.",
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. engine.block_size=32.")
    ] = None,
    speculative_config: Annotated[
        str | None, typer.Option(metavar="JSON", help="vLLM's --speculative-config, verbatim; null turns it off.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Take arrivals and lengths from a trace.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random numbers.")] = None,
    replications: Annotated[int | None, typer.Option(help="Independent repetitions behind the intervals.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Local processes; by default one a core.")] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on this Dask scheduler's workers, e.g. tcp://host:8786.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The data set; what it holds is not computed again.")
    ] = DEFAULT_FOLDER,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one row a cell here.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="HTML", help="Write the Pareto picture here.")] = None,
    metric: Annotated[str, typer.Option(help="Figure drawn along the first axis by --plot.")] = "mean_e2el_s",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Simulate every point of a grid, in parallel and resumable, and show the Pareto front."""
    from draftcast.scenarios.schema.load import load_scenario
    from draftcast.scenarios.show.sweep_report import progress_line
    from draftcast.scenarios.sweep.run import sweep as run

    changes = asked_changes(overrides, seed, replications)
    question = load_scenario(scenario, overrides=changes, speculative_config=speculative_config, trace=trace)
    for option, target in (("--csv", csv), ("--plot", plot)):
        if target is not None and (target.is_dir() or not target.absolute().parent.is_dir()):
            raise InputError("must be a file in a folder that exists", file=option, value=str(target))
    try:
        with progress_bar("sweep") as show:

            def progress(now: SweepProgress) -> None:
                show(now.done / now.total, progress_line(now))

            result = run(question, grid, folder=out, workers=workers, cluster=cluster, progress=progress)
    except KeyboardInterrupt:
        print(f"draftcast: stopped; what is done is kept in {out}: the same command goes on", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if csv is not None:
        with written(csv) as partial:
            result.frame().to_csv(partial, index=False)
    if plot is not None:
        from draftcast.scenarios.show.plots import write_figure
        from draftcast.scenarios.show.sweep_plots import sweep_figure

        write_figure(sweep_figure(result, metric), plot)
    if as_json:
        print_json(result.summary())
    else:
        from draftcast.scenarios.show.sweep_report import summary_line, sweep_table
        from draftcast.scenarios.show.tables import make_console

        console = make_console()
        console.print(sweep_table(result))
        console.print(summary_line(result))
    if result.errors:
        from draftcast.scenarios.show.sweep_report import error_lines

        for line in error_lines(result):
            print(f"draftcast: no figures: {line}", file=sys.stderr)
        raise typer.Exit(CELLS_WITHOUT_FIGURES)
