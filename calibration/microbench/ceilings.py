"""The device's own limits as measured: bytes a second of a large copy, floating-point operations a second at best.

They stand in for the data sheet where that describes another machine. The best kernel in the table counts as well as
the largest copy and matrix product, so that no efficiency comes out above one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftcast.calibration.microbench.shapes import Point
from draftcast.calibration.profile.table import LatencyTable
from draftcast.kernels.model.dtypes import WEIGHT_BYTES
from draftcast.kernels.operators.registry import Launch, Operator

BURSTS = 4
_GEMM_SIZE = {"cpu": 1024, "cuda": 8192}
_LEAST_COPY_BYTES = 256 << 20


def stream_launches(device: str, cache_bytes: int) -> dict[str, tuple[int, list[Launch]]]:
    """Name -> (bytes moved by a launch, launches) of a copy and of a sum over memory well beyond the cache."""
    import torch

    size = max(4 * cache_bytes, _LEAST_COPY_BYTES)
    source = torch.ones(size // 4, device=device)
    target = torch.zeros_like(source)
    total = torch.zeros((), device=device)
    return {
        "copy": (2 * size, [lambda: _done(target.copy_(source))]),
        "read": (size, [lambda: _done(torch.sum(source, dim=0, out=total))]),
    }


def gemm_points(linear: Operator, dtypes: Sequence[str], device: str) -> list[Point]:
    """A large square matrix product in every format and implementation that runs."""
    size = _GEMM_SIZE[device]
    shape = {"m": size, "k": size, "n": size}
    return [
        Point("linear", dtype, "", name, tuple(shape.items()))
        for dtype in dtypes
        if dtype in linear.dtypes
        for name, implementation in linear.implementations.items()
        if not implementation.supports(shape, dtype, "", device)
    ]


def ceilings(rates: Mapping[str, float], table: LatencyTable, cache_bytes: int) -> dict[str, Any]:
    """The manifest's ``ceilings``.

    Args:
        rates: measured bytes a second of ``copy`` and ``read``, FLOP/s of ``gemm <dtype> <implementation>``.
        table: the measured points; those that move more than twice ``cache_bytes`` count for the memory as well.
    """
    # Imported here: it loads pandas, and a run is timed from its start.
    from draftcast.calibration.profile.measured import parts_of

    peaks: dict[str, float] = {}
    for name, rate in rates.items():
        if name.startswith("gemm "):
            of = name.split()[1]
            peaks[of] = max(peaks.get(of, 0.0), rate)
    bandwidth = max((rate for name, rate in rates.items() if name in ("copy", "read")), default=0.0)
    # A search over token ids computes nothing that a peak rate speaks of.
    computing = table.frame[table.frame["dtype"].isin(list(WEIGHT_BYTES))]
    for part, rows in parts_of(computing):
        work, seconds = part.work_of(rows), rows["seconds"].to_numpy(float)
        peaks[part.dtype] = max(peaks.get(part.dtype, 0.0), float((work.flops / seconds).max()))
        if part.operator != "all_reduce":  # bound by the link
            beyond_cache = work.bytes > 2.0 * cache_bytes
            bandwidth = max(bandwidth, float((work.bytes / seconds).max(initial=0.0, where=beyond_cache)))
    measured = {"peak_flops": {dtype: rate for dtype, rate in peaks.items() if rate > 0.0}}
    return {**measured, **({"memory_bandwidth_bytes_per_s": bandwidth} if bandwidth else {})}


def _done(_: object) -> None:
    """Drops a result, so that a launch returns nothing."""
