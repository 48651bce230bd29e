"""``draftcast simulate`` and ``draftcast compare``: one scenario, with and without speculation, or under policies."""

import sys
from collections.abc import Mapping
from pathlib import Path

import typer

from draftcast.errors import InputError
from draftcast.files import check_output, write_bytes
from draftcast.kernels.extras import require
from draftcast.scenarios.cli.options import QuestionOptions, check_target, values_of
from draftcast.scenarios.cli.terminal import SLO_UNMET, exit_without_figures, progress_bar


def simulate(
    question: QuestionOptions,
    rates: str | None = None,
    compare_off: bool | None = None,
    out: Path | None = None,
    plot: Path | None = None,
    vllm_json: Path | None = None,
    prometheus: Path | None = None,
    steps: bool = False,
) -> None:
    """Simulate a scenario: latency, goodput and acceptance with intervals, and whether speculation pays."""
    from draftcast.scenarios.compare.comparison import compare as compare_with_off
    from draftcast.scenarios.run.deployment import check_alike
    from draftcast.scenarios.run.run_directory import check_run_directory
    from draftcast.scenarios.show import plots, run_report
    from draftcast.scenarios.show.tables import json_bytes

    scenario = question.load()
    rates_rps = values_of(rates, "--rates")
    spec = scenario.speculative_config
    if compare_off and spec is None:
        raise InputError("the scenario has no speculation to compare with", file="--compare-off")
    compared = spec is not None and compare_off is not False
    to_stdout = _check_exports({"--vllm-json": vllm_json, "--prometheus": prometheus}, question, single=not rates_rps)
    if plot is not None:
        plots.check_points(len(rates_rps) if compared else 0)
    plots.check_picture(plot, "--plot")
    if out is not None:
        check_run_directory(out)
    if prometheus is not None:
        with question.naming():
            check_alike(scenario)
    for key in spec.without_effect if spec is not None else ():
        print(f"draftcast: note: engine.speculative_config.{key} has no effect on simulated time", file=sys.stderr)
    with question.naming(), progress_bar() as progress:
        answer = compare_with_off(scenario, rates_rps, compare_off=compared, progress=progress, record_steps=steps)
    single = answer.points[0] if not rates_rps else None
    if out is not None:
        answer.save(out) if single is None else single.on.save(out, **single.compared())
    if plot is not None:
        plots.write_figure(run_report.comparison_figure(answer), plot)
    if single is not None and vllm_json is not None:
        _export(json_bytes(run_report.vllm_bench_result(scenario, single.on)), vllm_json)
    if single is not None and prometheus is not None:
        from draftcast.scenarios.serve.metrics import run_text

        _export(run_text(scenario, single.on), prometheus)
    data = answer.summary if single is None else lambda: single.on.summary | single.compared()
    if not to_stdout:
        question.print_answer(scenario, data, run_report.answer_parts(answer, single))
    exit_without_figures([point.side for point in answer.points])
    if single is not None and single.on.slo_met is False:
        raise typer.Exit(SLO_UNMET)


def _check_exports(exports: Mapping[str, Path | None], question: QuestionOptions, *, single: bool) -> bool:
    """Whether one goes to standard output. Raises InputError: nothing of one run, no file, or two to one output."""
    paths = {option: str(path) for option, path in exports.items() if path is not None}
    for option, path in paths.items():
        if not single:
            raise InputError("is of one run, not of several rates", file=option)
        if path != "-":
            check_target(option, check_output(path), question)
    to_stdout = [option for option, path in paths.items() if path == "-"]
    if len(to_stdout) + question.as_json > 1:
        raise InputError("standard output takes one of --json, --vllm-json and --prometheus", file=to_stdout[0])
    if "--prometheus" in paths:
        require("serve", "prometheus_client", place="--prometheus")
    return bool(to_stdout)


def _export(content: bytes, path: Path) -> None:
    if str(path) == "-":
        typer.echo(content, nl=False)
    else:
        write_bytes(path, content)


def compare(question: QuestionOptions, policies: str | None = None, metric: str = "e2e") -> None:
    """Compare draft-length policies on the same requests: paired differences, gap to the oracle, ranking with ties."""
    from draftcast.scenarios.compare.policy_comparison import compare_policies
    from draftcast.scenarios.show.recommend_report import policies_table, ranking_lines

    scenario = question.load()
    with question.naming(), progress_bar() as progress:
        texts = [policies] if policies is not None else []
        answer = compare_policies(scenario, texts, metric=metric, progress=progress)
    question.print_answer(scenario, answer.summary, (policies_table(answer), *ranking_lines(answer)))
    exit_without_figures([standing.side for standing in answer.standings])
