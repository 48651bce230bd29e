"""Pictures of a capacity plan: devices by candidate, and goodput against load with its knee (plotly)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from draftcast.scenarios.plan.curve import COMPLETED, WITHIN, delivered
from draftcast.scenarios.plan.search import Check
from draftcast.scenarios.plan.sizing import Plan, Sizing
from draftcast.scenarios.show.run_plots import BASELINE, LIMIT, OFF, ON, styled
from draftcast.sim.statistics.intervals import Estimate


def sizing_figure(answer: Plan) -> Any:
    """GPUs of every feasible candidate, those of spare replicas apart; the best on top."""
    import plotly.graph_objects as go

    shown = [sizing for sizing in answer.sizings if sizing.feasible][::-1]
    figure = go.Figure()
    for name, colour, counts in (
        ("in use", ON, [sizing.replicas * sizing.candidate.tensor_parallel_size for sizing in shown]),
        ("spare", OFF, [sizing.spare * sizing.candidate.tensor_parallel_size for sizing in shown]),
    ):
        if any(counts):
            figure.add_bar(
                x=counts,
                y=[sizing.candidate.label for sizing in shown],
                orientation="h",
                name=name,
                marker={"color": colour},
                hovertemplate="%{x} GPUs<extra>" + name + "</extra>",
            )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title_text="GPUs", rangemode="tozero")
    return styled(figure, height=120 + 40 * len(shown))


def goodput_figure(sizing: Sizing, checks: Sequence[Check]) -> Any:
    """SLO goodput and completed requests against load; the target and the knee; open markers: overloaded, at capacity.

    A load whose run did not reach a steady state has neither.

    Args:
        checks: of `draftcast.scenarios.plan.curve.goodput_curve` for ``sizing``, under the scenario's ``slo``.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    rates = [check.rate_rps for check in checks]
    for name, colour in ((COMPLETED, OFF), (WITHIN, ON)):
        found = [delivered(check).get(name) for check in checks]
        figure.add_scatter(
            x=rates,
            y=[estimate.mean if estimate is not None else None for estimate in found],
            error_y={"type": "data", "array": [_half(estimate) for estimate in found], "thickness": 1.2, "width": 3},
            mode="lines+markers",
            line={"color": colour, "width": 2.2},
            marker={
                "symbol": ["circle" if check.verdict == "steady" else "circle-open" for check in checks],
                "size": 8,
            },
            text=[check.verdict for check in checks],
            name=name,
            hovertemplate="%{y:.4g} of %{x:.4g} req/s (%{text})<extra>" + name + "</extra>",
        )
    lines = [(sizing.target_rps, "target", BASELINE)]
    if sizing.largest is not None:
        lines.append((sizing.largest.met, "knee", LIMIT))
    for x, label, colour in lines:
        text = {"text": f"{label} {x:.4g}", "font": {"color": colour}, "textangle": 0, "yanchor": "bottom"}
        figure.add_vline(x=x, line={"color": colour, "dash": "dot", "width": 1.5}, annotation=text)
    figure.update_xaxes(title_text="load, req/s", rangemode="tozero")
    figure.update_yaxes(title_text="req/s")
    return styled(figure, height=340)


def _half(estimate: Estimate | None) -> float:
    return estimate.half_width if estimate is not None and math.isfinite(estimate.half_width) else 0.0
