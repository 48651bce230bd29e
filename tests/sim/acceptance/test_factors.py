"""Stated factors of acceptance: hand-computed odds, their direction, and closed forms against played rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from acceptance_formulas import accepted_drafts, proposed_drafts
from numba import njit
from pydantic import ValidationError

from draftcast import load_scenario
from draftcast.sim.acceptance.chain import Chain, Factors
from draftcast.sim.acceptance.compile import compile_acceptance
from draftcast.sim.acceptance.compiled import AcceptanceArrays
from draftcast.sim.compiled.borrowed import reference

K = 3
PROMPTS, OUTPUTS = np.array([50, 400]), np.array([900, 300])
STEPS: list[dict[str, Any]] = [
    {"temperature": 0.5},
    {"context": ((300, 0.3), (800, 0.1))},
    {"output_position": ((100, 0.3),)},
]
BASES: list[dict[str, Any]] = [
    {"alpha": 0.6},
    {"rates": (0.7, 0.5, 0.4)},
    {"rates": (0.7, 0.5, 0.4), "concentration": 9.0, "contrast": 2.0, "persistence": 0.8},
    {"rates": (0.7, 0.5, 0.4), "match_probability": 0.4, "persistence": 0.6},
]


def test_a_factor_multiplies_the_odds() -> None:
    """Odds 1 become 3, so 1/2 becomes 3/4; three causes of 3, 2 and 1/6 leave them; 0 and 1 stay."""
    assert Chain(alpha=0.5, factors=Factors(temperature=3.0)).unconditional(2) == pytest.approx([0.75, 0.5625])
    both = Factors(temperature=3.0, context=((0, 2.0),), output_position=((0, 1 / 6),))
    undone = Chain(alpha=0.5, factors=both).of_requests(PROMPTS, OUTPUTS)
    assert undone.unconditional(2) == pytest.approx([0.5, 0.25])
    assert Chain(rates=(1.0, 0.0), factors=Factors(temperature=0.5)).unconditional(2).tolist() == [1.0, 0.0]
    searched = Chain(match_probability=0.5, alpha=0.0, factors=Factors(temperature=3.0))
    assert searched.draft_share(2) == pytest.approx(0.75)


def test_shares_are_those_counted_by_hand() -> None:
    """Of 10 prompt tokens, output 0 to 4 stands at context 10 to 14; position 2 and context 13 are the steps."""
    steps = Factors(context=((13, 0.5),), output_position=((2, 0.5),))
    assert steps.shares([10], [5]) == pytest.approx((2 / 5, 1 / 5, 0.0, 2 / 5))
    assert steps.shares([20], [5]) == pytest.approx((0.0, 0.0, 2 / 5, 3 / 5))
    assert np.exp(steps.log_odds) == pytest.approx([1.0, 0.5, 0.5, 0.25])


@njit
def _played(arrays: AcceptanceArrays, outputs: np.ndarray) -> tuple[int, int]:
    tokens, rounds, ref = 0, 0, reference(arrays)
    for request in range(len(outputs)):
        position = 0
        while position < outputs[request]:
            drafts = proposed_drafts(ref, request, position, K)
            position += accepted_drafts(ref, request, position, drafts) + 1
            rounds += 1
        tokens += position
    return tokens, rounds


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("steps", STEPS)
def test_the_average_is_the_played_one_and_falls(base: dict[str, Any], steps: dict[str, Any]) -> None:
    plain = Chain(**base)
    model = Chain(**base, factors=Factors(**steps)).of_requests(PROMPTS, OUTPUTS)
    n = 3000
    prompts, outputs = np.tile(PROMPTS, n), np.tile(OUTPUTS, n)
    tokens, rounds = _played(compile_acceptance([model], np.zeros(2 * n), 7, K, prompt_tokens=prompts), outputs)
    assert model.tokens_per_round(K) == pytest.approx(tokens / rounds, rel=0.01)
    assert model.tokens_per_round(K) < 0.95 * plain.tokens_per_round(K)


@pytest.mark.parametrize("steps", STEPS)
def test_classes_keep_their_own_steps(steps: dict[str, Any]) -> None:
    """A class without factors beside one with them accepts what it accepts alone."""
    plain, changed = Chain(alpha=0.7), Chain(alpha=0.7, factors=Factors(**steps))
    outputs, prompts = np.full(200, 500), np.full(200, 100)
    alone = compile_acceptance([plain], np.zeros(200), 3, K)
    beside = compile_acceptance([changed, plain], np.ones(200), 3, K, prompt_tokens=prompts)
    assert _played(beside, outputs) == _played(alone, outputs)


@pytest.mark.parametrize(
    "section",
    [
        "acceptance={reference: llama-3.1-8b-instruct/eagle3/mt-bench/specforge, factors: {temperature: 0.5}}",
        "acceptance={model: per_position, rates: [0.7, 0.5, 0.4], factors: {context: [[0, 0.5]]}}",
        "acceptance={model: chain, alpha: 0.6, concentration: 9, factors: {output_position: [[0, 0.5]]}}",
    ],
)
def test_factors_go_with_every_spelling_of_a_chain(section: str) -> None:
    scenario = load_scenario("default", overrides=[section])
    without = load_scenario("default", overrides=[section, "acceptance.factors=null"])
    assert isinstance(scenario.acceptance, Chain)
    assert isinstance(without.acceptance, Chain)
    lowered = scenario.acceptance.of_requests(PROMPTS, OUTPUTS)
    assert lowered.unconditional(K)[0] < without.acceptance.unconditional(K)[0]
    assert load_scenario(scenario.model_dump(mode="json")) == scenario


def test_steps_must_rise() -> None:
    with pytest.raises(ValidationError, match="must rise"):
        Factors(context=((100, 0.5), (100, 0.4)))
