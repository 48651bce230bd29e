"""Which imported times cannot be: rows faster than the device, and rows slower than a larger shape.

Other tools time a kernel over and over on the same data. What fits the last-level cache is then read from the cache,
while in an engine a layer's weights and KV come from memory. A row far above a larger shape's time was disturbed, or
ran a badly chosen kernel that padding avoids. Both are dropped and counted, never corrected.
"""

import numpy as np
import pandas as pd

from draftcast.calibration.importers.table_file import LeftOut, without
from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.measured import ATTENTION, TablePart, parts_of
from draftcast.calibration.profile.table import POINT, SHAPE_FIELDS, SHAPES
from draftcast.kernels.arrays import FloatArray
from draftcast.kernels.model.dtypes import KV_BYTES, WEIGHT_BYTES, weight_dtype
from draftcast.kernels.operators.registry import FACTS

FLOOR_SHARE = {"moe": 0.7, "all_reduce": 0.8}
"""Least measured time over the floor, 1 for other operators. Experts under a skewed routing are fewer than the floor's
independent one touches; an all-reduce that is added up in the switch undercuts the floor's ring a little."""
DISTURBED = 1.5
"""A time this many times above a larger shape's, or a narrow format's above the wide one's, is dropped."""
BELOW_FLOOR = "faster than the memory bandwidth or the peak rate allows: timed out of the cache"
ABOVE_LARGER = f"more than {DISTURBED} times the time of a larger shape: disturbed, or a kernel that padding avoids"
ABOVE_WIDER = f"experts in fp8 more than {DISTURBED} times slower than in bf16: a kernel run without its tuning"


def plausible(frame: pd.DataFrame, hardware: HardwareSpec, left_out: LeftOut, what: str = "") -> pd.DataFrame:
    """Of a latency table's rows of one device those that can be; the others are counted as ``what`` and the reason."""
    if frame.empty:
        return frame
    frame = without(frame, below_floor(frame, hardware), what + BELOW_FLOOR, left_out)
    frame = without(frame, above_larger(frame), what + ABOVE_LARGER, left_out)
    return without(frame, above_wider(frame), what + ABOVE_WIDER, left_out).reset_index(drop=True)


def floor_seconds(frame: pd.DataFrame, hardware: HardwareSpec) -> pd.Series:
    """Least time of every row in an engine: its FLOPs at the peak rate, or what it must fetch at the full bandwidth."""
    floor = pd.Series(0.0, index=frame.index)
    for part, rows in parts_of(frame):
        peak_flops, bandwidth = hardware.ceilings(*part.roofline)
        floor[rows.index] = np.maximum(part.work_of(rows).flops / peak_flops, _fetched_bytes(part, rows) / bandwidth)
    return floor


def _fetched_bytes(part: TablePart, rows: pd.DataFrame) -> FloatArray:
    """Bytes that no cache holds when a kernel starts: weights, and the KV of earlier steps, but no activations."""
    shape: dict[str, FloatArray] = {name: rows[name].to_numpy(np.float64) for name in SHAPE_FIELDS[part.operator]}
    if part.operator == "linear":
        return shape["k"] * shape["n"] * WEIGHT_BYTES[weight_dtype(part.dtype)]
    if part.operator not in ATTENTION:
        return part.work(shape).bytes
    if part.operator == "gdn_prefill":
        return np.zeros(len(rows))
    batch, number_bytes = shape["batch"], KV_BYTES[part.kv_dtype]
    if part.operator == "gdn_decode":
        # A state that is written to the cache pushes another one out of it.
        return 2.0 * batch * shape["heads"] * shape["k"] * shape["n"] * number_bytes
    earlier = shape["context"] - shape["q"]
    if part.operator == "mla_decode":
        return batch * earlier * shape["k"] * number_bytes
    if part.operator == "mla_prefill":
        return batch * earlier * shape["heads"] * (shape["k"] + shape["n"]) * 2.0
    if part.operator == "dsa_decode":
        chosen = np.minimum(earlier, shape["top_k"]) * shape["k"] * number_bytes
        return batch * (earlier * shape["head_dim"] + chosen)
    seen = np.where(shape["window"] > 0, np.minimum(earlier, shape["window"]), earlier)
    return 2.0 * batch * seen * shape["kv_heads"] * shape["head_dim"] * number_bytes


def below_floor(frame: pd.DataFrame, hardware: HardwareSpec) -> pd.Series:
    """Rows faster than their floor, by more than `FLOOR_SHARE` grants."""
    return frame["seconds"] < frame["operator"].map(FLOOR_SHARE).fillna(1.0) * floor_seconds(frame, hardware)


def above_larger(frame: pd.DataFrame) -> pd.Series:
    """Rows that take more than `DISTURBED` times as long as the same kernel on a larger shape."""
    bad = pd.Series(False, index=frame.index)
    for operator, rows in frame.groupby("operator"):
        sizes = rows.assign(prefix=rows["context"] - rows["q"])
        other = "context" if str(operator) in ("attention_prefill", "mla_prefill") else "prefix"
        same = [name for name in (*POINT, "prefix") if name != other]
        for axis in FACTS[str(operator)].get("grows_with", ()):
            falling = sizes.sort_values(axis, ascending=False, kind="stable")
            group = falling.groupby([name for name in same if name != axis], sort=False).ngroup()
            least = falling["seconds"].groupby(group).cummin().groupby(group).shift()
            bad[falling.index] |= falling["seconds"] > DISTURBED * least
    return bad


def above_wider(frame: pd.DataFrame) -> pd.Series:
    """fp8 rows of experts more than `DISTURBED` times as slow as bf16 rows, which move twice the bytes."""
    keys = ["operator", *SHAPES]
    wide = frame[frame["dtype"] == "bf16"].groupby(keys)["seconds"].min().rename("wide_s")
    narrow = (frame["operator"] == "moe") & (frame["dtype"] == "fp8")
    wide_s = frame[keys].join(wide, on=keys)["wide_s"]
    return narrow & (frame["seconds"] > DISTURBED * wide_s)
