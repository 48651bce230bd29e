"""Recorded acceptance replayed in static batches: the speed-ups SpecDecode-Bench published, and a recount by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from paths import ROOT, benchmark_module, shared_data

from draftcast.calibration.acceptance.measure import measure_ngram, read_token_log
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import load_profile
from draftcast.calibration.profile.spec import AffineProfile
from draftcast.sim.workload.request_table import RequestTable

SHAREGPT = shared_data("data/acceptance/llama31_8b_sharegpt.jsonl")
K = 3
# Speed-up of n-gram by batch size with drafts in every round: no figure is published for it. It falls with the batch,
# from a gain to a loss.
NGRAM = {1: (1.2, 1.35), 8: (1.1, 1.3), 64: (0.8, 1.0)}

pytestmark = pytest.mark.skipif(not SHAREGPT.exists(), reason=f"the recorded acceptance is absent: {SHAREGPT}")


@pytest.fixture(scope="module")
def benchmark() -> Any:
    """``benchmarks/replay_specdecode.py``, whose table the documentation quotes."""
    return benchmark_module("replay_specdecode")


def test_the_noise_floor_is_what_halves_differ_by(monkeypatch: pytest.MonkeyPatch, benchmark: Any) -> None:

    def floor(rounds: list[list[float]]) -> dict[str, float]:
        monkeypatch.setattr(benchmark, "rounds_of", lambda *_: [np.array(each) for each in rounds])
        return dict(benchmark.noise_floor(ROOT, "eagle"))

    assert floor([[1.0, 2.0]] * 10) == {"floor_median": 0.0, "floor_within_bar": 1.0}
    # Two requests of 2 and 1 tokens a round: one half has twice what the other has, or half of it.
    two = floor([[1.0] * 5, [0.0] * 5])
    assert two["floor_within_bar"] == 0.0
    assert two["floor_median"] in (0.5, 0.75, 1.0)
    unlike = [[1.0] * 5, [0.0] * 5]
    assert two["floor_median"] > floor(unlike * 20)["floor_median"] > floor(unlike * 500)["floor_median"] > 0.0


def recount(table: RequestTable, batch: int, k: int) -> NDArray[np.float64]:
    """Tokens per second of every static batch, step by step, without any of the simulator.

    A step of B requests that hold c tokens each costs ``fixed + row * B * rows + kv * B * c + overhead``; the prefill
    has as many rows as the prompt and no cache. A step that drafts adds ``fixed + token * B * k + kv * B * c`` of the
    draft; the prefill drafts too, for that is where the drafts of the first round are made.
    """
    p = load_profile("h100-llama-3.1-8b-affine", load_hardware("h100-sxm"))
    assert isinstance(p, AffineProfile)
    assert table.acceptance_offsets is not None
    assert table.acceptance_lengths is not None
    drafts = float(k > 0)
    step_s = p.target.fixed_s + p.overhead_s + drafts * (p.draft.fixed_s + p.draft.draft_token_s * batch * k)
    cached_s = p.target.kv_token_s + drafts * p.draft.kv_token_s
    throughput = []
    for i in range(len(table)):
        accepted = table.acceptance_lengths[table.acceptance_offsets[i] :]
        prompt, output = int(table.prompt_tokens[i]), int(table.output_tokens[i])
        seconds = step_s + p.target.row_s * batch * prompt
        emitted = 1
        while emitted < output:
            # The newest token is a row of this step, not in the cache yet.
            seconds += step_s + p.target.row_s * batch * (1 + k) + cached_s * batch * (prompt + emitted - 1)
            emitted += 1 + min(int(accepted[emitted]), k)
        throughput.append(batch * output / seconds)
    return np.array(throughput)


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_eagle_speedups_are_those_published(benchmark: Any, batch: int) -> None:
    result = benchmark.replay(SHAREGPT, "eagle", batch)
    assert len(result.table) >= 300
    assert result.speedup == pytest.approx(benchmark.PUBLISHED["eagle", batch], rel=0.03)


@pytest.mark.parametrize("batch", [1, 64])
def test_engine_takes_the_steps_of_the_recount(benchmark: Any, batch: int) -> None:
    result = benchmark.replay(SHAREGPT, "eagle", batch)
    # The engine counts the cache as its scheduler does under asynchronous scheduling: drafts of the round in flight
    # included, at most k tokens a request more than what is kept.
    np.testing.assert_allclose(result.with_drafts, recount(result.table, batch, K), rtol=1e-3)
    np.testing.assert_allclose(result.without, recount(result.table, batch, 0), rtol=1e-7)


def test_ngram_runs_and_stops_paying_at_large_batches(benchmark: Any) -> None:
    speedups = {batch: benchmark.replay(SHAREGPT, "ngram", batch).speedup for batch in NGRAM}
    for batch, (low, high) in NGRAM.items():
        assert low < speedups[batch] < high, speedups


def test_ngram_rounds_without_a_match_verify_nothing(benchmark: Any) -> None:
    """The matcher that made the recording (docs/acceptance.md) says how many rounds draft."""
    share = measure_ngram(read_token_log(SHAREGPT), K, 3, 7, bootstrap=0).figures["draft_share"].value
    matched, always = (benchmark.replay(SHAREGPT, "ngram", 64, match_probability=p) for p in (share, 1.0))
    accepted = always.mean_acceptance_length - 1.0
    assert matched.mean_acceptance_length - 1.0 == pytest.approx(accepted / share, rel=0.01)
    assert always.speedup < 1.0 < matched.speedup
