"""``draftcast calibrate``: three sources of measured time behind one command.

``--device`` times kernels here, ``--engine-log`` fits a step from a server's log, ``--import`` reads another tool's
timings. Each has its own options; one that belongs to another source is refused rather than ignored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from draftcast.errors import InputError

_PROFILE = ("model", "hardware", "tp", "dtype", "name", "out", "as_json")
_SOURCES: dict[str, tuple[tuple[str, ...], str]] = {
    "--device": ((*_PROFILE, "kv_dtype", "operators", "max_rows", "threads", "budget", "seed"), "what to time"),
    "--engine-log": (
        (
            *_PROFILE,
            "speculative_log",
            "method",
            "clock",
            "warmup_steps",
            "held_out",
            "bootstrap",
            "seed",
            "kv_capacity_tokens",
            "block_size",
        ),
        "a log of vLLM",
    ),
    "--import": ((*_PROFILE, "path", "system"), "whose timings"),
}
"""Source -> its options and what it names."""


def calibrate(
    context: typer.Context,
    device: Annotated[Literal["cpu", "cuda"] | None, typer.Option(help="Time the kernels of this machine.")] = None,
    engine_log: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Fit step time to vLLM's --enable-logging-iteration-details lines."),
    ] = None,
    import_from: Annotated[
        Literal["aiconfigurator", "vidur", "llmservingsim"] | None,
        typer.Option("--import", help="Take another tool's timings."),
    ] = None,
    path: Annotated[
        Path | None, typer.Argument(help="With --import: its file or folder; absent: installed aiconfigurator-core.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Profile folder to write.")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Whose shapes, or whose log; repeatable for --device.")
    ] = None,
    tp: Annotated[list[int] | None, typer.Option(help="Tensor-parallel degree; repeatable for --device.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Number format; repeatable for --device.")] = None,
    kv_dtype: Annotated[
        list[str] | None, typer.Option(help="Format of the KV cache; repeatable. Absent: bf16, on cuda also fp8.")
    ] = None,
    hardware: Annotated[str | None, typer.Option(metavar="NAME|FILE", help="Data sheet of the device.")] = None,
    name: Annotated[str | None, typer.Option(help="The profile's name. Absent: the folder's.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of inputs and order, or of the bootstrap.")] = 0,
    budget: Annotated[str, typer.Option(metavar="TIME", help="--device: time to spend, e.g. 90s, 10m, 2h.")] = "10m",
    operators: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="--device: time only these operators.")
    ] = None,
    max_rows: Annotated[int | None, typer.Option(help="--device: most rows of a product: 512, on cuda 8192.")] = None,
    threads: Annotated[int | None, typer.Option(help="--device cpu: threads. Absent: every usable core.")] = None,
    speculative_log: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="--engine-log: the same server with speculation.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="--engine-log: speculation method, if the log lacks it.")] = None,
    clock: Annotated[
        Literal["auto", "wall", "elapsed"], typer.Option(help="--engine-log: which of its times are step times.")
    ] = "auto",
    warmup_steps: Annotated[int, typer.Option(help="--engine-log: first steps left out.")] = 10,
    held_out: Annotated[float, typer.Option(help="--engine-log: share of time held out.")] = 0.25,
    bootstrap: Annotated[int, typer.Option(help="--engine-log: resamples of the intervals.")] = 200,
    kv_capacity_tokens: Annotated[float | None, typer.Option(help="--engine-log: KV cache in tokens.")] = None,
    block_size: Annotated[int | None, typer.Option(help="--engine-log: tokens of a KV block.")] = None,
    system: Annotated[str | None, typer.Option(help="--import: the tool's own name of the device.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Measure time: of this machine's kernels, of a server's steps, or from another tool's tables."""
    source = _one_source({"--device": device, "--engine-log": engine_log, "--import": import_from})
    given: dict[str, Any] = {
        parameter: value
        for parameter, value in context.params.items()
        if parameter not in ("device", "engine_log", "import_from")
    }
    known = _SOURCES[source][0]
    for parameter, value in given.items():
        came_from = context.get_parameter_source(parameter)
        if parameter not in known and came_from is not None and came_from.name != "DEFAULT":
            option = "path" if parameter == "path" else f"--{parameter.replace('_', '-')}"
            raise InputError(f"does not go with {source}", file=option, value=_plain(value))
    options: dict[str, Any] = {parameter: value for parameter, value in given.items() if parameter in known}
    if source == "--device":
        from draftcast.scenarios.cli.calibrate_device import calibrate_device

        calibrate_device(device or "cpu", **{**options, "out": _required(out, "--out", source)})
        return
    for many in ("model", "tp", "dtype"):
        options[many] = _single(options[many], f"--{many}", source)
    if source == "--engine-log":
        from draftcast.scenarios.cli.engine_log import calibrate_engine_log

        options["tp"], options["dtype"] = options["tp"] or 1, options["dtype"] or "bf16"
        calibrate_engine_log(engine_log or [], **options)
        return
    from draftcast.scenarios.cli.import_timings import calibrate_import

    calibrate_import(import_from or "", **{**options, "out": _required(out, "--out", source)})


def _one_source(sources: dict[str, object]) -> str:
    chosen = [name for name, value in sources.items() if value]
    if len(chosen) != 1:
        wanted = ", ".join(f"{name} ({what})" for name, (_, what) in _SOURCES.items())
        given = f", not {' and '.join(chosen)}" if chosen else ""
        raise InputError(f"exactly one of {wanted} is needed{given}", file="calibrate")
    return chosen[0]


def _required(value: Path | None, option: str, source: str) -> Path:
    if value is None:
        raise InputError(f"required with {source}", file=option)
    return value


def _single(values: list[Any] | None, option: str, source: str) -> Any:
    if values is not None and len(values) > 1:
        raise InputError(f"only one with {source}", file=option, value=_plain(values))
    return values[0] if values else None


def _plain(value: object) -> object:
    """An option's value as the user wrote it."""
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    return str(value) if isinstance(value, Path) else value
