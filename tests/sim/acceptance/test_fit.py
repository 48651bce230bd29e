"""A chain fitted to rounds: its parameters come back, and recorded traces are reproduced within their intervals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from acceptance_formulas import accepted_drafts, proposed_drafts
from numba import njit
from paths import shared_data

from draftcast.errors import InputError
from draftcast.sim.acceptance.chain import Chain, Factors
from draftcast.sim.acceptance.compile import compile_acceptance
from draftcast.sim.acceptance.compiled import AcceptanceArrays
from draftcast.sim.acceptance.fit import fit_chain, recorded_rounds, round_moments, with_positions
from draftcast.sim.compiled.borrowed import reference
from draftcast.sim.workload.traces import TraceSpec, load_trace

K = 3
LOGS = [shared_data(f"data/acceptance/llama31_8b_{name}.jsonl") for name in ("sharegpt", "instructcoder")]
CUT = 8192  # outputs that reached the recording's limit repeat themselves without end: another kind of text


@njit
def rounds_from(arrays: AcceptanceArrays, request: int, tokens: int) -> np.ndarray:
    ref = reference(arrays)
    position, count, kept = 1, 0, np.zeros(tokens)
    while position < tokens:
        kept[count] = accepted_drafts(ref, request, position, proposed_drafts(ref, request, position, K))
        position += int(kept[count]) + 1
        count += 1
    return kept[:count]


def played(model: Chain, lengths: np.ndarray, seed: int) -> list[np.ndarray]:
    arrays = compile_acceptance([model], np.zeros(len(lengths)), seed, K)
    return [rounds_from(arrays, request, int(tokens)) for request, tokens in enumerate(lengths)]


@pytest.mark.parametrize(
    "true",
    [
        Chain(rates=(0.62, 0.38, 0.25), concentration=6.0, contrast=2.5, persistence=0.8),
        Chain(rates=(0.8, 0.65, 0.5), concentration=30.0, contrast=3.5, persistence=0.9),
    ],
)
def test_parameters_are_recovered(true: Chain) -> None:
    found = fit_chain(round_moments(played(true, np.full(1500, 800), 3), K))
    assert found.rates == pytest.approx(true.rates, abs=0.01)
    assert found.concentration == pytest.approx(true.concentration, rel=0.2)
    assert found.contrast == pytest.approx(true.contrast, rel=0.1)
    assert found.persistence == pytest.approx(true.persistence, abs=0.04)


def test_factors_along_the_output_are_recovered() -> None:
    """Steps of a known size come back, though the plain rates are those of all rounds."""
    true = Chain(alpha=0.6, match_probability=0.4, factors=Factors(output_position=((256, 3.0), (1024, 0.3))))
    found = with_positions(true.model_copy(update={"factors": None}), played(true, np.full(400, 2000), 5), K)
    assert found.factors is not None
    factors = dict(found.factors.output_position)
    assert list(factors) == [0, 128, 256, 512, 1024]
    assert [factors[start] for start in (0, 128)] == pytest.approx([1.0, 1.0], rel=0.1)
    assert [factors[start] for start in (256, 512)] == pytest.approx([3.0, 3.0], rel=0.1)
    assert factors[1024] == pytest.approx(0.3, rel=0.1)


def figures(rounds: list[np.ndarray]) -> np.ndarray:
    """Mean, rates by position, spread and lag-1."""
    moments = round_moments(rounds, K)
    return np.array([moments.rates.sum(), *moments.rates, moments.spread**0.5, moments.lag_1])


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_recorded_trace_is_reproduced_within_its_intervals(path: Path) -> None:
    if not path.exists():
        pytest.skip(f"the recorded acceptance is absent: {path}")
    table = load_trace(TraceSpec(path=str(path)), "acc_eagle")
    lengths = np.diff(table.acceptance_offsets)
    recorded = recorded_rounds(table.acceptance_offsets, table.acceptance_lengths, K)
    recorded = [each for each, tokens in zip(recorded, lengths, strict=True) if tokens < CUT]
    lengths = lengths[lengths < CUT]
    generator = np.random.default_rng(0)
    resampled = [
        figures([recorded[i] for i in generator.integers(0, len(recorded), len(recorded))]) for _ in range(300)
    ]
    low, high = np.quantile(resampled, (0.025, 0.975), axis=0)
    model = fit_chain(round_moments(recorded, K))
    simulated = np.mean([figures(played(model, lengths, seed)) for seed in range(5)], axis=0)
    assert ((low <= simulated) & (simulated <= high)).all(), (low, simulated, high)


def test_too_few_rounds_have_no_spread() -> None:
    with pytest.raises(InputError, match="fewer than two requests"):
        round_moments([np.ones(10), np.ones(3)], K)


def test_no_round_starts_behind_the_output() -> None:
    """Of four tokens, each known with the drafts that would be accepted after it, the last ends the request."""
    record = np.array([0, 1, 0, 1, 3], np.uint8)  # by existing tokens, 0 to 4
    (rounds,) = recorded_rounds(np.array([0, 5]), record, K)
    assert rounds.tolist() == [1.0, 1.0]
