"""Draft-length policies: how many drafts a step makes, given what the engine sees.

A policy returns a decision, the engine applies it. Built-in policies compile to parameters of the rules in
``draftcast.sim.engine.rules``; a Python policy is a class with a ``decide`` method, called once a step:

    class HalfWhenBusy(Policy):
        def decide(self, batch):
            return batch.k // 2 if batch.num_seqs > 32 else batch.k

It may remember what it likes in ``self``: every replica of every replication runs a copy of its own.

Anything but ``fixed`` makes the draft length dynamic, so one-token admissions are not padded (vLLM's rule for
``num_speculative_tokens_per_batch_size``), and everything that a method reserves (input slots, lookahead blocks,
the draft's memory) stays reserved for ``num_speculative_tokens``: off by policy is not free.
"""

from __future__ import annotations

from draftcast.sim.policies.adaptive_verification import AdaptiveVerification
from draftcast.sim.policies.bandit import Bandit
from draftcast.sim.policies.base import Batch, Decision, Policy
from draftcast.sim.policies.confidence import Confidence
from draftcast.sim.policies.ema_tiers import SGLANG_TIERS, EmaTiers, Tier
from draftcast.sim.policies.goodput import Goodput
from draftcast.sim.policies.hook import python_hook
from draftcast.sim.policies.oracle import Oracle
from draftcast.sim.policies.registry import POLICIES, load_policy
from draftcast.sim.policies.schedule import BatchSchedule, Fixed, Off
from draftcast.sim.policies.slo_aware import SloAware
from draftcast.sim.policies.tetris import Tetris

__all__ = [
    "POLICIES",
    "SGLANG_TIERS",
    "AdaptiveVerification",
    "Bandit",
    "Batch",
    "BatchSchedule",
    "Confidence",
    "Decision",
    "EmaTiers",
    "Fixed",
    "Goodput",
    "Off",
    "Oracle",
    "Policy",
    "SloAware",
    "Tetris",
    "Tier",
    "load_policy",
    "python_hook",
]
