"""``draftcast live sweep``: options to a plan; the runs and what they say beside the forecast to text or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftcast.errors import InputError, LiveError
from draftcast.scenarios.cli.live_options import (
    AsJson,
    Overrides,
    RequestTimeout,
    ScenarioArgument,
    ServerArguments,
    StartTimeout,
    Vllm,
    WarmupRequests,
    live_progress,
    numbers,
    split_command,
    stoppable,
    summary_line,
)
from draftcast.scenarios.cli.terminal import print_json, progress_bar


def sweep(
    scenario: ScenarioArgument,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Holds every run and index.json; a begun sweep goes on.")],
    overrides: Overrides = None,
    k: Annotated[str, typer.Option(metavar="K,K,...", help="Draft lengths of the scenario's method.")] = "1,3,5",
    candidate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JSON|FILE",
            help='Another method: {"speculative_config": {...}, "acceptance": {...}}; repeatable.',
        ),
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option(metavar="C,C,...|A..B:N", help="Closed-loop users; 1,2,4,8,16,32 when absent.")
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(metavar="R,R,...|A..B:N", help="Requests per second; shares of the capacity when absent."),
    ] = None,
    calibration_concurrency: Annotated[
        str | None, typer.Option(metavar="C,C,...", help="Also closed loops to calibrate on, not to judge by.")
    ] = None,
    calibration_lengths: Annotated[
        str | None, typer.Option(metavar="YAML", help="Their workload.lengths: others than the scenario's.")
    ] = None,
    cell_seconds: Annotated[float, typer.Option(min=0.1, help="Seconds in which a run sends requests.")] = 15.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often every run is made.")] = 1,
    in_turn: Annotated[
        bool | None,
        typer.Option("--in-turn/--together", help="One server at a time; or all up, the default for hardware cpu."),
    ] = None,
    vllm: Vllm = None,
    server_arg: ServerArguments = None,
    start_timeout: StartTimeout = 600.0,
    request_timeout: RequestTimeout = 120.0,
    warmup_requests: WarmupRequests = 8,
    as_json: AsJson = False,
) -> None:
    """Run the same loads with speculation off and on, interleaved, on servers of our own; the forecast beside them."""
    from draftcast.calibration.live.run_directory import LiveRun
    from draftcast.calibration.yaml_text import parse_yaml
    from draftcast.scenarios.cli.recommend import alternative_method
    from draftcast.scenarios.cli.validate import report_sweep
    from draftcast.scenarios.live.modes import CONCURRENCIES, SweepPlan
    from draftcast.scenarios.live.run import LiveOptions
    from draftcast.scenarios.live.sweep import live_sweep
    from draftcast.scenarios.schema.load import load_scenario
    from draftcast.scenarios.schema.numbers import parse_values

    if (calibration_concurrency is None) != (calibration_lengths is None):
        raise InputError("go together", file="--calibration-concurrency and --calibration-lengths")
    lengths = parse_yaml(calibration_lengths, "--calibration-lengths") if calibration_lengths is not None else None
    asked = load_scenario(scenario, overrides=overrides or ())
    plan = SweepPlan(
        ks=tuple(numbers("--k", k, int)),
        alternatives=tuple(alternative_method(text) for text in candidate or ()),
        concurrencies=_users("--concurrency", concurrency) or CONCURRENCIES,
        calibration_concurrencies=_users("--calibration-concurrency", calibration_concurrency),
        calibration_lengths=lengths,
        rates_rps=tuple(parse_values(rates, "--rates")) if rates is not None else None,
        cell_s=cell_seconds,
        rounds=rounds,
        in_turn=asked.hardware != "cpu" if in_turn is None else in_turn,
    )
    options = LiveOptions(
        vllm=split_command(vllm),
        server_arguments=tuple(server_arg or ()),
        start_timeout_s=start_timeout,
        request_timeout_s=request_timeout,
        warmup_requests=warmup_requests,
    )
    with stoppable(out), progress_bar("live sweep") as progress:
        index = live_sweep(asked, out, plan, options, live_progress(progress))
    if not as_json:
        for cell in index["cells"]:
            typer.echo(summary_line(LiveRun.read(out / cell["dir"])))
    judged = any(cell["complete"] and cell["purpose"] == "validation" for cell in index["cells"])
    found, shown = report_sweep(out) if judged else (None, "no complete run to compare with the forecast")
    if as_json:
        print_json({**index, "report": found})
    else:
        typer.echo(f"\n{shown}")
    if not index["complete"]:
        short = [cell for cell in index["cells"] if not cell["complete"]]
        raise LiveError(f"{out}: {len(short)} runs are incomplete; the first: {short[0]['incomplete_reason']}")


def _users(option: str, text: str | None) -> tuple[int, ...]:
    from draftcast.scenarios.schema.numbers import parse_values

    values = parse_values(text, option) if text is not None else []
    return tuple(sorted({max(1, round(value)) for value in values}))
