"""Published acceptance: its rates give the measured lengths."""

from __future__ import annotations

import numpy as np
import pytest

from draftcast.calibration.acceptance.references import Published, references


def measured(**values: object) -> Published:
    fixed = {"model": "m", "method": "eagle3", "data": "d", "source": "s", "url": "u"}
    return Published.model_validate({**fixed, **values})


@pytest.mark.parametrize("name", references())
def test_rates_never_rise_and_give_the_measured_lengths(name: str) -> None:
    one = references()[name]
    rates = np.array((1.0, *one.unconditional(20)))
    assert (np.diff(rates) <= 1e-12).all()
    assert (rates >= 0).all()
    errors = [1.0 + sum(one.unconditional(k)) - length for k, length in one.mean_lengths]
    assert np.abs(errors).mean() < 0.06 if errors else one.unconditional(len(one.rates)) == one.rates
    assert name.startswith(one.model.lower())
    assert f"/{one.method}/" in name


def test_one_length_is_one_conditional_rate() -> None:
    rates = measured(mean_lengths=[[3, 1.875]]).unconditional(4)
    assert rates == pytest.approx([0.5, 0.25, 0.125, 0.0625])


def test_between_lengths_and_beyond_the_last() -> None:
    """0.8, then 0.8 * 0.5 and 0.8 * 0.25; beyond, half again. Rates go on with their last share."""
    rates = measured(mean_lengths=[[1, 1.8], [3, 2.4]]).unconditional(4)
    assert rates == pytest.approx([0.8, 0.4, 0.2, 0.1])
    assert measured(rates=[0.8, 0.4]).unconditional(3) == pytest.approx([0.8, 0.4, 0.2])


def test_lengths_that_rise_too_fast_are_evened_out() -> None:
    """0.5 and 0.7 a position: no rate may rise, so both are 0.6."""
    assert measured(mean_lengths=[[1, 1.5], [2, 2.2]]).unconditional(2) == pytest.approx([0.6, 0.6])


@pytest.mark.parametrize("values", [{}, {"rates": [0.5], "mean_lengths": [[1, 1.5]]}])
def test_a_measurement_says_it_in_one_way(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="rates or mean_lengths"):
        measured(**values)
