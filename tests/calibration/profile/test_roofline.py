"""The soft roofline: hand-computed cases, limits in p, and its compiled twin."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from draftcast.calibration.profile.roofline import Origin, Roofline, soft_max, soft_max_scalar
from draftcast.errors import HardwareError
from draftcast.yaml_text import validated

SECONDS = st.floats(0.0, 1e3, allow_nan=False)
STANDING = {"origin": Origin.MEASURED, "source": "a test"}
SHARPNESS = st.one_of(st.sampled_from([1.0, 2.0, 4.0, math.inf]), st.floats(1.0, 64.0))


@pytest.mark.parametrize(
    ("p", "expected_s"),
    [
        (1.0, 1e-6 + 0.03 + 0.04),
        (2.0, 1e-6 + 0.05),
        (math.inf, 1e-6 + 0.04),
    ],
)
def test_hand_computed_sharpness(p: float, expected_s: float) -> None:
    # 15e9 FLOP at half of 1e12 FLOP/s: 0.03 s; 16e9 bytes at 0.8 of 0.5e12 bytes/s: 0.04 s.
    fit = Roofline(t0_s=1e-6, e_c=0.5, e_m=0.8, p=p, **STANDING)
    assert fit.seconds(15e9, 16e9, 1e12, 0.5e12) == pytest.approx(expected_s, rel=1e-12)


def test_each_number_moves_the_time() -> None:
    base = Roofline(t0_s=1e-6, e_c=0.5, e_m=0.8, p=2.0, **STANDING)
    others = [
        Roofline(t0_s=2e-6, e_c=0.5, e_m=0.8, p=2.0, **STANDING),
        Roofline(t0_s=1e-6, e_c=0.6, e_m=0.8, p=2.0, **STANDING),
        Roofline(t0_s=1e-6, e_c=0.5, e_m=0.7, p=2.0, **STANDING),
        Roofline(t0_s=1e-6, e_c=0.5, e_m=0.8, p=3.0, **STANDING),
    ]
    times = {float(fit.seconds(15e9, 16e9, 1e12, 0.5e12)) for fit in [base, *others]}
    assert len(times) == 5


def test_work_broadcasts() -> None:
    fit = Roofline(0.0, 1.0, 1.0, math.inf, **STANDING)
    seconds = fit.seconds(np.array([1.0, 8.0]), np.array([[2.0], [4.0]]), 1.0, 1.0)
    assert seconds.tolist() == [[2.0, 8.0], [4.0, 8.0]]


def test_no_work_takes_t0() -> None:
    assert Roofline(3e-6, 0.8, 0.8, 4.0, **STANDING).seconds(0.0, 0.0, 1e12, 1e12) == 3e-6


@settings(deadline=None)  # the first example compiles
@given(SECONDS, SECONDS, SHARPNESS)
def test_compiled_twin_agrees(compute_s: float, memory_s: float, p: float) -> None:
    array = float(soft_max(np.asarray(compute_s), np.asarray(memory_s), p))
    assert soft_max_scalar(compute_s, memory_s, p) == pytest.approx(array, rel=1e-12, abs=1e-300)


@settings(deadline=None)  # the first example compiles
@given(SECONDS, SECONDS, SHARPNESS)
def test_between_larger_and_sum(compute_s: float, memory_s: float, p: float) -> None:
    seconds = soft_max_scalar(compute_s, memory_s, p)
    assert max(compute_s, memory_s) <= seconds * (1 + 1e-12)
    assert seconds <= (compute_s + memory_s) * (1 + 1e-12)


def test_no_overflow_at_large_p() -> None:
    assert soft_max_scalar(1e200, 1e200, 64.0) == pytest.approx(1e200 * 2 ** (1 / 64))
    assert soft_max_scalar(1e-200, 1e-200, 64.0) == pytest.approx(1e-200 * 2 ** (1 / 64))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("t0_s", -1e-9),
        ("t0_s", math.nan),
        ("t0_s", math.inf),
        ("e_c", 0.0),
        ("e_c", 1.01),
        ("e_m", math.nan),
        ("p", 0.99),
        ("p", math.nan),
    ],
)
def test_bad_number_is_named(key: str, value: float) -> None:
    numbers = {"t0_s": 0.0, "e_c": 0.8, "e_m": 0.8, "p": 4.0, "origin": "measured", "source": "a test", key: value}
    with pytest.raises(HardwareError, match=f"^a.yaml: {key} = ") as caught:
        validated(TypeAdapter(Roofline), numbers, "a.yaml", HardwareError)
    assert caught.value.key == key


def test_origin_labels() -> None:
    assert [int(origin) for origin in Origin] == [0, 1, 2]
    assert [Origin.parse(origin.label) for origin in Origin] == list(Origin)
    with pytest.raises(ValueError, match="measured, interpolated, extrapolated"):
        Origin.parse("guessed")
