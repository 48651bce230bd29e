"""The picture of a profile: achieved rate against intensity under its roofs, and how far predictions miss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.measured import FAMILY, Part, parts_of
from draftcast.calibration.profile.spec import RooflineProfile
from draftcast.scenarios.show.profile_view import OpenProfile, held_out_predictions

MOST_POINTS = 800
"""Points drawn of one operator; of more, an even sample."""
DECADES = 6
"""Of achieved rates below the peak; what is slower is launch time alone."""
WIDEST_ERROR = 60.0  # per cent
COLOURS = {
    "linear": "#1971c2",
    "moe": "#9c36b5",
    "attention_decode": "#e8590c",
    "attention_prefill": "#f08c00",
    "rmsnorm": "#2f9e44",
    "swiglu": "#66a80f",
    "rotary": "#099268",
    "embedding": "#5c940d",
    "sampler": "#495057",
    "rejection_sampler": "#868e96",
}


def profile_figure(opened: OpenProfile) -> Any:
    """Above: intensity (FLOP/byte) against achieved FLOP/s with the ridge; below: error of held-out predictions.

    Collectives are left out: they compute nothing.

    Raises:
        HardwareError: the profile has no measured table.
    """
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=2,
        cols=1,
        row_heights=[0.62, 0.38],
        vertical_spacing=0.14,
        subplot_titles=("Measured kernels and the device's roofs", " "),
    )
    for part, rows in parts_of(opened.table().frame):
        if part.operator not in COLOURS:
            continue
        some = _even(rows)
        work, seconds = part.work_of(some), some["seconds"].to_numpy()
        figure.add_scattergl(
            x=work.flops / work.bytes,
            y=work.flops / seconds / 1e12,
            mode="markers",
            marker={"size": 3.5, "opacity": 0.55, "color": COLOURS[part.operator], "symbol": _symbol(part)},
            name=f"{part.operator.replace('_', ' ')}, {_formats(part)}",
            row=1,
            col=1,
        )
    _roofs(figure, opened)
    held = beyond = 0
    for errors in held_out_predictions(opened):
        if errors.part.operator in COLOURS and len(errors.predictions):
            held += len(errors.predictions)
            beyond += int((100.0 * errors.predictions["error"].abs() > WIDEST_ERROR).sum())
            some = _even(errors.predictions)
            figure.add_scattergl(
                x=1e6 * some["seconds"],
                y=100.0 * some["error"],
                mode="markers",
                marker={"size": 3, "opacity": 0.5, "color": COLOURS[errors.part.operator]},
                showlegend=False,
                row=2,
                col=1,
            )
    missed = f"at {held:,} held-out points, {beyond:,} of them beyond the picture"
    figure.layout.annotations[1].text = f"Interpolation: predicted / measured - 1 {missed}"
    decades = {"type": "log", "dtick": 1, "exponentformat": "power"}
    top = math.ceil(math.log10(2e-12 * max(_device(opened).peak_flops.values())))
    figure.update_xaxes(**decades, title_text="FLOP per byte", row=1, col=1)
    figure.update_yaxes(**decades, title_text="achieved TFLOP/s", range=[top - DECADES, top], row=1, col=1)
    figure.update_xaxes(**decades, title_text="measured time of one launch, us", row=2, col=1)
    figure.update_yaxes(title_text="error, %", range=[-WIDEST_ERROR, WIDEST_ERROR], row=2, col=1)
    figure.update_layout(
        template="plotly_white",
        title={"text": f"{opened.profile.name}: measured kernels<br><sup>{opened.profile.source}</sup>"},
        legend={"itemsizing": "constant"},
        width=1000,
        height=900,
    )
    return figure


def _roofs(figure: Any, opened: OpenProfile) -> None:
    device = _device(opened)
    intensity = np.geomspace(0.1, 1e5, 200)
    for dtype, dash in (("bf16", "solid"), ("fp8", "dash")):
        if dtype not in device.peak_flops:
            continue
        peak, bandwidth = device.ceilings(FAMILY["linear"], dtype)
        figure.add_scatter(
            x=intensity,
            y=np.minimum(intensity * bandwidth, peak) / 1e12,
            mode="lines",
            line={"color": "#212529", "width": 1.5, "dash": dash},
            name=f"roof {dtype}, ridge at {peak / bandwidth:.0f} FLOP/byte",
            row=1,
            col=1,
        )


def _device(opened: OpenProfile) -> HardwareSpec:
    """The device with the rates measured on it; a profile with a table is of rooflines."""
    assert isinstance(opened.profile, RooflineProfile)
    return opened.profile.hardware


def _even(rows: pd.DataFrame) -> pd.DataFrame:
    """At most `MOST_POINTS` of the rows, evenly spread."""
    return rows.iloc[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_POINTS)).round().astype(int))]


def _formats(part: Part) -> str:
    return f"{part.dtype}, KV {part.kv_dtype}" if part.kv_dtype not in ("", part.dtype) else part.dtype


def _symbol(part: Part) -> str:
    return "diamond" if "fp8" in (part.dtype, part.kv_dtype) else "circle"
