"""``draftcast live``: testbed checkpoints, and scenarios on a real vLLM server; what a stopped run recorded is kept."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from draftcast.errors import InputError, LiveError
from draftcast.scenarios.cli import options
from draftcast.scenarios.cli.terminal import INTERRUPTED, TERMINATED, ShownProgress, print_lines, progress_bar
from draftcast.scenarios.cli.validate import calibrate, report, report_sweep
from draftcast.scenarios.cli.validate import summary as report_summary

if TYPE_CHECKING:
    from draftcast.calibration.live.run_directory import LiveRun
    from draftcast.scenarios.live.run import LiveOptions, LiveProgress
    from draftcast.scenarios.live.sweep import SweepPlan


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    vllm: str | None = None
    server_arguments: list[str] | None = None
    start_timeout_s: float = 600.0
    request_timeout_s: float = 120.0
    warmup_requests: int = 8

    def live_options(self, **others: Any) -> LiveOptions:
        """As the live run takes them, with ``others`` of its fields. Raises InputError: ``vllm`` is no command."""
        from draftcast.scenarios.live.run import LiveOptions

        try:
            words = shlex.split(self.vllm) if self.vllm is not None else []
        except ValueError as error:
            raise InputError(f"cannot be split into words: {error}", file="--vllm", value=self.vllm) from None
        if self.vllm is not None and not words:
            raise InputError("must be a command", file="--vllm", value=self.vllm)
        lists = {"vllm": tuple(words), "server_arguments": tuple(self.server_arguments or ())}
        return LiveOptions(**vars(self) | lists | others)


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
    counts, late_s = summary(recorded), recorded.manifest["client"].get("lateness_p99_s")
    parts = [f"{counts['finished']} of {counts['requests']} requests"]
    parts.append(f"{counts['output_tokens']} tokens in {counts['span_s']:.1f} s")
    if late_s is not None:
        parts.append(f"client late by {late_s * 1e3:.1f} ms (p99)")
    if (text := recorded.manifest["known_continuation"]) is not None:
        parts.append(f"{text['checked_tokens'] - text['wrong_tokens']} of {text['checked_tokens']} tokens as known")
    if counts["acceptance_rates"] is not None:
        parts.append(f"acceptance by position {', '.join(f'{rate:.3f}' for rate in counts['acceptance_rates'])}")
    return f"{recorded.folder}: {'; '.join(parts)}"


def print_run(recorded: LiveRun, as_json: bool) -> None:
    data = {"folder": recorded.folder, **summary(recorded), "manifest": recorded.manifest}
    print_lines(as_json, data, [summary_line(recorded)])


@contextmanager
def stoppable(out: Path) -> Iterator[None]:
    """Ctrl-C and SIGTERM end a live run in order: the server is stopped, the run is kept, the exit code is set."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt("terminated")

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt as stopped:
        print(f"draftcast: error: {str(stopped) or 'interrupted'}; see {out}", file=sys.stderr)
        raise typer.Exit(TERMINATED if str(stopped) else INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def live_progress(shown: ShownProgress) -> LiveProgress:
    from draftcast.scenarios.live.run import LiveProgress

    def load(total: int, state: dict[str, Any]) -> None:
        ended = state["done"] + state["failed"]
        failed = f", {state['failed']} failed" if state["failed"] else ""
        requests = f"{state['done']} of {total} requests, {state['sent'] - ended} running"
        shown(ended / total, f"{requests}, {state['tokens']} tokens{failed}")

    return LiveProgress(say=shown.say, waiting=lambda _: shown(None, "server starting"), load=load)


app = options.Commands(help="Run scenarios on a real vLLM server and record what happens.", no_args_is_help=True)


@dataclass(frozen=True, kw_only=True)
class Draft:
    draft: str | None = None
    draft_layers: int = 2
    k: str | None = None


@app.command()
def checkpoint(
    folder: Path,
    rates: str,
    draft: Draft,
    target: str = "testbed-250M",
    dtype: str = "bf16",
    hardware: str = "cpu",
    seed: int = 0,
    as_json: bool = False,
) -> None:
    """Write checkpoints of random weights with a known greedy text and drafts of a chosen acceptance."""
    from draftcast.calibration.live.checkpoint import TARGET, draft_folder, write_testbed
    from draftcast.calibration.profile.hardware import load_hardware
    from draftcast.kernels.model.catalog import load_model
    from draftcast.scenarios.live.run import testbed_scenario

    acceptance = _numbers("--rates", rates, float)
    ks = _numbers("--k", draft.k, int) if draft.k is not None else [len(acceptance)]
    load_hardware(hardware)
    shape = load_model(target)
    small = replace(shape, num_hidden_layers=draft.draft_layers) if draft.draft is None else load_model(draft.draft)
    write_testbed(folder, shape, small, acceptance, ks, dtype, seed)
    path = testbed_scenario(folder, acceptance, ks, dtype, hardware)
    folders = [TARGET, *map(draft_folder, ks)]
    data = {"scenario": path, "folders": [folder / name for name in folders], "rates": acceptance}
    print_lines(as_json, data, [f"written: {folder} ({', '.join(folders)}), {path}"])


@dataclass(frozen=True, kw_only=True)
class EndpointOptions:
    url: str | None = None
    server_log: Path | None = None
    port: int | None = None


@app.command()
def run(
    subject: options.ScenarioOptions, out: Path, endpoint: EndpointOptions, server: ServerOptions, as_json: bool = False
) -> None:
    """Start the scenario's server, send its requests, record everything, stop the server."""
    from draftcast.scenarios.live.run import live_run

    loaded, log = subject.load(), endpoint.server_log
    if log is not None and (endpoint.url is None or not log.is_file()):
        raise InputError("must be a file, and goes with --url", file="--server-log", value=str(log))
    with stoppable(out), progress_bar("live run") as progress:
        recorded = live_run(loaded, out, server.live_options(**vars(endpoint)), live_progress(progress))
    print_run(recorded, as_json)
    if not recorded.complete:
        raise LiveError(f"{out}: incomplete: {recorded.manifest['incomplete_reason']}")


@app.command("import")
def import_result(
    result: Path,
    out: Path,
    scenario: str | None = None,
    overrides: list[str] | None = None,
    speculative_config: str | None = None,
    as_json: bool = False,
) -> None:
    """Import a result of vLLM's benchmark client as a recorded run."""
    from draftcast.calibration.live.imported_runs import import_bench_result
    from draftcast.scenarios.live.run import speculative_config as speculation_of
    from draftcast.scenarios.schema.load import load_scenario, to_mapping

    manifest = {}
    if scenario is not None:
        loaded = load_scenario(scenario, overrides=overrides or (), speculative_config=speculative_config)
        manifest = {"name": loaded.name, "scenario": to_mapping(loaded), "speculative_config": speculation_of(loaded)}
    elif overrides or speculative_config is not None:
        raise InputError("go with --scenario", file="--set and --speculative-config")
    print_run(import_bench_result(result, out, **manifest), as_json)


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    k: str = "1,3,5"
    candidate: list[str] | None = None
    concurrency: str | None = None
    rates: str | None = None
    calibration_concurrency: str | None = None
    calibration_lengths: str | None = None
    cell_seconds: float = 15.0
    rounds: int = 1
    in_turn: bool | None = None

    def plan(self, hardware: str) -> SweepPlan:
        from draftcast.scenarios.live.sweep import CONCURRENCIES, SweepPlan
        from draftcast.yaml_text import parse_yaml

        if (self.calibration_concurrency is None) != (self.calibration_lengths is None):
            raise InputError("go together", file="--calibration-concurrency and --calibration-lengths")
        lengths = self.calibration_lengths
        return SweepPlan(
            ks=tuple(_numbers("--k", self.k, int)),
            alternatives=tuple(options.method_of(text) for text in self.candidate or ()),
            concurrencies=_users("--concurrency", self.concurrency) or CONCURRENCIES,
            calibration_concurrencies=_users("--calibration-concurrency", self.calibration_concurrency),
            calibration_lengths=parse_yaml(lengths, "--calibration-lengths") if lengths is not None else None,
            rates_rps=tuple(options.values_of(self.rates, "--rates")) if self.rates is not None else None,
            cell_s=self.cell_seconds,
            rounds=self.rounds,
            in_turn=hardware != "cpu" if self.in_turn is None else self.in_turn,
        )


@app.command()
def sweep(
    scenario: str,
    out: Path,
    cells: SweepOptions,
    server: ServerOptions,
    overrides: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Run the same loads on real servers with speculation off and on, interleaved, and compare with the forecast."""
    from draftcast.calibration.live.run_directory import LiveRun
    from draftcast.scenarios.live.sweep import live_sweep
    from draftcast.scenarios.schema.load import load_scenario

    loaded = load_scenario(scenario, overrides=overrides or ())
    plan, live_options = cells.plan(loaded.hardware), server.live_options()
    with stoppable(out), progress_bar("live sweep") as progress:
        index = live_sweep(loaded, out, plan, live_options, live_progress(progress))
    if not as_json:
        for cell in index["cells"]:
            typer.echo(summary_line(LiveRun.read(out / cell["dir"])))
    judged = any(cell["complete"] and cell["purpose"] == "validation" for cell in index["cells"])
    data, shown = report_sweep(out) if judged else (None, "no complete run to compare with the forecast")
    print_lines(as_json, {**index, "report": data}, ["", shown])
    if short := [cell for cell in index["cells"] if not cell["complete"]]:
        raise LiveError(f"{out}: {len(short)} runs are incomplete; the first: {short[0]['incomplete_reason']}")


app.command()(calibrate)
app.command()(report)
app.command("summary")(report_summary)


def _users(option: str, text: str | None) -> tuple[int, ...]:
    return tuple(sorted({max(1, round(value)) for value in options.values_of(text, option)}))


def _numbers(option: str, text: str, kind: type[Any]) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError("must be numbers separated by commas", file=option, value=text) from None
