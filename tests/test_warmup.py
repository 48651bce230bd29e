"""The warm-up cut that replications share."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from draftcast.sim.request_columns import TIME_COLUMNS
from draftcast.sim.warmup import SharedWarmup, longest_warmup, shared_warmup


def run(ttft_s: np.ndarray, gap_s: float = 1.0) -> pd.DataFrame:
    """Requests that arrive one by one and take ``ttft_s`` to a first and only token."""
    n = ttft_s.size
    arrival = gap_s * np.arange(n)
    zero = np.zeros(n)
    times = dict.fromkeys(TIME_COLUMNS, zero)
    first = arrival + ttft_s
    columns = {"arrival_s": arrival, "first_scheduled_s": arrival, "first_token_s": first, "finish_s": first}
    return pd.DataFrame({**columns, **times, "prompt_tokens": 1, "output_tokens": 1})


def ramp(seed: int, n: int = 1000, transient: int = 200) -> np.ndarray:
    """Noise about 0.5 s after a climb from 0.1 s."""
    noise = np.random.default_rng(seed).normal(0, 0.05, n)
    return np.maximum(0.1 + 0.4 * np.minimum(np.arange(n) / transient, 1.0) + noise, 0.01)


def test_replications_share_the_end_of_their_transient() -> None:
    cuts = shared_warmup([run(ramp(seed)) for seed in range(5)]).cuts
    assert len(set(cuts)) == 1
    assert cuts[0] == pytest.approx(180, abs=60)


def test_noise_of_one_run_moves_the_cut_of_none() -> None:
    flat = [np.full(1000, 0.5) + np.random.default_rng(seed).normal(0, 0.02, 1000) for seed in range(8)]
    flat[3][:300] += 0.02  # a busy stretch at the start, as one run in a few has it
    assert shared_warmup([run(flat[3])]).cuts[0] == pytest.approx(300, abs=20)
    assert shared_warmup([run(series) for series in flat]).cuts[0] < 100


def test_runs_without_a_steady_state_are_not_cut() -> None:
    growing = run(ramp(0))
    growing["first_scheduled_s"] += 0.5 * growing["arrival_s"]
    growing["first_token_s"] = growing["finish_s"] = growing["first_scheduled_s"] + 0.1
    cuts = shared_warmup([run(ramp(1)), growing, run(ramp(2))]).cuts
    assert cuts[1] == "none"
    assert cuts[0] == cuts[2] > 0
    assert shared_warmup([growing, growing]).cuts == ("none", "none")


def test_lengths_may_differ() -> None:
    cuts = shared_warmup([run(ramp(0)), run(ramp(1, n=900))]).cuts
    assert cuts[0] == cuts[1] == pytest.approx(180, abs=80)


def test_a_transient_without_an_end_is_not_reliable() -> None:
    assert shared_warmup([run(ramp(seed)) for seed in range(5)]).reliable
    assert not shared_warmup([run(ramp(seed, transient=1000)) for seed in range(5)]).reliable


def test_paired_runs_take_the_longer_cut() -> None:
    first, second = SharedWarmup((100, "none", "none"), True), SharedWarmup((50, 80, "none"), False)
    assert longest_warmup([first, second]) == SharedWarmup((100, 80, "none"), False)
