"""Common random numbers of acceptance: what happens at an output position never depends on who asked before or for how
much."""

from __future__ import annotations

import numpy as np
import pytest
from acceptance_formulas import accepted_drafts, markov, name_of, proposed_drafts, recording
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from draftcast.sim.acceptance.chain import Chain, Factors
from draftcast.sim.acceptance.compile import compile_acceptance
from draftcast.sim.acceptance.compiled import AcceptanceArrays
from draftcast.sim.acceptance.model import AcceptanceModel, Trace, Tree
from draftcast.sim.compiled.borrowed import PinnedBundle, put, reference

N = 20
MODELS: list[AcceptanceModel] = [
    Chain(alpha=0.7),
    Chain(rates=(0.9, 0.8, 0.7, 0.5, 0.5, 0.3, 0.2, 0.1)),
    Chain(alpha=0.7, concentration=2.0),
    markov(alpha_good=0.9, alpha_bad=0.3, p_gb=0.2, p_bg=0.1),
    Chain(match_probability=0.5, alpha=0.8, persistence=0.7, mean_match_tokens=3.0),
    Chain(match_probability=0.5, alpha_good=0.9, alpha_bad=0.4, mean_match_tokens=4.0).beside_head(3),
    Chain(match_probability=0.5, alpha=0.8, persistence=0.7, factors=Factors(output_position=((10, 4.0), (30, 0.2)))),
    Chain(rates=(0.7, 0.5), concentration=9.0, contrast=2.0, persistence=0.8, factors=Factors(context=((20, 0.3),))),
    Tree(model="tree", alpha=0.5, widths=(3, 2, 2, 1, 1, 1, 1, 1)),
    Trace(model="trace"),
]
RECORDED = recording(np.random.default_rng(0).integers(0, 9, size=(N, 60)).tolist())
models = st.sampled_from(MODELS)
seeds = st.integers(0, 2**63)
calls = st.lists(st.tuples(st.integers(0, N - 1), st.integers(0, 50), st.integers(0, 8)), min_size=1, max_size=30)


def compiled(model: AcceptanceModel, seed: int) -> AcceptanceArrays:
    return compile_acceptance([model], np.zeros(N), seed, 8, **RECORDED)


@settings(max_examples=60, deadline=None)
@given(models, seeds, st.integers(0, N - 1), st.integers(0, 50))
def test_more_drafts_never_change_the_fate_of_fewer(
    model: AcceptanceModel, seed: int, request: int, position: int
) -> None:
    arrays = compiled(model, seed)
    longest = accepted_drafts(arrays, request, position, 8)
    proposed = proposed_drafts(arrays, request, position, 8)
    for k in range(9):
        assert accepted_drafts(arrays, request, position, k) == min(k, longest)
        assert proposed_drafts(arrays, request, position, k) == min(k, proposed)


@settings(max_examples=60, deadline=None)
@given(models, seeds, calls)
def test_answers_do_not_depend_on_the_calls_before(
    model: AcceptanceModel, seed: int, asked: list[tuple[int, int, int]]
) -> None:
    shared = compiled(model, seed)
    for request, position, k in asked:
        fresh = compiled(model, seed)
        assert accepted_drafts(shared, request, position, k) == accepted_drafts(fresh, request, position, k)
        fresh = compiled(model, seed)
        assert proposed_drafts(shared, request, position, k) == proposed_drafts(fresh, request, position, k)


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(0, N - 1), st.lists(st.integers(0, 8), min_size=1, max_size=12))
def test_drafts_meet_the_same_tokens_whatever_the_rounds(seed: int, request: int, drafts: list[int]) -> None:
    """With rates that do not depend on the draft's index, rounds of any length read one and the same text."""
    arrays = compiled(markov(alpha_good=0.9, alpha_bad=0.2, p_gb=0.3, p_bg=0.3), seed)
    other = compiled(markov(alpha_good=0.9, alpha_bad=0.2, p_gb=0.3, p_bg=0.3), seed)
    text = [accepted_drafts(other, request, p, 1) for p in range(110)]
    position = 1
    for k in drafts:
        accepted = accepted_drafts(arrays, request, position, k)
        assert text[position : position + accepted] == [1] * accepted
        assert accepted == k or text[position + accepted] == 0
        position += accepted + 1


@pytest.mark.parametrize("model", MODELS[:-1], ids=name_of)
def test_another_seed_is_another_text(model: AcceptanceModel) -> None:
    a, b = (compiled(model, seed) for seed in (1, 2))
    spots = [(r, p) for r in range(N) for p in range(10)]
    assert [accepted_drafts(a, *spot, 8) for spot in spots] != [accepted_drafts(b, *spot, 8) for spot in spots]


def test_more_requests_and_other_classes_leave_a_request_alone() -> None:
    few = compile_acceptance([Chain(alpha=0.7, concentration=2.0)], np.zeros(5), 9)
    many = compile_acceptance(
        [
            Chain(alpha=0.1),
            Chain(alpha=0.7, concentration=2.0),
            markov(alpha_good=0.9, alpha_bad=0.1, p_gb=0.5, p_bg=0.5),
        ],
        [1, 1, 1, 1, 1, 0, 2, 0],
        9,
    )
    np.testing.assert_array_equal(few.conditional[few.row], many.conditional[many.row[:5]])
    np.testing.assert_array_equal(few.keys, many.keys[:5])
    for position in range(30):
        assert accepted_drafts(few, 3, position, 8) == accepted_drafts(many, 3, position, 8)


def test_the_cursor_is_kept() -> None:
    """A cursor that silently stays put (numba can drop the store) would cost a walk from position 0 every round."""
    arrays = compiled(markov(alpha_good=0.9, alpha_bad=0.1, p_gb=0.5, p_bg=0.5), 0)
    accepted_drafts(arrays, 2, 17, 8)
    assert arrays.state[2] >> 1 == 17
    arrays = compiled(Chain(match_probability=0.5, alpha=0.5), 0)
    proposed_drafts(arrays, 2, 21, 3)
    assert arrays.state[2] >> 1 == 21
    assert (np.delete(arrays.state, 2) == -1).all()


def test_requests_without_a_chain_carry_no_cursor() -> None:
    arrays = compiled(Chain(alpha=0.5), 0)
    assert arrays.state.size == arrays.match_keys.size == arrays.offsets.size == 0


@njit
def _double(record: AcceptanceArrays, index: int) -> int:
    view = reference(record)
    put(view.state, index, 2 * view.state[index])
    return len(view.keys)


def test_borrowed_reads_and_writes_the_caller_s_arrays() -> None:
    arrays = compiled(markov(alpha_good=0.9, alpha_bad=0.1, p_gb=0.5, p_bg=0.5), 0)
    arrays.state[4] = 21
    assert _double(arrays, 4) == N
    assert arrays.state[4] == 42
    assert reference(arrays) is arrays


@njit
def _second_key(record: AcceptanceArrays) -> int:
    return int(reference(record).keys[1])


def test_a_held_bundle_is_read_as_its_own_arrays_are() -> None:
    """Types of bundles are kept by layout: another width of one array is another type."""
    arrays = compiled(Chain(alpha=0.5), 0)
    for kind in (np.uint64, np.uint32, np.uint64):
        held = PinnedBundle(arrays._replace(keys=np.array([7, 9], kind)))
        assert held.bind(_second_key)() == 9
