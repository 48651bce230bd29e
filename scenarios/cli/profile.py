"""``draftcast profile``: what a profile holds, how far to trust it, and how two profiles differ."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftcast.errors import HardwareError
from draftcast.scenarios.cli.options import Commands
from draftcast.scenarios.cli.terminal import print_lines

app = Commands(help="Show and compare profiles of measured or assumed kernel times.", no_args_is_help=True)


@app.command("list")
def list_profiles(as_json: bool = False) -> None:
    """List the bundled profiles: device, date, and whether their times are measured."""
    from draftcast.scenarios.show.profile_view import bundled

    profiles = bundled()
    lines = []
    for name, entry in profiles.items():
        points = f"{entry['points']:,} " if entry["points"] else ""
        lines.append(f"{name:<28}{entry['hardware']:<16}{entry['date']:<13}{points}{entry['kind']}")
    print_lines(as_json, profiles, lines)


@app.command()
def show(profile: str, hardware: str | None = None, by_shape: bool = False, as_json: bool = False) -> None:
    """Show provenance, rooflines, held-out errors and coverage."""
    from rich.text import Text

    from draftcast.calibration.profile.spec import RooflineProfile
    from draftcast.scenarios.show import profile_view as view
    from draftcast.scenarios.show.tables import LOOKS, rows_table

    opened = view.open_profile(profile, hardware)
    loaded = opened.profile
    shown: dict[str, Any] = {"name": loaded.name, "hardware": opened.hardware.name, "date": loaded.date}
    shown |= {"source": loaded.source, "checksum": loaded.checksum()}
    if opened.manifest is not None:
        fields = ("device", "driver", "clocks", "versions", "licence", "command", "noise", "left_out")
        shown |= {name: getattr(opened.manifest, name) for name in fields if getattr(opened.manifest, name)}
    tables: dict[str, list[dict[str, Any]]] = {}
    if isinstance(loaded, RooflineProfile):
        tables["rooflines"] = view.rooflines(loaded)
    else:
        shown |= loaded.coefficients()
    if opened.folder is not None:
        tables["held-out errors"] = view.errors_by_shape(opened) if by_shape else view.errors_of(opened)
        tables["coverage"] = view.coverage(opened.table)
    lines: list[Any] = view.provenance_lines(shown)
    for name in ("rooflines", "held-out errors"):
        if tables.get(name):
            lines += ["", rows_table(tables[name], name), Text(LOOKS["notes"][name])]
    if "coverage" in tables:
        lines += ["", "coverage", *view.coverage_lines(tables["coverage"])]
    print_lines(as_json, {**shown, **tables}, lines)


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    model: str = "Llama-3.1-8B"
    method: str = "eagle"
    k: int = 0
    tp: int = 1
    context: int = 1024
    dtype: str = "bf16"
    version: str = "vllm 0.32"


@app.command()
def compare(first: str, second: str, step: StepOptions, hardware: str | None = None, as_json: bool = False) -> None:
    """Compare a decode step in two profiles: milliseconds by part and batch size, and points timed in both."""
    from draftcast.scenarios.show import profile_view as view
    from draftcast.scenarios.show.tables import rows_table

    one, other = (view.open_profile(name, hardware if view.fits_any_device(name) else None) for name in (first, second))
    rows, timed = view.compare_steps(one, other, view.Step(**vars(step))), view.agreement(one, other)
    answer = {"first": one.profile.name, "second": other.profile.name, "rows": rows, "timed_in_both": timed}
    names = (first, second) if one.profile.name == other.profile.name else (one.profile.name, other.profile.name)
    named = {"first_share": "share", "first_ms": f"{names[0]}, ms", "second_ms": f"{names[1]}, ms"}
    lines: list[Any] = [rows_table([{named.get(key, key): value for key, value in row.items()} for row in rows])]
    if timed:
        lines += ["", rows_table(timed, "points timed in both, and how far apart")]
    print_lines(as_json, answer, lines)


@app.command()
def plot(profile: str, out: Path, as_json: bool = False) -> None:
    """Draw a roofline plot of a measured profile: achieved rate against intensity, and held-out errors."""
    from draftcast.scenarios.show.device_plots import profile_figure
    from draftcast.scenarios.show.plots import check_picture, write_figure
    from draftcast.scenarios.show.profile_view import fits_any_device, open_profile

    check_picture(out, "--out")
    if fits_any_device(profile):
        raise HardwareError("holds no measured table, so there is nothing to draw", key="profile", value=profile)
    figure = profile_figure(open_profile(profile))
    write_figure(figure, out)
    names = [trace.name for trace in figure.data if trace.name]
    print_lines(as_json, {"written": str(out), "series": names}, [f"written: {out}"])
