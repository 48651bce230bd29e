"""Published speed-ups and their forecasts as a table for the terminal and as a page of the docs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table

from draftcast.scenarios.evidence.cases import PublishedCase, PublishedPoint
from draftcast.scenarios.evidence.forecast import PublishedForecast
from draftcast.scenarios.show.tables import make_table, markdown_table

HEAD = """# Published speed-ups and draftcast's forecasts

<!-- Made by: draftcast published --markdown > docs/published.md -->

`draftcast published` forecasts settings whose speed-up others have measured. Nothing is fitted to the published
numbers. An input that a source does not give was taken from another source or from a stated default **before** the
forecast was made; each case lists its assumed inputs, and they are not changed when a forecast misses. The cases are
`scenarios/published/*.yaml`.

- Runs are finite, like the measurements: every request counts, and throughput covers the whole run.
- A factor above 1 means that speculation is faster: latency without it over latency with it, or throughput with it over
  throughput without it.
- ± is half the 95 % interval over five replications. It covers random arrivals, lengths and draft tokens, but not the
  uncertainty of assumed inputs.
- The error is forecast / published - 1, and 0 inside a published range.
- Sources of 2024 and 2025 ran engines older than vLLM 0.32, whose scheduler is simulated. Step times come from the
  bundled profile of each device.
- Where no acceptance is published for the model pair and data, trained drafters get 0.7 per token: the middle of the
  0.5 to 0.9 that arXiv 2211.17192 reports for small models drafting for large ones.
"""
LEGEND = """`without` and `with` speculation: forecast / published, in the metric's unit. The acceptance length includes
the bonus token and counts only rounds with a draft; an n-gram search that finds no match drafts nothing."""
NEAR = 0.1
COLUMNS = ("case", "point", "metric", "published", "forecast", "error", "without", "with", "acceptance length")


def rows(forecasts: Iterable[PublishedForecast]) -> list[list[str]]:
    """One row per published number, in the order of ``COLUMNS``; ``forecast / published`` where both are known."""
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
    heading = "Published speed-ups and forecasts; absolute figures: forecast / published"
    return make_table([COLUMNS, *rows(forecasts)], title=heading)


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
    lines = [HEAD, markdown_table([COLUMNS, *rows(forecasts)]), "", summary_line(forecasts), "", LEGEND]
    for case in cases.values():
        lines += ["", f"## {case.title}", "", f"{case.source}; {case.engine_version}."]
        lines += [f"<{case.url}>"] if case.url else []
        lines += ["", "Given:", ""] + [f"- `{key}`: {text}" for key, text in case.given.items()]
        assumed = {**case.assumed}
        for point in case.points:
            assumed |= {key: f"{text} ({point.label})" for key, text in point.assumed.items()}
        lines += ["", "Assumed:", ""] + [f"- `{key}`: {text}" for key, text in assumed.items()]
        if case.explanation:
            lines += ["", f"**Likely cause of the difference.** {' '.join(case.explanation.split())}"]
    return "\n".join(lines) + "\n"


def _both(ours: float, theirs: float | None, unit: str) -> str:
    text = f"{ours:,.3g}" if ours < 100 else f"{ours:,.0f}"
    return f"{text} / {theirs:g} {unit}" if theirs is not None else f"{text} {unit}"
