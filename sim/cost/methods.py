"""Speculative decoding methods: how many rows and KV slots each one asks for, and what its draft runs.

Facts of vLLM are those of vLLM 0.32 (`config/speculative.py`: slots and lookahead; `config/vllm.py`: asynchronous
scheduling).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal, Self

from draftcast.errors import ScenarioError
from draftcast.yaml_text import yaml_beside

SlotRule = Literal["0", "1", "k-1", "k", "k+1"]
Growth = Literal["", "best", "all", "breadth"]


class DraftPlan(IntEnum):
    """How the draft of a step is run; the values are parameters of the compiled step cost and never change."""

    NONE = 0
    # First pass over the target's rows (also with k = 0), then k-1 passes of one row (or tree level) per request.
    AUTOREGRESSIVE = 1
    PARALLEL = 2  # one pass over the target's rows and the masked rows of every request
    HEADS = 3  # one head after the other on the last hidden state of each request, no KV
    CONTEXT_BLOCK = 4  # context K/V projection over the target's rows, then one pass over a block of rows per request
    HOST_SEARCH = 5  # no device work; the host searches text
    DEVICE_SEARCH = 6  # the device searches text


@dataclass(frozen=True, slots=True)
class Method:
    """One drafting method. Input rows and KV slots go by rules of k, the configured ``num_speculative_tokens``."""

    name: str  # in scenario files and results
    plan: DraftPlan
    source: str  # where the facts come from
    vllm_method: str | None = None  # vLLM's ``--speculative-config`` ``method``; None: not a method of vLLM
    parallel_drafting: bool = False  # vLLM's flag
    slots_rule: SlotRule = "0"  # input rows the method adds per request to the scheduler's input budget
    lookahead_rule: SlotRule = "0"  # KV slots reserved past the scheduled tokens
    is_async: bool = False  # whether vLLM schedules step n+1 before step n's output is known
    # EAGLE family: the last block of a prefix hit is computed again, because its hidden states are needed.
    drops_last_prefix_block: bool = False
    extra_first_rows: int = 0  # rows per drafting request that the first pass adds to the target's rows
    block_rows_beyond_k: int = 0  # rows per request of a parallel or block pass minus its draft tokens
    needs_draft_model: bool = False  # must be named; the EAGLE and MTP heads follow from the target
    drafts_ahead: bool = False  # on GPUs of its own, one round ahead of the target
    is_tree: bool = False  # verifies a tree of drafts; ``k`` is then its depth
    # How a tree of it grows, see `draftcast.sim.acceptance.tree_shape`; empty: it drafts chains alone.
    growth: Growth = ""
    tree_width: int = 1  # children of a node, and rows per request of EAGLE's later drafting passes; 1: a chain
    max_tree_nodes: int = 0  # drafts that are verified of all nodes of the tree; 0: all of them
    min_tree_width: int = 0  # children of the narrowest node of a tree of growth ``breadth``; 0: ``tree_width``
    head_drafts: int = 0  # of a head, where a text search on the host may take its rounds over; 0: no such search

    def of_head(self, drafts: int) -> int:
        """Of so many drafts at most those of the head, where a text search may have more."""
        return self.head_drafts or drafts

    @property
    def proposes_on_host(self) -> bool:
        """Whether the host searches text for the drafts (n-gram, suffix, suffix beside a head)."""
        return self.plan == DraftPlan.HOST_SEARCH or self.head_drafts > 0

    @property
    def proposes_by_match(self) -> bool:
        """Whether fewer than k drafts, or none, may be proposed."""
        return self.plan in (DraftPlan.HOST_SEARCH, DraftPlan.DEVICE_SEARCH)

    @property
    def drafts(self) -> bool:
        """False for ``none`` alone."""
        return self.plan != DraftPlan.NONE

    def verify_nodes(self, k: int) -> int:
        """Draft tokens verified per request at depth ``k``: k, or the nodes of a tree of that depth."""
        if not self.is_tree or k <= 0:
            return max(k, 0) if self.drafts else 0
        nodes, level = 0, 1
        for _ in range(k):
            level = int(min(level, self.tree_parents)) * self.tree_width
            nodes += level
        return min(nodes, self.max_tree_nodes) if self.max_tree_nodes else nodes

    @property
    def tree_parents(self) -> float:
        """The most nodes of a level that grow children, as many each (best: EAGLE-2, arXiv 2406.16858, section 4.1)."""
        return self.tree_width if self.growth == "best" else math.inf

    def verify_rows(self, k: int) -> int:
        """Target rows of one verifying request: its pending token and every draft."""
        return 1 + self.verify_nodes(k)

    def with_tree(self, width: int, max_nodes: int = 0, narrowest: int = 0) -> Self:
        """This method, which has a ``growth``, with a tree of ``width`` children a node.

        At most ``max_nodes`` (0: all) are verified, or as many with ``narrowest``, because SGLang pads its rows.
        """
        assert self.growth
        return replace(self, is_tree=True, tree_width=width, max_tree_nodes=max_nodes, min_tree_width=narrowest)


def by_rule(rule: SlotRule, k: int) -> int:
    """What a rule says of k drafts; nothing of none."""
    return 0 if k <= 0 else {"0": 0, "1": 1, "k-1": k - 1, "k": k, "k+1": k + 1}[rule]


METHODS: Mapping[str, Method] = {
    name: Method(name=name, **{**facts, "plan": DraftPlan[facts["plan"]]})
    for name, facts in yaml_beside(__file__, "methods.yaml").items()
}
"""Every method by name. A new method is one entry of ``methods.yaml`` (and a draft plan, if none fits)."""


def get_method(name: str) -> Method:
    """The method called ``name``. Raises ScenarioError that lists the choices."""
    if name not in METHODS:
        raise ScenarioError(f"must be one of {', '.join(METHODS)}", key="method", value=name)
    return METHODS[name]
