"""The ``draftcast`` command.

Exit codes: 0 answered, 2 bad input, 3 the SLO is not met, 4 the cluster cannot keep up (overloaded), 5 no steady state
(not settled: more requests are needed, and no SLO is judged) or no cutover to be told, 6 a live run failed or is
incomplete, 7 a sweep has cells without figures, 130 interrupted. ``simulate`` exits with the code of the scenario's own
setting; a table of several rates (``--rates``) is an answer whatever it shows: 0. Only ``--json`` puts JSON on standard
output; progress, notes and errors go to standard error. Heavy imports wait inside the commands.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftcast import __version__
from draftcast.errors import InputError, LiveError
from draftcast.files import write_bytes
from draftcast.scenarios.cli import acceptance as acceptance_cli
from draftcast.scenarios.cli import catalog as catalog_cli
from draftcast.scenarios.cli import compare as policy_cli
from draftcast.scenarios.cli import live as live_cli
from draftcast.scenarios.cli import profile as profile_cli
from draftcast.scenarios.cli.calibrate import calibrate
from draftcast.scenarios.cli.cutover import cutover
from draftcast.scenarios.cli.dashboard import dashboard
from draftcast.scenarios.cli.plan import plan
from draftcast.scenarios.cli.published import published
from draftcast.scenarios.cli.recommend import recommend
from draftcast.scenarios.cli.sweep import sweep
from draftcast.scenarios.cli.terminal import asked_changes, print_json, progress_bar
from draftcast.scenarios.cli.validate import validate
from draftcast.sim.compiled.cache import tell_of_compiling

if TYPE_CHECKING:
    from draftcast.scenarios.compare.comparison import Comparison, Point
    from draftcast.scenarios.schema import Scenario

BAD_INPUT, SLO_UNMET, UNSTABLE, NOT_SETTLED, LIVE_FAILED = 2, 3, 4, 5, 6

app = typer.Typer(
    name="draftcast",
    help="Forecast whether speculative decoding pays on an LLM serving cluster, and at which load it stops paying.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(acceptance_cli.app, name="acceptance")
app.add_typer(profile_cli.app, name="profile")
app.add_typer(live_cli.app, name="live")
app.command()(calibrate)
app.command()(policy_cli.compare)
app.command()(dashboard)
app.command()(cutover)
app.command()(plan)
app.command()(recommend)
app.command()(sweep)
app.command()(published)
app.command()(validate)
for command in (catalog_cli.scenarios, catalog_cli.models, catalog_cli.hardware):
    app.command()(command)


def main() -> None:
    """Entry point: bad input is one line on standard error and exit code 2, a failed live run likewise with 6."""
    tell_of_compiling()
    try:
        app()
    except InputError as error:
        print(f"draftcast: error: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except LiveError as error:
        print(f"draftcast: error: {error}", file=sys.stderr)
        sys.exit(LIVE_FAILED)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"draftcast {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def simulate(
    scenario: Annotated[str, typer.Argument(help="A YAML file, or an embedded scenario (draftcast scenarios).")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. engine.block_size=32.")
    ] = None,
    speculative_config: Annotated[
        str | None, typer.Option(metavar="JSON", help="vLLM's --speculative-config, verbatim; null turns it off.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Take arrivals and lengths from a trace.")] = None,
    rates: Annotated[
        str | None, typer.Option(metavar="R,R,...|A..B:N", help="Run at each of these mean request rates per second.")
    ] = None,
    compare_off: Annotated[
        bool | None,
        typer.Option(
            "--compare-off/--no-compare-off",
            help="Also run without speculation, on the same requests, and say whether speculation pays (the default).",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random numbers.")] = None,
    replications: Annotated[int | None, typer.Option(help="Independent repetitions behind the intervals.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the run here (whole or not at all).")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="HTML", help="With --rates: write the picture here.")] = None,
    vllm_result: Annotated[
        Path | None,
        typer.Option(metavar="JSON", help="Write the first replication as `vllm bench serve --save-detailed` would."),
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Record every engine step (steps.parquet with --out).")
    ] = False,
) -> None:
    """Simulate a scenario: latency, goodput and acceptance with intervals, and whether speculation pays."""
    from draftcast.scenarios.compare.comparison import compare
    from draftcast.scenarios.run.error_places import naming
    from draftcast.scenarios.schema.load import load_scenario
    from draftcast.scenarios.schema.numbers import parse_values

    changes = asked_changes(overrides, seed, replications)
    question = load_scenario(scenario, overrides=changes, speculative_config=speculative_config, trace=trace)
    wanted = parse_values(rates, "--rates") if rates is not None else []
    speculates = question.speculative_config is not None
    if compare_off and not speculates:
        raise InputError("the scenario has no speculation to compare with", file="--compare-off")
    compared = speculates and compare_off is not False
    if vllm_result is not None and wanted:
        raise InputError("is of one run, not of several rates", file="--vllm-result")
    if plot is not None:
        from draftcast.scenarios.show.plots import check_plot

        check_plot(plot, num_rates=len(wanted), compared=compared)
    if out is not None:
        from draftcast.scenarios.run.run_directory import check_target

        check_target(out)
    _notes(question)
    with naming(scenario), progress_bar() as progress:
        answer = compare(question, wanted, compare_off=compared, progress=progress, record_steps=steps)
    single = answer.points[0] if not wanted else None
    if out is not None:
        _write(out, answer, single)
    if plot is not None:
        from draftcast.scenarios.show.plots import comparison_figure, write_figure

        write_figure(comparison_figure(answer), plot)
    if vllm_result is not None and single is not None:
        from draftcast.scenarios.show.exports import json_bytes, vllm_bench_result

        write_bytes(vllm_result, json_bytes(vllm_bench_result(question, single.on)))
    if as_json:
        print_json(single.on.summary | single.compared() if single is not None else answer.summary())
    else:
        _print_tables(question, answer, single)
    if single is not None and single.own.state == "overloaded":
        raise typer.Exit(UNSTABLE)
    if single is not None and not single.own.has_figures:
        raise typer.Exit(NOT_SETTLED)
    if single is not None and single.on.slo_met is False:
        raise typer.Exit(SLO_UNMET)


def _notes(question: Scenario) -> None:
    spec = question.speculative_config
    for key in spec.without_effect if spec is not None else ():
        print(f"draftcast: note: engine.speculative_config.{key} has no effect on simulated time", file=sys.stderr)


def _print_tables(question: Scenario, answer: Comparison, single: Point | None) -> None:
    from draftcast.scenarios.show.tables import (
        capacity_line,
        comparison_table,
        cutover_line,
        make_console,
        note_lines,
        run_table,
        status_line,
    )

    console = make_console()
    if single is not None:
        from draftcast.scenarios.show.tables import load_words

        if single.verdict is not None:
            console.print(single.verdict.sentence(load_words(question)))
        console.print(run_table(question, single))
        notes = dict.fromkeys(line for run in single.runs for line in note_lines(run))
        for line in [status_line(single.on, single.own), *notes]:
            if line:
                console.print(line)
        return
    console.print(comparison_table(answer))
    if any(point.off is not None for point in answer.points):
        console.print(
            "advantage: mean E2E latency without speculation / with it, same requests; above 1 it is faster with. "
            f"± is half the {question.statistics.confidence:.0%} interval of {question.statistics.replications} "
            "replications."
        )
        if len(answer.points) > 1:
            console.print(cutover_line(answer))
    if capacity_line(answer):
        console.print(capacity_line(answer))
    for line in dict.fromkeys(line for p in answer.points for run in p.runs for line in note_lines(run)):
        console.print(line)


def _write(out: Path, answer: Comparison, single: Point | None) -> None:
    """The setting's own run as it is; several rates as one directory whose tables say which run a row belongs to."""
    import pandas as pd

    from draftcast.scenarios.run.run_directory import write_run_directory

    if single is not None:
        parts: dict[str, Any] = {"manifest": single.on.manifest, "summary": single.on.summary | single.compared()}
        write_run_directory(out, **parts, requests=single.on.requests, steps=single.on.steps)
        return
    tables: dict[str, list[pd.DataFrame]] = {"requests": [], "steps": []}
    for point in answer.points:
        for which, result in (("on", point.on), ("off", point.off)):
            for kind in tables if result is not None else ():
                table = getattr(result, kind)
                if table is not None:
                    labels = {"request_rate_rps": point.request_rate_rps, "speculation": which}
                    tables[kind].append(table.assign(**labels))
    write_run_directory(
        out,
        manifest={**answer.points[0].on.manifest, "points": len(answer.points)},
        summary=answer.summary(),
        requests=pd.concat(tables["requests"], ignore_index=True),
        steps=pd.concat(tables["steps"], ignore_index=True) if tables["steps"] else None,
    )
