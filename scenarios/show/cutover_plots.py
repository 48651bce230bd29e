"""Plots of cutovers: the advantage with its interval against the load, with the crossing; the speed-up map."""

import math
from collections.abc import Sequence
from typing import Any

from draftcast.errors import InputError
from draftcast.scenarios.compare.model_error import Prediction
from draftcast.scenarios.cutover.answer import Cutover
from draftcast.scenarios.cutover.map import SpeedupMap
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.show import plots
from draftcast.scenarios.show.cutover_report import cell_text, headline
from draftcast.scenarios.show.plots import BREAK_EVEN_LINE, COLOURS, OFF, label_axes, panels, series
from draftcast.scenarios.show.tables import title
from draftcast.sim.statistics.crossing import Probe

LOGARITHMIC = ("concurrency", "batch", "context", "output")
MOST_SENTENCES = 3
RANGE = 1.5
"""Doublings at which the colours of a map end."""
CONTOUR = "#212529"


def cutover_figure(answers: Sequence[Cutover]) -> Any:
    """Advantage against x for every setting, its band, and the crossing with its interval.

    Triangles on the break-even line are loads without a value: one side is overloaded, so only the sign is known.

    Raises:
        InputError: no point was simulated.
    """
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
    found: Cutover | None,
) -> Any:
    """Advantage over the request rate by mean steps with its prediction interval, and where the scenario stands.

    ``found``: the simulated cutover, drawn over it once it is known.
    """
    figure = panels()
    known = [(rate, each.advantage) for rate, each in zip(rates, estimates, strict=True) if each.advantage is not None]
    line = [round(ratio, 3) if math.isfinite(ratio) else None for ratio in ratios]  # else one side is overloaded
    most = 1.25 * max(1.2, *(ratio for ratio in line if ratio is not None))
    xs = [rate for rate, _ in known]
    edge: dict[str, Any] = {"mode": "lines", "line_width": 0, "hoverinfo": "skip", "showlegend": False}
    series(figure, "estimate", OFF, xs, [max(value.low, 0.0) for _, value in known], **edge)
    faint = {"fill": "tonexty", "fillcolor": "rgba(134,142,150,0.18)"}
    series(figure, "estimate", OFF, xs, [min(value.high, most) for _, value in known], **faint, **edge)
    dash = "dot" if found is not None else "solid"
    series(figure, "estimate of mean steps", OFF, rates, line, mode="lines", line={"width": 2, "dash": dash})
    if found is not None:
        _curve(figure, found, plots.ON)
    figure.add_hline(y=1.0, line=BREAK_EVEN_LINE)
    here = scenario.rate_rps
    if here is not None:
        side = "right" if here < rates[-1] / 2 else "left"  # where it has room
        text = {"annotation_text": "you are here", "annotation_position": f"bottom {side}", "annotation_font_size": 11}
        figure.add_vline(x=here, line={"color": plots.BASELINE, "width": 2}, **text)
    label_axes(figure, "requests/s", "times faster with speculation")
    return plots.styled(figure, height=270, legend=False).update_yaxes(range=[0, most])


def _curve(figure: Any, answer: Cutover, colour: str) -> None:
    confidence = answer.crossing.confidence
    faint = f"rgba({','.join(str(int(colour[index : index + 2], 16)) for index in (1, 3, 5))},0.18)"
    valued = [(p, e) for p in answer.probes if (e := p.advantage(confidence)) is not None and math.isfinite(e.high)]
    xs = [probe.x for probe, _ in valued]
    edge: dict[str, Any] = {"mode": "lines", "line_width": 0, "hoverinfo": "skip", "showlegend": False}
    series(figure, answer.label, colour, xs, [e.low for _, e in valued], **edge)
    series(figure, answer.label, colour, xs, [e.high for _, e in valued], fill="tonexty", fillcolor=faint, **edge)
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
    confidence, figure = speedups.confidence, panels()
    ticks = {"tickvals": [-1, -0.5, 0, 0.5, 1], "ticktext": ["1/2", "0.71", "1", "1.41", "2"]}
    figure.add_heatmap(
        x=speedups.xs,
        y=speedups.ys,
        **{
            name: [[of(probe, confidence) for probe in row] for row in speedups.rows]
            for name, of in (("z", _doublings), ("text", cell_text), ("customdata", _hover))
        },
        texttemplate="%{text}",
        hovertemplate=f"%{{x}} {speedups.unit}, {speedups.against} %{{y}}: %{{customdata}}<extra></extra>",
        colorscale="RdBu",
        **{"zmin": -RANGE, "zmax": RANGE, "xgap": 1, "ygap": 1},
        colorbar={"title": "advantage", **ticks},
    )
    points = [point for point in speedups.contour if point.crossing.kind == "crosses"]
    if points:
        at, crossing = [point.at for point in points], [point.crossing.best for point in points]
        bars = plots.error_bars([(p.crossing.low, p.crossing.best, p.crossing.high) for p in points], color=CONTOUR)
        x, y, axis = (crossing, at, "x") if speedups.against == "k" else (at, crossing, "y")
        style = {"mode": "lines+markers", "line_width": 2, f"error_{axis}": bars}
        series(figure, "break-even", CONTOUR, x, y, **style)
    label_axes(figure, speedups.unit, "draft tokens k" if speedups.against == "k" else "acceptance per draft token")
    figure.update_xaxes(type="log" if speedups.over in LOGARITHMIC else "linear")
    note = f"{speedups.label}: advantage in {speedups.metric.label}; * its {confidence:.0%} interval excludes 1"
    return plots.in_file(figure, title(speedups.scenario), [f"{note}; line: break-even"], height=560)


def _doublings(probe: Probe, confidence: float) -> float | None:
    advantage = probe.advantage(confidence)
    if advantage is None:
        return RANGE * probe.sign(confidence) or None
    return math.log2(advantage.mean) if 0 < advantage.mean < math.inf else None


def _hover(probe: Probe, confidence: float) -> str:
    advantage = probe.advantage(confidence)
    if advantage is None:
        return probe.note
    return f"{advantage.mean:.3f} ({advantage.low:.3f} to {advantage.high:.3f})"
