"""Methods: the facts of vLLM 0.32 and the rows of every draft pass, by hand."""

from typing import Any

import numpy as np
import pytest

from draftcast.errors import ModelError, ScenarioError
from draftcast.kernels.model.catalog import load_model
from draftcast.sim.cost import step_time
from draftcast.sim.cost.methods import METHODS, DraftPlan, by_rule, get_method
from draftcast.sim.cost.step_cost import head_of

TARGET = load_model("llama-3.1-8b")

# name: slots, lookahead, asynchronous, drops the last prefix block, at k = 4. Slots: the table on top of vLLM 0.32's
# max_num_new_slots_for_drafting; lookahead: its num_lookahead_tokens.
FACTS = {
    "none": (0, 0, True, False),
    "draft_model": (1, 4, True, False),
    "draft_ahead": (0, 0, True, False),
    "eagle": (0, 4, True, True),
    "eagle3": (0, 4, True, True),
    "mtp": (0, 4, True, True),
    "p_eagle": (3, 4, True, True),
    "pard": (4, 4, True, False),
    "medusa": (0, 0, False, False),
    "mlp_speculator": (0, 0, False, False),
    "arctic": (0, 0, False, False),
    "dflash": (4, 5, True, True),
    "dspark": (3, 4, True, True),
    "ngram": (0, 0, False, False),
    "ngram_gpu": (0, 0, True, False),
    "suffix": (0, 0, False, False),
    "eagle_tree": (0, 4, True, True),
}
# Rows of the draft's passes over N = 10 target rows of B = 2 requests, k = 4; then the same with k = 0.
PASSES = {
    "none": ((), ()),
    "draft_model": ((12, 2, 2, 2), (10,)),
    # Behind the drafts that are verified, the target taking no time here, and then those that are made anew.
    "draft_ahead": ((10, 2, 2, 2, 2, 2, 2, 2, 2), (10,)),
    "eagle": ((10, 2, 2, 2), (10,)),
    "eagle3": ((10, 2, 2, 2), (10,)),
    "mtp": ((10, 2, 2, 2), (10,)),
    "p_eagle": ((16,), (10,)),
    "pard": ((18,), (10,)),
    "medusa": ((2, 2, 2, 2), ()),
    "mlp_speculator": ((2, 2, 2, 2), ()),
    "arctic": ((2, 2, 2, 2), ()),
    "dflash": ((10,), ()),
    "dspark": ((8,), ()),
    "ngram": ((), ()),
    "ngram_gpu": ((), ()),
    "suffix": ((), ()),
    "eagle_tree": ((10, 20, 20, 20), (10,)),
}


def fill(record: Any, **fields: float) -> None:
    for name, value in fields.items():
        record[name] = value


ONE_DRAFT_TOKEN = {"eagle": (8,), "p_eagle": (8,), "pard": (12,)}
"""The same over 8 target rows of 4 requests, k = 1."""


def passes_of(name: str) -> dict[tuple[int, int, int], tuple[int, ...]]:
    """Rows of the draft's passes by target rows, drafting requests and k."""
    with_drafts, without = PASSES[name]
    one = {(8, 4, 1): ONE_DRAFT_TOKEN[name]} if name in ONE_DRAFT_TOKEN else {}
    # A dynamic k of 0: nobody drafts, but a draft with a KV cache reads the target's rows all the same.
    return {(10, 2, 4): with_drafts, (10, 0, 0): without, **one}


def test_every_method_is_covered() -> None:
    assert set(METHODS) == set(FACTS) == set(PASSES)


@pytest.mark.parametrize("name", METHODS)
def test_vllm_facts(name: str) -> None:
    method = get_method(name)
    slots, lookahead = by_rule(method.slots_rule, 4), by_rule(method.lookahead_rule, 4)
    assert (slots, lookahead, method.is_async, method.drops_last_prefix_block) == FACTS[name]
    assert by_rule(method.slots_rule, 0) == by_rule(method.lookahead_rule, 0) == 0
    assert method.source


def test_one_draft_token() -> None:
    assert by_rule(get_method("p_eagle").slots_rule, 1) == 0


def test_kinds() -> None:
    assert {name for name, method in METHODS.items() if method.proposes_on_host} == {"ngram", "suffix"}
    assert {name for name, method in METHODS.items() if method.proposes_by_match} == {"ngram", "ngram_gpu", "suffix"}
    assert {name for name, method in METHODS.items() if method.needs_draft_model} == {
        "draft_model",
        "draft_ahead",
        "pard",
    }
    assert {name for name, method in METHODS.items() if not method.drafts} == {"none"}


def test_compiled_plan_constants_agree() -> None:
    for plan in DraftPlan:
        if plan != DraftPlan.NONE:
            assert getattr(step_time, plan.name) == plan


def test_tree_nodes() -> None:
    tree = get_method("eagle_tree")
    assert (tree.tree_width, tree.max_tree_nodes) == (10, 60)
    assert [tree.verify_nodes(depth) for depth in (0, 1, 5, 6, 8)] == [0, 10, 60, 60, 60]
    small = tree.with_tree(width=4, max_nodes=6)
    assert [small.verify_rows(depth) for depth in (0, 1, 2)] == [1, 5, 7]
    # Four of the root, then four children of each of the four best nodes of a level.
    assert tree.with_tree(width=4).verify_nodes(9) == 4 + 8 * 16
    # Medusa's and an n-gram's: every node has children.
    for name in ("medusa", "ngram"):
        assert get_method(name).verify_nodes(3) == 3
        assert get_method(name).with_tree(width=4).verify_nodes(3) == 4 + 16 + 64
        assert get_method(name).with_tree(width=4, max_nodes=30).verify_nodes(3) == 30
    assert get_method("eagle").verify_rows(5) == 6
    assert get_method("none").verify_rows(0) == 1


def test_unknown_name_lists_the_choices() -> None:
    with pytest.raises(
        ScenarioError, match="method = 'eagle4': must be one of none, draft_model, draft_ahead, eagle, eagle3"
    ):
        get_method("eagle4")


def test_heads_follow_from_the_target() -> None:
    for name in ("eagle", "eagle3", "eagle_tree", "p_eagle", "dflash", "dspark", "medusa", "mlp_speculator", "arctic"):
        head = head_of(get_method(name), TARGET, None, 3)
        assert head is not None
        assert head.name.startswith(TARGET.name)
    for name in ("none", "ngram", "ngram_gpu", "suffix"):
        assert head_of(get_method(name), TARGET, None, 3) is None
    assert head_of(get_method("draft_model"), TARGET, load_model("llama-3.2-1b"), 3) == load_model("llama-3.2-1b")
    with pytest.raises(ScenarioError, match="draft_model = None: required by method pard"):
        head_of(get_method("pard"), TARGET, None, 3)
    with pytest.raises(ScenarioError, match="method ngram runs no draft model"):
        head_of(get_method("ngram"), TARGET, TARGET, 3)
    with pytest.raises(ModelError, match="no multi-token-prediction layer"):
        head_of(get_method("mtp"), TARGET, None, 1)


def test_pass_rows_are_what_the_step_cost_charges() -> None:
    """Tables that cost one second a row turn the seconds of a draft into the sum of its passes' rows."""
    ramp = np.zeros((101, 3))
    ramp[:, 2] = np.arange(101)
    nothing = np.zeros((1, 3))
    for name, method in METHODS.items():
        params = np.zeros(1, step_time.PARAMS)
        params[0]["plan"] = method.plan
        params[0]["extra_first_rows"] = method.extra_first_rows
        params[0]["block_rows_beyond_k"] = method.block_rows_beyond_k
        params[0]["tree_width"] = method.tree_width
        params[0]["drafts_ahead"] = method.drafts_ahead
        params[0]["cuda_graph_rows"] = 100
        over_rows = method.plan in (DraftPlan.AUTOREGRESSIVE, DraftPlan.PARALLEL)
        cost = step_time.cost_without_tables(params)._replace(
            draft_first=ramp if over_rows else nothing,
            draft_next=ramp,
            draft_serial=ramp if method.plan == DraftPlan.HEADS else nothing,
        )
        f = step_time.empty_record(step_time.FEATURES)
        for (rows, requests, k), passes in passes_of(name).items():
            f["tokens"] = f["decode_tokens"] = rows
            f["draft_seqs"] = requests
            f["draft_tokens"] = requests * k
            f["draft_passes"] = k
            out = step_time.empty_record(step_time.TIMES)
            step_time.step_time(cost, f, out)
            assert out["draft_s"] == sum(passes), name
