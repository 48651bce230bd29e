"""Published results beside our forecasts, for people: a table for the terminal, a page for the docs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table

from draftcast.scenarios.evidence.cases import PublishedCase, PublishedPoint
from draftcast.scenarios.evidence.forecast import PublishedForecast

HEAD = """# Published results beside our forecasts

<!-- Made by: draftcast published --markdown > docs/published.md -->

What others measured, and what `draftcast published` says of the same setting. Nothing is fitted to these numbers: an
input that a source does not give was chosen from other sources or from a stated default **before** the forecast was
made, is listed under its case, and is not changed when the forecast misses. The files are
`scenarios/published/*.yaml`.

- Every run is finite, as what it stands beside: all its requests count, throughput is over the whole run.
- A factor above 1 means that speculation is better: latency without it over latency with it, or throughput with it over
  throughput without. ± is half the 95 % interval over five replications; it holds the chance of arrivals, lengths and
  draft tokens, not the doubt about assumed inputs.
- The error is forecast over published less 1; 0 inside a published range. Sources of 2024 and 2025 ran engines older
  than the vLLM 0.32 whose scheduler is simulated; step times are the bundled profile of each device.
- Where no acceptance is published for the pair and data, trained drafters get 0.7 a token: the middle of what arXiv
  2211.17192 reports for small models drafting large ones (0.5 to 0.9).
"""
LEGEND = """`without` and `with` speculation are ours / published, in the metric's unit. The acceptance length holds the
bonus token and counts rounds with a draft: an n-gram search that finds nothing makes none."""
NEAR = 0.1
COLUMNS = ("case", "point", "metric", "published", "forecast", "error", "without", "with", "acceptance length")


def rows(forecasts: Iterable[PublishedForecast]) -> list[list[str]]:
    """One row a published number, cells in the order of ``COLUMNS``; ``ours / theirs`` where both are known."""
    return [
        [
            f.title,
            f.point.label,
            f.metric if f.point.over is None else f"{f.metric}, over {f.point.over}",
            published_text(f.point),
            f"{f.forecast.mean:.2f} ±{f.forecast.half_width:.2f}",
            f"{f.error:+.0%}",
            _both(f.without_sd, f.point.without_sd, f.unit),
            _both(f.with_sd, f.point.with_sd, f.unit),
            f"{f.mean_acceptance_length:.2f}",
        ]
        for f in forecasts
    ]


def published_text(point: PublishedPoint) -> str:
    """The published factor with its note."""
    low, high = point.bounds
    text = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
    return f"{text} ({point.note})" if point.note else text


def forecast_table(forecasts: Sequence[PublishedForecast]) -> Table:
    """For the terminal."""
    table = Table(
        title="Published speed-ups and our forecasts; absolute figures: ours / published", title_justify="left"
    )
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("case", "point", "metric") else "right")
    for row in rows(forecasts):
        table.add_row(*row)
    return table


def summary_line(forecasts: Sequence[PublishedForecast]) -> str:
    """How far off the forecasts are, all of them counted."""
    errors = sorted(abs(forecast.error) for forecast in forecasts)
    near = sum(error <= NEAR for error in errors)
    middle = statistics.median(errors)
    return f"{near} of {len(errors)} forecasts within {NEAR:.0%} of what was published; median error {middle:.0%}."


def assumption_lines(cases: Mapping[str, PublishedCase]) -> list[str]:
    """Which inputs each source does not give."""
    lines = []
    for case in cases.values():
        keys = dict.fromkeys([*case.assumed, *(key for point in case.points for key in point.assumed)])
        lines.append(f"{case.title}: assumed {', '.join(keys)}")
    return lines


def page(cases: Mapping[str, PublishedCase], forecasts: Sequence[PublishedForecast]) -> str:
    """The page of the docs."""
    lines = [HEAD, f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows(forecasts)]
    lines += [
        "",
        summary_line(forecasts),
        "",
        LEGEND,
    ]
    for case in cases.values():
        lines += ["", f"## {case.title}", "", f"{case.source}; {case.engine_version}."]
        lines += [f"<{case.url}>"] if case.url else []
        lines += ["", "Given:", ""] + [f"- `{key}`: {text}" for key, text in case.given.items()]
        assumed = {**case.assumed}
        for point in case.points:
            assumed |= {key: f"{text} ({point.label})" for key, text in point.assumed.items()}
        lines += ["", "Assumed:", ""] + [f"- `{key}`: {text}" for key, text in assumed.items()]
        if case.explanation:
            lines += ["", f"**What we think of the difference.** {' '.join(case.explanation.split())}"]
    return "\n".join(lines) + "\n"


def _both(ours: float, theirs: float | None, unit: str) -> str:
    text = f"{ours:,.3g}" if ours < 100 else f"{ours:,.0f}"
    return f"{text} / {theirs:g} {unit}" if theirs is not None else f"{text} {unit}"
