"""Pictures of a profile: its kernels under their roofs, how far predictions miss, which shapes a scenario needs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.measured import FAMILY, parts_of
from draftcast.calibration.profile.spec import RooflineProfile
from draftcast.scenarios.compare.limits import OperatingPoint
from draftcast.scenarios.run.coverage import Coverage
from draftcast.scenarios.show.plots import COLOURS, DECADES, LIMIT, OFF, ON, label_axes, panels, series, styled
from draftcast.scenarios.show.profile_view import OpenProfile, held_out_predictions
from draftcast.scenarios.show.tables import LOOKS

ROOF = "#212529"
ROOF_DECADES = 6  # of achieved rates below the peak; what is slower is launch time alone
WIDEST_ERROR = 60.0  # per cent
OPERATOR_COLOURS: dict[str, str] = LOOKS["operators"]


def coverage_figure(covered: Coverage) -> Any:
    """Log-log maps of matrices and attention. Grey: measured; coloured: needed; red: needed outside of the measured."""
    figure = panels("Matrix products", "Attention, decode", "Attention, prefill", horizontal_spacing=0.07)
    decode, prefill = covered.attention["decode"], covered.attention["prefill"]
    shapes = (
        ("k", covered.matrices["k"], "n", covered.matrices["n"]),
        ("batch", decode["batch"], "context", decode["context"]),
        ("chunk", prefill["q"], "context", prefill["context"]),
    )
    for col, (x_name, x, y_name, y) in enumerate(shapes, start=1):
        hover = f"measured: {x_name} %{{x}}, {y_name} %{{y}}"
        dots = {"marker_size": 4, "marker_opacity": 0.5, "showlegend": col == 1}
        series(figure, "measured", OFF, x, y, cell=(1, col), hover=hover, **dots)
        label_axes(figure, x_name, y_name, cell=(1, col), **DECADES)
    for layer in covered.layers.itertuples():
        word = "measured" if layer.measured else "between measured shapes" if layer.inside else "outside"
        symbol = "diamond" if layer.measured else "diamond-open"
        diamond = {"marker_symbol": symbol, "marker_size": 11, "marker_line_width": 2}
        text = {"mode": "markers+text", "text": [layer.name], "textposition": "top center", "showlegend": False}
        hover, colour = f"k {layer.k} x n {layer.n}, {word}", LIMIT if word == "outside" else ON
        series(figure, str(layer.name), colour, [layer.k], [layer.n], hover=hover, **diamond, **text)

    def needed(col: int, x: list[float], y: list[float], inside: bool, **style: Any) -> None:
        colour, hover = ON if inside else LIMIT, "%{x:,.0f}, %{y:,.0f}"
        series(figure, "this scenario", colour, x, y, cell=(1, col), hover=hover, line_width=3, **style)

    (left, right), (low, high), chunks = (covered.asked[name] for name in ("batch", "context", "chunk"))
    inside = len(decode) > 0 and right <= decode["batch"].max() and high <= decode["context"].max()
    needed(2, [left, right, right, left, left], [low, low, high, high, low], inside, mode="lines", fill="toself")
    # Prompts without a cached prefix: the context is the chunk itself.
    inside = len(prefill) > 0 and chunks[1] <= prefill["q"].max()
    needed(3, list(chunks), list(chunks), inside, mode="lines+markers", showlegend=False)
    return styled(figure, height=380).update_layout(margin={"t": 60}, legend={"y": 1.12})


def fit_figure(predictions: pd.DataFrame) -> Any:
    """Held-out points: predicted against measured seconds of one launch, and the distribution of the errors."""
    titles = "Predicted against measured, us", "Residuals: predicted / measured - 1, %"
    figure = panels(*titles, horizontal_spacing=0.1)
    some = _even(predictions, 1200)
    measured, predicted = 1e6 * some["seconds"], 1e6 * some["predicted"]
    ends = [float(measured.min()), float(measured.max())]
    series(figure, "equal", OFF, ends, ends, mode="lines", line_dash="dash")
    dots = {"marker_size": 4, "marker_opacity": 0.55}
    hover = "measured %{x:.3g} us, predicted %{y:.3g} us"
    series(figure, "held-out point", ON, measured, predicted, hover=hover, **dots)
    label_axes(figure, "measured, us", "predicted, us", **DECADES)
    errors = np.clip(100 * predictions["error"].to_numpy(), -50, 50)
    counts, edges = np.histogram(errors, bins=50, range=(-50, 50))
    hover = "%{y} points near %{x:.0f} %<extra></extra>"
    bars = {"marker_color": ON, "name": "points", "showlegend": False, "hovertemplate": hover}
    figure.add_bar(x=(edges[1:] + edges[:-1]) / 2, y=counts, row=1, col=2, **bars)
    label_axes(figure, "error, % (ends: and beyond)", "points", cell=(1, 2))
    return styled(figure, height=340, legend=False).update_layout(margin={"t": 44})


LABEL_SHARE = 0.06  # of a picture's width and height that a label of one digit takes on a phone


def roofline_figure(device: HardwareSpec, dtype: str, tracks: Mapping[int, Sequence[OperatingPoint]]) -> Any:
    """FLOP/s by FLOP per byte: the ceilings of format ``dtype``, and k = 0, 1, ... for every batch in ``tracks``."""
    figure, (peak, bandwidth) = panels(), device.ceilings(FAMILY["linear"], dtype)
    ridge, intensities = peak / bandwidth, [point.intensity for points in tracks.values() for point in points]
    low, high = min(*intensities, ridge / 100) / 1.5, max(*intensities, ridge * 4) * 1.5
    x = np.array([low, ridge, high])
    y = np.minimum(x * bandwidth, peak) / 1e12
    name = f"{device.name}: {bandwidth / 1e12:.2f} TB/s, {peak / 1e12:,.0f} TFLOP/s"
    series(figure, name, OFF, x.round(4), y.round(5), mode="lines", line_width=2, hoverinfo="skip")
    text = {"mode": "lines+markers+text", "textposition": "top left", "textfont_size": 11}
    hover = (
        "k = %{customdata[0]}: %{customdata[1]:,.0f} rows in %{customdata[2]:.3g} ms, drafts in %{customdata[3]:.3g} ms"
        "<br>%{x:.3g} FLOP/byte, %{y:.3g} TFLOP/s"
    )
    rates = [point.flops_per_s for points in tracks.values() for point in points]
    spans = math.log10(high / low), math.log10(max(peak, *rates) / min(rates))
    labels: list[tuple[float, float]] = []

    def label(point: OperatingPoint) -> str:
        """k; nothing where the label of another point stands."""
        x, y = math.log10(point.intensity) / spans[0], math.log10(point.flops_per_s) / spans[1]
        if any(abs(x - other[0]) < LABEL_SHARE and abs(y - other[1]) < LABEL_SHARE for other in labels):
            return ""
        labels.append((x, y))
        return str(point.k)

    for colour, (num_seqs, points) in zip(COLOURS, tracks.items(), strict=False):
        xs, ys = [round(p.intensity, 4) for p in points], [round(p.flops_per_s / 1e12, 5) for p in points]
        data = [[p.k, p.rows, 1e3 * p.seconds, 1e3 * p.draft_seconds] for p in points]
        dots = {"text": [label(p) for p in points], "customdata": data, "line": {"width": 1.5, "dash": "dot"}}
        name = f"{num_seqs} sequence{'s' if num_seqs > 1 else ''}"
        series(figure, name, colour, xs, ys, hover=hover, marker_size=8, **dots, **text)
    label_axes(figure, "FLOP per byte of the target pass", "TFLOP/s reached", **DECADES)
    return styled(figure, height=420)


def profile_figure(opened: OpenProfile) -> Any:
    """Kernels that compute, under their roofs; below, held-out errors. Raises HardwareError: no measured table."""
    titles = "Measured kernels and the device's roofs", " "
    figure = panels(*titles, rows=2, row_heights=[0.62, 0.38], vertical_spacing=0.14)
    dots = {"type": "scattergl", "marker_size": 3.5, "marker_opacity": 0.55}
    for part, rows in parts_of(opened.table):
        if part.operator in OPERATOR_COLOURS:
            some = _even(rows, 800)
            work = part.work_of(some)
            rate, colour = work.flops / some["seconds"].to_numpy() / 1e12, OPERATOR_COLOURS[part.operator]
            symbol = "diamond" if "fp8" in (part.dtype, part.kv_dtype) else "circle"
            formats = f"{part.dtype}, KV {part.kv_dtype}" if part.kv_dtype not in ("", part.dtype) else part.dtype
            name = f"{part.operator.replace('_', ' ')}, {formats}"
            series(figure, name, colour, work.flops / work.bytes, rate, marker_symbol=symbol, **dots)
    assert isinstance(opened.profile, RooflineProfile)  # as every profile with a table
    device, intensity = opened.profile.hardware, np.geomspace(0.1, 1e5, 200)
    for dtype, dash in (("bf16", "solid"), ("fp8", "dash")):
        if dtype in device.peak_flops:
            peak, bandwidth = device.ceilings(FAMILY["linear"], dtype)
            name = f"roof {dtype}, ridge at {peak / bandwidth:.0f} FLOP/byte"
            rate = np.minimum(intensity * bandwidth, peak)
            series(figure, name, ROOF, intensity, rate / 1e12, mode="lines", line={"width": 1.5, "dash": dash})
    total = beyond = 0
    for errors in held_out_predictions(opened):
        operator, predictions = errors.part.operator, errors.predictions
        if operator in OPERATOR_COLOURS and len(predictions):
            total += len(predictions)
            beyond += int((100.0 * predictions["error"].abs() > WIDEST_ERROR).sum())
            some, style = _even(predictions, 800), {"cell": (2, 1), "showlegend": False, **dots}
            series(figure, "", OPERATOR_COLOURS[operator], 1e6 * some["seconds"], 100.0 * some["error"], **style)
    missed = f"at {total:,} held-out points, {beyond:,} of them beyond the picture"
    figure.layout.annotations[1].text = f"Interpolation: predicted / measured - 1 {missed}"
    top = math.ceil(math.log10(2e-12 * max(device.peak_flops.values())))
    label_axes(figure, "FLOP per byte", "achieved TFLOP/s", exponentformat="power", **DECADES)
    figure.update_yaxes(range=[top - ROOF_DECADES, top], row=1, col=1)
    label_axes(figure, "measured time of one launch, us", "error, %", cell=(2, 1))
    figure.update_xaxes(**DECADES, exponentformat="power", row=2, col=1)
    figure.update_yaxes(range=[-WIDEST_ERROR, WIDEST_ERROR], row=2, col=1)
    title = f"{opened.profile.name}: measured kernels<br><sup>{opened.profile.source}</sup>"
    legend = {"itemsizing": "constant"}
    return figure.update_layout(template="plotly_white", title=title, legend=legend, width=1000, height=900)


def _even(rows: pd.DataFrame, most: int) -> pd.DataFrame:
    """At most so many of the rows, evenly spread."""
    return rows.iloc[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), most)).round().astype(int))]
