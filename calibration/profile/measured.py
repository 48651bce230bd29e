"""Measured times of a profile: the table, read when it is first needed, as curves and attention grids.

Which shape columns are interpolated is said here, once, for prediction (`sim/cost/operator_tables`) and for the
held-out check (`calibration/profile/roofline_fit`) alike. fp16 takes bf16's times: the same units at the same width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from draftcast.calibration.profile.attention_grid import AttentionGrid
from draftcast.calibration.profile.curves import CurveSet, Key
from draftcast.calibration.profile.table import MAY_BE_ZERO, SHAPE_FIELDS, read_points
from draftcast.kernels.operators import registry
from draftcast.kernels.operators.cost import FloatArray, Work

Seconds = Callable[[Work], FloatArray]
"""A family's fitted roofline at a dtype, on a device."""


@dataclass(frozen=True, slots=True)
class CurveAxes:
    """How an operator's points are interpolated: along ``x``, between ``axes``, never across ``group``."""

    x: str
    axes: tuple[str, ...] = ()
    group: tuple[str, ...] = ()


CURVES: dict[str, CurveAxes] = {
    "linear": CurveAxes("m", ("k", "n")),
    "moe": CurveAxes("m", ("k", "n"), ("num_experts", "top_k")),
    "rmsnorm": CurveAxes("m", ("n",)),
    "swiglu": CurveAxes("m", ("n",)),
    "rotary": CurveAxes("m", ("heads", "kv_heads", "head_dim")),
    "embedding": CurveAxes("m", ("k", "n")),
    "sampler": CurveAxes("m", ("n",)),
    "rejection_sampler": CurveAxes("batch", ("n",), ("q",)),
    "all_reduce": CurveAxes("message_bytes", (), ("ranks",)),
}
VERIFY_QUERIES = np.asarray([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0])
"""Queries per sequence at which decode's grid has nodes, measured or stretched by the roofline."""
ATTENTION = ("attention_decode", "attention_prefill")
FAMILY = {
    "linear": "linear",
    "moe": "moe",
    "attention_decode": "attention_decode",
    "attention_prefill": "attention_prefill",
    "rmsnorm": "elementwise",
    "swiglu": "elementwise",
    "rotary": "elementwise",
    "embedding": "elementwise",
    "sampler": "sampler",
    "rejection_sampler": "sampler",
    "all_reduce": "all_reduce",
}
"""Roofline family of each operator of a table. ngram has none: it computes nothing, and no step is built from it."""


def attention_group(operator: str) -> tuple[str, ...]:
    """Shape columns that two points of one grid share."""
    return tuple(name for name in SHAPE_FIELDS[operator] if name not in ("batch", "q", "context"))


def grid_shape(operator: str, a: Any, b: Any, c: Any) -> dict[str, Any]:
    """Shape columns at values of a grid's axes (see `draftcast.calibration.profile.attention_grid`)."""
    if operator == "attention_decode":
        return {"q": a, "batch": b, "context": c}
    return {"q": c, "batch": b, "context": a * c}


def grid_axes(operator: str, rows: pd.DataFrame) -> FloatArray:
    """Values of a grid's axes at measured points, shape (points, 3)."""
    q, batch, context = (rows[name].to_numpy(np.float64) for name in ("q", "batch", "context"))
    columns = (q, batch, context) if operator == "attention_decode" else (context / q, batch, q)
    return np.stack(columns, axis=1)


def curves_of(
    operator: str, rows: pd.DataFrame, seconds: Seconds, dtype: str, group: Mapping[str, int]
) -> CurveSet:  # fmt: skip
    """Curves of the measured points ``rows`` of one operator, dtype and group."""
    how, work = CURVES[operator], registry.operator(operator).work

    def roofline(x: FloatArray, key: Key) -> FloatArray:
        return seconds(work({how.x: x, **dict(zip(how.axes, key, strict=True)), **group}, dtype, ""))

    keys = rows[list(how.axes)].to_numpy(np.int64).reshape(len(rows), len(how.axes))
    return CurveSet.from_points(keys, rows[how.x].to_numpy(), rows["seconds"].to_numpy(), roofline)


def grid_of(
    operator: str, rows: pd.DataFrame, seconds: Seconds, dtype: str, kv_dtype: str, group: Mapping[str, int]
) -> AttentionGrid:
    """Grid of the measured points ``rows`` of one attention operator, formats and group."""
    work = registry.operator(operator).work

    def roofline(a: FloatArray, b: FloatArray, c: FloatArray) -> FloatArray:
        return seconds(work({**grid_shape(operator, a, b, c), **group}, dtype, kv_dtype))

    grid = AttentionGrid.from_points(grid_axes(operator, rows), rows["seconds"].to_numpy(), roofline)
    return grid.stretched(VERIFY_QUERIES, roofline) if operator == "attention_decode" else grid


@dataclass(frozen=True)
class MeasuredTimes:
    """The table of a profile.

    Attributes:
        table: path of the Parquet file; read in parts, when first asked for.
        sha256: its checksum, verified by who made this.
    """

    table: Path
    sha256: str
    _cache: dict[tuple[object, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    def curves(self, operator: str, dtype: str, seconds: Seconds, **group: int) -> CurveSet | None:
        """Curves of an operator at a dtype; None when nothing was measured for it.

        Built once: a profile has one roofline for an operator and a dtype, so ``seconds`` is always the same function.
        """
        kind = _measured_dtype(dtype)
        wanted = (operator, kind, *sorted(group.items()))
        if wanted not in self._cache:
            rows = read_points(self.table, operator, dtype=kind, **group)
            self._cache[wanted] = curves_of(operator, rows, seconds, kind, group) if len(rows) else None
        found: CurveSet | None = self._cache[wanted]
        return found

    def grid(
        self, operator: str, dtype: str, kv_dtype: str, seconds: Seconds, *, heads: int, kv_heads: int, head_dim: int
    ) -> AttentionGrid | None:
        """Grid of full attention for these heads; None when nothing was measured at these formats.

        Heads that were not measured take the ratio to the roofline of those nearest to them, first in head size, then
        in heads per KV head; none of their nodes is marked measured.
        """
        kind, kv_kind = _measured_dtype(dtype), _measured_dtype(kv_dtype)
        own = dict.fromkeys(attention_group(operator), 0)
        own |= {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        wanted = (operator, kind, kv_kind, *own.values())
        if wanted not in self._cache:
            self._cache[wanted] = self._grid(operator, kind, kv_kind, own, seconds)
        found: AttentionGrid | None = self._cache[wanted]
        return found

    def _grid(
        self, operator: str, dtype: str, kv_dtype: str, own: dict[str, int], seconds: Seconds
    ) -> AttentionGrid | None:
        rows = self._full_attention(operator, dtype, kv_dtype)
        if not len(rows):
            return None
        heads = ["heads", "kv_heads", "head_dim"]
        shapes, distinct = rows[heads].to_numpy(), rows[heads].drop_duplicates().to_numpy()
        same = np.all(shapes == [own[name] for name in heads], axis=1)
        if same.any():
            return grid_of(operator, rows[same], seconds, dtype, kv_dtype, own)
        nearest = distinct[int(np.argmin(_distance(distinct, *(own[name] for name in heads))))]
        rows = rows[np.all(shapes == nearest, axis=1)]
        near = {**own, **dict(zip(heads, (int(value) for value in nearest), strict=True))}
        grid = grid_of(operator, rows, seconds, dtype, kv_dtype, near)
        mesh = np.meshgrid(*grid.axes, indexing="ij")
        work = registry.operator(operator).work
        wanted, known = (
            np.log(seconds(work({**grid_shape(operator, *mesh), **shape}, dtype, kv_dtype))) for shape in (own, near)
        )
        return AttentionGrid(grid.axes, grid.log_s + wanted - known, np.zeros_like(grid.measured))

    def _full_attention(self, operator: str, dtype: str, kv_dtype: str) -> pd.DataFrame:
        """Points of every head shape, without window or tree; the target and its draft read them once."""
        wanted = (operator, dtype, kv_dtype)
        if wanted not in self._cache:
            full = {name: 0 for name in attention_group(operator) if name in MAY_BE_ZERO}
            self._cache[wanted] = read_points(self.table, operator, dtype=dtype, kv_dtype=kv_dtype, **full)
        found: pd.DataFrame = self._cache[wanted]
        return found


def _measured_dtype(dtype: str) -> str:
    return "bf16" if dtype == "fp16" else dtype


def _distance(shapes: NDArray[np.int64], heads: int, kv_heads: int, head_dim: int) -> FloatArray:
    logs = np.log2(shapes.astype(np.float64))
    size, kv = np.abs(logs[:, 2] - np.log2(head_dim)), np.abs(logs[:, 1] - np.log2(kv_heads))
    ratio = np.abs(logs[:, 0] - logs[:, 1] - np.log2(heads / kv_heads))
    return np.asarray(100.0 * size + 10.0 * ratio + kv, dtype=np.float64)
