"""Measured attention as a grid over three axes or four, interpolated linearly in the logs of axes and time.

Decode and verify: queries per sequence, sequences, context tokens. Prefill: context per chunk token (1: no prefix),
sequences, chunk tokens. `log_seconds` is the reference; the engine's compiled twin stands in `sim/cost/step_time`.
Multilinear in the logs, so it is as monotone as the measured nodes. Holes between nodes are filled from measured
neighbours along each axis, as time over roofline; nodes beyond every neighbour are stretched by the roofline and marked
not measured, and so is every point outside the grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
RooflineSeconds = Callable[..., FloatArray]
"""Fitted seconds at values of the axes, which broadcast."""
MAX_NODES = 24
"""Longest axis; the engine keeps axes of this length."""


@dataclass(frozen=True)
class AttentionGrid:
    """Log seconds of one layer at the nodes of the axes."""

    axes: tuple[FloatArray, ...]  # ascending values of each axis, at most `MAX_NODES`
    log_s: FloatArray  # shape (len(axes[0]), len(axes[1]), ...)
    measured: NDArray[np.bool_]  # same shape; False where the roofline stretches a neighbour

    @classmethod
    def from_points(cls, points: FloatArray, seconds: FloatArray, roofline: RooflineSeconds) -> AttentionGrid:
        """Grid of measured points: ``points`` (n, axes) values of the axes, ``seconds`` (n,).

        Of several times for one point the least counts. Axes longer than `MAX_NODES` are thinned.
        """
        axes = tuple(_thinned(np.unique(points[:, axis])) for axis in range(points.shape[1]))
        log_s = np.full(tuple(len(axis) for axis in axes), np.nan)
        where = [np.searchsorted(axis, points[:, i]).clip(0, len(axis) - 1) for i, axis in enumerate(axes)]
        kept = np.all([axis[at] == points[:, i] for i, (axis, at) in enumerate(zip(axes, where, strict=True))], axis=0)
        for *node, value in zip(*(at[kept] for at in where), np.log(seconds[kept]), strict=True):
            log_s[tuple(node)] = np.fmin(log_s[tuple(node)], value)
        mesh = np.meshgrid(*axes, indexing="ij")
        fitted = np.log(roofline(*mesh))
        excess, measured = _fill_between(log_s - fitted, axes)
        return cls(axes, _fill_beyond(excess, axes) + fitted, measured)

    def stretched(self, values: FloatArray, roofline: RooflineSeconds) -> AttentionGrid:
        """With nodes at those ``values`` of the first axis beyond its last: that one's, times the roofline's ratio.

        They are not measured. The engine reads a node several times faster than it computes such a ratio.
        """
        last = self.axes[0][-1]
        beyond = values[values > last][: MAX_NODES - len(self.axes[0])]
        if not len(beyond):
            return self
        mesh = np.meshgrid(beyond, *self.axes[1:], indexing="ij")
        ratio = np.log(roofline(*mesh)) - np.log(roofline(np.full_like(mesh[0], last), *mesh[1:]))
        return AttentionGrid(
            (np.concatenate([self.axes[0], beyond]), *self.axes[1:]),
            np.concatenate([self.log_s, self.log_s[-1:] + ratio]),
            np.concatenate([self.measured, np.zeros(ratio.shape, dtype=bool)]),
        )

    def log_seconds(self, *at_axes: FloatArray) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Log seconds at points clamped to the grid, and whether they lie inside it, between measured nodes."""
        from scipy.interpolate import RegularGridInterpolator

        values = np.stack(np.broadcast_arrays(*at_axes), axis=-1).astype(np.float64)
        low, high = (np.array([axis[end] for axis in self.axes]) for end in (0, -1))
        at = np.log(np.clip(values, low, high))
        axes = tuple(np.log(axis) for axis in self.axes)
        # Of a point's neighbours all those that have a weight are measured.
        measured = RegularGridInterpolator(axes, self.measured.astype(np.float64))(at) > 1.0 - 1e-9
        inside = np.all((values >= low) & (values <= high), axis=-1) & measured
        return RegularGridInterpolator(axes, self.log_s)(at), inside


def _thinned(axis: FloatArray) -> FloatArray:
    """At most `MAX_NODES` of an axis' values, both ends kept, evenly spread."""
    if len(axis) <= MAX_NODES:
        return axis
    picked: FloatArray = axis[np.unique(np.linspace(0, len(axis) - 1, MAX_NODES).round().astype(int))]
    return picked


def _fill_between(excess: FloatArray, axes: tuple[FloatArray, ...]) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Fill holes that have measured neighbours on both sides along an axis; with several such axes, their mean."""
    total, count = np.zeros(excess.shape), np.zeros(excess.shape)
    for axis, values in enumerate(axes):
        logs = np.log(values)
        rows, sums, counts = (np.moveaxis(array, axis, -1) for array in (excess, total, count))
        for index in np.ndindex(rows.shape[:-1]):
            known = ~np.isnan(rows[index])
            if known.sum() < 2:
                continue
            filled = np.interp(logs, logs[known], rows[index][known], left=np.nan, right=np.nan)
            between = ~np.isnan(filled)
            sums[index][between] += filled[between]
            counts[index][between] += 1.0
    hole = np.isnan(excess)
    filled = np.where(hole & (count > 0), total / np.maximum(count, 1.0), excess)
    return filled, ~np.isnan(filled)


def _fill_beyond(excess: FloatArray, axes: tuple[FloatArray, ...]) -> FloatArray:
    """Give every node that is left the excess of its nearest filled node, in the logs of the axes."""
    from scipy.interpolate import NearestNDInterpolator

    holes = np.isnan(excess)
    if not holes.any():
        return excess
    mesh = np.stack(np.meshgrid(*(np.log(axis) for axis in axes), indexing="ij"), axis=-1)
    result = excess.copy()
    result[holes] = NearestNDInterpolator(mesh[~holes], excess[~holes])(mesh[holes])
    return result
