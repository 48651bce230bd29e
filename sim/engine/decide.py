"""Compiled draft-length rules: how many drafts the requests of a step get, verified in the next step.

A rule fills ``next_drafts`` (verified in the next step) and ``drafted`` (made in this one) of the scheduled batch; the
engine applies them. ``draftcast.sim.policies`` says where each rule comes from and packs its parameters. A Python
policy writes the same columns between two compiled calls.
"""

from __future__ import annotations

from numba import njit

from draftcast.sim.compiled.borrowed import borrowed
from draftcast.sim.engine.rules.adaptive_verification import decide_adaptive_verification
from draftcast.sim.engine.rules.bandit import decide_bandit, observe_bandit
from draftcast.sim.engine.rules.confidence import decide_confidence
from draftcast.sim.engine.rules.ema_tiers import decide_tier, observe_tier
from draftcast.sim.engine.rules.goodput import decide_goodput, observe_goodput
from draftcast.sim.engine.rules.oracle import decide_oracle
from draftcast.sim.engine.rules.slo_aware import decide_slo_aware
from draftcast.sim.engine.rules.tetris import decide_tetris
from draftcast.sim.engine.state import Engine

KIND_FIXED, KIND_TABLE, KIND_GOODPUT, KIND_EMA_TIERS, KIND_ORACLE, KIND_PYTHON = 0, 1, 2, 3, 4, 5
KIND_CONFIDENCE, KIND_TETRIS, KIND_SLO_AWARE, KIND_BANDIT, KIND_ADAPTIVE_VERIFICATION = 6, 7, 8, 9, 10


@njit(cache=True)
def decide(ref: Engine, slot: int) -> None:
    """Fill ``next_drafts`` and ``drafted`` of the batch in ``slot``; chunks of a prefill draft nothing."""
    s = borrowed(ref)
    batch = s.batch[slot]
    entries = s.entries[slot]
    kind = s.policy.kind[0]
    drafts = 0
    if kind == KIND_FIXED:
        drafts = int(s.policy.table[0])
    elif kind == KIND_TABLE:
        drafts = int(s.policy.table[batch.size])
    elif kind == KIND_GOODPUT:
        drafts = decide_goodput(ref, slot)
    elif kind == KIND_EMA_TIERS:
        drafts = decide_tier(ref, batch.size)
    elif kind == KIND_BANDIT:
        drafts = decide_bandit(ref, batch.size)
    else:
        if kind == KIND_ORACLE:
            decide_oracle(ref, slot)
        elif kind == KIND_CONFIDENCE:
            decide_confidence(ref, slot)
        elif kind == KIND_TETRIS:
            decide_tetris(ref, slot)
        elif kind == KIND_SLO_AWARE:
            decide_slo_aware(ref, slot)
        else:
            decide_adaptive_verification(ref, slot)
        return
    for j in range(batch.size):
        own = 0 if entries[j].is_chunk else drafts
        entries[j].next_drafts = own
        entries[j].drafted = own


@njit(cache=True)
def observe(
    ref: Engine,
    slot: int,
    rounds: int,
    accepted: int,
    rejections: int,
    sampled: int,
    emitted: int,
    elapsed_s: float,
) -> None:
    """Let the rule learn from a collected step.

    Args:
        ref: the engine.
        slot: the batch collected.
        rounds: verify rounds with at least one draft.
        accepted: drafts accepted.
        rejections: rounds that rejected a draft.
        sampled: requests that got a token.
        emitted: tokens they got.
        elapsed_s: time since the output before.
    """
    kind = borrowed(ref).policy.kind[0]
    if kind == KIND_GOODPUT:
        observe_goodput(ref, accepted, rejections)
    elif kind == KIND_EMA_TIERS and sampled > 0:
        observe_tier(ref, rounds, accepted, sampled)
    elif kind == KIND_BANDIT and emitted > 0:
        observe_bandit(ref, slot, emitted, elapsed_s)
