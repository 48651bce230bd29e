"""The roofline of a device with a scenario's operating points on it: how verifying k drafts moves a decode step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftcast.scenarios.run.operating_point import Ceilings, OperatingPoint
from draftcast.scenarios.show.plots import COLOURS, OFF, styled


def roofline_figure(device: Ceilings, tracks: Mapping[int, Sequence[OperatingPoint]]) -> Any:
    """FLOP/s against FLOP per byte, both logarithmic: the two ceilings and one line of points k = 0, 1, ... a batch.

    Args:
        tracks: see `draftcast.scenarios.run.operating_point.operating_tracks`.
    """
    import plotly.graph_objects as go

    intensities = [point.intensity for points in tracks.values() for point in points]
    low, high = min(*intensities, device.ridge / 100) / 1.5, max(*intensities, device.ridge * 4) * 1.5
    roof = np.array([low, device.ridge, high])
    figure = go.Figure()
    figure.add_scatter(
        x=roof.round(4),
        y=(np.minimum(roof * device.bytes_per_s, device.flops_per_s) / 1e12).round(5),
        mode="lines",
        line={"color": OFF, "width": 2},
        name=f"{device.device}: {device.bytes_per_s / 1e12:.2f} TB/s, {device.flops_per_s / 1e12:,.0f} TFLOP/s",
        hoverinfo="skip",
    )
    for colour, (num_seqs, points) in zip(COLOURS, tracks.items(), strict=False):
        name = f"{num_seqs} sequence{'s' if num_seqs > 1 else ''}"
        figure.add_scatter(
            x=[round(point.intensity, 4) for point in points],
            y=[round(point.flops_per_s / 1e12, 5) for point in points],
            mode="lines+markers+text",
            line={"color": colour, "width": 1.5, "dash": "dot"},
            marker={"color": colour, "size": 8},
            text=[str(point.k) for point in points],
            textposition="top left",
            textfont={"size": 11},
            name=name,
            customdata=[[point.k, point.rows, 1e3 * point.seconds, 1e3 * point.draft_seconds] for point in points],
            hovertemplate="k = %{customdata[0]}: %{customdata[1]:,.0f} rows in %{customdata[2]:.3g} ms, drafts in "
            "%{customdata[3]:.3g} ms<br>%{x:.3g} FLOP/byte, %{y:.3g} TFLOP/s<extra>" + name + "</extra>",
        )
    figure.update_xaxes(type="log", dtick=1, title_text="FLOP per byte of the target pass")
    figure.update_yaxes(type="log", dtick=1, title_text="TFLOP/s reached")
    return styled(figure, height=420)
