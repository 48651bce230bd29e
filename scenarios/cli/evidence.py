"""``draftcast evidence``: options to a choice of points, their forecasts to text, JSON or a picture."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from draftcast.errors import InputError
from draftcast.scenarios.cli.terminal import print_json, progress_bar

if TYPE_CHECKING:
    from draftcast.scenarios.evidence.point import EvidencePoint


@dataclass(frozen=True, kw_only=True)
class PointFilter:
    """Which points; a text is looked for in the row's field, in any case."""

    model: str | None = None
    device: str | None = None
    method: str | None = None
    engine: str | None = None
    load: str | None = None
    tier: str | None = None
    source: str | None = None

    def points(self) -> "list[EvidencePoint]":
        """The chosen points. Raises InputError: no point is left."""
        from draftcast.scenarios.evidence.point import points

        pool = list(points())
        filters = {name: text for name, text in vars(self).items() if text is not None}
        chosen = [point for point in pool if all(_has(point, name, text) for name, text in filters.items())]
        if not chosen:
            options = ", ".join(f"--{name} {text}" for name, text in filters.items())
            unknown = [name for name, text in filters.items() if not any(_has(point, name, text) for point in pool)]
            alone = unknown[0] if unknown else ""
            values = {_field(point, alone) for point in pool}
            names = ", ".join(sorted(value for value in values if value and " " not in value))  # no remarks
            raise InputError(f"no point has {options}{f'; --{alone}: {names}' if names else ''}", file="evidence")
        return chosen


def _field(point: "EvidencePoint", name: str) -> str:
    """What a point says under the name of an option; empty: nothing."""
    special = {"device": point.gpu, "method": point.spec.method or "none", "load": point.load.kind}
    return special.get(name) or getattr(point, name, None) or ""


def _has(point: "EvidencePoint", name: str, text: str) -> bool:
    value = _field(point, name)
    if name == "tier":
        return value in text.upper().split(",")
    return value == text if name in ("method", "load") else text.lower() in value.lower()


def evidence(choice: PointFilter, markdown: bool = False, plot: Path | None = None, as_json: bool = False) -> None:
    """Forecast what others measured on real GPUs, and show the errors and the points that cannot be expressed."""
    from draftcast.scenarios.evidence.forecast import SIDES, forecast_points
    from draftcast.scenarios.evidence.summary import by_kind, errors, signs
    from draftcast.scenarios.show import evidence_report as report
    from draftcast.scenarios.show.plots import check_picture, write_figure
    from draftcast.scenarios.show.tables import make_console, make_table

    check_picture(plot, "--plot")
    with progress_bar("forecasting") as progress:
        forecasts = list(forecast_points(choice.points(), progress))
    if plot is not None:
        write_figure(report.evidence_figure(forecasts), plot)
    if as_json:
        sides = {name: {side: errors(members, side) for side in SIDES} for name, members in by_kind(forecasts).items()}
        right = {"losses": signs(forecasts, below=True), "gains": signs(forecasts, below=False)}
        print_json({"points": [forecast.summary() for forecast in forecasts], "errors": sides, "signs": right})
        return
    if markdown:
        typer.echo(report.page(forecasts), nl=False)
        return
    console = make_console()
    for source, members in report.by_source(forecasts).items():
        console.print(make_table([report.COLUMNS, *report.rows(members)], title=f"{source}  {members[0].point.url}"))
    if reasons := report.reason_lines(forecasts):
        console.print("Without a forecast:", *(f"- {reason}" for reason in reasons), sep="\n", markup=False)
    errors_by_kind = [report.SUMMARY, *report.summary_rows(forecasts)]
    console.print(make_table(errors_by_kind, title="Errors; each source counts once"))
    console.print(report.counts_line(forecasts), *report.sign_lines(forecasts), sep="\n")
