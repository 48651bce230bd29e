"""Interpolation of measured times: curves along one shape axis, and attention over a grid of three axes or four.

A `CurveSet` holds one curve of seconds against ``x`` (rows of a linear layer, bytes of a message) for every measured
combination of the other axes (``k, n``). Along a curve it interpolates with PCHIP on the logs (Fritsch and Butland,
SIAM J. Sci. Stat. Comput. 5(2), 1984), between curves the logs of time over roofline, linear in the logs of the axes.
Outside the measured range it stretches the nearest measured time by the ratio of rooflines and says ``EXTRAPOLATED``.

An `AttentionGrid` is multilinear in the logs of axes and time. Its axes for decode and verify: queries per sequence,
sequences, context tokens; for prefill: context per chunk token (1: no prefix), sequences, chunk tokens. Holes between
nodes are filled from measured neighbours along each axis, as time over roofline; nodes beyond every neighbour are
stretched by the roofline and marked not measured.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from draftcast.calibration.profile.roofline import Origin
from draftcast.kernels.arrays import BoolArray, FloatArray, IntArray

Key = tuple[int, ...]
RooflineSeconds = Callable[..., FloatArray]
"""Fitted seconds: of a curve set at values of x and a combination of the axes, of a grid at values of the axes."""


def never_falling(values: FloatArray) -> FloatArray:
    """``values`` made to rise, or stay, along every axis: the middle of the least array above and the largest below.

    Measured times fall here and there, by noise or by another kernel; an engine's batches vary around such a dip.
    """
    above, below = values, values
    for axis in range(values.ndim):
        above = np.maximum.accumulate(above, axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis), axis)
    return np.asarray(above + below) / 2.0


@dataclass(frozen=True)
class Curve:
    """Seconds at ascending values of x; shapes (points,), x > 0, seconds > 0."""

    x: FloatArray
    log_s: FloatArray

    def at(self, x: FloatArray) -> FloatArray:
        """Log seconds at ``x``, clamped to the measured range."""
        inside = np.clip(x, self.x[0], self.x[-1])
        nodes = np.searchsorted(self.x, inside)
        if np.array_equal(self.x[nodes], inside):  # so it mostly is for a neighbour's curve: measured at the same rows
            return self.log_s[nodes]
        return np.asarray(self._between_points(np.log(inside)), dtype=np.float64)

    @functools.cached_property
    def _between_points(self) -> Any:
        # Imported here: scipy.interpolate takes longer to import than a profile to load.
        from scipy.interpolate import PchipInterpolator

        return PchipInterpolator(np.log(self.x), self.log_s)


@dataclass(frozen=True)
class CurveSet:
    """Measured curves over ``axes`` other shape values."""

    curves: dict[Key, Curve]  # curve of each measured combination of the axes
    roofline: RooflineSeconds  # the family's fitted seconds
    is_stretched: bool = False  # from another device's: no time is measured
    # What `_blend` gave, by key: another engine of the same model asks for the same
    _between: dict[Key, Curve | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    @functools.cached_property
    def _values(self) -> tuple[FloatArray, ...]:
        return tuple(np.unique(column).astype(np.float64) for column in zip(*self.curves, strict=True))

    @classmethod
    def from_points(cls, keys: IntArray, x: ArrayLike, seconds: ArrayLike, roofline: RooflineSeconds) -> CurveSet:
        """Curves of ``keys`` (n, axes), ``x`` and ``seconds`` (n,); of equal points the fastest, which engines pick."""
        xs, times = np.asarray(x, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        code = np.zeros(len(keys), dtype=np.int64)  # one number a key, in the keys' order: sorts quicker than several
        for column in keys.T:
            code = code * (int(column.max(initial=0)) + 1) + column
        order = np.lexsort((xs, code))
        keys, code, xs, times = keys[order], code[order], xs[order], times[order]
        changed = code[1:] != code[:-1]
        fresh = np.flatnonzero(np.concatenate(([True], changed | (xs[1:] != xs[:-1]))))
        keys, code, xs, logs = keys[fresh], code[fresh], xs[fresh], np.log(np.minimum.reduceat(times, fresh))
        starts = np.flatnonzero(np.concatenate(([True], code[1:] != code[:-1])))
        ends = np.append(starts[1:], len(xs))
        curves = {
            tuple(key): Curve(xs[start:end], logs[start:end])
            for key, start, end in zip(keys[starts].tolist(), starts.tolist(), ends.tolist(), strict=True)
        }
        return cls(curves, roofline)

    def seconds(self, x: ArrayLike, key: Key) -> tuple[FloatArray, IntArray]:
        """Seconds and `Origin` values at ``x`` for one combination of the axes; zero x takes no time."""
        xs = np.asarray(x, dtype=np.float64)
        some = np.maximum(xs, 1.0)
        if key not in self.curves and key not in self._between:
            self._between[key] = self._blend(key)
        curve = self.curves.get(key) or self._between[key]
        log_s, origins = self._nearest(some, key) if curve is None else self._along(curve, some, key)
        if self.is_stretched:
            origins = np.full(xs.shape, int(Origin.EXTRAPOLATED))
        elif key not in self.curves:
            origins = np.maximum(origins, int(Origin.INTERPOLATED))
        return np.where(xs > 0.0, np.exp(log_s), 0.0), origins

    def _along(self, curve: Curve, x: FloatArray, key: Key) -> tuple[FloatArray, IntArray]:
        log_s = curve.at(x)
        outside = (x < curve.x[0]) | (x > curve.x[-1])
        if outside.any():
            clamped = np.clip(x[outside], curve.x[0], curve.x[-1])
            log_s[outside] += np.log(self.roofline(x[outside], key)) - np.log(self.roofline(clamped, key))
        nodes = np.searchsorted(curve.x, x).clip(max=len(curve.x) - 1)
        origins = np.where(curve.x[nodes] == x, int(Origin.MEASURED), int(Origin.INTERPOLATED))
        return log_s, np.where(outside, int(Origin.EXTRAPOLATED), origins)

    def _corners(self, key: Key) -> list[tuple[Key, float]]:
        """Measured neighbours around ``key`` with their weights; empty when it is not enclosed by measured ones."""
        sides: list[list[tuple[int, float]]] = []
        for value, values in zip(key, self._values, strict=True):
            above = int(np.searchsorted(values, value))
            if above < len(values) and values[above] == value:
                sides.append([(value, 1.0)])
                continue
            if above in (0, len(values)):
                return []
            low, high = values[above - 1], values[above]
            share = float(np.log(value / low) / np.log(high / low))
            sides.append([(int(low), 1.0 - share), (int(high), share)])
        corners = [
            (tuple(value for value, _ in combination), math.prod(weight for _, weight in combination))
            for combination in itertools.product(*sides)
        ]
        return corners if all(corner in self.curves for corner, _ in corners) else []

    def _blend(self, key: Key) -> Curve | None:
        """The curve of a combination between measured ones; None where it has no such neighbours, or none in common."""
        # Nodes at which every neighbour was measured or lies between its own points; then along x as on one curve.
        corners = self._corners(key)
        curves = [self.curves[corner] for corner, _ in corners]
        if not curves:
            return None
        low, high = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
        nodes = np.unique(np.concatenate([curve.x for curve in curves]))
        nodes = nodes[(nodes >= low) & (nodes <= high)]
        if not len(nodes):
            return None
        log_s = np.log(self.roofline(nodes, key))
        for (corner, weight), curve in zip(corners, curves, strict=True):
            log_s += weight * (curve.at(nodes) - np.log(self.roofline(nodes, corner)))
        return Curve(nodes, log_s)

    def _nearest(self, x: FloatArray, key: Key) -> tuple[FloatArray, IntArray]:
        log_key = np.log(np.asarray(key, dtype=np.float64))
        measured = list(self.curves)
        beyond = np.log(np.asarray(measured, dtype=np.float64)) - log_key
        distance = np.abs(beyond).sum(axis=1)
        near = measured[int(np.argmin(distance))]
        log_s = self._along(self.curves[near], x, near)[0] + np.log(self.roofline(x, key))
        log_s -= np.log(self.roofline(x, near))
        larger = (beyond >= 0.0).all(axis=1)
        if larger.any():  # padded with zeros it is that shape, whatever kernel the nearest was timed with
            at_most = measured[int(np.argmin(np.where(larger, distance, np.inf)))]
            log_s = np.minimum(log_s, self._along(self.curves[at_most], x, at_most)[0])
        return log_s, np.full(x.shape, int(Origin.EXTRAPOLATED))


MAX_NODES = 24  # of the longest axis; the engine keeps axes of this length


@dataclass(frozen=True)
class AttentionGrid:
    """Log seconds of one layer at the nodes of the axes."""

    axes: tuple[FloatArray, ...]  # ascending values of each axis, at most `MAX_NODES`
    log_s: FloatArray  # shape (len(axes[0]), len(axes[1]), ...)
    measured: BoolArray  # same shape; False where the roofline stretches a neighbour

    @classmethod
    def from_points(cls, points: FloatArray, seconds: FloatArray, roofline: RooflineSeconds) -> AttentionGrid:
        """Grid of ``points`` (n, axes) and ``seconds`` (n,), the least of equal ones; axes have at most `MAX_NODES`."""
        axes = tuple(axis[evenly(len(axis), MAX_NODES)] for axis in map(np.unique, points.T))
        log_s = np.full(tuple(len(axis) for axis in axes), np.nan)
        where = [np.searchsorted(axis, points[:, i]).clip(0, len(axis) - 1) for i, axis in enumerate(axes)]
        exact = np.all([axis[at] == points[:, i] for i, (axis, at) in enumerate(zip(axes, where, strict=True))], axis=0)
        np.fmin.at(log_s, tuple(at[exact] for at in where), np.log(seconds[exact]))
        fitted = np.log(roofline(*np.meshgrid(*axes, indexing="ij")))
        excess, measured = _fill_between(log_s - fitted, axes)
        return cls(axes, _fill_beyond(excess, axes) + fitted, measured)

    def stretched(self, values: FloatArray, roofline: RooflineSeconds) -> AttentionGrid:
        """With nodes at those ``values`` of the first axis beyond its last: that one's, times the roofline's ratio.

        They are not measured, and no node is below one of fewer. The engine reads a node several times faster than it
        computes such a ratio.
        """
        last = self.axes[0][-1]
        beyond = values[values > last][: MAX_NODES - len(self.axes[0])]
        many, one = (np.log(roofline(*np.meshgrid(at, *self.axes[1:], indexing="ij"))) for at in (beyond, last))
        ratio = many - one
        return AttentionGrid(
            (np.concatenate([self.axes[0], beyond]), *self.axes[1:]),
            np.concatenate([self.log_s, self.log_s[-1:] + np.maximum.accumulate(np.maximum(ratio, 0.0))]),
            np.concatenate([self.measured, np.zeros(ratio.shape, dtype=bool)]),
        )

    def log_seconds(self, *at_axes: FloatArray) -> FloatArray:
        """Log seconds at points clamped to the grid."""
        from scipy.interpolate import RegularGridInterpolator

        values = np.stack(np.broadcast_arrays(*at_axes), axis=-1).astype(np.float64)
        low, high = (np.array([axis[end] for axis in self.axes]) for end in (0, -1))
        at = np.log(np.clip(values, low, high))
        return np.asarray(RegularGridInterpolator(tuple(np.log(axis) for axis in self.axes), self.log_s)(at))


def evenly(count: int, most: int) -> IntArray:
    """Indices of at most ``most`` of ``count`` values, both ends kept, evenly spread; all of fewer values."""
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))


def _fill_between(excess: FloatArray, axes: tuple[FloatArray, ...]) -> tuple[FloatArray, BoolArray]:
    """Fill holes that have measured neighbours on both sides along an axis; with several such axes, their mean."""
    measured = ~np.isnan(excess)
    lines = np.stack([_between(excess, measured, axis, np.log(at)) for axis, at in enumerate(axes)])
    count = np.sum(~np.isnan(lines), axis=0)
    filled = np.where(~measured & (count > 0), np.nansum(lines, axis=0) / np.maximum(count, 1), excess)
    return filled, ~np.isnan(filled)


def _between(excess: FloatArray, measured: BoolArray, axis: int, logs: FloatArray) -> FloatArray:
    """Along an axis, at each hole the straight line between its known neighbours; NaN where one lacks."""
    shape = [len(logs) if index == axis else 1 for index in range(excess.ndim)]
    positions = np.arange(len(logs)).reshape(shape)
    low = np.maximum.accumulate(np.where(measured, positions, -1), axis)
    high = np.flip(np.minimum.accumulate(np.flip(np.where(measured, positions, len(logs)), axis), axis), axis)
    enclosed = ~measured & (low >= 0) & (high < len(logs))
    low, high = low.clip(0), high.clip(max=len(logs) - 1)
    below, above = (np.take_along_axis(excess, index, axis) for index in (low, high))
    slope = (above - below) / np.where(enclosed, logs[high] - logs[low], 1.0)
    return np.where(enclosed, slope * (logs.reshape(shape) - logs[low]) + below, np.nan)


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
