"""The Pareto front of points with two figures of which more is better, each figure known from paired replications."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from draftcast.sim.statistics.intervals import student_t

BLOCK = 256
"""Rivals a point is compared with at once; most points are beaten by one of the first, the best on the whole."""


def pareto_front(points: Sequence[tuple[Sequence[float], Sequence[float]]], confidence: float) -> list[int]:
    """Indices of the points that no other beats.

    A point beats another if one of its figures is significantly better (the interval of the log ratio, paired by
    replication, excludes 1) and the other is not significantly worse. So what differs by chance alone is equal. With
    one replication there is no interval, and every difference counts.

    Args:
        points: both figures by replication; a point with a figure that is not positive and finite is left out. Points
            with fewer replications than another are compared over as many.
    """
    if not points:
        return []
    least = min(len(point[0]) for point in points)
    figures = np.array([[first[:least], second[:least]] for first, second in points])
    known = np.flatnonzero((np.isfinite(figures) & (figures > 0)).all(axis=(1, 2)))
    logs = np.log(figures[known])
    order = np.argsort(-logs.mean(axis=2).sum(axis=1), kind="stable")
    known, logs = known[order], logs[order]
    blocks = [logs[start : start + BLOCK] for start in range(0, len(logs), BLOCK)]
    return sorted(
        int(index)
        for index, own in zip(known, logs, strict=True)
        if not any(_beats(block, own, confidence).any() for block in blocks)
    )


def _beats(rivals: NDArray[np.float64], own: NDArray[np.float64], confidence: float) -> NDArray[np.bool_]:
    """Which of the rivals (shape [N, 2, R], logarithms) beat a point ([2, R])."""
    differences = rivals - own
    means = differences.mean(axis=2)
    count = differences.shape[2]
    half = 0.0 if count < 2 else student_t(count - 1, confidence) * differences.std(axis=2, ddof=1) / np.sqrt(count)
    better, worse = means - half > 0, means + half < 0
    return np.asarray(better.any(axis=1) & ~worse.any(axis=1))
