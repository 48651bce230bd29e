"""Spread and coverage of errors on numbers that can be checked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftcast.scenarios.evidence.forecast import forecast_points
from draftcast.scenarios.evidence.summary import (
    DEVIATIONS,
    coverage,
    errors,
    scorecard,
    sharing,
    shipped_forecasts,
    spread,
)


def test_a_source_counts_once_however_many_points_it_has() -> None:
    # Thirty sources of one point each have errors of 0.1 to 3.0. Of definition 8 their quantile of 0.9 lies at place
    # 0.9 (n + 1/3) + 1/3: numpy's ``median_unbiased``. One more source has a thousand small ones, which take one place.
    few = {str(number): [number / 10] for number in range(1, 31)}
    assert spread(few) * DEVIATIONS == pytest.approx(np.quantile(np.arange(1, 31) / 10, 0.9, method="median_unbiased"))
    assert spread(few | {"many": [0.01] * 1000}) * DEVIATIONS == pytest.approx((0.9 * (31 + 1 / 3) + 1 / 3 - 1) / 10)


def test_of_few_sources_the_worst_error_is_the_most() -> None:
    # 0.9 (8 + 1/3) + 1/3 = 7.83: so far from the seventh to the eighth.
    eight = {str(number): [number / 10] for number in range(1, 9)}
    assert spread(eight) * DEVIATIONS == pytest.approx(0.7 + 0.1 * 5 / 6)
    assert spread({"a": [0.1], "b": [0.3]}) * DEVIATIONS == pytest.approx(0.3)


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


def test_only_the_sources_asked_for_are_judged_and_all_stay_in_the_spreads() -> None:
    found = {"one": {"a": [0.1], "b": [0.1], "odd": [0.5]}}
    assert coverage(found, {"odd"}).covered == 0.0
    assert coverage(found, {"a", "b"}).covered == 1.0
    assert coverage(found, {"a"}).half_width == pytest.approx(0.5)


def test_half_widths_and_errors_count_a_source_once() -> None:
    found = coverage({"one": {"a": [0.1], "b": [0.3], "many": [0.2] * 100}})
    assert (found.half_width, found.error) == (pytest.approx(0.3), pytest.approx(0.2))
    assert (found.points, found.sources) == (102, 3)


def test_strata_with_few_sources_share_one_spread() -> None:
    known = {str(number): [0.1] for number in range(5)}
    found = {"dense, measured": known, "dense, not measured": {"a": [0.4]}, "other, measured": {"a": [0.2], "b": [0.3]}}
    assert sharing(found, "dense, measured") == known
    assert sharing(found, "dense, not measured") == known | {"a": [0.4]}
    assert sharing(found, "other, measured") == sharing(found, "other, not measured") == {"a": [0.2], "b": [0.3]}
    assert coverage(found, stratum="other, measured").half_width == pytest.approx(0.25)
    assert coverage(found, stratum="dense, measured").half_width == pytest.approx(0.1)
    # One source alone has nothing to be judged by: all are taken.
    alone = {"dense, measured": known, "other, measured": {"a": [0.4]}}
    assert sharing(alone, "other, measured") == known | {"a": [0.4]}


def test_the_scorecard_has_every_stratum_and_engine() -> None:
    forecasts = shipped_forecasts()
    scores = scorecard(forecasts, "speedup")
    for stratum in {score.stratum for score in scores}:
        whole, *engines = [score for score in scores if score.stratum == stratum]
        assert whole.engine == ""
        assert whole.errors == errors([f for f in forecasts if f.stratum == stratum], "speedup")
        assert whole.errors.points == sum(score.errors.points for score in engines)
    assert len({score.stratum for score in scores}) >= 3


def test_the_shipped_forecasts_are_what_this_version_forecasts() -> None:
    """A few of them; else run ``python benchmarks/evidence.py --write-forecasts``."""
    # At few clients: a run of a thousand requests on ranks in lockstep takes longer than all others.
    loads = [(f, f.point.load) for f in shipped_forecasts() if f.point.output_tokens]
    shipped = [f for f, load in loads if load.kind == "concurrency" and load.value <= 128][::40]
    assert len(shipped) >= 6
    for old, new in zip(shipped, forecast_points(f.point for f in shipped), strict=True):
        assert (old.stratum, old.off is None, old.on is None) == (new.stratum, new.off is None, new.on is None)
        assert (old.off or 0.0, old.on or 0.0) == pytest.approx((new.off or 0.0, new.on or 0.0), rel=1e-4)
