"""``draftcast simulate`` and ``draftcast compare``: one scenario, with and without speculation, or under policies."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftcast.errors import InputError
from draftcast.files import check_output, write_bytes
from draftcast.kernels.extras import require
from draftcast.scenarios.cli.options import Metric, Question, Rates, option_groups, values_of
from draftcast.scenarios.cli.terminal import SLO_UNMET, UNDECIDED, UNSTABLE, progress_bar

if TYPE_CHECKING:
    import pandas as pd

    from draftcast.scenarios.compare.comparison import Comparison, RatePoint
    from draftcast.scenarios.schema import Scenario


@option_groups
def simulate(
    question: Question,
    rates: Rates = None,
    compare_off: Annotated[
        bool | None,
        typer.Option(
            "--compare-off/--no-compare-off",
            help="Also run without speculation, on the same requests, and say whether speculation pays (the default).",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Run directory to write.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="HTML", help="With --rates: write the plot here.")] = None,
    vllm_json: Annotated[
        Path | None,
        typer.Option(
            "--vllm-json",
            "--vllm-result",
            metavar="FILE|-",
            help="Write the first replication as `vllm bench serve --save-detailed` would; -: to standard output.",
        ),
    ] = None,
    prometheus: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|-",
            help="Write the first replication as vLLM's /metrics text, in simulated seconds (needs the extra serve).",
        ),
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Record every engine step (steps.parquet with --out).")
    ] = False,
) -> None:
    """Simulate a scenario: latency, goodput and acceptance with intervals, and whether speculation pays."""
    from draftcast.errors import naming
    from draftcast.scenarios.compare.comparison import compare as compare_with_off

    scenario = question.load()
    rates_rps = values_of(rates, "--rates")
    spec = scenario.speculative_config
    if compare_off and spec is None:
        raise InputError("the scenario has no speculation to compare with", file="--compare-off")
    compared = spec is not None and compare_off is not False
    exports = {"--vllm-json": vllm_json, "--prometheus": prometheus}
    to_stdout = _check_exports(exports, single=not rates_rps, as_json=question.as_json)
    if plot is not None:
        from draftcast.scenarios.show.plots import check_plot

        check_plot(plot, num_rates=len(rates_rps), compared=compared)
    if out is not None:
        from draftcast.scenarios.run.run_directory import check_run_directory

        check_run_directory(out)
    for key in spec.without_effect if spec is not None else ():
        print(f"draftcast: note: engine.speculative_config.{key} has no effect on simulated time", file=sys.stderr)
    with naming(question.scenario), progress_bar() as progress:
        answer = compare_with_off(scenario, rates_rps, compare_off=compared, progress=progress, record_steps=steps)
    single = answer.points[0] if not rates_rps else None
    if out is not None:
        _write(out, answer, single)
    if plot is not None:
        from draftcast.scenarios.show.plots import write_figure
        from draftcast.scenarios.show.run_plots import comparison_figure

        write_figure(comparison_figure(answer), plot)
    if single is not None:
        _export(exports, scenario, single)
    data = answer.summary if single is None else lambda: single.on.summary | single.compared()
    if not to_stdout:
        question.print_answer(scenario, data, _parts(scenario, answer, single))
    if single is not None and not single.own.has_figures:
        raise typer.Exit(UNSTABLE if single.own.state == "overloaded" else UNDECIDED)
    if single is not None and single.on.slo_met is False:
        raise typer.Exit(SLO_UNMET)


def _check_exports(exports: Mapping[str, Path | None], *, single: bool, as_json: bool) -> bool:
    """Whether one goes to standard output. Raises InputError: nothing of one run, no file, or two to one output."""
    given = {option: str(path) for option, path in exports.items() if path is not None}
    for option, path in given.items():
        if not single:
            raise InputError("is of one run, not of several rates", file=option)
        if path != "-":
            check_output(path)
    to_stdout = [option for option, path in given.items() if path == "-"]
    if len(to_stdout) + as_json > 1:
        raise InputError("standard output takes one of --json, --vllm-json and --prometheus", file=to_stdout[0])
    if "--prometheus" in given:
        require("serve", "prometheus_client", place="--prometheus")
    return bool(to_stdout)


def _export(exports: Mapping[str, Path | None], scenario: Scenario, single: RatePoint) -> None:
    for option, path in exports.items():
        if path is None:
            continue
        if option == "--prometheus":
            from draftcast.scenarios.serve.metrics import run_text

            content = run_text(scenario, single.on)
        else:
            from draftcast.scenarios.show.run_report import vllm_bench_result
            from draftcast.scenarios.show.tables import json_bytes

            content = json_bytes(vllm_bench_result(scenario, single.on))
        if str(path) == "-":
            typer.echo(content, nl=False)
        else:
            write_bytes(path, content)


def _parts(scenario: Scenario, answer: Comparison, single: RatePoint | None) -> Iterator[Any]:
    """Tables and sentences of one load or of several rates."""
    from draftcast.scenarios.show import run_report as report

    if single is not None:
        if single.verdict is not None:
            yield single.verdict.sentence(report.load_words(scenario))
        yield report.run_table(scenario, single)
        yield from (report.cause_line(single), report.status_line(single.on, single.own))
    else:
        yield from (report.comparison_table(answer), *report.comparison_lines(answer))
    notes = (note for point in answer.points for run in point.runs for note in run.summary.get("notes", []))
    yield from (f"note: {note}" for note in dict.fromkeys(notes))


def _write(out: Path, answer: Comparison, single: RatePoint | None) -> None:
    """The setting's own run as it is; several rates as one directory whose tables say which run a row belongs to."""
    import pandas as pd

    from draftcast.scenarios.run.run_directory import write_run_directory

    if single is not None:
        single.on.write(out, single.compared())
        return
    tables: dict[str, list[pd.DataFrame]] = {"requests": [], "steps": []}
    for point in answer.points:
        for speculation, result in zip(("on", "off"), point.runs, strict=False):
            labels = {"request_rate_rps": point.request_rate_rps, "speculation": speculation}
            tables["requests"].append(result.requests.assign(**labels))
            if result.steps is not None:
                tables["steps"].append(result.steps.assign(**labels))
    write_run_directory(
        out,
        manifest={**answer.points[0].on.manifest, "points": len(answer.points)},
        summary=answer.summary(),
        requests=pd.concat(tables["requests"], ignore_index=True),
        steps=pd.concat(tables["steps"], ignore_index=True) if tables["steps"] else None,
    )


@option_groups
def compare(
    question: Question,
    policies: Annotated[
        str | None,
        typer.Option(
            metavar="A,B(KEY=VALUE),...",
            help="Policies, the first being the baseline; also file.py:Class. Default: all the scenario allows.",
        ),
    ] = None,
    metric: Metric = "e2e",
) -> None:
    """Compare draft-length policies on the same requests: paired differences, gap to the oracle, ranking with ties."""
    from draftcast.errors import naming
    from draftcast.scenarios.compare.policy_comparison import compare_policies
    from draftcast.scenarios.show.recommend_report import policies_table, ranking_lines

    scenario = question.load()
    with naming(question.scenario), progress_bar() as progress:
        asked = [policies] if policies is not None else []
        answer = compare_policies(scenario, asked, metric=metric, progress=progress)
    question.print_answer(scenario, answer.summary, (policies_table(answer), *ranking_lines(answer)))
