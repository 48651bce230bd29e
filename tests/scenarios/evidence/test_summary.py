"""Spread and coverage of errors on numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest

from draftcast.scenarios.evidence.summary import DEVIATIONS, coverage, spread


def test_a_source_counts_once_however_many_points_it_has() -> None:
    # The ten sources of one point each have errors of 0.1 to 1.0; one more has a thousand small ones.
    few = {str(number): [number / 10] for number in range(1, 11)}
    assert spread(few) * DEVIATIONS == pytest.approx(0.9)
    assert spread(few | {"many": [0.01] * 1000}) * DEVIATIONS == pytest.approx(0.9)


def test_the_sign_of_an_error_does_not_matter() -> None:
    assert spread({"a": [-0.3], "b": [0.1]}) == spread({"a": [0.3], "b": [-0.1]})


def test_coverage_holds_each_source_out() -> None:
    # Held out, the odd one is judged by a spread of 0.1 and lies outside; the others are judged by its 0.5.
    found = coverage({"one": {"a": [0.1], "b": [0.1], "odd": [0.5]}})
    assert (found.covered, found.points, found.sources) == (pytest.approx(2 / 3), 3, 3)
    assert found.half_width == pytest.approx(0.5)
    assert found.error == pytest.approx(0.1)


def test_one_source_alone_covers_nothing() -> None:
    assert math.isnan(coverage({"one": {"a": [0.1, 0.2]}}).covered)
