"""The draft's confidence: calibrated, as telling as asked, and without influence on what is accepted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from acceptance_formulas import accepted_drafts, markov, recording
from numba import njit

import draftcast
from draftcast.errors import ScenarioError
from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.acceptance.compile import compile_acceptance
from draftcast.sim.acceptance.compiled import KIND_TRACE, AcceptanceArrays
from draftcast.sim.acceptance.confidence import has_confidence, survivals
from draftcast.sim.acceptance.model import AcceptanceModel, Trace
from draftcast.sim.compiled.borrowed import reference
from draftcast.sim.compiled.random_streams import GOLDEN, MIX_1, mix64_array
from draftcast.sim.policies.base import Policy

N, K = 40_000, 3
MODELS: dict[str, AcceptanceModel] = {
    "constant": Chain(alpha=0.7),
    "per_position": Chain(rates=(0.8, 0.5, 0.3)),
    "beta": Chain(alpha=0.6, concentration=3.0),
    "markov": markov(alpha_good=0.9, alpha_bad=0.3, p_gb=0.1, p_bg=0.2),
    "trace": Trace(model="trace"),
}
RECORDED = recording([[0, 3, 0, 1, 2, 0]] * N)


@njit
def outcomes(arrays: Any, positions: Any, out: Any) -> None:
    ref = reference(arrays)
    for i in range(out.size):
        out[i] = accepted_drafts(ref, i, positions[i], K)


def compiled(model: AcceptanceModel, confidence: float | None) -> AcceptanceArrays:
    return compile_acceptance([model], np.zeros(N, np.int16), 5, K, confidence=[confidence], **RECORDED)


# Where the recording's rounds of three drafts start: three accepted at 1, none at 5.
POSITIONS = np.where(np.arange(N) % 2 == 0, 1, 5)


def accepted(arrays: AcceptanceArrays) -> np.ndarray:
    out = np.zeros(N, np.int64)
    outcomes(arrays, POSITIONS, out)
    return out


def survival(arrays: AcceptanceArrays) -> np.ndarray:
    out = np.zeros((N, K))
    survivals(arrays, np.arange(N), POSITIONS, out)
    return out


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("discrimination", [0.0, 0.3, 0.8, 1.0])
def test_confidence_is_calibrated_and_tells_as_much_as_asked(name: str, discrimination: float) -> None:
    arrays = compiled(MODELS[name], discrimination)
    taken = accepted(arrays)
    assert (taken == accepted(compiled(MODELS[name], None))).all()  # knowing changes nothing
    first = survival(arrays)[:, 0]
    was = taken > 0
    # Tjur's coefficient in groups of one acceptance probability: a request's alpha, a state, a rate.
    p = survival(compiled(MODELS[name], 0.0))[:, 0]
    slopes, weights = [], []
    for value in np.unique(p) if name != "beta" else []:
        here = p == value
        slopes.append(first[here & was].mean() - first[here & ~was].mean())
        weights.append(here.sum())
    if slopes:
        assert np.average(slopes, weights=weights) == pytest.approx(discrimination, abs=0.02)
    # Of the drafts with a confidence near c a share c is accepted; 40,000 draws: 0.025 is five standard errors of
    # a tenth of them.
    for low in np.arange(0.0, 1.0, 0.1):
        bin_ = (first >= low) & (first <= low + 0.1)
        if bin_.sum() > 4000:
            assert was[bin_].mean() == pytest.approx(first[bin_].mean(), abs=0.025)


def by_the_formula(arrays: AcceptanceArrays, discrimination: float, i: int) -> list[float]:
    """Survival of request i, draft by draft, as the module that forecasts it states it."""
    position, kind, out, alive = int(POSITIONS[i]), arrays.kind[0], [], 1.0
    recorded = int(arrays.lengths[arrays.offsets[i] + position]) if kind == KIND_TRACE else -1
    for j in range(K):
        p = float(arrays.conditional[arrays.row[i], j])
        counter = (int(arrays.keys[i]) + (position + j + 1) * int(GOLDEN)) % 2**64
        bits = int(mix64_array(np.array([counter], np.uint64))[0])
        accepted = (j < recorded) if j <= recorded else (bits >> 11) * 2.0**-53 < p
        product = bits * int(MIX_1) % 2**64
        square = max(2.0 * discrimination - 1.0, 0.0)
        square += 2.0 * min(discrimination, 1.0 - discrimination) * ((product >> 38) * 2.0**-26)
        spread = math.sqrt(square)
        low = p * (1.0 - spread)
        alive *= low + spread * ((product % 2**38) * 2.0**-38 < low + spread * accepted)
        out.append(alive)
    return out


@pytest.mark.parametrize("name", ["constant", "per_position", "beta", "trace"])
@pytest.mark.parametrize("discrimination", [0.0, 0.3, 0.8, 1.0])
def test_the_forecast_is_the_formula_to_the_last_bit(name: str, discrimination: float) -> None:
    arrays = compiled(MODELS[name], discrimination)
    found = survival(arrays)
    assert [found[i].tolist() for i in range(200)] == [by_the_formula(arrays, discrimination, i) for i in range(200)]


def test_survival_is_the_chance_to_be_reached_and_accepted() -> None:
    out = survival(compiled(Chain(rates=(0.8, 0.5, 0.3)), 0.0))
    assert out[0] == pytest.approx([0.8, 0.5, 0.3])
    informed = survival(compiled(Chain(rates=(0.8, 0.5, 0.3)), 0.5))
    assert (np.diff(informed, axis=1) <= 0).all()
    assert informed.mean(axis=0) == pytest.approx([0.8, 0.5, 0.3], abs=0.01)


def test_full_confidence_knows_the_outcome() -> None:
    arrays = compiled(Chain(alpha=0.7), 1.0)
    assert ((survival(arrays) > 0.5).sum(axis=1) == accepted(arrays)).all()


def test_no_confidence_unless_given() -> None:
    assert not has_confidence(compiled(Chain(alpha=0.7), None))
    assert has_confidence(compiled(Chain(alpha=0.7), 0.0))
    two = compile_acceptance([Chain(alpha=0.7)] * 2, np.zeros(3, np.int16), 5, K, confidence=[0.5, None])
    assert not has_confidence(two)


BASE = ["workload.num_requests=60", "statistics.replications=1"]


@pytest.mark.parametrize("policy", ["confidence", "tetris", "slo_aware", "adaptive_verification"])
def test_policies_that_need_it_say_so(policy: str) -> None:
    with pytest.raises(ScenarioError, match=r"acceptance.confidence_discrimination.*goes by the draft's confidence"):
        draftcast.simulate(
            draftcast.load_scenario("default", overrides=[*BASE, f"policy.name={policy}", "slo={tpot_ms: 20}"])
        )


def test_slo_aware_needs_an_slo() -> None:
    known = [*BASE, "acceptance.confidence_discrimination=0.4", "policy.name=slo_aware"]
    with pytest.raises(ScenarioError, match=r"policy.name = 'slo_aware': needs slo.tpot_ms"):
        draftcast.simulate(draftcast.load_scenario("default", overrides=[*known, "slo={ttft_ms: 100}"]))


def test_more_confidence_changes_a_run() -> None:
    def finish(discrimination: float) -> list[float]:
        known = [*BASE, f"acceptance.confidence_discrimination={discrimination}", "policy.name=confidence"]
        return draftcast.simulate(draftcast.load_scenario("default", overrides=known)).requests["finish_s"].tolist()

    assert finish(0.2) != finish(0.8)


def test_a_python_policy_sees_it_or_is_told(build_case: Any) -> None:
    class Sure(Policy):
        def decide(self, batch: Any) -> Any:
            return (batch.survival > 0.5).sum(axis=1)

    alphas = {"method": "eagle", "k": 3, "policy": Sure(), "accept": Chain(alpha=0.8)}
    case = build_case([4], [9], **alphas, confidence=0.0)
    # 0.8, 0.64, 0.512.
    assert case.log()[0].next_drafts == {0: 3}
    with pytest.raises(ScenarioError, match=r"acceptance.confidence_discrimination"):
        build_case([4], [9], **alphas).serve()
