"""Draft-length policies: how many drafts a step makes, given what the engine sees.

A policy returns a decision, the engine applies it. A built-in policy is a file: a class of parameters and the compiled
rule that it names. A Python policy is a class with a ``decide`` method, called once a step:

    class HalfWhenBusy(Policy):
        def decide(self, batch):
            return batch.k // 2 if batch.num_seqs > 32 else batch.k

It may remember what it likes in ``self``: every replica of every replication runs a copy of its own.

Anything but ``fixed`` makes the draft length dynamic, so one-token admissions are not padded (vLLM's rule for
``num_speculative_tokens_per_batch_size``), and everything that a method reserves (input slots, lookahead blocks,
the draft's memory) stays reserved for ``num_speculative_tokens``: off by policy is not free.
"""

BUILT_IN = {
    "off": "schedule:Off",
    "fixed": "schedule:Fixed",
    "batch_schedule": "schedule:BatchSchedule",
    "goodput": "goodput:Goodput",
    "ema_tiers": "ema_tiers:EmaTiers",
    "confidence": "confidence:Confidence",
    "tetris": "tetris:Tetris",
    "slo_aware": "slo_aware:SloAware",
    "bandit": "bandit:Bandit",
    "adaptive_verification": "adaptive_verification:AdaptiveVerification",
    "oracle": "oracle:Oracle",
}
"""Name in a scenario: module and class, names alone so that a check or help loads no compiled code. A new policy is a
module and a line here."""
