"""Interpolation of measured times along one axis: exact at points, monotone between them, honest outside."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftcast.calibration.profile.interpolation import CurveSet, FloatArray, Key
from draftcast.calibration.profile.roofline import Origin

MEASURED, INTERPOLATED, EXTRAPOLATED = (int(origin) for origin in Origin)


def fitted(x: FloatArray, key: Key) -> FloatArray:
    """2 us + x * k * n picoseconds."""
    return np.asarray(2e-6 + x * float(np.prod(key)) * 1e-12)


def curves(*keys: Key, xs: tuple[int, ...] = (1, 2, 4, 8, 16), factor: float = 1.3) -> CurveSet:
    """Curves that lie ``factor`` above the fit."""
    points = [(*key, x, factor * float(fitted(np.asarray(x), key))) for key in keys for x in xs]
    table = np.asarray(points)
    return CurveSet.from_points(table[:, :-2].astype(np.int64), table[:, -2], table[:, -1], fitted)


def test_measured_points_come_back_exactly() -> None:
    found, origins = curves((64, 32)).seconds([1, 4, 16], (64, 32))
    assert found == pytest.approx(1.3 * fitted(np.asarray([1.0, 4.0, 16.0]), (64, 32)), rel=1e-12)
    assert list(origins) == [MEASURED] * 3


def test_no_rows_take_no_time() -> None:
    found, _ = curves((64, 32)).seconds([0, 1], (64, 32))
    assert found[0] == 0.0 < found[1]


def test_a_power_law_is_interpolated_exactly() -> None:
    xs = np.asarray([1.0, 4.0, 16.0, 64.0])
    table = CurveSet.from_points(np.full((4, 1), 7), xs, 1e-6 * xs**0.75, fitted)
    found, origins = table.seconds([2, 8, 32], (7,))
    assert found == pytest.approx(1e-6 * np.asarray([2.0, 8.0, 32.0]) ** 0.75, rel=1e-9)
    assert list(origins) == [INTERPOLATED] * 3


@given(st.lists(st.floats(0.0, 2.0), min_size=3, max_size=12))
def test_between_monotone_points_the_curve_is_monotone(steps: list[float]) -> None:
    xs = 2.0 ** np.arange(len(steps))
    table = CurveSet.from_points(np.full((len(xs), 1), 3), xs, 1e-6 * np.exp(np.cumsum(steps)), fitted)
    found, _ = table.seconds(np.geomspace(1.0, xs[-1], 200), (3,))
    assert np.all(np.diff(found) >= -1e-12 * found[1:])


def test_outside_the_points_the_ratio_of_rooflines_stretches_the_nearest() -> None:
    found, origins = curves((64, 32)).seconds([64], (64, 32))
    assert found[0] == pytest.approx(1.3 * float(fitted(np.asarray(64.0), (64, 32))), rel=1e-9)
    assert origins[0] == EXTRAPOLATED


def test_between_curves_time_over_roofline_is_blended() -> None:
    table = curves((64, 32), (64, 128), (256, 32), (256, 128))
    found, origins = table.seconds([2, 3], (128, 64))
    # All four lie 1.3 above the fit, so does what lies between: exact at a node, near it between two.
    assert found == pytest.approx(1.3 * fitted(np.asarray([2.0, 3.0]), (128, 64)), rel=2e-3)
    assert found[0] == pytest.approx(1.3 * float(fitted(np.asarray(2.0), (128, 64))), rel=1e-9)
    assert list(origins) == [INTERPOLATED, INTERPOLATED]


def test_a_missing_corner_or_a_shape_beyond_all_is_extrapolated() -> None:
    three = curves((64, 32), (64, 128), (256, 32))
    assert list(three.seconds([2], (128, 64))[1]) == [EXTRAPOLATED]
    found, origins = curves((64, 32), (64, 128)).seconds([2], (64, 1024))
    assert found[0] == pytest.approx(1.3 * float(fitted(np.asarray(2.0), (64, 1024))), rel=1e-9)
    assert list(origins) == [EXTRAPOLATED]


def test_a_shape_takes_no_longer_than_a_larger_one_that_was_measured() -> None:
    """The narrow one was timed with a kernel ten times slower; what is nearest to it is no better for that."""
    xs, keys = np.array([1.0, 64.0]), [(64, 24), (64, 384), (32, 30)]
    times = [factor * fitted(xs, key) for factor, key in zip((100.0, 1.0, 1.0), keys, strict=True)]
    table = CurveSet.from_points(np.repeat(np.array(keys), 2, axis=0), np.tile(xs, 3), np.concatenate(times), fitted)
    found, origins = table.seconds(xs, (64, 30))
    assert found == pytest.approx(fitted(xs, (64, 384)), rel=1e-9)
    assert (found < 0.5 * 100.0 * fitted(xs, (64, 30))).all()
    assert set(origins) == {EXTRAPOLATED}


def test_of_two_times_for_a_point_the_least_counts() -> None:
    table = CurveSet.from_points(np.full((3, 1), 5), [1, 1, 2], [3e-6, 2e-6, 4e-6], fitted)
    assert table.seconds([1], (5,))[0][0] == pytest.approx(2e-6)


def test_a_single_point_is_stretched_both_ways() -> None:
    found, origins = curves((64, 32), xs=(4,)).seconds([2, 4, 8], (64, 32))
    assert found == pytest.approx(1.3 * fitted(np.asarray([2.0, 4.0, 8.0]), (64, 32)), rel=1e-9)
    assert list(origins) == [EXTRAPOLATED, MEASURED, EXTRAPOLATED]


def test_a_set_without_other_axes() -> None:
    table = CurveSet.from_points(np.empty((3, 0), dtype=np.int64), [1, 10, 100], [1e-6, 1e-5, 1e-4], fitted)
    assert table.seconds([50], ())[0][0] == pytest.approx(5e-5, rel=1e-9)
