"""The picture of a profile: achieved rate against intensity under its roofs, and how far predictions miss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.load import RooflineProfile
from draftcast.calibration.profile.measured import FAMILY
from draftcast.calibration.profile.table import SHAPE_FIELDS
from draftcast.kernels.operators import registry
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
    frame = opened.table().frame
    for (operator, dtype, kv_dtype), rows in frame.groupby(["operator", "dtype", "kv_dtype"]):
        name = str(operator)
        if name not in COLOURS:
            continue
        some = rows.iloc[_even(len(rows))]
        shape = {field: some[field].to_numpy(np.float64) for field in SHAPE_FIELDS[name]}
        work = registry.operator(name).work(shape, str(dtype), str(kv_dtype))
        seconds = some["seconds"].to_numpy()
        figure.add_scattergl(
            x=work.flops / work.bytes,
            y=work.flops / seconds / 1e12,
            mode="markers",
            marker={"size": 3.5, "opacity": 0.55, "color": COLOURS[name], "symbol": _symbol(str(dtype), str(kv_dtype))},
            name=f"{name.replace('_', ' ')}, {_formats(str(dtype), str(kv_dtype))}",
            row=1,
            col=1,
        )
    _roofs(figure, opened)
    held = beyond = 0
    for errors in held_out_predictions(opened):
        if errors.operator in COLOURS and len(errors.predictions):
            held += len(errors.predictions)
            beyond += int((100.0 * errors.predictions["error"].abs() > WIDEST_ERROR).sum())
            some = errors.predictions.iloc[_even(len(errors.predictions))]
            figure.add_scattergl(
                x=1e6 * some["seconds"],
                y=100.0 * some["error"],
                mode="markers",
                marker={"size": 3, "opacity": 0.5, "color": COLOURS[errors.operator]},
                showlegend=False,
                row=2,
                col=1,
            )
    figure.layout.annotations[
        1
    ].text = (
        f"Interpolation: predicted / measured - 1 at {held:,} held-out points, {beyond:,} of them beyond the picture"
    )
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


def _even(count: int) -> Any:
    return np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(int))


def _formats(dtype: str, kv_dtype: str) -> str:
    return f"{dtype}, KV {kv_dtype}" if kv_dtype and kv_dtype != dtype else dtype


def _symbol(dtype: str, kv_dtype: str) -> str:
    return "circle" if "fp8" not in (dtype, kv_dtype) else "diamond"
