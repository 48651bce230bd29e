"""Acceptance models: closed forms by hand and by simulation, every parameter alive, bad input refused."""

from __future__ import annotations

import json
import math
import re
from typing import Any, get_args

import numpy as np
import pytest
from acceptance_formulas import accepted_drafts, markov, name_of, proposed_drafts, recording
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from paths import shared_data
from pydantic import TypeAdapter, ValidationError

from draftcast.errors import ScenarioError
from draftcast.sim.acceptance import Acceptance
from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.acceptance.compile import compile_acceptance
from draftcast.sim.acceptance.compiled import MAX_K, AcceptanceArrays, drafts_of_head
from draftcast.sim.acceptance.model import AcceptanceModel, Trace, Tree
from draftcast.sim.acceptance.tree_shape import _search_tree, rates_in_another_tree, tree_rates
from draftcast.sim.compiled.borrowed import reference
from draftcast.sim.cost.methods import get_method

SHARED = shared_data("data/acceptance")
RECORDING = np.random.default_rng(5).integers(0, 6, size=(300, 400))


@njit
def play(a: AcceptanceArrays, k: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rounds from output positions first..last-1: all, drafting, and [n, k] those that accepted 1..k drafts."""
    n, ref = len(a.class_id), reference(a)
    rounds, drafted, at_least = np.zeros(n), np.zeros(n), np.zeros((n, k))
    for request in range(n):
        position = 1
        while position < last:
            drafts = proposed_drafts(ref, request, position, k)
            tokens = accepted_drafts(ref, request, position, drafts)
            if position >= first:
                rounds[request] += 1
                if drafts > 0:
                    drafted[request] += 1
                    for j in range(tokens):
                        at_least[request, j] += 1
            position += tokens + 1
    return rounds, drafted, at_least


def assert_ratio(numerator: np.ndarray, denominator: np.ndarray, expected: float) -> None:
    """sum / sum within 4 standard errors; requests are independent, rounds of one request need not be."""
    ratio = numerator.sum() / denominator.sum()
    residual = numerator - ratio * denominator
    error = residual.std() / denominator.mean() / math.sqrt(len(numerator))
    assert abs(ratio - expected) <= 4 * error + 1e-12, (ratio, expected, error)


SIMULATED = [
    Chain(alpha=0.7),
    Chain(alpha=0.0),
    Chain(alpha=1.0),
    Chain(rates=(0.82, 0.61, 0.6, 0.2, 0.0)),
    Chain(alpha=0.6, concentration=3.0),
    Chain(alpha=0.8, concentration=0.4),
    markov(alpha_good=0.95, alpha_bad=0.2, p_gb=0.05, p_bg=0.1),
    markov(alpha_good=0.9, alpha_bad=0.3, p_gb=0.7, p_bg=0.8),
    markov(alpha_good=1.0, alpha_bad=0.0, p_gb=0.01, p_bg=0.5),
    Chain(rates=(0.62, 0.38, 0.25), concentration=4.0),
    Chain(rates=(0.62, 0.38, 0.25), contrast=3.0, good_share=0.4, persistence=0.9),
    Chain(rates=(0.62, 0.38, 0.25, 0.2, 0.15), concentration=8.0, contrast=2.0, persistence=0.7),
    Chain(alpha_good=0.9, alpha_bad=0.4, persistence=0.8, concentration=20.0),
    Chain(rates=(0.8, 0.6, 0.5), concentration=3.0, match_probability=0.4, persistence=0.6),
    Chain(match_probability=0.4, alpha=0.8),
    Chain(match_probability=0.3, rates=(0.9, 0.8, 0.8, 0.4, 0.1), persistence=0.9),
    Chain(match_probability=0.6, alpha=0.75, persistence=0.5, mean_match_tokens=2.5),
    Chain(match_probability=0.3, alpha_good=0.9, alpha_bad=0.5).beside_head(3),
    Chain(match_probability=0.4, alpha_good=0.8, alpha_bad=0.6, persistence=0.8, mean_match_tokens=4.0).beside_head(2),
    Chain(match_probability=0.4, alpha_good=0.8, alpha_bad=0.5, persistence=0.6, concentration=4.0).beside_head(3),
    Tree(model="tree", alpha=0.4, widths=(4, 2, 2, 1, 1)),
    Tree(model="tree", rates=(0.9, 0.7, 0.3, 0.3, 0.0)),
]


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("model", SIMULATED, ids=name_of)
def test_formulas_hold_over_many_rounds(model: AcceptanceModel, k: int) -> None:
    arrays = compile_acceptance([model], np.zeros(4000), seed=11, k=k)
    # Rounds of two-state models settle into their long-run law; the burn-in outlasts the slowest chain here.
    all_rounds, drafted, at_least = play(arrays, k, 200, 400)
    accepted = at_least.sum(axis=1)
    assert_ratio(accepted, drafted, model.mean_acceptance_length(k) - 1.0)
    assert_ratio(drafted, all_rounds, model.draft_share(k))
    assert_ratio(accepted, all_rounds, model.tokens_per_round(k) - 1.0)
    for index, rate in enumerate(model.unconditional(k)):
        assert_ratio(at_least[:, index], drafted, rate)


@pytest.mark.parametrize("k", [1, 3])
def test_rates_are_those_of_the_rounds_whatever_the_spread_and_stretches(k: int) -> None:
    rates = (0.62, 0.38, 0.25)[:k]
    for model in (
        Chain(rates=rates),
        Chain(rates=rates, concentration=2.0),
        Chain(rates=rates, concentration=5.0, contrast=3.0, good_share=0.3, persistence=0.9),
        Chain(rates=rates, concentration=5.0, match_probability=0.3, persistence=0.5),
    ):
        np.testing.assert_allclose(model.unconditional(k), rates, atol=1e-8)
    # A request that accepts much runs few rounds: at k = 1 it counts by 1 / (1 + alpha).
    spread = Chain(rates=rates, concentration=2.0).draft_probabilities()[:, 0]
    assert (spread / (1 + spread)).sum() / (1 / (1 + spread)).sum() == pytest.approx(0.62) or k > 1


def test_rounds_that_follow_each_other_are_as_alike_as_the_formula_says() -> None:
    k = 3
    for model in (
        Chain(rates=(0.62, 0.38, 0.25), concentration=4.0),
        Chain(rates=(0.62, 0.38, 0.25), contrast=4.0, persistence=0.9),
        Chain(rates=(0.62, 0.38, 0.25), concentration=8.0, contrast=3.0, persistence=0.8),
        Chain(alpha_good=0.9, alpha_bad=0.3, match_probability=0.3, persistence=0.9).beside_head(3),
    ):
        arrays = compile_acceptance([model], np.zeros(3000), seed=5, k=k)
        series = [rounds_from(arrays, request, k, 60, 600) for request in range(3000)]
        mean = model.unconditional(k).sum()
        for lag in (1, 2):
            products = np.array([((s[:-lag] - mean) * (s[lag:] - mean)).sum() for s in series])
            assert_ratio(products, np.array([len(s) - lag for s in series], float), model.lag_covariance(k, lag))


@njit
def rounds_from(arrays: AcceptanceArrays, request: int, k: int, first: int, last: int) -> np.ndarray:
    ref = reference(arrays)
    position, count, kept = 1, 0, np.zeros(last)
    while position < last:
        tokens = accepted_drafts(ref, request, position, k)
        if position >= first:
            kept[count] = tokens
            count += 1
        position += tokens + 1
    return kept[:count]


def test_spread_and_stretches_work_in_their_direction() -> None:
    rates = (0.62, 0.38, 0.25)

    def chain(**more: float) -> Chain:
        return Chain(rates=rates, **{"concentration": 8.0, "contrast": 2.0, "persistence": 0.7, **more})  # type: ignore[arg-type]

    between = [chain(concentration=value).between_requests(3) for value in (2.0, 8.0, 100.0)]
    assert between == sorted(between, reverse=True)
    for name, values in (("contrast", (0.5, 2.0, 4.0)), ("persistence", (0.2, 0.7, 0.95))):
        alike = [chain(**{name: value}).lag_covariance(3, 1) for value in values]
        assert alike == sorted(alike), name


def test_constant_by_hand() -> None:
    model = Chain(alpha=0.5)
    np.testing.assert_allclose(model.unconditional(3), [0.5, 0.25, 0.125])
    np.testing.assert_allclose(model.conditional(3), [0.5, 0.5, 0.5])
    assert model.mean_acceptance_length(3) == 1.875
    assert model.mean_acceptance_length(0) == 1.0
    assert model.draft_share(0) == 0.0
    assert Chain(alpha=0.0).mean_acceptance_length(MAX_K) == 1.0


def test_per_position_by_hand() -> None:
    model = Chain(rates=(0.8, 0.6, 0.3, 0.0, 0.0))
    np.testing.assert_allclose(model.conditional(5), [0.8, 0.75, 0.5, 0.0, 0.0])
    assert model.mean_acceptance_length(2) == pytest.approx(2.4)


def test_beta_by_hand() -> None:
    uniform_alpha = Chain(alpha=0.5, concentration=2.0)
    # Rounds per token at alpha: 1 / (1 + alpha), whose mean over uniform alpha is ln 2.
    assert uniform_alpha.mean_acceptance_length(1) == pytest.approx(1 / math.log(2), rel=1e-4)
    arrays = compile_acceptance([Chain(alpha=0.3, concentration=4.0)], np.zeros(50_000), seed=1)
    alpha = arrays.conditional[arrays.row, 0]
    assert alpha.mean() == pytest.approx(0.3, abs=4 * math.sqrt(0.3 * 0.7 / 5 / 50_000))
    assert alpha.var() == pytest.approx(0.3 * 0.7 / 5, rel=0.03)


def test_markov_by_hand() -> None:
    # Good and bad alternate. One draft, started at a good position: accepted, bonus at the bad one, good again.
    assert markov(alpha_good=1.0, alpha_bad=0.0, p_gb=1.0, p_bg=1.0).mean_acceptance_length(1) == pytest.approx(2.0)
    # Independent states are independent drafts.
    assert markov(alpha_good=1.0, alpha_bad=0.0, p_gb=0.5, p_bg=0.5).mean_acceptance_length(4) == pytest.approx(
        Chain(alpha=0.5).mean_acceptance_length(4)
    )
    assert markov(alpha_good=0.6, alpha_bad=0.6, p_gb=0.1, p_bg=0.3).mean_acceptance_length(4) == pytest.approx(
        Chain(alpha=0.6).mean_acceptance_length(4)
    )
    # k = 1 in full. Two tokens on when accepted, one when not: bad to good 0.5 * 0.56 + 0.5 * 0.4 = 0.48,
    # good to bad 0.9 * 0.28 + 0.1 * 0.2 = 0.272.
    model = markov(alpha_good=0.9, alpha_bad=0.5, p_gb=0.2, p_bg=0.4)
    good = 0.48 / (0.48 + 0.272)
    assert model.good_share == pytest.approx(2 / 3)
    assert model.mean_acceptance_length(1) == pytest.approx(1 + 0.9 * good + 0.5 * (1 - good))


def test_markov_rounds_are_correlated_as_the_chain_says() -> None:
    model = markov(alpha_good=1.0, alpha_bad=0.0, p_gb=0.1, p_bg=0.3)
    arrays = compile_acceptance([model], np.zeros(2000), seed=2, k=1)
    # Certain outcomes show the state itself: a single draft asked at every output position.
    states = np.array([[accepted_drafts(arrays, r, p, 1) for p in range(40)] for r in range(2000)], dtype=float)
    assert states.mean() == pytest.approx(0.75, abs=0.015)
    centred = states - 0.75
    for lag in (1, 2, 5):
        correlation = (centred[:, lag:] * centred[:, :-lag]).mean() / (0.75 * 0.25)
        assert correlation == pytest.approx(0.6**lag, abs=0.03)


def test_ngram_by_hand() -> None:
    # Matched rounds emit two tokens: another match then 0.5 + 0.5 * 0.25; idle ones one token: 0.5 * (1 - 0.5).
    bursty = Chain(match_probability=0.5, alpha=1.0, persistence=0.5)
    assert bursty.draft_share(1) == pytest.approx(0.25 / (1 - 0.625 + 0.25))
    assert bursty.tokens_per_round(1) == pytest.approx(1.4)
    assert Chain(match_probability=0.3, alpha=0.9).draft_share(4) == pytest.approx(0.3)
    assert Chain(match_probability=0.0, alpha=0.9).draft_share(4) == 0.0
    assert Chain(match_probability=1.0, alpha=0.9).draft_share(4) == 1.0
    assert Chain(match_probability=0.2, rates=(0.6, 0.3)).mean_acceptance_length(2) == pytest.approx(1.9)
    suffix = Chain(match_probability=0.5, alpha=0.5, mean_match_tokens=2.0)
    np.testing.assert_allclose(suffix.unconditional(2), [0.5, 0.5 * 0.25])
    np.testing.assert_allclose(suffix.conditional(2), [0.5, 0.25])


def test_ngram_match_share_bursts_and_lengths() -> None:
    model = Chain(match_probability=0.25, alpha=0.5, persistence=0.8, mean_match_tokens=3.0)
    arrays = compile_acceptance([model], np.zeros(2000), seed=4, k=64)
    proposed = np.array([[proposed_drafts(arrays, r, p, 64) for p in range(40)] for r in range(2000)])
    matched = (proposed > 0).astype(float)
    assert matched.mean() == pytest.approx(0.25, abs=0.02)
    assert ((matched - 0.25)[:, 1:] * (matched - 0.25)[:, :-1]).mean() / (0.25 * 0.75) == pytest.approx(0.8, abs=0.03)
    lengths = proposed[proposed > 0]
    assert lengths.mean() == pytest.approx(3.0, abs=4 * math.sqrt(6.0 / len(lengths)))
    assert (lengths == 1).mean() == pytest.approx(1 / 3, abs=0.015)
    fewer = np.array([[proposed_drafts(arrays, r, p, 4) for p in range(40)] for r in range(50)])
    np.testing.assert_array_equal(fewer, np.minimum(proposed[:50], 4))


def test_a_search_beside_a_head_by_hand() -> None:
    """A head of 2 drafts at 0.5; half of the positions match, whose 3 or more drafts (4 on average) are sure."""
    model = Chain(match_probability=0.5, alpha_good=1.0, alpha_bad=0.5, mean_match_tokens=4.0).beside_head(2)
    # Positions do not cluster, so half of the rounds are the search's. Beyond the head's 2, each draft is followed by
    # another one with 2/3: 2 of them more on average.
    np.testing.assert_allclose(model.unconditional(4), [0.75, 0.625, 1 / 3, 2 / 9])
    assert model.draft_share(4) == 1.0
    assert model.unconditional(60).sum() == pytest.approx(0.5 * (0.5 + 0.25) + 0.5 * 4.0)
    arrays = compile_acceptance([model], np.zeros(500), seed=3, k=60)
    proposed = np.array([proposed_drafts(arrays, i, p, 60) for i in range(500) for p in (1, 9)])
    head = np.array([drafts_of_head(arrays, i, p, 60) for i in range(500) for p in (1, 9)])
    assert (proposed[head > 0] == 2).all()
    assert (proposed[head == 0] >= 2).all()
    assert proposed[head == 0].mean() == pytest.approx(4.0, abs=0.5)
    assert (head == 0).mean() == pytest.approx(0.5, abs=0.07)
    longer, better, oftener = (
        Chain(**{"match_probability": 0.5, "alpha_good": 0.8, "alpha_bad": 0.5, "mean_match_tokens": 4.0, **more})
        .beside_head(2).mean_acceptance_length(60)
        for more in ({"mean_match_tokens": 9.0}, {"alpha_good": 0.9}, {"match_probability": 0.7})
    )  # fmt: skip
    plain = Chain(match_probability=0.5, alpha_good=0.8, alpha_bad=0.5, mean_match_tokens=4.0)
    assert min(longer, better, oftener) > plain.beside_head(2).mean_acceptance_length(60)
    assert plain.beside_head(4).mean_acceptance_length(60) > plain.beside_head(2).mean_acceptance_length(60)


def test_tree_by_hand() -> None:
    np.testing.assert_allclose(
        Tree(model="tree", alpha=0.5, widths=(2, 1, 3)).draft_probabilities(), [0.75, 0.5, 0.875]
    )
    assert Tree(model="tree", alpha=0.5, widths=(2, 1)).mean_acceptance_length(2) == pytest.approx(2.125)
    chain, constant = Tree(model="tree", alpha=0.7, widths=(1, 1, 1)), Chain(alpha=0.7)
    np.testing.assert_array_equal(chain.draft_probabilities(), constant.draft_probabilities()[0, :3])


def test_tree_rates_of_a_shape_by_hand() -> None:
    np.testing.assert_allclose(tree_rates(0.6, 3, 1), [0.6, 0.36, 0.216])  # a chain
    # Two children of the root, 0.5 + 0.25; two of each: all children of all nodes.
    np.testing.assert_allclose(tree_rates(0.5, 2, 2), [0.75, 0.75**2])
    # Of the four at depth 2 (steps 0, 1, 1, 2) the first and one of the next grow two each: steps 0, 1 and 1, 2.
    np.testing.assert_allclose(tree_rates(0.5, 3, 2), [0.75, 0.75**2, 0.125 * (1 + 0.5 + 0.5 + 0.25)])
    # The likeliest four of the twelve nodes of depth 2 and width 3: 0.5, 0.25, 0.25 and one of 0.125, the shallowest.
    np.testing.assert_allclose(tree_rates(0.5, 2, 3, 4), [0.875, 0.25])
    # All children of all nodes: a level is reached when every level before it was.
    np.testing.assert_allclose(tree_rates(0.3, 2, 10_000), [1.0, 1.0], atol=1e-12)
    assert tree_rates(0.0, 3, 4).tolist() == [0.0] * 3
    assert tree_rates(1.0, 3, 4, 3).tolist() == [1.0] * 3


@given(st.floats(0.0, 1.0), st.integers(1, 8), st.integers(1, 40), st.integers(0, 60))
def test_tree_rates_never_rise_with_depth_nor_fall_with_nodes(alpha: float, depth: int, width: int, nodes: int) -> None:
    rates = tree_rates(alpha, depth, width, nodes)
    assert (np.diff(rates) <= 0).all()
    assert ((rates >= 0) & (rates <= 1)).all()
    assert tree_rates(alpha, depth, width + 1, nodes).sum() >= rates.sum() - 1e-12
    assert tree_rates(alpha, depth, width, nodes + 1 if nodes else 0).sum() >= rates.sum() - 1e-12


@given(st.floats(0.05, 0.95), st.integers(1, 5), st.integers(1, 5), st.integers(1, 80))
def test_tree_rates_are_those_of_the_tree_that_is_drafted(alpha: float, depth: int, width: int, nodes: int) -> None:
    """Node by node as SGLang drafts: the best `width` of a level grow `width` each, the best of all are verified."""
    grown, drafted = [1.0], []
    for level in range(depth):
        children = [node * alpha * (1.0 - alpha) ** s for node in grown for s in range(width)]
        drafted += [(-chance, level) for chance in children]
        grown = sorted(children, reverse=True)[:width]
    assert get_method("eagle_tree").with_tree(width).verify_nodes(depth) == len(drafted)
    verified = sorted(drafted)[:nodes]
    assert get_method("eagle_tree").with_tree(width, nodes).verify_nodes(depth) == len(verified)
    assert tree_rates(alpha, depth, width, nodes).sum() == pytest.approx(-sum(chance for chance, _ in verified))


@given(st.floats(0.05, 0.95), st.integers(1, 4), st.integers(1, 4), st.integers(1, 60))
def test_rates_of_medusas_tree_and_of_a_search_node_by_node(alpha: float, depth: int, width: int, nodes: int) -> None:
    level, all_nodes = [1.0], []
    for number in range(depth):
        level = [node * alpha * (1.0 - alpha) ** s for node in level for s in range(width)]
        all_nodes += [(-chance, number) for chance in level]
    for name, verified in (("medusa", sorted(all_nodes)[:nodes]), ("ngram", all_nodes[:nodes])):
        method = get_method(name).with_tree(width, nodes)
        assert method.verify_nodes(depth) == len(verified)
        rates = tree_rates(alpha, depth, width, nodes, growth=method.growth)
        assert rates.sum() == pytest.approx(-sum(chance for chance, _ in verified))
        assert (np.diff(rates) <= 0).all()


def test_rates_of_medusas_tree_and_of_a_search_by_hand() -> None:
    # Half of the time the first child, a quarter the second. Of two and four nodes the likeliest three are 0.5, 0.25
    # and the first's first, 0.25; of three and nine the likeliest five 0.5, 0.25, 0.25, 0.125 and 0.125, the upper
    # level's first. A search takes the level whole, then the first's first and second, 0.25 and 0.125.
    np.testing.assert_allclose(tree_rates(0.5, 2, 2, 3, growth="all"), [0.75, 0.25])
    np.testing.assert_allclose(tree_rates(0.5, 2, 3, 5, growth="all"), [0.875, 0.25 + 0.125])
    np.testing.assert_allclose(tree_rates(0.5, 2, 3, 5, growth="breadth"), [0.875, 0.25 + 0.125])
    np.testing.assert_allclose(tree_rates(0.8, 2, 3, 4, growth="breadth"), [1 - 0.2**3, 0.64])
    np.testing.assert_allclose(tree_rates(0.8, 2, 3, 4, growth="all"), [1 - 0.2**2, 0.64 + 0.128])
    np.testing.assert_allclose(tree_rates(0.8, 3, 3, 4, growth="all"), [1 - 0.2**2, 0.64, 0.512])
    # All of a deep tree: a level is reached when every level before it was.
    np.testing.assert_allclose(tree_rates(0.5, 3, 2, 4096, growth="all"), [0.75, 0.75**2, 0.75**3])
    np.testing.assert_allclose(tree_rates(0.5, 3, 2, 4096, growth="breadth"), [0.75, 0.75**2, 0.75**3])


def test_rates_of_a_search_whose_tree_narrows_by_hand() -> None:
    # Three levels, from four branches to one: a match of m tokens has 4 - m at the root and one less each level below.
    # Of three nodes a match of one token has 0.5, 0.25 and 0.125 on the first level; one of two has 0.5, 0.25 and the
    # first's first, 0.25; one of three begins with the first alone, and those of its last two tokens do the rest.
    narrow = tree_rates(0.5, 3, 4, 3, 1, growth="breadth")
    np.testing.assert_allclose(narrow, 0.5 * np.array([0.875, 0, 0]) + 0.5 * np.array([0.75, 0.25, 0]))
    np.testing.assert_allclose(tree_rates(0.5, 3, 4, 3, 4, growth="breadth"), [0.875, 0, 0])
    # A text that always goes on has the longest matches, whose trees are the deepest.
    depths = [tree_rates(1.0, 6, 9, 60, narrowest, growth="breadth").sum() for narrowest in (1, 5, 9)]
    assert depths == [4, 3, 2]


@given(st.integers(1, 7), st.integers(1, 6), st.integers(1, 25), st.integers(0, 5), st.data())
def test_a_search_s_tree_is_laid_out_as_sglang_does(
    depth: int, width: int, nodes: int, less: int, data: st.DataObject
) -> None:
    """Node by node, with its queue: every match's own tree, the longest first, merged into one of so many nodes."""
    narrowest, longest = max(1, width - less), data.draw(st.integers(1, depth))
    scale, tree = (width - narrowest) / depth, list[tuple[int, ...]]([()])
    for match in range(longest, 0, -1):
        queue: list[tuple[tuple[int, ...], float]] = [((), (depth - match) * scale + narrowest)]
        while queue and len(tree) <= nodes:
            path, breadth = queue.pop(0)
            if len(path) == depth + 1 - match:  # no token of the trie stands deeper
                continue
            for child in range(max(1, int(breadth))):
                if len(tree) > nodes:
                    break
                if (*path, child) not in tree:
                    tree.append((*path, child))
                queue.append(((*path, child), breadth - scale))
    levels, steps = _search_tree(depth, width, nodes, narrowest, longest)
    assert levels.tolist() == [len(path) for path in tree[1:]]
    assert steps.tolist() == [sum(path) for path in tree[1:]]


@pytest.mark.parametrize("growth", ["all", "breadth"])
def test_rates_are_carried_over_to_another_tree_of_their_kind(growth: str) -> None:
    measured, wanted = (3, 9), (8, 30)
    carried = rates_in_another_tree(tree_rates(0.4, 2, *measured, growth=growth).tolist(), measured, wanted, 2, growth)
    np.testing.assert_allclose(carried, tree_rates(0.4, 2, *wanted, growth=growth), rtol=1e-9)
    if growth == "breadth":
        wanted = (3, 9, 1)
        carried = rates_in_another_tree(carried, (8, 30), wanted, 2, growth)
        np.testing.assert_allclose(carried, tree_rates(0.4, 2, *wanted, growth=growth), rtol=1e-9)


def test_rates_are_carried_over_to_another_tree() -> None:
    # Rates that follow the formula exactly come out as the other tree's.
    measured, wanted = (4, 10), (8, 30)
    carried = rates_in_another_tree(tree_rates(0.4, 5, *measured).tolist(), measured, wanted, 3)
    np.testing.assert_allclose(carried, tree_rates(0.4, 3, *wanted), rtol=1e-9)
    assert rates_in_another_tree([0.9, 0.2], measured, measured, 1) == (0.9,)
    assert rates_in_another_tree([0.0, 0.0], measured, wanted, 2) == (0.0, 0.0)
    assert rates_in_another_tree([1.0, 1.0], measured, (1, 2), 2) == pytest.approx((1.0, 1.0))


def test_trace_by_hand() -> None:
    model = Trace(model="trace").of_recording(**recording([[9, 2, 0, 1, 3, 0]]))
    # From position 1 with k = 2: accept 2, go to 4; accept min(3, 2), go to 7, past the end.
    assert model.mean_acceptance_length(2) == 3.0
    # k = 1: positions 1, 3, 5 accept 1, 1, 0.
    assert model.mean_acceptance_length(1) == pytest.approx(1 + 2 / 3)
    # k = 4: position 1 accepts 2, position 4 accepts 3 of 3.
    np.testing.assert_allclose(model.unconditional(4), [1.0, 1.0, 0.5, 0.0])


def test_trace_of_a_text_search_drafts_in_the_share_of_rounds_given() -> None:
    recorded = recording(np.where(RECORDING == 1, 0, RECORDING).tolist())
    model = Trace(model="trace", match_probability=0.8).of_recording(**recorded)
    always = Trace(model="trace").of_recording(**recorded)
    arrays = compile_acceptance([model], np.zeros(300), seed=0, k=4, **recorded)
    rounds, drafted, at_least = play(arrays, 4, 0, 400)
    positive = play(compile_acceptance([always], np.zeros(300), 0, 4, **recorded), 4, 0, 400)[2]
    np.testing.assert_array_equal(at_least, positive)  # what is accepted does not change
    assert_ratio(drafted, rounds, 0.8)
    assert_ratio(at_least.sum(axis=1), drafted, model.mean_acceptance_length(4) - 1.0)
    assert model.tokens_per_round(4) == pytest.approx(always.tokens_per_round(4))
    accepted = always.unconditional(4)[0]
    with pytest.raises(ScenarioError, match=rf"must be at least {accepted:.4f}"):
        compile_acceptance([model.model_copy(update={"match_probability": 0.3})], np.zeros(300), 0, 4, **recorded)


def test_trace_replays_the_recording_exactly() -> None:
    recorded = recording(RECORDING.tolist())
    model = Trace(model="trace").of_recording(**recorded)
    arrays = compile_acceptance([model], np.zeros(300), seed=0, k=4, **recorded)
    for request, position, k in ((0, 0, 4), (7, 13, 4), (299, 399, 2), (120, 50, 0)):
        assert accepted_drafts(arrays, request, position, k) == min(k, RECORDING[request, position])
    assert accepted_drafts(arrays, 0, 400, 4) == 0  # beyond the record, not the next request's
    accepted = rounds = 0
    for request in range(300):
        position = 1
        while position < 400:
            step = accepted_drafts(arrays, request, position, 4)
            accepted, rounds, position = accepted + step, rounds + 1, position + step + 1
    assert model.mean_acceptance_length(4) == 1 + accepted / rounds


@pytest.mark.skipif(not SHARED.exists(), reason="the shared acceptance recordings are absent")
def test_recorded_eagle_lengths_replay() -> None:
    lines = (SHARED / "llama31_8b_sharegpt.jsonl").read_text().splitlines()
    recorded = [np.array(json.loads(line)["acc_eagle"]["acc_len"]) - 1 for line in lines]
    model = Trace(model="trace").of_recording(**recording(recorded))
    arrays = compile_acceptance([model], np.zeros(len(lines)), 0, 3, **recording(recorded))
    for request in (0, 17, len(lines) - 1):
        for position in (1, 2, len(recorded[request]) - 1):
            assert accepted_drafts(arrays, request, position, 3) == min(3, recorded[request][position])
    rates = model.unconditional(3)
    assert 1.0 > rates[0] > rates[1] > rates[2] > 0.0


KNOBS: list[tuple[AcceptanceModel, dict[str, Any]]] = [
    (Chain(alpha=0.6), {"alpha": 0.7}),
    (Chain(rates=(0.6, 0.5)), {"rates": (0.6, 0.4)}),
    (Chain(alpha=0.6, concentration=4.0), {"alpha": 0.5, "concentration": 2.0}),
    (
        Chain(alpha_good=0.9, alpha_bad=0.3, good_share=0.5, persistence=0.6),
        {"alpha_good": 0.8, "alpha_bad": 0.4, "good_share": 0.7, "persistence": 0.9},
    ),
    (
        Chain(match_probability=0.4, alpha=0.8, persistence=0.5, mean_match_tokens=3.0),
        {"match_probability": 0.5, "alpha": 0.7, "persistence": 0.2, "mean_match_tokens": None},
    ),
    (Chain(match_probability=0.4, rates=(0.8, 0.5)), {"rates": (0.8, 0.4)}),
    (Tree(model="tree", alpha=0.5, widths=(2, 2)), {"alpha": 0.4, "widths": (3, 2)}),
    (Tree(model="tree", rates=(0.8, 0.5)), {"rates": (0.8, 0.4)}),
]


@pytest.mark.parametrize(
    ("model", "knob", "value"),
    [(m, knob, v) for m, knobs in KNOBS for knob, v in knobs.items()],
    ids=lambda v: name_of(v) if isinstance(v, AcceptanceModel) else str(v),
)
def test_every_parameter_changes_the_output(model: AcceptanceModel, knob: str, value: object) -> None:
    other = model.model_copy(update={knob: value})
    assert model.tokens_per_round(2) != other.tokens_per_round(2)
    mine, theirs = (play(compile_acceptance([m], np.zeros(300), 1, 2), 2, 0, 90) for m in (model, other))
    assert mine[2].sum() != theirs[2].sum()


@pytest.mark.parametrize(
    "model",
    [
        Chain(rates=(0.8, 0.4)),
        Tree(model="tree", rates=(0.8, 0.4)),
        Chain(match_probability=0.5, rates=(0.8, 0.4)),
    ],
)
def test_beyond_the_rates_given_the_last_conditional_rate_goes_on(model: AcceptanceModel) -> None:
    np.testing.assert_allclose(model.unconditional(4), [0.8, 0.4, 0.2, 0.1])
    np.testing.assert_allclose(compile_acceptance([model], [0], 0, 4).conditional[0, :4], [0.8, 0.5, 0.5, 0.5])
    assert Chain(rates=(0.8, 0.0)).unconditional(3).tolist() == [0.8, 0.0, 0.0]


def test_more_drafts_than_widths_are_refused() -> None:
    model = Tree(model="tree", alpha=0.5, widths=(2, 2))
    for ask in (model.unconditional, model.mean_acceptance_length, lambda k: compile_acceptance([model], [0], 0, k)):
        with pytest.raises(ScenarioError, match=r"num_speculative_tokens = 3: must be a whole number from 0 to 2"):
            ask(3)
    with pytest.raises(ScenarioError, match="from 0 to 128"):
        Chain(alpha=0.5).mean_acceptance_length(MAX_K + 1)


def test_compile_refuses_what_does_not_fit() -> None:
    with pytest.raises(ScenarioError, match="needs requests with a recorded acceptance"):
        compile_acceptance([Trace(model="trace")], [0, 0], 0)
    with pytest.raises(ScenarioError, match="request 1 has none"):
        compile_acceptance([Trace(model="trace")], [0, 0], 0, **recording([[1, 2], []]))
    models = [Trace(model="trace"), Chain(alpha=0.5)]
    compile_acceptance(models, [0, 1], 0, **recording([[1, 2], []]))
    with pytest.raises(ScenarioError, match="recorded lengths are needed"):
        Trace(model="trace").mean_acceptance_length(2)


BAD: list[tuple[dict[str, object], str]] = [
    ({"model": "constant", "alpha": 1.2}, "alpha"),
    ({"model": "constant", "alpha": -0.1}, "alpha"),
    ({"model": "constant", "alpha": math.nan}, "alpha"),
    ({"model": "constant", "alpha": "high"}, "alpha"),
    ({"model": "constant", "alpha": True}, "alpha"),
    ({"model": "constant"}, "required for acceptance model constant"),
    ({"model": "chain"}, "give exactly one of alpha and rates"),
    ({"model": "chain", "alpha": 0.5, "persistence": 0.5}, "of what? give contrast or matches"),
    ({"model": "chain", "alpha": 0.5, "contrast": 1.0}, "goes with rates"),
    ({"model": "chain", "alpha": 0.5, "good_share": 0.5}, "goes with contrast"),
    ({"model": "chain", "alpha": 0.5, "mean_match_tokens": 2.0}, "goes with match_probability"),
    (
        {"model": "constant", "alpha": 0.5, "rate": 1},
        "unknown key; did you mean rates? allowed: confidence_discrimination, relative_error, num_rounds, model, alpha",
    ),
    ({"model": "per_position", "rates": [0.5, 0.6]}, "unconditional rates never rise: position 1"),
    ({"model": "per_position", "rates": [0.5, 2]}, "rates.1"),
    ({"model": "per_position", "rates": []}, "at least 1 item"),
    ({"model": "per_position", "rates": [0.5] * 129}, "at most 128 items"),
    ({"model": "per_position", "rates": 0.5}, "valid tuple"),
    ({"model": "beta", "mean": 0.5, "concentration": 0}, "concentration"),
    ({"model": "beta", "mean": 1.5, "concentration": 1}, "alpha"),
    ({"model": "markov", "alpha_good": 1, "alpha_bad": 0, "p_gb": 0, "p_bg": 0}, "p_gb"),
    ({"model": "markov", "alpha_good": 1, "alpha_bad": 0, "p_gb": 2, "p_bg": 0}, "cannot be so low"),
    ({"model": "trace", "num_rounds": 5}, "the rates are the record's own"),
    ({"model": "ngram", "match_probability": 0.5}, "give exactly one of alpha and rates"),
    ({"model": "ngram", "match_probability": 0.5, "alpha": 0.5, "rates": [0.5]}, "give exactly one of alpha and rates"),
    ({"model": "ngram", "match_probability": 0.5, "alpha": 0.5, "persistence": 1.0}, "persistence"),
    ({"model": "ngram", "match_probability": 0.5, "alpha": 0.5, "mean_match_tokens": 0.5}, "mean_match_tokens"),
    (
        {"model": "chain", "match_probability": 0.5, "alpha_good": 0.9, "alpha_bad": 0.5, "good_share": 0.5},
        "goes with contrast",
    ),
    ({"model": "ngram", "match_probability": 0.5, "rates": [0.5], "contrast": 1.0}, "stretches are those of matches"),
    ({"model": "tree"}, "give exactly one of rates and alpha"),
    ({"model": "tree", "alpha": 0.5, "widths": [2, 0]}, "widths.1"),
    ({"model": "tree", "alpha": 0.5, "persistence": 0.5}, "of matches; give match_probability"),
    ({"model": "tree", "rates": [0.5], "widths": [2]}, "goes with alpha, one width per depth"),
    ({"model": "oracle"}, "does not match any of the expected tags: 'chain', 'constant', 'per_position'"),
]


@pytest.mark.parametrize(("section", "message"), BAD, ids=str)
def test_bad_acceptance_is_refused(section: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        TypeAdapter(Acceptance).validate_python(section)


def test_every_model_is_built_from_a_scenario() -> None:
    models = get_args(get_args(Acceptance)[0])
    assert {model.__name__ for model in models} == {type(model).__name__ for model in SIMULATED} | {"Trace"}
    built = TypeAdapter(Acceptance).validate_python({"model": "tree", "alpha": 0.5, "widths": [2]})
    assert built == Tree(model="tree", alpha=0.5, widths=(2,))
