"""``draftcast live``: testbed checkpoints, and scenarios on a real vLLM server.

Exit codes beside the usual ones: 6 the run failed or is incomplete, 130 interrupted, 143 told to end. Whatever was
recorded until then is kept.
"""

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
    SpeculativeJson,
    StartTimeout,
    Vllm,
    WarmupRequests,
    live_progress,
    numbers,
    split_command,
    stoppable,
    summary,
    summary_line,
)
from draftcast.scenarios.cli.live_sweep import sweep
from draftcast.scenarios.cli.terminal import print_json, progress_bar
from draftcast.scenarios.cli.validate import calibrate, report
from draftcast.scenarios.cli.validate import summary as report_summary

app = typer.Typer(
    help="Run scenarios on a real vLLM server and record what happens.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command()(sweep)
app.command()(calibrate)
app.command()(report)
app.command("summary")(report_summary)


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

    from draftcast.calibration.live.checkpoint import TARGET, draft_folder, write_testbed
    from draftcast.calibration.profile.hardware import load_hardware
    from draftcast.kernels.model.catalog import load_model
    from draftcast.scenarios.live.testbed import testbed_scenario

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
    speculative_config: SpeculativeJson = None,
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
    from draftcast.scenarios.live.run import LiveOptions, live_run
    from draftcast.scenarios.schema.load import load_scenario

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
    with stoppable(out), progress_bar("live run") as progress:
        recorded = live_run(question, out, options, live_progress(progress))
    if as_json:
        print_json({"folder": recorded.folder, **summary(recorded), "manifest": recorded.manifest})
    else:
        typer.echo(summary_line(recorded))
    if not recorded.complete:
        raise LiveError(f"{out}: incomplete: {recorded.manifest['incomplete_reason']}")


@app.command("import")
def import_result(
    result: Annotated[Path, typer.Argument(metavar="FILE", help="Of vllm bench serve --save-result --save-detailed.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Run directory; must not exist or be empty.")],
    scenario: Annotated[str | None, typer.Option(metavar="FILE|NAME", help="What the server was asked.")] = None,
    overrides: Overrides = None,
    speculative_config: SpeculativeJson = None,
    as_json: AsJson = False,
) -> None:
    """Take a result of vLLM's own benchmark client in place of a recorded run."""
    from draftcast.calibration.live.bench_result import import_bench_result
    from draftcast.scenarios.live.run import speculative_config as speculation_of
    from draftcast.scenarios.schema.load import load_scenario, to_mapping

    manifest = {}
    if scenario is not None:
        asked = load_scenario(scenario, overrides=overrides or (), speculative_config=speculative_config)
        manifest = {
            "name": asked.name,
            "scenario": to_mapping(asked),
            "speculative_config": speculation_of(asked),
        }
    elif overrides or speculative_config is not None:
        raise InputError("go with --scenario", file="--set and --speculative-config")
    recorded = import_bench_result(result, out, **manifest)
    if as_json:
        print_json({"folder": recorded.folder, **summary(recorded), "manifest": recorded.manifest})
    else:
        typer.echo(summary_line(recorded))
