"""The compiled rules of the built-in policies by number, as the engine calls them once a step."""

from __future__ import annotations

from draftcast.sim.compiled.dispatch import call_by_number
from draftcast.sim.policies.base import Policy
from draftcast.sim.policies.registry import POLICIES

PYTHON = -1
"""Number of a policy that decides in Python."""
_CLASSES = list({policy.rule: policy for policy in POLICIES.values()}.values())

decide = call_by_number([policy.rule for policy in _CLASSES])
"""Let a rule fill ``next_drafts`` and ``drafted`` of the batch in a slot; chunks of a prefill draft nothing."""
learn = call_by_number([policy.learn for policy in _CLASSES])
"""Let a rule learn from the batch in a slot, whose output has been collected."""


def number_of(policy: Policy) -> int:
    """What the engine calls the policy's rule by."""
    rules = [known.rule for known in _CLASSES]
    return rules.index(type(policy).rule) if type(policy).rule is not None else PYTHON
