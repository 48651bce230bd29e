"""The same input gives the same result: compiled or stepped from Python, in this process or another.

Changing k, the policy or the router changes no arrival, no length and no acceptance draw at a given output position.
"""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from acceptance_formulas import accepted_drafts, proposed_drafts
from paths import TESTS

from draftcast.scenarios.compare.comparison import simulate
from draftcast.scenarios.schema.load import load_scenario
from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.cluster.cluster import Cluster
from draftcast.sim.cluster.routers import ROUTERS
from draftcast.sim.policies.adaptive_verification import AdaptiveVerification
from draftcast.sim.policies.bandit import Bandit
from draftcast.sim.policies.base import Policy
from draftcast.sim.policies.batch import Batch, Decision
from draftcast.sim.policies.confidence import Confidence
from draftcast.sim.policies.ema_tiers import EmaTiers
from draftcast.sim.policies.goodput import Goodput
from draftcast.sim.policies.oracle import Oracle
from draftcast.sim.policies.schedule import BatchSchedule, Fixed, Off
from draftcast.sim.policies.slo_aware import SloAware
from draftcast.sim.policies.tetris import Tetris
from draftcast.sim.state.engine import STOP_OUTPUT

N = 40
POLICIES: tuple[Policy, ...] = (
    Fixed(),
    Off(),
    BatchSchedule([[1, 3, 3], [4, 8, 1]]),
    Goodput(),
    EmaTiers(),
    Confidence(),
    Tetris(),
    SloAware(tpot_s=1.0),
    Bandit(),
    Bandit("ucb"),
    AdaptiveVerification(),
    Oracle(),
)
METHODS = ("eagle", "ngram", "ngram_gpu")


class PythonFixed(Policy):
    """``fixed`` in Python."""

    is_dynamic = False

    def decide(self, batch: Batch) -> int:
        return batch.k


class PythonSchedule(Policy):
    """``batch_schedule`` with [[1, 3, 3], [4, 8, 1]] in Python."""

    def decide(self, batch: Batch) -> int:
        return 3 if batch.num_seqs <= 3 else 1


class PythonOff(Policy):
    """``off`` in Python."""

    def decide(self, batch: Batch) -> int:
        return 0


class ByRequest(Policy):
    """Request i drafts i mod 4, whatever the batch."""

    def decide(self, batch: Batch) -> np.ndarray:
        return batch.request.astype(np.int64) % 4


class PythonConfidence(Policy):
    """Up to the draft after which a rejection is likelier than 0.4."""

    def decide(self, batch: Batch) -> Any:
        return np.minimum((batch.survival >= 0.6).sum(axis=1) + 1, batch.k)


class PythonTetris(Policy):
    """Everybody drafts k; half of all drafts is verified, the likeliest."""

    def decide(self, batch: Batch) -> Decision:
        drafting = np.flatnonzero(~batch.is_prefill)
        candidates = [(-batch.survival[i, level], level, i) for i in drafting for level in range(batch.k)]
        chosen = [i for _, _, i in sorted(candidates)[: len(candidates) // 2]]
        return Decision(verify=np.bincount(chosen, minlength=batch.num_seqs).astype(int), make=batch.k)


def busy(build_case: Any, policy: Policy, method: str = "eagle", k: int = 3, **changes: Any) -> Any:
    """Forty requests in scarce blocks: preemptions, chunks, prefix hits."""
    rng = np.random.default_rng(5)
    prompt = rng.integers(1, 30, N).tolist()
    arguments: dict[str, Any] = {
        "prompt": prompt,
        "output": rng.integers(1, 30, N).tolist(),
        "arrival_s": np.cumsum(rng.exponential(2.0, N)).tolist(),
        "method": method,
        "k": k,
        "policy": policy,
        "accept": Chain(match_probability=0.6, alpha=0.7, persistence=0.8)
        if method.startswith("ngram")
        else Chain(alpha=0.7),
        "confidence": 0.5,
        "seed": 11,
        "num_gpu_blocks": 25,
        "max_num_batched_tokens": 24,
        "hash_ids": [[p % 3 * 100 + b + 1 for b in range(-(-p // 4))] for p in prompt],
        "cost": {"host_s": 0.25, "draft_s": 0.125, "draft_token_s": 0.0625, "kv_s": 2.0**-12, "search_fraction": 0.1},
    }
    return build_case(**{**arguments, **changes})


def bits(case: Any) -> str:
    """Everything a run leaves: request rows, steps, ITL histogram and counters, as one digest."""
    s = case.replica.state
    parts = [s.requests, s.steps[: s.engine[0]["recorded"]], s.itl, s.rounds_by_accepted, s.engine, s.clocks]
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


def serve_step_by_step(case: Any) -> Any:
    case.send()
    while case.replica.advance(math.inf, stop_on_output=True) == STOP_OUTPUT:
        pass
    return case


# ---- compiled and stepped ----


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_one_call_a_step_changes_nothing(build_case: Any, policy: Policy, method: str) -> None:
    whole = busy(build_case, policy, method).serve()
    assert (whole.rows["finish_s"] > 0).all()
    assert whole.rows["preemptions"].sum() > 0
    assert bits(serve_step_by_step(busy(build_case, policy, method))) == bits(whole)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("in_python", "compiled"),
    [
        (PythonFixed(), Fixed()),
        (PythonOff(), Off()),
        (PythonSchedule(), BatchSchedule([[1, 3, 3], [4, 8, 1]])),
        (PythonConfidence(), Confidence(max_rejection_probability=0.4)),
        (PythonTetris(), Tetris(capacity=0.5)),
    ],
    ids=("fixed", "off", "batch_schedule", "confidence", "tetris"),
)
def test_a_python_policy_is_bit_identical_to_its_compiled_twin(
    build_case: Any, in_python: Policy, compiled: Policy, method: str
) -> None:
    twin = busy(build_case, compiled, method).serve()
    assert bits(busy(build_case, in_python, method).serve()) == bits(twin)
    assert bits(serve_step_by_step(busy(build_case, in_python, method))) == bits(twin)


def test_a_stop_on_output_counts_outputs_across_python_decisions(build_case: Any) -> None:
    for policy in (Fixed(), PythonFixed()):
        case = busy(build_case, policy).send()
        for calls in range(1, 22):
            assert case.replica.advance(math.inf, stop_on_output=True) == STOP_OUTPUT
            assert len(case.replica.steps()) == calls


@pytest.mark.parametrize("is_async", [False, True])
def test_requests_of_one_step_may_draft_differently(build_case: Any, is_async: bool) -> None:
    case = busy(build_case, ByRequest(), async_scheduling=is_async, max_num_batched_tokens=64, num_gpu_blocks=201)
    mixed = 0
    for _, entries in case.collected():
        making = entries[entries["is_chunk"] == 0]
        assert (making["next_drafts"] == making["request"] % 4).all()
        verifying = entries[(entries["is_chunk"] == 0) & (entries["tokens"] == entries["drafts"] + 1)]
        # Enough room for everybody: what is verified is what was asked for, or nothing right after a prefill.
        assert ((verifying["drafts"] == verifying["request"] % 4) | (verifying["drafts"] == 0)).all()
        mixed += np.unique(verifying["drafts"]).size >= 3
    assert mixed > 5
    frame = case.requests()
    assert (frame["num_draft_tokens"] == frame["num_drafts"] * (frame["request"] % 4)).all()
    assert (frame["num_drafts"] > 0).sum() > N // 2


# ---- the same again, and elsewhere ----

ELSEWHERE = """
import hashlib, json, sys
import pandas as pd
from draftcast.scenarios.schema.load import load_scenario
from draftcast.scenarios.compare.comparison import simulate
result = simulate(load_scenario(overrides=json.loads(sys.argv[1])), record_steps=True)
frames = (result.requests, result.steps)
print(hashlib.sha256(b"".join(pd.util.hash_pandas_object(f).to_numpy().tobytes() for f in frames)).hexdigest())
"""
SMALL = ["statistics.replications=2", "workload.num_requests=80"]


def digest(overrides: list[str]) -> str:
    import pandas as pd

    result = simulate(load_scenario(overrides=overrides), record_steps=True)
    assert result.steps is not None
    frames = (result.requests, result.steps)
    return hashlib.sha256(b"".join(pd.util.hash_pandas_object(f).to_numpy().tobytes() for f in frames)).hexdigest()


def test_same_seed_same_result_also_in_another_process() -> None:
    here = digest(SMALL)
    assert digest(SMALL) == here
    assert digest([*SMALL, "statistics.seed=1"]) != here
    command = [sys.executable, "-c", ELSEWHERE, json.dumps(SMALL)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=TESTS)
    assert done.stdout.strip() == here


# ---- common random numbers ----

# Each changes what the engine does, none may change what it is given.
CHANGES: dict[str, list[str]] = {
    "k": ["engine.speculative_config.num_speculative_tokens=1"],
    "off": ["policy={name: off}"],
    # At an acceptance at which it drafts less than the setting does.
    "goodput": ["policy={name: goodput}", "acceptance={model: constant, alpha: 0.1}"],
    "ema_tiers": ["policy={name: ema_tiers, parameters: {tiers: [{batch_size: 1, steps: [1]}]}}"],
    "oracle": ["policy={name: oracle}"],
    "batch_schedule": ["engine.speculative_config.num_speculative_tokens_per_batch_size=[[1, 4, 3], [5, 9, 1]]"],
    **{router: ["cluster.replicas=2", f"cluster.router={router}"] for router in ROUTERS},
    "no speculation": ["engine.speculative_config=null", "acceptance=null"],
}


@pytest.fixture(scope="module")
def plain() -> Any:
    return simulate(load_scenario(overrides=SMALL)).requests


@pytest.mark.parametrize("change", CHANGES)
def test_no_change_of_the_engine_changes_arrivals_or_lengths(plain: Any, change: str) -> None:
    changed = simulate(load_scenario(overrides=[*SMALL, *CHANGES[change]])).requests
    for column in ("replication", "request", "class", "arrival_s", "prompt_tokens", "output_tokens"):
        assert changed[column].tolist() == plain[column].tolist(), column
    assert changed["finish_s"].tolist() != plain["finish_s"].tolist()


def fates(case: Any) -> dict[tuple[int, int], bool]:
    """Whether the draft at (request, output position) was accepted, as the run met it."""
    outputs = np.zeros(len(case.table), np.int64)
    want = case.table.output_tokens
    found: dict[tuple[int, int], bool] = {}
    for _, entries in case.collected():
        for x in entries:
            i = int(x["request"])
            if x["is_chunk"] or outputs[i] == want[i]:
                continue
            for j in range(min(int(x["accepted"]) + 1, int(x["proposed"]))):
                assert (i, int(outputs[i]) + j) not in found
                found[i, int(outputs[i]) + j] = j < x["accepted"]
            outputs[i] = min(outputs[i] + x["accepted"] + 1, want[i])
    return found


@pytest.mark.parametrize(
    "model",
    [Chain(alpha=0.7), Chain(alpha=0.7, concentration=2.0)],
    ids=("constant", "beta"),
)
def test_no_change_of_the_engine_changes_a_draft_s_fate(build_case: Any, model: Any) -> None:
    runs = [fates(busy(build_case, policy, accept=model)) for policy in POLICIES if policy.name != "off"]
    runs += [fates(busy(build_case, Fixed(), k=k, accept=model)) for k in (1, 5)]
    runs += [fates(busy(build_case, Fixed(), method=m, accept=model)) for m in ("draft_model", "medusa")]
    runs += [fates(busy(build_case, Fixed(), accept=model, max_num_seqs=2, num_gpu_blocks=101))]
    known: dict[tuple[int, int], bool] = {}
    shared = 0
    for run in runs:
        assert run
        shared += len(known.keys() & run.keys())
        for where, accepted in run.items():
            assert known.setdefault(where, accepted) == accepted, where
    assert shared > 500


@pytest.mark.parametrize("method", METHODS)
def test_every_round_is_the_compiled_lookup(build_case: Any, method: str) -> None:
    """What a step accepts and proposes is what the acceptance arrays say for that request and output position."""
    case = busy(build_case, Fixed(), method)
    fresh = busy(build_case, Fixed(), method).replica.state.acceptance
    outputs = np.zeros(N, np.int64)
    rounds = 0
    for _, entries in case.collected():
        for x in entries:
            i, position = int(x["request"]), int(outputs[int(x["request"])])
            if x["is_chunk"] or position == case.table.output_tokens[i]:
                continue
            proposed = int(x["proposed"])
            if x["drafts"] and not x["padded"]:
                assert proposed == proposed_drafts(fresh, i, position, int(x["drafts"]))
            assert x["accepted"] == accepted_drafts(fresh, i, position, proposed)
            rounds += proposed > 0
            outputs[i] = min(position + int(x["accepted"]) + 1, case.table.output_tokens[i])
    assert rounds > 100


@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_routers_repeat_themselves(build_case: Any, router: str) -> None:
    def run(seed: int) -> Any:
        case = busy(build_case, Fixed(), replicas=3)
        cluster = Cluster(case.replicas, case.table, ROUTERS[router](case.table, 3, seed))
        cluster.run()
        return case.rows.tobytes(), cluster.assigned.tolist()

    assert run(3) == run(3)
    spread: Callable[[int], int] = lambda seed: len(set(run(seed)[1]))  # noqa: E731
    assert spread(3) > 1
    assert (run(3) != run(4)) == (router in ("random", "power_of_two"))
