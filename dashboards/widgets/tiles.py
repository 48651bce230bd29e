"""Figures as tiles: the value with its interval, and how it differs from SD off and from the pinned baseline."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

from draftcast.dashboards.widgets.controls import WORDS
from draftcast.scenarios.compare.comparison import Difference, difference
from draftcast.scenarios.compare.metric import METRICS
from draftcast.scenarios.compare.model_error import response
from draftcast.scenarios.compare.verdict import Side, Verdict, decide
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import gpus_by_device
from draftcast.scenarios.show.tables import interval
from draftcast.sim.statistics.intervals import Estimate
from draftcast.yaml_text import yaml_beside

PER_GPU = "tokens_per_s_per_gpu"


class TileFigure(NamedTuple):
    """One line of a tile: a figure of a run's summary, its label, the shown unit and the factor to it."""

    name: str
    label: str
    unit: str
    factor: float = 1.0


class Tile(NamedTuple):
    """A card: its title, what it means, its lines."""

    title: str
    explained: str
    figures: tuple[TileFigure, ...]


*LATENCY_TILES, THROUGHPUT_TILE = (
    Tile(tile["title"], tile["explained"], tuple(TileFigure(*row) for row in tile["figures"]))
    for tile in yaml_beside(__file__, "tiles.yaml")
)


@dataclass(frozen=True)
class SettingColumn:
    """What a table says of one setting at one load."""

    figures: Mapping[str, Estimate]
    replications: Sequence[Mapping[str, float]]  # the figures of each, for differences
    trouble: str = ""  # why its figures do not hold for the load, in a word
    delivers_arrivals: bool = False  # an open loop below its capacity
    served: Any = None  # equal of settings that serve the same requests, replication by replication


@dataclass(frozen=True)
class Pair:
    """A run and another one, which has a name, measured together."""

    column: SettingColumn
    name: str
    other: SettingColumn
    confidence: float
    doubts: Mapping[str, float] = field(default_factory=dict)  # by figure, as of `difference`

    @property
    def is_paired(self) -> bool:
        """Whether each replication meets the requests of the same replication of the other."""
        column, other = self.column, self.other
        return column.served == other.served and len(column.replications) == len(other.replications)

    def change(self, figure: str) -> Difference | None:
        """The difference to the other; None where either has no such figure, or none that holds."""
        column, other, doubt = self.column, self.other, self.doubts.get(figure, 0.0)
        if column.trouble or other.trouble:
            return None
        values, paired = (column.replications, other.replications), self.is_paired
        as_offered = column.delivers_arrivals and other.delivers_arrivals
        return difference(figure, *values, self.confidence, as_offered=as_offered, paired=paired, doubt=doubt)


def column_of(scenario: Scenario, side: Side) -> SettingColumn:
    """A setting's figures for tables, with tokens per second and device."""
    run = side.run
    assert run is not None
    gpus = sum(gpus_by_device(scenario).values())
    figures = run.summary["figures"] | side.predicted_figures
    figures[PER_GPU] = figures["output_throughput"].scaled(1 / gpus)
    replications = [{**values, PER_GPU: values["output_throughput"] / gpus} for values in run.replications]
    # What of a class changes neither when its requests arrive nor how long they are.
    workload = scenario.workload.model_dump(exclude={"classes": {"__all__": {"acceptance", "slo", "speculation"}}})
    served, trouble = (workload, scenario.statistics.seed, len(run.requests)), "" if side.has_figures else side.state
    return SettingColumn(figures, replications, trouble, side.completes_what_arrives, served)


def number(value: float, like: float | None = None) -> str:
    """Three figures or so, never an exponent for usual sizes; with as many digits as ``like`` gets, if given."""
    if not math.isfinite(value):
        return "–"
    size = abs(value if like is None else like)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def tiles(run: SettingColumn, pairs: Sequence[Pair]) -> str:
    """Cards as HTML; ``pairs``: of the run and each other."""
    heads = "<th></th><th></th>" + "".join(f"<th scope='col'>vs {escape(pair.name)}</th>" for pair in pairs)
    cards = []
    for tile in (*LATENCY_TILES, THROUGHPUT_TILE):
        rows = []
        for figure in tile.figures:
            cells = [f"<th scope='row'>{escape(figure.label)}</th>", value_cell(figure, run)]
            cells += [difference_cell(figure, pair) for pair in pairs]
            rows.append(f"<tr>{''.join(cells)}</tr>")
        cards.append(
            f"<section class='dc-tile' aria-label='{escape(tile.title)}'>"
            f"<h3 title='{escape(tile.explained)}'>{escape(tile.title)}</h3>"
            f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></section>"
        )
    return f"<div class='dc-tiles'>{''.join(cards)}</div>"


def doubts_of(scenario: Scenario, verdict: Verdict) -> dict[str, float]:
    """Of differences from off: of latencies the verdict's doubt, of SLO goodput that of its own verdict."""
    doubts = {figure.name: verdict.doubt for tile in LATENCY_TILES for figure in tile.figures}
    if scenario.slos:
        metric, errors = METRICS["slo_goodput"], response(scenario)
        doubts[metric.figure] = decide(metric, verdict.on, verdict.off, verdict.confidence, errors=errors).doubt
    return doubts


def value_cell(figure: TileFigure, column: SettingColumn, missing: str = "") -> str:
    """A figure with its interval, as `show` says it, or why there is none (``missing``: beside the column's state)."""
    value = column.figures.get(figure.name)
    if value is None or not math.isfinite(value.mean):
        undefined = "no SLO" if figure.name == "request_goodput" else "undefined"
        reason = column.trouble or (missing if value is None and missing else undefined)
        return f"<td class='dc-none' data-figure='{figure.name}' data-value=''>– <small>{reason}</small></td>"
    shown = value.scaled(figure.factor)
    around, bounds = "", "one replication: no interval"
    if not math.isnan(shown.half_width):
        around = f" <small>{interval(shown, lambda bound: number(bound, shown.mean))}</small>"
        is_open = math.isinf(shown.high)
        span = f"{number(shown.low)} {'or more' if is_open else 'to ' + number(shown.high)} {figure.unit}"
        bounds = f"{value.confidence:.0%} interval {span}, {value.n} replications"
    return (
        f"<td data-figure='{figure.name}' data-value='{value.mean!r}' title='{escape(bounds)}'>"
        f"<b>{number(shown.mean)}</b>{around} <span class='dc-unit'>{escape(figure.unit)}</span></td>"
    )


def difference_cell(figure: TileFigure, pair: Pair, *, words: bool = False) -> str:
    """A difference in per cent, else in the figure's unit, its interval in the tip; ``words``: with the verdict."""
    change, against, trouble = pair.change(figure.name), escape(pair.name), pair.other.trouble
    if change is None:
        why = pair.column.trouble or (f"{pair.name} {trouble}" if trouble else "")
        reason = f" <small>{escape(why)}</small>" if why else ""
        return f"<td class='dc-diff dc-even' data-against='{against}' data-difference=''>–{reason}</td>"
    shown = change.difference.scaled(figure.factor)
    text = f"{number(shown.mean)} {figure.unit}"
    if change.ratio is not None:
        text = f"{change.ratio.mean - 1:+.0%}".replace("+0%", "0%").replace("-0%", "0%")
    span = f" ({pair.confidence:.0%}: {number(shown.low)} to {number(shown.high)})" if math.isfinite(shown.low) else ""
    is_unpaired = change.verdict == "cannot tell" and not pair.is_paired
    tip = f"{shown.mean:+.3g} {figure.unit}{span}: {WORDS['verdicts']['not paired' if is_unpaired else change.verdict]}"
    word = "even" if change.verdict == "as offered" else change.verdict.replace(" ", "-")
    text += f" <small>{change.verdict}</small>" if words else ""
    return (
        f"<td class='dc-diff dc-{word}' data-against='{against}' data-verdict='{change.verdict}' "
        f"data-difference='{change.difference.mean!r}' title='{escape(tip)}'>{text}</td>"
    )
