"""The inter-token-latency histogram: exponential-linear bins that a compiled loop can index from a float's bits.

A run has too many gaps between emissions to keep them; 8,192 bins keep every quantile within 0.4 %. A bin is the gap's
binary exponent and the first 8 bits of its mantissa, so finding it takes a shift and a subtraction. Counts are kept per
segment (twentieths of the requests, by index) so that a warm-up cut can be made after the run.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from draftcast.kernels.arrays import FloatArray, IntArray

ITL_BIN_SHIFT = 44  # 52 mantissa bits less the 8 that are kept: 256 bins an octave
ITL_MIN_EXPONENT = -20  # first edge 2**-20 s, about 1 microsecond: far below any engine step
ITL_OCTAVES = 32  # last edge 2**12 s
ITL_BINS = ITL_OCTAVES * 256
ITL_BIN_OFFSET = (1023 + ITL_MIN_EXPONENT) << 8  # 1023 is the exponent bias of float64
ITL_SEGMENTS = 20


def itl_bin(gap_s: ArrayLike) -> IntArray:
    """Bin of each gap in seconds; gaps below 2**-20 s (0 too) go to bin 0, gaps of 2**12 s or more to the last."""
    bits = np.ascontiguousarray(gap_s, dtype=np.float64).view(np.int64)
    return np.asarray(np.clip((bits >> ITL_BIN_SHIFT) - ITL_BIN_OFFSET, 0, ITL_BINS - 1), dtype=np.int64)


def itl_bin_edges() -> FloatArray:
    """The ITL_BINS + 1 bin edges in seconds: bin i holds ``edges[i] <= gap < edges[i + 1]``."""
    bits = (np.arange(ITL_BINS + 1, dtype=np.int64) + ITL_BIN_OFFSET) << ITL_BIN_SHIFT
    return bits.view(np.float64)


def segment_of(request: ArrayLike, num_requests: int) -> IntArray:
    """Segment (0..19) of each request index, ``request * 20 // n``."""
    return np.asarray(np.asarray(request, dtype=np.int64) * ITL_SEGMENTS // max(num_requests, 1), dtype=np.int64)


def segment_start(segment: int, num_requests: int) -> int:
    """First request index of a segment, the inverse of ``segment_of``."""
    return -(-segment * num_requests // ITL_SEGMENTS)


def itl_histogram(gap_s: ArrayLike, request: ArrayLike, num_requests: int) -> IntArray:
    """Histogram of gaps, int64 [ITL_SEGMENTS, ITL_BINS]; the plain version of what the engine counts."""
    counts = np.zeros((ITL_SEGMENTS, ITL_BINS), dtype=np.int64)
    np.add.at(counts, (segment_of(request, num_requests), itl_bin(gap_s)), 1)
    return counts


def histogram_quantile(counts: IntArray, q: ArrayLike) -> FloatArray:
    """Quantiles in seconds of a histogram [ITL_BINS]; NaN when it is empty.

    Linear interpolation between order statistics, as numpy does. An order statistic is placed in its bin as if
    the bin's values were evenly spread, so it is off by less than the bin's width: at most 1/256 (0.39 %) of it.
    """
    wanted = np.atleast_1d(np.asarray(q, dtype=np.float64))
    filled = np.flatnonzero(counts)
    if filled.size == 0:
        return np.full(wanted.shape, math.nan)
    size = counts[filled]
    above = np.cumsum(size)
    edges = itl_bin_edges()

    def order_statistic(index: IntArray) -> FloatArray:
        at = np.searchsorted(above, index, side="right")
        low, high = edges[filled[at]], edges[filled[at] + 1]
        return np.asarray(low + (index - (above[at] - size[at]) + 0.5) / size[at] * (high - low), dtype=np.float64)

    last = int(above[-1]) - 1
    rank = wanted * last
    lower = rank.astype(np.int64)
    below = order_statistic(lower)
    upper = order_statistic(np.minimum(lower + 1, last))
    return np.asarray(below + (rank - lower) * (upper - below), dtype=np.float64)


def histogram_mean_std(counts: IntArray) -> tuple[float, float]:
    """Mean and population standard deviation in seconds from bin midpoints (each within 0.2 %); NaN when empty."""
    filled = np.flatnonzero(counts)
    if filled.size == 0:
        return math.nan, math.nan
    edges = itl_bin_edges()
    middle = (edges[filled] + edges[filled + 1]) / 2
    size = counts[filled].astype(np.float64)
    mean = float(size @ middle / size.sum())
    return mean, math.sqrt(float(size @ (middle - mean) ** 2 / size.sum()))
