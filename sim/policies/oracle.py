"""The policy that knows the future, to measure the others against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from draftcast.sim.engine import decide as rules
from draftcast.sim.engine.state import PolicyArrays
from draftcast.sim.policies.base import Policy, arrays


@dataclass(frozen=True)
class Oracle(Policy):
    """Knows which drafts of every request will be accepted, and takes the most tokens per second of the next step.

    Rule: let the requests that will decode next verify d_i drafts each. Their step yields ``sum(1 + min(d_i, a_i))``
    tokens, a_i being what would be accepted (and is still wanted before the request ends), and takes the draft passes
    for max(d_i), the target pass over ``sum(1 + d_i)`` rows with its CUDA-graph padding, sampler and host. Every number
    of passes 0..k and every number of rows is weighed, more drafts than will be accepted too: measured kernels are
    faster at some larger row counts. Ties go to fewer drafts.

    What it bounds: tokens per second of that one step, over all choices of drafts, as long as step time depends on
    which request gets a draft only through the counts (contexts enter by their sum; prefill that joins the step is not
    foreseen; where rows are given up or added to reach a CUDA-graph size, attention is taken to change little with
    them). It is not a bound on a whole run: the best next step may leave worse ones behind, so another policy can come
    out ahead over many steps, in practice by little.
    """

    name: ClassVar[str] = "oracle"

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        rows = max_num_seqs * (1 + k)
        return arrays(rules.KIND_ORACLE, scratch=rows + 1, order=k + 1, rows=rows)
