"""A cutover as text, table and picture: the answer in sentences, what limits on either side, the simulated points."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from draftcast.errors import InputError
from draftcast.scenarios.compare.metric import Price
from draftcast.scenarios.compare.model_error import UNCERTAIN, Prediction, predicted
from draftcast.scenarios.cutover.map import MapCell, SpeedupMap
from draftcast.scenarios.cutover.search import Cutover
from draftcast.scenarios.schema import Scenario, without_speculation
from draftcast.scenarios.show import plots
from draftcast.scenarios.show.plots import BREAK_EVEN_LINE, COLOURS, OFF, label_axes, panels, series
from draftcast.scenarios.show.tables import make_table, note_lines, saturated_line, show, title
from draftcast.sim.statistics.crossing import Crossing
from draftcast.sim.statistics.intervals import Estimate

NO_INTERVAL = (math.nan, math.nan, math.nan)
# Share of the smaller capacity up to which rates were simulated when a verdict is said to hold up to capacity.
NEARLY = 0.8


def number(x: float) -> str:
    """x to a precision that means something: 0.412, 8.25, 66.1, 1,234."""
    if abs(x) >= 100:
        return f"{x:,.0f}"
    return f"{x:.1f}".removesuffix(".0") if abs(x) >= 10 else f"{x:.3g}"


def headline(answer: Cutover) -> str:
    """The answer for one setting in a sentence; a second one includes the errors of the step times, if known."""
    text, prediction = f"{answer.label}: {_verdict_text(answer)}", answer.prediction
    if prediction is None or answer.verdict not in ("crosses", "always pays", "never pays", "more than once"):
        return text
    spans = ((prediction.pays, "pays"), (prediction.costs, "costs"))
    ends = {answer.probes[0].x: "lowest", answer.probes[-1].x: "highest"}
    sure = [f"{word} {_span(span, ends)} {answer.unit}" for span, word in spans if span is not None]
    level = f"{answer.crossing.confidence:.0%} prediction interval"
    largest = f"the largest uncertainty is the {UNCERTAIN[prediction.dominant]}"
    where = " and ".join(sure) or "is undecided"
    return f"{text} Including the errors of step times and acceptance ({level}), it {where}; {largest}."


def _verdict_text(answer: Cutover) -> str:
    crossing, unit = answer.crossing, answer.unit
    if answer.verdict == "crosses":
        below, above = ("pays", "costs") if crossing.falls else ("costs", "pays")
        return f"cutover {crossing_text(crossing, unit)}: {below} below, {above} above."
    if not answer.probes:
        return "cannot tell: the budget was spent before one point was simulated; raise --budget."
    decided = [probe.x for probe in answer.probes if not probe.says_nothing]
    seen = f"from {number(decided[0])} to {number(decided[-1])} {unit}" if decided else ""
    even = [probe.x for probe in answer.probes if probe.is_even(crossing.confidence)]
    same = [f"no difference at {_listed(even)} {unit}"] if even else []
    if answer.verdict in ("always pays", "never pays"):
        return f"{'; '.join([f'{answer.verdict} {_reach(answer, seen)}', *same])}{_incomparable(answer)}."
    if answer.verdict == "no difference":
        return f"makes no difference {seen} (less than half a per cent){_incomparable(answer)}."
    better, worse = ("faster", "slower") if answer.metric.less_is_better else ("better", "worse")
    level = f"{crossing.confidence:.0%} interval"
    if answer.verdict == "more than once":
        signs = [(probe.x, probe.sign(crossing.confidence)) for probe in answer.probes]
        above, below = (_listed([x for x, sign in signs if sign == wanted]) for wanted in (1, -1))
        return f"crosses more than once: {better} at {above} and {worse} at {below} {unit} ({level})."
    spans = ((answer.surely_pays, better), (answer.surely_costs, worse))
    sure = [f"significantly {word} ({level}) {_span(span, {})} {unit}" for span, word in spans if span is not None]
    unsure = [probe.x for probe in answer.probes if not answer.sign(probe) and probe.x not in even]
    why = "more replications do not decide it"
    if answer.stopped == "budget spent":
        why = "the budget is spent"
    elif answer.prediction is not None and any(probe.sign(crossing.confidence) for probe in answer.probes):
        why = "the errors of step times and acceptance are larger than the advantage"
    where = f"undecided at {_listed(unsure)} {unit}" if unsure else "the rest was not simulated"
    return f"cannot tell: {', '.join([*sure, *same, where])}; {why}."


def crossing_text(crossing: Crossing, unit: str) -> str:
    low, high, level = number(crossing.low), number(crossing.high), f"{crossing.confidence:.0%} interval"
    if math.isfinite(crossing.value):
        return f"at {number(crossing.value)} {unit} ({level} {low} to {high})"
    return f"between {low} and {high} {unit} ({level})"


def _span(span: tuple[float, float], ends: Mapping[float, str]) -> str:
    """``ends``: words for the lowest and the highest simulated x, beyond which a span may go on."""
    if span[0] == span[1]:
        return f"at {number(span[0])}"
    low, high = (f"{number(x)}{f' (the {ends[x]} simulated)' if x in ends else ''}" for x in span)
    return f"from {low} to {high}"


def _listed(xs: Sequence[float]) -> str:
    return ", ".join(number(x) for x in xs)


def _reach(answer: Cutover, seen: str) -> str:
    """Up to where a verdict holds."""
    last, capacities = answer.probes[-1].x, [side for side in (answer.capacity_on, answer.capacity_off) if side]
    if not capacities or last < NEARLY * min(side.low for side in capacities):
        return seen
    return f"up to capacity{' and beyond' if last > max(side.high for side in capacities) else ''} ({seen})"


def _incomparable(answer: Cutover) -> str:
    """Where neither side is better for a reason that no run can change, as the end of a sentence."""
    silent = [probe for probe in answer.probes if probe.says_nothing]
    if not silent:
        return ""
    begins = all(probe.says_nothing for probe in answer.probes if probe.x >= silent[0].x)
    where = f"from {number(silent[0].x)}" if begins else f"at {_listed([probe.x for probe in silent])}"
    notes = ", ".join(dict.fromkeys(probe.note for probe in silent if probe.note))
    return f"; nothing to compare {where} {answer.unit}{f' ({notes})' if notes else ''}"


def detail_lines(answer: Cutover) -> list[str]:
    """What stands beside the answer: the step-level estimate, capacities, what limits on either side, the effort."""
    lines = []
    if answer.estimate is not None:
        estimate = "no cutover" if math.isnan(answer.estimate) else f"{number(answer.estimate)} {answer.unit}"
        how = "as if all ran to the end together" if answer.over == "batch" else "without simulation"
        lines.append(f"Step-level estimate, {how}: {estimate}.")
    if answer.over == "batch":
        lines.append("A batch drains: its last requests run almost alone, where speculation pays most.")
    if answer.metric.is_throughput and not _is_closed(answer):
        lines.append("Until one side is saturated both deliver what arrives: there this metric cannot differ.")
    scenarios = (answer.scenario, without_speculation(answer.scenario))
    sides = zip(("with speculation", "without"), (answer.capacity_on, answer.capacity_off), scenarios, strict=True)
    if line := saturated_line({side: predicted(most, scenario) for side, most, scenario in sides if most is not None}):
        lines.append(line)
    if answer.here is not None:
        lines.append(f"The scenario itself is at {number(answer.here)} {answer.unit}.")
    for place in dict.fromkeys(place for place in (answer.lower, answer.upper) if place is not None):
        for name, side in (("with", place.on), ("without", place.off)):
            lines.append(f"At {number(place.x)} {answer.unit} {name} speculation - {side.sentence}")
    effort = f"{answer.requests:,} requests simulated"
    if answer.verdict == "crosses" and answer.stopped != "narrow enough":
        width = f"{answer.crossing.relative_width:.1%}"
        why = "wider than --target" if answer.stopped == "no more to learn" else "and the budget allows no narrower one"
        lines.append(f"The interval is {width} of the value, {why} ({answer.stopped}, {effort}).")
    else:
        lines.append(f"{effort}.")
    return lines + note_lines(answer.notes)


def settings_table(answers: Sequence[Cutover]) -> Table:
    unit = answers[0].unit
    head = ["setting", "verdict", f"cutover, {unit}", "interval", f"step-level estimate, {unit}"]
    rows = [[*head, "limits below: on / off", "limits above: on / off"]]
    for answer in answers:
        crossing, places, step_level = answer.crossing, (answer.lower, answer.upper), answer.estimate
        where = [number(crossing.best), f"{number(crossing.low)} to {number(crossing.high)}"]
        estimated = "-" if step_level is None else "none" if math.isnan(step_level) else number(step_level)
        limits = [f"{place.on.limit} / {place.off.limit}" if place else "-" for place in places]
        shown = where if answer.verdict == "crosses" else ["-", "-"]
        rows.append([answer.label, answer.verdict, *shown, estimated, *limits])
    return make_table(rows)


def points_table(answer: Cutover) -> Table:
    """One row per point that was simulated: the advantage and the figures behind it."""
    name, factor = _compared(answer)
    confidence = answer.crossing.confidence
    advantage, word = ("advantage, sampling noise", "with all errors") if answer.prediction else ("advantage", "")
    rows = [[answer.unit, advantage, f"{name} on", f"{name} off", "replications x requests", word]]
    for probe, run in zip(answer.probes, answer.paired_runs, strict=True):
        sides = (probe.bases, probe.gains) if answer.metric.less_is_better else (probe.gains, probe.bases)
        means = [Estimate(float(np.mean(side)), *NO_INTERVAL, len(side)) if side else None for side in sides]
        cells = [show(probe.advantage(confidence)), *(show(mean, factor) for mean in means)]
        size = f"{run.replications} x {run.requests:,}" if run.replications else "-"
        decided = {1: "pays", -1: "costs"}.get(answer.sign(probe), "undecided")
        word = "no difference" if probe.is_even(confidence) else decided
        rows.append([number(probe.x), *cells, size, f"{word} ({probe.note})" if probe.note else word])
    return make_table(rows)


def _is_closed(answer: Cutover) -> bool:
    return answer.over in ("concurrency", "batch") or answer.scenario.is_closed_loop


def _compared(answer: Cutover) -> tuple[str, float]:
    """Name with unit and factor of the figures behind the advantage."""
    closed = _is_closed(answer)
    return {
        "e2e": ("E2E s", 1.0),
        "tpot": ("TPOT ms", 1e3),
        "slo_goodput": ("good req/s", 1.0) if closed else ("SLO attainment %", 1e2),
    }.get(answer.metric.name, ("tokens/s" if closed else "completed req/s", 1.0))


def cell_text(cell: MapCell) -> str:
    """The advantage, * where its interval excludes 1; the verdict alone where a side is overloaded."""
    if cell.advantage is None:
        return {1: "pays*", -1: "costs*"}.get(cell.sign, "?")
    return f"{cell.advantage.mean:.2f}{'*' if cell.sign else ''}"


def contour_lines(speedups: SpeedupMap) -> list[str]:
    """The break-even contour: what its intervals hold, then one line per draft length or load."""
    unit = speedups.question.axis.unit
    over = unit if speedups.against == "k" else "acceptance"
    lines = ["Intervals cover sampling noise only, not the errors of step times and acceptance:"]
    for at, crossing in speedups.contour:
        if speedups.against == "k":
            where, cells = f"k={number(at)}", speedups.rows[speedups.ys.index(at)]
        else:
            where, cells = f"At {number(at)} {unit}", tuple(row[speedups.xs.index(at)] for row in speedups.rows)
        is_whole = all(cell.advantage is not None or cell.sign for cell in cells)
        outcome = {
            "crosses": f"break-even {crossing_text(crossing, over)}" if crossing.kind == "crosses" else "",
            "always": f"pays {'everywhere on the map' if is_whole else 'wherever the map can tell'}",
            "never": f"pays nowhere {'on the map' if is_whole else 'that the map can tell'}",
            "even": "makes no difference",
            "more than once": "breaks even more than once",
        }.get(crossing.kind, "cannot tell")
        lines.append(f"{where}: {outcome}.")
    return lines


def map_parts(speedups: SpeedupMap) -> Iterator[str | Table]:
    """A map as the terminal shows it: one row per draft length or acceptance, one column per load."""
    question = speedups.question
    yield title(question.scenario)
    rows = [[speedups.against, *(f"{number(x)} {question.axis.unit}" for x in speedups.xs)]]
    for y, cells in zip(speedups.ys, speedups.rows, strict=True):
        rows.append([number(y), *map(cell_text, cells)])
    yield make_table(rows)
    yield f"Advantage in {_starred(speedups)}."
    yield from contour_lines(speedups)


def _starred(speedups: SpeedupMap) -> str:
    """The metric, and what a star says."""
    return f"{speedups.question.compared.label}; * its {speedups.confidence:.0%} interval excludes 1"


def answer_parts(scenario: Scenario, answers: Sequence[Cutover], price: Price | None) -> Iterator[str | Table]:
    """The answers as the terminal shows them; one alone with the points behind it."""
    yield title(scenario)
    yield settings_table(answers) if len(answers) > 1 else points_table(answers[0])
    yield from map(headline, answers)
    if len(answers) > 1:
        yield from note_lines(note for answer in answers for note in answer.notes)
        return
    yield from detail_lines(answers[0])
    if price is not None:
        for cost in answers[0].costs:
            yield (
                f"At {number(cost.x)} {answers[0].unit}: {cost.on:.4g} per million output tokens with speculation, "
                f"{cost.off:.4g} without (price of {price.date})."
            )


LOGARITHMIC = ("concurrency", "batch", "context", "output")
MOST_SENTENCES = 3
RANGE = 1.5  # doublings at which the colours of a map end


def cutover_figure(answers: Cutover | Sequence[Cutover]) -> Any:
    """Advantage against x for one setting or several, its band, and the crossing with its interval.

    Triangles: one side is overloaded, so only the sign is known. Raises InputError: no point was simulated.
    """
    answers = [answers] if isinstance(answers, Cutover) else answers
    first = answers[0]
    if not any(answer.probes for answer in answers):
        raise InputError("nothing to draw: the budget does not cover one point", file="--budget")
    figure = panels()
    for index, answer in enumerate(answers):
        _curve(figure, answer, COLOURS[index % len(COLOURS)])
    figure.add_hline(y=1.0, line=BREAK_EVEN_LINE)
    sentences = [headline(answer) for answer in answers[:MOST_SENTENCES]]
    label_axes(figure, first.unit, f"advantage in {first.metric.label}")
    figure.update_xaxes(type="log" if first.over in LOGARITHMIC else "linear").update_yaxes(rangemode="tozero")
    return plots.in_file(figure, title(first.scenario), sentences, height=620)


def advantage_figure(
    scenario: Scenario,
    rates: Sequence[float],
    ratios: Sequence[float],
    estimates: Sequence[Prediction],
    answer: Cutover | None,
) -> Any:
    """Advantage over the request rate by mean steps, with its prediction interval; over it ``answer``, once known."""
    figure = panels()
    valued = [(rate, p.advantage) for rate, p in zip(rates, estimates, strict=True) if p.advantage is not None]
    line = [round(ratio, 3) if math.isfinite(ratio) else None for ratio in ratios]  # else one side is overloaded
    most = 1.25 * max(1.2, *(ratio for ratio in line if ratio is not None))
    xs = [rate for rate, _ in valued]
    lows, highs = [max(value.low, 0.0) for _, value in valued], [min(value.high, most) for _, value in valued]
    _band(figure, "estimate", OFF, xs, lows, highs)
    dash = "dot" if answer is not None else "solid"
    series(figure, "estimate of mean steps", OFF, rates, line, mode="lines", line={"width": 2, "dash": dash})
    if answer is not None:
        _curve(figure, answer, plots.ON)
    figure.add_hline(y=1.0, line=BREAK_EVEN_LINE)
    here = scenario.rate_rps
    if here is not None:
        side = "right" if here < rates[-1] / 2 else "left"  # where it has room
        text = {"annotation_text": "you are here", "annotation_position": f"bottom {side}", "annotation_font_size": 11}
        figure.add_vline(x=here, line={"color": plots.BASELINE, "width": 2}, **text)
    label_axes(figure, "requests/s", "times faster with speculation")
    return plots.styled(figure, height=270, legend=False).update_yaxes(range=[0, most])


def _band(figure: Any, name: str, colour: str, xs: list[float], lows: list[float], highs: list[float]) -> None:
    faint = f"rgba({','.join(str(int(colour[index : index + 2], 16)) for index in (1, 3, 5))},0.18)"
    edge: dict[str, Any] = {"mode": "lines", "line_width": 0, "hoverinfo": "skip", "showlegend": False}
    series(figure, name, colour, xs, lows, **edge)
    series(figure, name, colour, xs, highs, fill="tonexty", fillcolor=faint, **edge)


def _curve(figure: Any, answer: Cutover, colour: str) -> None:
    confidence = answer.crossing.confidence
    valued = [(p, e) for p in answer.probes if (e := p.advantage(confidence)) is not None and math.isfinite(e.high)]
    xs = [probe.x for probe, _ in valued]
    _band(figure, answer.label, colour, xs, [e.low for _, e in valued], [e.high for _, e in valued])
    text = [f"{e.low:.3f} to {e.high:.3f}, {e.n} replications" for _, e in valued]
    means = [e.mean for _, e in valued]
    series(figure, answer.label, colour, xs, means, mode="lines+markers", line_width=2.5, text=text)
    bounds = [probe for probe in answer.probes if probe.sure]
    if bounds:
        symbols = ["triangle-up" if probe.sure > 0 else "triangle-down" for probe in bounds]
        name, xs, text = f"{answer.label}: one side overloaded", [p.x for p in bounds], [p.note for p in bounds]
        series(figure, name, colour, xs, [1.0] * len(bounds), marker={"symbol": symbols, "size": 11}, text=text)
    if answer.verdict == "crosses":
        crossing = answer.crossing
        figure.add_vrect(x0=crossing.low, x1=crossing.high, fillcolor=colour, opacity=0.15, line_width=0)
        label = {"text": f"cutover {crossing.best:.3g}", "font": {"color": colour}}
        label |= {"textposition": "end", "xanchor": "right"}  # inside the picture, along the line
        figure.add_vline(x=crossing.best, line={"color": colour, "width": 1.5}, label=label)


def map_figure(speedups: SpeedupMap) -> Any:
    """Colour and number: the advantage; *: its interval excludes 1; line: break-even with its interval."""
    figure, question = panels(), speedups.question
    unit = question.axis.unit
    ticks = {"tickvals": [-1, -0.5, 0, 0.5, 1], "ticktext": ["1/2", "0.71", "1", "1.41", "2"]}
    cells = [list(map(_map_cell, row)) for row in speedups.rows]
    figure.add_heatmap(
        x=speedups.xs,
        y=speedups.ys,
        **{name: [[cell[name] for cell in row] for row in cells] for name in ("z", "text", "customdata")},
        texttemplate="%{text}",
        hovertemplate=f"%{{x}} {unit}, {speedups.against} %{{y}}: %{{customdata}}<extra></extra>",
        colorscale="RdBu",
        **{"zmin": -RANGE, "zmax": RANGE, "xgap": 1, "ygap": 1},
        colorbar={"title": "advantage", **ticks},
    )
    # A cell without a colour has its mark in one that reads on light and dark.
    rows = zip(speedups.ys, cells, strict=True)
    marks = [(x, y, cell["mark"]) for y, row in rows for x, cell in zip(speedups.xs, row, strict=True) if cell["mark"]]
    style = {"mode": "text", "textfont_color": OFF, "showlegend": False, "hoverinfo": "skip"}
    xs, ys, text = zip(*marks, strict=True) if marks else ((), (), ())
    series(figure, "no colour", OFF, xs, ys, text=text, **style)
    points = [(at, crossing) for at, crossing in speedups.contour if crossing.kind == "crosses"]
    if points:
        places, best = [at for at, _ in points], [crossing.best for _, crossing in points]
        bars = plots.error_bars([(c.low, c.best, c.high) for _, c in points], color=plots.BASELINE)
        x, y, axis = (best, places, "x") if speedups.against == "k" else (places, best, "y")
        style = {"mode": "lines+markers", "line_width": 2, f"error_{axis}": bars}
        series(figure, "break-even", plots.BASELINE, x, y, **style)
    label_axes(figure, unit, "draft tokens k" if speedups.against == "k" else "acceptance per draft token")
    figure.update_xaxes(type="log" if question.over in LOGARITHMIC else "linear")
    note = f"{speedups.label}: advantage in {_starred(speedups)}"
    return plots.in_file(figure, title(question.scenario), [f"{note}; line: break-even"], height=560)


def _map_cell(cell: MapCell) -> dict[str, Any]:
    """Colour (doublings of the advantage), text on it or without it, and text at the mouse."""
    advantage, colour, hover = cell.advantage, RANGE * cell.sign or None, cell.note
    if advantage is not None:
        colour = math.log2(advantage.mean) if 0 < advantage.mean < math.inf else None
        hover = f"{advantage.mean:.3f} ({advantage.low:.3f} to {advantage.high:.3f})"
    text, mark = ("", cell_text(cell)) if colour is None else (cell_text(cell), "")
    return {"z": colour, "text": text, "mark": mark, "customdata": hover}
