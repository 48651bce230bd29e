"""``draftcast profile``: what a profile holds, how far to trust it, and how two of them differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Look at profiles of measured or assumed kernel times.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A bundled profile, a YAML file, or a folder that calibrate wrote.")]
Hardware = Annotated[str | None, typer.Option(help="Device, for a profile that fits any.")]


@app.command("list")
def list_profiles(
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """Names of the bundled profiles."""
    from draftcast.calibration.profile import profile_names

    if as_json:
        typer.echo(json.dumps(list(profile_names())))
        return
    for name in profile_names():
        typer.echo(name)


@app.command()
def show(
    profile: Name,
    hardware: Hardware = None,
    by_shape: Annotated[bool, typer.Option("--by-shape", help="Held-out errors split by size (seconds).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """Provenance, rooflines, held-out errors and coverage."""
    from draftcast.calibration.profile import RooflineProfile
    from draftcast.scenarios import profile_view as view

    opened = view.open_profile(profile, hardware)
    shown: dict[str, Any] = {
        "name": opened.profile.name,
        "hardware": opened.hardware.name,
        "date": opened.profile.date,
        "source": opened.profile.source,
        "checksum": opened.profile.checksum(),
    }
    if opened.manifest is not None:
        fields = ("device", "driver", "clocks", "versions", "licence", "command", "noise", "left_out")
        shown |= {name: getattr(opened.manifest, name) for name in fields if getattr(opened.manifest, name)}
    tables: dict[str, list[dict[str, Any]]] = {}
    if isinstance(opened.profile, RooflineProfile):
        tables["rooflines"] = view.rooflines(opened.profile)
    else:
        shown |= view.coefficients(opened.profile)
    if opened.folder is not None:
        tables["held-out errors"] = view.errors_by_shape(opened) if by_shape else view.errors_of(opened)
        tables["coverage"] = view.coverage(opened.table())
    if as_json:
        typer.echo(json.dumps({**shown, **tables}, indent=1))
        return
    width = max(10, *(len(name) for name in shown))
    for name, value in shown.items():
        typer.echo(f"{name:<{width}} {json.dumps(value) if isinstance(value, dict) else value}")
    for name, rows in tables.items():
        typer.echo(f"\n{name}\n{_text(rows)}")


@app.command()
def compare(
    first: Name,
    second: Annotated[str, typer.Argument(help="The other one.")],
    model: Annotated[str, typer.Option(help="Model whose decode step is compared.")] = "Llama-3.1-8B",
    method: Annotated[str, typer.Option(help="Speculation method of the step.")] = "eagle",
    num_speculative_tokens: Annotated[int, typer.Option("--num-speculative-tokens", min=0, help="k; 0: off.")] = 0,
    context: Annotated[int, typer.Option(min=1, help="Context tokens of every sequence.")] = 1024,
    dtype: Annotated[str, typer.Option(help="Weight format.")] = "bf16",
    hardware: Hardware = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """Milliseconds of a decode step in two profiles, part by part, at several batch sizes."""
    from draftcast.scenarios import profile_view as view

    one, other = (view.open_profile(name, hardware if _fits_any(name) else None) for name in (first, second))
    frame = view.compare(one, other, model, k=num_speculative_tokens, method=method, context=context, dtype=dtype)
    rows: list[dict[str, Any]] = [dict(zip(frame.columns, row, strict=True)) for row in frame.to_numpy().tolist()]
    typer.echo(json.dumps(rows, indent=1) if as_json else _text(rows))


@app.command()
def plot(
    profile: Name,
    out: Annotated[Path, typer.Option(help="Picture to write: .html, or .png and .svg where kaleido is installed.")],
    as_json: Annotated[bool, typer.Option("--json", help="Say as JSON what was written.")] = False,
) -> None:
    """Roofline picture of a measured profile: achieved rate against intensity, and held-out errors."""
    from draftcast.scenarios.plots import write_figure
    from draftcast.scenarios.profile_plot import profile_figure
    from draftcast.scenarios.profile_view import open_profile

    figure = profile_figure(open_profile(profile))
    write_figure(figure, out)
    if as_json:
        typer.echo(json.dumps({"written": str(out), "series": [trace.name for trace in figure.data if trace.name]}))


def _fits_any(name: str) -> bool:
    from draftcast.calibration.profile import find_profile

    path = find_profile(name)
    return path.is_file() and "\nhardware: any" in path.read_text(encoding="utf-8")


def _text(rows: list[dict[str, Any]]) -> str:
    import pandas as pd

    return (
        pd.DataFrame(rows).to_string(index=False, na_rep="-", float_format=lambda value: f"{value:.4g}")
        if rows
        else "(none)"
    )
