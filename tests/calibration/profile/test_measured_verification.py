"""Attention over several queries a sequence as it was timed on an H100, in the profiles of H100 and H200."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import pytest

from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import PROFILE_FOLDER, VERIFY, load_profile
from draftcast.calibration.profile.spec import RooflineProfile

TIMED = {"heads": 32, "kv_heads": 8, "head_dim": 128}


@functools.cache
def profile_of(device: str) -> RooflineProfile:
    """Read once: its measured tables take longer to read than to interpolate in."""
    profile = load_profile(None, load_hardware(device))
    assert isinstance(profile, RooflineProfile)
    return profile


def ratio(device: str, kv_dtype: str, q: float, batch: float, context: float, **heads: int) -> float:
    """Seconds of ``q`` queries a sequence over those of one."""
    profile = profile_of(device)
    assert profile.measured is not None
    seconds = profile.seconds_of("attention_decode", kv_dtype)
    grid = profile.measured.grid("attention_decode", "bf16", kv_dtype, seconds, **(TIMED | heads))
    assert grid is not None
    many, one = (grid.log_seconds(*map(np.asarray, ([of], [batch], [context])))[0] for of in (q, 1.0))
    return float(np.exp(many - one))


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8"])
def test_the_timed_heads_take_the_timed_ratio(kv_dtype: str) -> None:
    rows = pd.read_parquet(PROFILE_FOLDER / "h100-sxm" / VERIFY)
    rows = rows[rows["kv_dtype"] == kv_dtype].set_index(["q", "batch", "context"])["seconds"]
    compared = [
        (q, batch, context) for q, batch, context in rows.index if q in (4, 8, 17) and (1, batch, context) in rows
    ]
    assert len(compared) > 50
    for q, batch, context in compared:
        wanted = rows[q, batch, context] / rows[1, batch, context]
        # A median of three bursts is 1 to 2 % uncertain, and no more queries are ever cheaper than fewer.
        assert ratio("h100-sxm", kv_dtype, q, batch, context) == pytest.approx(max(wanted, 1.0), rel=0.05)


def test_other_heads_take_the_ratio_at_as_many_rows_of_a_tile() -> None:
    at = {"batch": 16.0, "context": 2048.0}
    assert ratio("h100-sxm", "fp8", 17.0, **at) > 1.2  # 68 rows: a second tile
    assert ratio("h100-sxm", "fp8", 16.0, **at) < 1.1
    assert ratio("h100-sxm", "fp8", 9.0, **at, heads=64) > 1.2  # 72 rows, eight heads a KV head
    assert ratio("h100-sxm", "fp8", 8.0, **at, heads=64) < 1.1
    assert ratio("h100-sxm", "fp8", 64.0, **at, kv_heads=32) < 1.2  # 64 rows, a KV head each
    assert ratio("h200", "fp8", 17.0, **at) > 1.2
    # A device whose kernels nobody timed takes them with the rest of the H100's times.
    assert ratio("h100-nvl", "fp8", 17.0, **at) > 1.2
    # The roofline, which other devices keep, knows no tiles.
    assert ratio("b200", "fp8", 17.0, **at) < 1.1 * ratio("b200", "fp8", 16.0, **at)


def test_more_queries_are_never_cheaper() -> None:
    for heads in (TIMED, {"heads": 16, "kv_heads": 4}, {"heads": 8, "kv_heads": 1}):
        for batch, context in ((1.0, 512.0), (64.0, 1024.0), (256.0, 128.0)):
            ratios = [
                ratio("h100-sxm", "fp8", q, batch, context, **heads)
                for q in (1.0, 2.0, 4.0, 5.0, 9.0, 16.0, 17.0, 32.0)
            ]
            assert np.all(np.diff(ratios) > -1e-9)
