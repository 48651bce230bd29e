"""Cells of the tables."""

from __future__ import annotations

import math

import pytest

from draftcast.scenarios.show.tables import show
from draftcast.sim.statistics.intervals import Estimate


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.4, 1.6, "1.50 ±0.10"),
        (1.41, 1.6, "1.50 ±0.10"),
        (1.2, 4.0, "1.50 (1.20 to 4.00)"),
        (1.2, math.inf, "1.50 (1.20 or more)"),
        (math.nan, math.nan, "1.50"),
    ],
)
def test_an_interval_whose_arms_differ_shows_its_bounds(low: float, high: float, text: str) -> None:
    """As plus or minus half its width it would hold values that it leaves out."""
    assert show(Estimate(1.5, low, high, (high - low) / 2, 3)) == text
