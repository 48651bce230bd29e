"""``draftcast simulate``, ``compare``, ``recommend`` and ``sweep``: one scenario and its variants, simulated.

With and without speculation, under draft-length policies, with other methods and draft lengths, over a grid.
"""

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import typer

from draftcast.errors import InputError, naming
from draftcast.files import check_output, write_bytes, write_text, written
from draftcast.kernels.extras import require
from draftcast.scenarios.cli.options import Question, check_target, method_of, values_of, whole_values_of
from draftcast.scenarios.cli.terminal import (
    CELLS_WITHOUT_FIGURES,
    INTERRUPTED,
    SLO_UNMET,
    UNDECIDED,
    UNSTABLE,
    progress_bar,
)


def simulate(
    question: Question,
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
    exports = {"--vllm-json": vllm_json, "--prometheus": prometheus}
    to_stdout = _check_exports(exports, single=not rates_rps, as_json=question.as_json)
    if plot is not None:
        plots.check_points(len(rates_rps) if compared else 0)
        plots.check_picture(plot, "--plot")
    if out is not None:
        check_run_directory(out)
    if prometheus is not None:
        with naming(question.scenario):
            check_alike(scenario)
    for key in spec.without_effect if spec is not None else ():
        print(f"draftcast: note: engine.speculative_config.{key} has no effect on simulated time", file=sys.stderr)
    with naming(question.scenario), progress_bar() as progress:
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


def _export(content: bytes, path: Path) -> None:
    if str(path) == "-":
        typer.echo(content, nl=False)
    else:
        write_bytes(path, content)


def compare(question: Question, policies: str | None = None, metric: str = "e2e") -> None:
    """Compare draft-length policies on the same requests: paired differences, gap to the oracle, ranking with ties."""
    from draftcast.scenarios.compare.policy_comparison import compare_policies
    from draftcast.scenarios.show.recommend_report import policies_table, ranking_lines

    scenario = question.load()
    with naming(question.scenario), progress_bar() as progress:
        asked = [policies] if policies is not None else []
        answer = compare_policies(scenario, asked, metric=metric, progress=progress)
    question.print_answer(scenario, answer.summary, (policies_table(answer), *ranking_lines(answer)))


def recommend(
    question: Question,
    rates: str | None = None,
    concurrency: str | None = None,
    metric: str = "e2e",
    candidate: list[str] | None = None,
    max_k: int = 8,
    engine: str = "vllm",
    out: Path | None = None,
) -> None:
    """Recommend method, draft length and schedule for a load, against speculation off; print the command to paste."""
    from draftcast.scenarios.compare.recommend import ComparedLoad
    from draftcast.scenarios.compare.recommend import recommend as rank
    from draftcast.scenarios.compare.serve_command import SERVERS
    from draftcast.scenarios.schema.load import with_rate
    from draftcast.scenarios.show.recommend_report import answer_line, candidates_table, paste_lines
    from draftcast.scenarios.show.tables import title

    if engine not in SERVERS:
        raise InputError(f"must be one of {', '.join(SERVERS)}", file="--engine", value=engine)
    check_target("--out", out)
    scenario = question.load()
    own = scenario.workload.arrivals.model_dump(mode="json") if scenario.is_closed_loop else {"process": "closed_loop"}
    with progress_bar() as progress:
        if rates is not None and concurrency is not None:
            raise InputError("give --rates or --concurrency, not both", file="--concurrency", value=concurrency)
        arrivals = {
            f"{rate:g} req/s": with_rate(scenario, rate).workload.arrivals.model_dump(mode="json")
            for rate in values_of(rates, "--rates")
        }
        for clients in whole_values_of(concurrency, "--concurrency"):
            arrivals[f"{clients} clients"] = own | {"concurrency": clients}
        loads = [ComparedLoad(label, {"workload.arrivals": section}) for label, section in arrivals.items()]
        methods = [method_of(text) for text in candidate or []]
        answer = rank(scenario, metric=metric, loads=loads, alternatives=methods, max_k=max_k, progress=progress)
    if out is not None:
        write_text(out, json.dumps(answer.speculative_config) + "\n")
    question.print_answer(scenario, answer.summary, (title(scenario), candidates_table(answer), answer_line(answer)))
    if not question.as_json:
        typer.echo(paste_lines(answer, engine))


def sweep(
    *,
    grid: list[str],
    workers: int | None = None,
    cluster: str | None = None,
    question: Question,
    out: Path = Path("draftcast-sweep"),
    csv: Path | None = None,
    plot: Path | None = None,
    metric: str = "mean_e2el_s",
) -> None:
    """Simulate every point of a grid, in parallel and resumable, and show the Pareto front."""
    from draftcast.scenarios.show import sweep_report as report
    from draftcast.scenarios.show.plots import write_figure
    from draftcast.scenarios.sweep.run import sweep as run

    scenario = question.load()
    check_target("--csv", csv)
    check_target("--plot", plot)
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
    if plot is not None:
        write_figure(report.sweep_figure(result, metric), plot)
    question.print_answer(scenario, result.summary, (report.sweep_table(result), report.summary_line(result)))
    for line in report.error_lines(result):
        print(f"draftcast: no figures: {line}", file=sys.stderr)
    if result.errors:
        raise typer.Exit(CELLS_WITHOUT_FIGURES)
