"""``draftcast live``: testbed checkpoints, and scenarios on a real vLLM server.

Exit codes beside the usual ones: 6 the run failed or is incomplete, 130 interrupted, 143 told to end. Whatever was
recorded until then is kept.
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftcast.errors import InputError, LiveError
from draftcast.scenarios.terminal import print_json

if TYPE_CHECKING:
    from draftcast.calibration.live.run_directory import LiveRun

INTERRUPTED, TERMINATED = 130, 143

app = typer.Typer(
    help="Run scenarios on a real vLLM server and record what happens.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ScenarioArgument = Annotated[str, typer.Argument(help="A YAML file, or an embedded scenario (draftcast scenarios).")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. engine.block_size=32.")
]
Vllm = Annotated[
    str | None, typer.Option(metavar="COMMAND", help="How vLLM's server is called; found here or on PATH when absent.")
]
ServerArguments = Annotated[
    list[str] | None, typer.Option("--server-arg", metavar="FLAG", help="One more word of our server's command line.")
]
StartTimeout = Annotated[float, typer.Option(help="Seconds a server may take to start.")]
RequestTimeout = Annotated[float, typer.Option(help="Seconds a request may take.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
WarmupRequests = Annotated[int, typer.Option(help="Requests sent before, unrecorded.")]


@app.command()
def checkpoint(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the folders target and draft-k<k> go.")],
    rates: Annotated[str, typer.Option(metavar="R,R,...", help="Unconditional acceptance of draft position 1, 2, ...")],
    target: Annotated[str, typer.Option(help="Shape: a bundled model or a config.json (Llama).")] = "testbed-250M",
    draft: Annotated[str | None, typer.Option(help="Shape of the draft; the target's with fewer layers.")] = None,
    draft_layers: Annotated[int, typer.Option(help="Layers of the draft when --draft is absent.")] = 2,
    k: Annotated[str | None, typer.Option(metavar="K,K,...", help="A draft for each; the number of rates.")] = None,
    dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp32.")] = "bf16",
    hardware: Annotated[str, typer.Option(help="Of the scenario that is written beside them.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Of all weights and of the continuation.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Write checkpoints of random weights whose greedy text is known and whose draft is accepted as often as asked."""
    from dataclasses import replace

    from draftcast.calibration.hardware import load_hardware
    from draftcast.calibration.live.checkpoint import TARGET, draft_folder, write_testbed
    from draftcast.kernels.catalog import load_model
    from draftcast.scenarios.live_testbed import testbed_scenario

    wanted = numbers("--rates", rates, float)
    ks = numbers("--k", k, int) if k is not None else [len(wanted)]
    load_hardware(hardware)
    shape = load_model(target)
    small = load_model(draft) if draft is not None else replace(shape, num_hidden_layers=draft_layers)
    write_testbed(folder, shape, small, wanted, ks, dtype, seed)
    path = testbed_scenario(folder, wanted, ks, dtype, hardware)
    folders = [TARGET, *map(draft_folder, ks)]
    if as_json:
        print_json({"scenario": path, "folders": [folder / name for name in folders], "rates": wanted})
        return
    typer.echo(f"written: {folder} ({', '.join(folders)}), {path}")


@app.command()
def run(
    scenario: ScenarioArgument,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Run directory; must not exist or be empty.")],
    overrides: Overrides = None,
    speculative_config: Annotated[
        str | None, typer.Option(metavar="JSON", help="vLLM's --speculative-config, verbatim; null turns it off.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="A server that is running already; none is started.")] = None,
    server_log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --url: the log that server is writing, if it is here.")
    ] = None,
    vllm: Vllm = None,
    server_arg: ServerArguments = None,
    port: Annotated[int | None, typer.Option(help="Of the server that is started; a free one when absent.")] = None,
    start_timeout: StartTimeout = 600.0,
    request_timeout: RequestTimeout = 120.0,
    warmup_requests: WarmupRequests = 8,
    seed: Annotated[int | None, typer.Option(help="Of lengths, arrivals and prompts.")] = None,
    as_json: AsJson = False,
) -> None:
    """Start the scenario's server, send its requests, record everything, stop the server."""
    from draftcast.scenarios.live_progress import shown_progress
    from draftcast.scenarios.live_run import LiveOptions, live_run
    from draftcast.scenarios.load import load_scenario

    changes = [*(overrides or []), *([f"statistics.seed={seed}"] if seed is not None else [])]
    question = load_scenario(scenario, overrides=changes, speculative_config=speculative_config)
    if server_log is not None and (url is None or not server_log.is_file()):
        raise InputError("must be a file, and goes with --url", file="--server-log", value=str(server_log))
    options = LiveOptions(
        url=url,
        server_log=server_log,
        vllm=split_command(vllm),
        server_arguments=tuple(server_arg or ()),
        port=port,
        start_timeout_s=start_timeout,
        request_timeout_s=request_timeout,
        warmup_requests=warmup_requests,
    )
    with stoppable(out), shown_progress() as progress:
        recorded = live_run(question, out, options, progress)
    if as_json:
        print_json({"folder": recorded.folder, **summary(recorded), "manifest": recorded.manifest})
    else:
        typer.echo(summary_line(recorded))
    if not recorded.complete:
        raise LiveError(f"{out}: incomplete: {recorded.manifest['incomplete_reason']}")


@app.command()
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
        bool, typer.Option("--in-turn/--together", help="One server at a time, for a GPU that holds one; or all up.")
    ] = False,
    vllm: Vllm = None,
    server_arg: ServerArguments = None,
    start_timeout: StartTimeout = 600.0,
    request_timeout: RequestTimeout = 120.0,
    warmup_requests: WarmupRequests = 8,
    as_json: AsJson = False,
) -> None:
    """Run the same loads with speculation off and on, interleaved, on servers of our own."""
    from draftcast.calibration.live.run_directory import LiveRun
    from draftcast.calibration.yaml_text import parse_yaml
    from draftcast.scenarios.grid import parse_values
    from draftcast.scenarios.live_modes import CONCURRENCIES, SweepPlan
    from draftcast.scenarios.live_progress import shown_progress
    from draftcast.scenarios.live_run import LiveOptions
    from draftcast.scenarios.live_sweep import live_sweep
    from draftcast.scenarios.load import load_scenario
    from draftcast.scenarios.recommend_cli import alternative_method

    if (calibration_concurrency is None) != (calibration_lengths is None):
        raise InputError("go together", file="--calibration-concurrency and --calibration-lengths")
    lengths = parse_yaml(calibration_lengths, "--calibration-lengths") if calibration_lengths is not None else None
    plan = SweepPlan(
        ks=tuple(numbers("--k", k, int)),
        alternatives=tuple(alternative_method(text) for text in candidate or ()),
        concurrencies=_users("--concurrency", concurrency) or CONCURRENCIES,
        calibration_concurrencies=_users("--calibration-concurrency", calibration_concurrency),
        calibration_lengths=lengths,
        rates_rps=tuple(parse_values(rates, "--rates")) if rates is not None else None,
        cell_s=cell_seconds,
        rounds=rounds,
        in_turn=in_turn,
    )
    options = LiveOptions(
        vllm=split_command(vllm),
        server_arguments=tuple(server_arg or ()),
        start_timeout_s=start_timeout,
        request_timeout_s=request_timeout,
        warmup_requests=warmup_requests,
    )
    with stoppable(out), shown_progress() as progress:
        index = live_sweep(load_scenario(scenario, overrides=overrides or ()), out, plan, options, progress)
    if as_json:
        print_json(index)
    else:
        for cell in index["cells"]:
            typer.echo(summary_line(LiveRun.read(out / cell["dir"])))
    if not index["complete"]:
        short = [cell for cell in index["cells"] if not cell["complete"]]
        raise LiveError(f"{out}: {len(short)} runs are incomplete; the first: {short[0]['incomplete_reason']}")


def summary(recorded: LiveRun) -> dict[str, Any]:
    """Counts of a run: requests, finished, output_tokens, span_s (start to the last answer), acceptance_rates."""
    requests, counted = recorded.requests, recorded.manifest["acceptance"]
    finished = requests["finish_s"].notna()
    return {
        "complete": recorded.complete,
        "requests": len(requests),
        "finished": int(finished.sum()),
        "output_tokens": int(requests["output_tokens"].sum()),
        "span_s": float(requests["finish_s"].max()) if finished.any() else 0.0,
        "acceptance_rates": [n / counted["num_drafts"] for n in counted["per_position"]] if counted else None,
    }


def summary_line(recorded: LiveRun) -> str:
    """One line for people."""
    found, client, known = summary(recorded), recorded.manifest["client"], recorded.manifest["known_continuation"]
    parts = [f"{found['finished']} of {found['requests']} requests"]
    parts.append(f"{found['output_tokens']} tokens in {found['span_s']:.1f} s")
    if client.get("lateness_p99_s") is not None:
        parts.append(f"client late by {client['lateness_p99_s'] * 1e3:.1f} ms (p99)")
    if known is not None:
        parts.append(f"{known['checked_tokens'] - known['wrong_tokens']} of {known['checked_tokens']} tokens as known")
    if found["acceptance_rates"] is not None:
        parts.append(f"acceptance by position {', '.join(f'{rate:.3f}' for rate in found['acceptance_rates'])}")
    return f"{recorded.folder}: {'; '.join(parts)}"


def split_command(text: str | None) -> tuple[str, ...]:
    """The words of a command line; () for None.

    Raises:
        InputError: unbalanced quotes, or no word.
    """
    try:
        words = tuple(shlex.split(text)) if text is not None else ()
    except ValueError as error:
        raise InputError(f"cannot be split into words: {error}", file="--vllm", value=text) from None
    if text is not None and not words:
        raise InputError("must be a command", file="--vllm", value=text)
    return words


def _users(option: str, text: str | None) -> tuple[int, ...]:
    from draftcast.scenarios.grid import parse_values

    values = parse_values(text, option) if text is not None else []
    return tuple(sorted({max(1, round(value)) for value in values}))


def numbers(option: str, text: str, kind: type[Any]) -> list[Any]:
    """Numbers separated by commas.

    Raises:
        InputError: something else between two commas.
    """
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError("must be numbers separated by commas", file=option, value=text) from None


@contextmanager
def stoppable(out: Path) -> Iterator[None]:
    """Ctrl-C and SIGTERM end a live run in order: the server is stopped, the run is kept, the exit code is set."""

    def end(*_: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt as stopped:
        told = isinstance(stopped, _Terminated)
        print(f"draftcast: error: {'told to end' if told else 'interrupted'}; see {out}", file=sys.stderr)
        raise typer.Exit(TERMINATED if told else INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


class _Terminated(KeyboardInterrupt):
    """SIGTERM came."""
