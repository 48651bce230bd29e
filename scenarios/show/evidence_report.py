"""Measured points beside their forecasts: tables for the terminal and the docs, the reasons, and one picture."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftcast.scenarios.evidence.forecast import SIDES, Forecast, ForecastSide
from draftcast.scenarios.evidence.point import RATES
from draftcast.scenarios.evidence.summary import ABOVE, BELOW, ENGINES, JUDGED_TIERS, Score, by_kind, errors, signs
from draftcast.scenarios.show.plots import COLOURS, OFF, in_file, label_axes, panels, series
from draftcast.scenarios.show.tables import markdown_table

HEAD = Path(__file__).with_name("evidence_head.md").read_text("utf-8")
COLUMNS = ("point", "metric", "off", "forecast", "error", "on", "forecast", "error", "speed-up", "forecast", "error")
SUMMARY = ("tier and kind", "figure", "points", "sources", "mean", "median", "median absolute", "p90 absolute")
SCORES = ("kind of forecast", "points", "sources", "mean", "median absolute", "p90 absolute", "inside 90 % interval")
_SHOWN_IDS = 3
Group = tuple[str, Sequence[Forecast]]  # its colour and its members


def by_source(forecasts: Iterable[Forecast]) -> dict[str, list[Forecast]]:
    sources: dict[str, list[Forecast]] = {}
    for forecast in forecasts:
        if forecast.off is not None or forecast.on is not None:
            sources.setdefault(forecast.point.source, []).append(forecast)
    return sources


def rows(forecasts: Iterable[Forecast]) -> list[list[str]]:
    """One row a point, in the order of ``COLUMNS``: measured, forecast and error of each figure."""
    return [
        [f"{f.point.id} ({f.point.tier})", f.point.metric, *(text for side in SIDES for text in _three(f, side))]
        for f in forecasts
    ]


def _three(forecast: Forecast, side: ForecastSide) -> list[str]:
    error, between = forecast.error(side), forecast.point.ratio_range if side == "speedup" else None
    measured = " to ".join(f"{end:.4g}" for end in between) if between else _figure(getattr(forecast.point, side))
    return [measured, _figure(getattr(forecast, side)), "-" if error is None else f"{error:+.0%}"]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value < 1000 else f"{value:,.0f}"


def summary_rows(forecasts: Sequence[Forecast]) -> list[list[str]]:
    """Errors by kind and, of what intervals are made from, by stratum, in the order of ``SUMMARY``."""
    groups = by_kind(forecasts)
    judged = [f for f in forecasts if f.point.tier in JUDGED_TIERS and f.stratum]
    for stratum in sorted({f.stratum for f in judged}):
        groups[f"A, {stratum}"] = [f for f in judged if f.stratum == stratum]
    table = []
    for name, members in groups.items():
        for side in SIDES:
            error = errors(members, side)
            if error is not None:
                signed = (f"{value:+.1%}" for value in (error.mean, error.signed_median))
                sizes = (f"{value:.1%}" for value in (error.median, error.p90))
                table.append([name, side, str(error.points), str(error.sources), *signed, *sizes])
    return table


def score_rows(scores: Iterable[Score]) -> list[list[str]]:
    """One row a score, in the order of ``SCORES``."""
    table = []
    for score in scores:
        error, covered = score.errors, score.coverage.covered
        kind = f"{score.stratum}: {ENGINES.get(score.engine, score.engine) or 'all engines'}"
        figures = [f"{error.mean:+.1%}", f"{error.median:.1%}", f"{error.p90:.1%}"]
        inside = "one source" if math.isnan(covered) else f"{covered:.0%}"
        table.append([kind, str(error.points), str(error.sources), *figures, inside])
    return table


def measured_when(forecasts: Iterable[Forecast]) -> str:
    """The months from the first to the last measurement, as the sources date them."""
    texts = (f.point.date for f in forecasts)
    dates = sorted(date if "-" in date[:5] or len(date) < 6 else f"{date[:4]}-{date[4:6]}" for date in texts)
    return f"{dates[0]} to {dates[-1][:7]}"


def sign_lines(forecasts: Sequence[Forecast]) -> list[str]:
    """How many clear gains and losses are forecast as such."""
    lines = []
    for below, text in ((True, f"below {BELOW:g}, forecast below 1"), (False, f"above {ABOVE:g}, forecast above 1")):
        counts = signs(forecasts, below=below)
        if counts.points:
            share = f"{counts.right} of {counts.points} ({counts.share:.0%}; {counts.sources} sources)"
            lines.append(f"Speed-ups measured {text}: {share}.")
    return lines


def reason_lines(forecasts: Iterable[Forecast]) -> list[str]:
    """Points that have no forecast, by reason; a point with several stands under each."""
    by_reason: dict[str, list[str]] = {}
    for forecast in forecasts:
        for reason in forecast.reasons:
            by_reason.setdefault(reason, []).append(forecast.point.id)
    lines = []
    for reason, ids in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
        lines.append(f"{reason}: {', '.join(ids[:_SHOWN_IDS])}{more}")
    return lines


def counts_line(forecasts: Sequence[Forecast]) -> str:
    answered = by_source(forecasts)
    points = sum(map(len, answered.values()))
    return f"{points:,} of {len(forecasts):,} points, from {len(answered)} sources, can be expressed."


def page(forecasts: Sequence[Forecast]) -> str:
    lines = [HEAD, counts_line(forecasts), "", "## Errors", "", markdown_table([SUMMARY, *summary_rows(forecasts)]), ""]
    lines += sign_lines(forecasts)
    lines += ["", "![Forecast against measured](img/evidence.png)", "", "## Points"]
    for source, members in by_source(forecasts).items():
        lines += ["", f"### {source}", "", *([f"<{members[0].point.url}>", ""] if members[0].point.url else [])]
        lines += [markdown_table([COLUMNS, *rows(members)])]
    lines += ["", "## Without a forecast", "", *(f"- {line}" for line in reason_lines(forecasts))]
    return "\n".join(lines) + "\n"


def evidence_figure(forecasts: Sequence[Forecast], groups: Mapping[str, Group] | None = None) -> Any:
    """Forecast against measured speed (of times 1/s), and the speed-ups; ``groups`` by name: the tiers where None."""
    groups = groups or {
        f"tier {tier}": (colour, [f for f in forecasts if f.point.tier == tier])
        for colour, tier in zip(COLOURS, ("A", "B", "C"), strict=False)
    }
    figure = panels("speed (per second; of times 1/s)", "speed-up")
    sides: tuple[tuple[ForecastSide, ...], ...] = (("off", "on"), ("speedup",))
    for column, compared in enumerate(sides, start=1):
        ends: list[float] = []
        for group, (colour, members) in groups.items():
            if pairs := _pairs(members, *compared):
                measured, forecast, names = zip(*pairs, strict=True)
                ends = [min(*ends, *measured, *forecast), max(*ends, *measured, *forecast)]
                hover = "%{text}<br>measured %{x:.4g}, forecast %{y:.4g}<extra></extra>"
                style = {"text": names, "marker": {"color": colour, "size": 5, "opacity": 0.7}, "hovertemplate": hover}
                place = {"showlegend": column == 1, "cell": (1, column)}
                series(figure, group, colour, measured, forecast, **style, **place)
        line = {"mode": "lines", "line": {"color": OFF, "dash": "dash", "width": 1}, "showlegend": False}
        series(figure, "equal", OFF, ends, ends, cell=(1, column), **line)
        label_axes(figure, "measured", "forecast", cell=(1, column), type="log")
    return in_file(figure, "Forecast against measured", [counts_line(forecasts)], height=520)


def _pairs(forecasts: Iterable[Forecast], *sides: ForecastSide) -> list[tuple[float, float, str]]:
    """Measured and forecast speed (of a time 1/s) or speed-up, and whose they are."""
    pairs = []
    for f, side in itertools.product(forecasts, sides):
        measured, forecast, metric = getattr(f.point, side), getattr(f, side), f.point.metric
        if measured is not None and forecast is not None:
            unit = 1e3 if metric.endswith("_ms") else 1.0
            pair = (measured, forecast) if side == "speedup" or metric in RATES else (unit / measured, unit / forecast)
            pairs.append((*pair, f.point.id if side == "speedup" else f"{f.point.id}, {side}"))
    return pairs
