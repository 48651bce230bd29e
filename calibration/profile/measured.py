"""Measured times of a profile: the table, read when it is first needed, as curves and attention grids.

Which shape columns are interpolated is said here, once, for prediction (`sim/cost/operator_tables`) and for the
held-out check (`calibration/profile/roofline_fit`) alike. fp16 takes bf16's times: the same units at the same width.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from draftcast.calibration.profile.interpolation import AttentionGrid, CurveSet, Key, RooflineSeconds
from draftcast.calibration.profile.roofline import Roofline
from draftcast.calibration.profile.table import MAY_BE_ZERO, SHAPE_FIELDS, read_points
from draftcast.kernels.arrays import FloatArray, IntArray
from draftcast.kernels.operators import registry
from draftcast.kernels.operators.cost import Work
from draftcast.kernels.operators.linear import moe_padding

Built = TypeVar("Built")
Seconds = Callable[[Work], FloatArray]  # a family's fitted roofline at a dtype, on a device
Points = Mapping[str, Any] | pd.DataFrame  # columns of measured points by name


class CurveAxes(NamedTuple):
    """How an operator's points are interpolated: along ``x``, between ``axes``, never across ``group``."""

    x: str
    axes: Sequence[str] = ()
    group: Sequence[str] = ()


CURVES = {name: CurveAxes(**facts["curve"]) for name, facts in registry.FACTS.items() if "curve" in facts}
VERIFY_QUERIES = np.asarray([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 9.0, 12.0, 16.0, 17.0, 24.0, 32.0, 64.0])
"""Queries per sequence at which decode's grid has nodes, measured or stretched by the roofline."""
TILE_ROWS = 64
"""Rows of FlashAttention 3's smaller tile, the queries of all heads of a KV head (its hopper/flash_api.cpp)."""
LINEAR_ATTENTION = ("gdn_decode", "gdn_prefill")
"""What has no context: its grids' axes are decode's, with one node in place of contexts."""
ATTENTION = ("attention_decode", "attention_prefill", "mla_decode", "mla_prefill", "dsa_decode", *LINEAR_ATTENTION)
FAMILY = {name: str(facts["family"]) for name, facts in registry.FACTS.items() if "family" in facts}
"""Roofline family of each operator of a table. ngram has none: it computes nothing, and no step is built from it."""


class TablePart(NamedTuple):
    """One operator of a table in one number format."""

    operator: str
    dtype: str
    kv_dtype: str = ""

    def __str__(self) -> str:
        return f"{self.operator} ({self.dtype}, KV {self.kv_dtype})" if self.kv_dtype else f"{self[0]} ({self.dtype})"

    @property
    def roofline(self) -> tuple[str, str]:
        """Family and format of its roofline: attention computes in 16 bits, so its format is the cache's."""
        return FAMILY[self.operator], self.kv_dtype or self.dtype

    @property
    def group(self) -> Sequence[str]:
        """Shape columns that points share which are interpolated with each other."""
        if self.operator not in ATTENTION:
            return CURVES[self.operator].group
        return [name for name in SHAPE_FIELDS[self.operator] if name not in ("batch", "q", "context")]

    def work(self, shape: Mapping[str, Any]) -> Work:
        return registry.operator(self.operator).work(shape, self.dtype, self.kv_dtype)

    def work_of(self, rows: pd.DataFrame) -> Work:
        return self.work({name: rows[name].to_numpy(np.float64) for name in SHAPE_FIELDS[self.operator]})

    def tiled_work_of(self, rows: pd.DataFrame) -> Work:
        """The same in whole tiles: kernels multiply all of a tile, also where few rows of an expert or queries fill it.

        That takes longer than reading weights or KV only with much less compute (an H20 has 15 % of an H200's).
        """
        work, padding = self.work_of(rows), np.ones(len(rows))
        if self.operator == "moe":
            padding = moe_padding(rows["m"], rows["num_experts"], rows["top_k"], self.dtype)
        elif self.operator.endswith("decode") and self.operator not in LINEAR_ATTENTION:
            kv_heads = rows["kv_heads"] if self.operator == "attention_decode" else 1
            padding = (TILE_ROWS * kv_heads / (rows["q"] * rows["heads"])).clip(lower=1.0).to_numpy()
        return work._replace(flops=work.flops * padding)


def parts_of(frame: pd.DataFrame) -> Iterator[tuple[TablePart, pd.DataFrame]]:
    """Every operator and format of a table's frame with its rows, in alphabetical order."""
    for labels, rows in frame.groupby(["operator", "dtype", "kv_dtype"]):
        yield TablePart(*map(str, labels)), rows


def seconds_by(fit: Roofline, ceilings: tuple[float, float]) -> Seconds:
    """A roofline between these peak FLOP/s and bytes/s: from an operator's work to seconds of one launch."""
    return lambda work: fit.seconds(work.flops, work.bytes, *ceilings)


def grid_shape(operator: str, a: Any, b: Any, c: Any) -> dict[str, Any]:
    """Shape columns at values of a grid's axes (see `draftcast.calibration.profile.interpolation`)."""
    if operator in LINEAR_ATTENTION:
        return {"q": a, "batch": b}
    if operator.endswith("decode"):
        return {"q": a, "batch": b, "context": c}
    return {"q": c, "batch": b, "context": a * c}


def grid_axes(operator: str, rows: Points) -> FloatArray:
    """Values of a grid's axes at measured points, shape (points, 3)."""
    q, batch = (np.asarray(rows[name], np.float64) for name in ("q", "batch"))
    if operator in LINEAR_ATTENTION:
        return np.column_stack((q, batch, np.ones(len(q))))
    context = np.asarray(rows["context"], np.float64)
    return np.column_stack((q, batch, context) if operator.endswith("decode") else (context / q, batch, q))


def curve_keys(operator: str, rows: Points) -> IntArray:
    """Values of a curve set's axes at measured points, shape (points, axes)."""
    how = CURVES[operator]
    return np.asarray([rows[name] for name in how.axes], np.int64).reshape(len(how.axes), len(rows[how.x])).T


def curves_of(part: TablePart, rows: Points, seconds: Seconds, group: Mapping[str, int]) -> CurveSet:
    how = CURVES[part.operator]

    def roofline(x: FloatArray, key: Key) -> FloatArray:
        return seconds(part.work({how.x: x, **dict(zip(how.axes, key, strict=True)), **group}))

    return CurveSet.from_points(curve_keys(part.operator, rows), rows[how.x], rows["seconds"], roofline)


def grid_of(
    part: TablePart, rows: Points, seconds: Seconds, group: Mapping[str, int], verify: RooflineSeconds | None = None
) -> AttentionGrid:
    """Grid of measured points; ``verify``: what tells the ratio of several queries to one, where not the roofline."""
    roofline = roofline_of(part, group, seconds)
    grid = _grid_at(part, rows, roofline)
    return grid.stretched(VERIFY_QUERIES, verify or roofline) if part.operator.endswith("decode") else grid


def _grid_at(part: TablePart, rows: Points, between: RooflineSeconds) -> AttentionGrid:
    """The grid of the points alone; ``between``: what fills the nodes that were not timed."""
    return AttentionGrid.from_points(grid_axes(part.operator, rows), np.asarray(rows["seconds"]), between)


def roofline_of(part: TablePart, group: Mapping[str, int], seconds: Seconds) -> RooflineSeconds:
    return lambda a, b, c: seconds(part.work({**grid_shape(part.operator, a, b, c), **group}))


@dataclass(frozen=True)
class MeasuredTimes:
    """The table of a profile. Curves and grids are built once: a profile has one roofline an operator and dtype."""

    table: Path  # path of the Parquet file; read in parts, when first asked for
    sha256: str  # its checksum, verified by who made this
    # Rooflines by family and format of the device that was timed, where it is another than the profile's: times are
    # stretched by the ratio of rooflines, and none counts as measured
    timed_by: Callable[[str, str], Seconds] | None = None
    verify: Path | None = None  # a table of attention over several queries a sequence, see `_verify`
    _cache: dict[tuple[object, ...], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def curves(self, operator: str, dtype: str, seconds: Seconds, without: str = "", **group: int) -> CurveSet | None:
        """Curves of an operator at a dtype, of kernels whose name is ``without`` this; None: nothing was measured."""
        part = TablePart(operator, measured_dtype(dtype))

        def build() -> CurveSet | None:
            rows = self._points(part, seconds, dtype=part.dtype, **group)
            if without:
                rows = rows[~rows["implementation"].str.contains(without)]
            if not len(rows):
                return None
            return dataclasses.replace(curves_of(part, rows, seconds, group), is_stretched=self.timed_by is not None)

        return self._once((*part, without, *sorted(group.items())), build)

    def grid(self, operator: str, dtype: str, kv_dtype: str, seconds: Seconds, **heads: int) -> AttentionGrid | None:
        """Grid of full attention for the sizes of its ``heads`` (see `kernels/operators/attention.layer_shape`).

        None: not measured at these formats. Heads that were not measured take the ratio to the roofline of those
        nearest to them, first in width, then in heads per KV head; none of their nodes is marked measured.
        """
        part = TablePart(operator, measured_dtype(dtype), measured_dtype(kv_dtype))
        return self._once((*part, *heads.items()), lambda: self._grid(part, heads, seconds))

    def launches(self, dtype: str, kv_dtype: str, **heads: int) -> FloatArray | None:
        """Launches over prompts and decodes and over unequal contexts (see `table`), measured for these very heads.

        Shape (points, 6): m, k, n, batch, context, seconds; None: not measured.
        """
        part = TablePart("attention_launch", measured_dtype(dtype), measured_dtype(kv_dtype))

        def read() -> FloatArray | None:
            if self.timed_by is not None:  # how its tiles fill the multiprocessors is the device's own
                return None
            rows = read_points(self.table, part.operator, dtype=part.dtype, kv_dtype=part.kv_dtype, **heads)
            return rows[["m", "k", "n", "batch", "context", "seconds"]].to_numpy(np.float64) if len(rows) else None

        return self._once((*part, *heads.items()), read)

    def _grid(self, part: TablePart, heads: Mapping[str, int], seconds: Seconds) -> AttentionGrid | None:
        # Without window or tree. The target and its draft read the points of every head shape once.
        full = {name: 0 for name in part.group if name in MAY_BE_ZERO}
        labels = {"dtype": part.dtype, "kv_dtype": part.kv_dtype}
        rows = self._once(part, lambda: self._points(part, seconds, **labels, **full))
        if not len(rows):
            return None
        nearest, rows = of_nearest_heads(rows, heads)
        group = full | nearest
        grid = grid_of(part, rows, seconds, group, self._verify(part, group, seconds))
        if nearest == heads and self.timed_by is None:
            return grid
        shape = grid_shape(part.operator, *np.meshgrid(*grid.axes, indexing="ij"))
        ratio = np.log(seconds(part.work({**shape, **full, **heads}))) - np.log(seconds(part.work({**shape, **group})))
        return AttentionGrid(grid.axes, grid.log_s + ratio, np.zeros_like(grid.measured))

    def _verify(self, part: TablePart, group: Mapping[str, int], seconds: Seconds) -> RooflineSeconds | None:
        """Seconds of verification as they were timed, for other heads too; None where nothing of the kind was.

        The queries of all heads that share a KV head are rows of tiles, and a tile's work is one of (sequence, KV
        head): heads of another shape take the times of as many rows over as many KV heads. A tile takes as long
        however full it is; beyond the rows that were timed the roofline goes on.
        """
        if self.verify is None or part.operator != "attention_decode":
            return None
        heads = {name: group[name] for name in ("heads", "kv_heads", "head_dim")}
        same = {name: size for name, size in group.items() if name not in ("heads", "kv_heads")}
        rows = read_points(self.verify, part.operator, dtype=part.dtype, kv_dtype=part.kv_dtype, **same)
        if not len(rows):
            return None
        nearest, rows = of_nearest_heads(rows, heads)
        timed = {**group, **nearest}
        per_head = timed["heads"] / timed["kv_heads"]
        share, one_tile = group["heads"] / group["kv_heads"] / per_head, rows["q"] * per_head <= TILE_ROWS
        roofline, of_timed = roofline_of(part, group, seconds), roofline_of(part, timed, seconds)
        decode = _grid_at(part, rows[rows["q"] == 1], of_timed)

        def one_query(_: FloatArray, batch: FloatArray, context: FloatArray) -> FloatArray:
            return np.exp(decode.log_seconds(np.ones_like(batch), batch, context))

        # Not every number of queries was timed at every batch and context: the ratio to one query varies least.
        within, beyond = (_grid_at(part, of, one_query) for of in (rows[one_tile], rows[~one_tile]))

        def verified(q: FloatArray, batch: FloatArray, context: FloatArray) -> FloatArray:
            as_many, width = q * share, batch * group["kv_heads"] / timed["kv_heads"]
            at = np.clip(as_many, beyond.axes[0][0], beyond.axes[0][-1])
            more = roofline(q, batch, context) / roofline(at / share, batch, context)
            within_s, beyond_s = (np.exp(grid.log_seconds(as_many, width, context)) for grid in (within, beyond))
            return np.where(as_many * per_head <= TILE_ROWS, within_s, beyond_s * more)

        return verified

    def _points(self, part: TablePart, seconds: Seconds, **labels: str | int) -> pd.DataFrame:
        """The table's rows of a part, in seconds on the profile's device."""
        rows = read_points(self.table, part.operator, **labels)
        if self.timed_by is None:
            return rows
        work = part.tiled_work_of(rows)
        return rows.assign(seconds=rows["seconds"] * seconds(work) / self.timed_by(*part.roofline)(work))

    def _once(self, key: tuple[object, ...], build: Callable[[], Built]) -> Built:
        if key not in self._cache:
            self._cache[key] = build()
        built: Built = self._cache[key]
        return built


def measured_dtype(dtype: str) -> str:
    """The format whose timings stand for another of the same width."""
    return "bf16" if dtype == "fp16" else dtype


def of_nearest_heads(rows: pd.DataFrame, wanted: Mapping[str, int]) -> tuple[dict[str, int], pd.DataFrame]:
    """Of measured points of attention the heads nearest to the wanted ones, and the points of these heads.

    Nearest in the width of keys and values, then in heads per KV head, then in (KV) heads.
    """
    shapes = rows[list(wanted)].to_numpy()
    logs = np.log2(shapes.astype(np.float64)) - np.log2([float(max(size, 1)) for size in wanted.values()])
    off = dict(zip(wanted, logs.T, strict=True))
    heads, kv_heads = off.pop("heads"), off.pop("kv_heads", np.zeros(len(rows)))
    width = np.sum(np.abs(list(off.values())), axis=0)
    distance = 100.0 * width + 10.0 * np.abs(heads - kv_heads) + np.abs(kv_heads)
    nearest = shapes[int(np.argmin(distance))]
    return dict(zip(wanted, nearest.tolist(), strict=True)), rows[np.all(shapes == nearest, axis=1)]
