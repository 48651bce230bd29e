"""Every drafting method and acceptance model through ``draftcast.simulate``: it runs and yields what it implies."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import pytest
from request_checks import check_requests

from draftcast import RunResult, load_scenario, simulate
from draftcast.scenarios.run.workload_spec import acceptance_models
from draftcast.scenarios.schema import METHODS, SpeculativeConfig
from draftcast.scenarios.schema.speculation import UNTIMED
from draftcast.sim.acceptance.model import AcceptanceModel
from draftcast.sim.cost.methods import METHODS as FACTS
from draftcast.sim.cost.methods import DraftPlan

SMALL = (
    "workload.num_requests=300",
    "workload.arrivals.request_rate_rps=20",
    "workload.lengths={prompt_tokens: 200, output_tokens: 150}",
    "statistics={replications: 1, warmup: none}",
)
K = 3
RATES = "acceptance={model: per_position, rates: [0.8, 0.5, 0.3]}"
LONG = "acceptance={model: constant, alpha: 0.6}"
FIRST_RUNNER = "engine.version=vllm 0.32 v1"  # vLLM 0.32's second does not run P-EAGLE
ARCTIC = ("engine.version=vllm 0.11",)
SGLANG = ("engine.version=sglang 0.5",)  # vLLM 0.32 drafts no trees
TREE = "acceptance={model: tree, alpha: 0.4, widths: [6, 4, 2]}"
MATCHES = "acceptance={model: ngram, match_probability: 0.4, alpha: 0.7}"
DEEPSEEK = ("engine.model=deepseek-v3", "engine.quantization=fp8", "engine.tensor_parallel_size=8", "hardware=h200")


def spec(method: str, **fields: Any) -> str:
    return f"engine.speculative_config={ {'method': method, 'num_speculative_tokens': K, **fields} }"


@functools.cache
def run(*overrides: str) -> tuple[RunResult, AcceptanceModel | None]:
    scenario = load_scenario("default", overrides=[*SMALL, *overrides])
    models = acceptance_models(scenario)
    return simulate(scenario), models[0] if models else None


def of_method(method: str, k: int = K) -> tuple[RunResult, AcceptanceModel]:
    facts = FACTS[method]
    fields = {"model": "llama-3.2-1b"} if facts.needs_draft_model else {}
    acceptance = TREE if facts.is_tree else MATCHES if facts.proposes_by_match else RATES
    engine = {
        "mtp": DEEPSEEK,
        "mlp_speculator": ("engine.version=vllm 0.10",),
        "arctic": ARCTIC,
        "eagle_tree": SGLANG,
    }.get(method, ())
    result, model = run(*engine, spec(method, num_speculative_tokens=k, **fields), acceptance)
    assert model is not None
    return result, model


def figure(result: RunResult, name: str) -> float:
    return float(result.summary["figures"][name].mean)


@pytest.mark.parametrize("method", METHODS)
def test_method_runs_and_accepts_what_its_model_implies(method: str) -> None:
    result, model = of_method(method)
    facts = FACTS[method]
    rows = result.requests
    check_requests(result.requests, tolerance=1e-9)
    assert (rows["output_tokens"] == 150).all()
    # 300 requests of 150 tokens are some 20,000 rounds; a round's accepted drafts scatter by about 1.1.
    assert figure(result, "mean_acceptance_length") == pytest.approx(model.mean_acceptance_length(K), abs=0.035)
    # Tokens add up: a request's first token comes with the prefill; a last round may accept past the end.
    emitted = rows["num_drafts"] + rows["num_accepted_tokens"] + 1
    if not facts.proposes_by_match:
        assert (emitted - rows["output_tokens"]).between(0, K).all()
    per_round = rows["num_draft_tokens"] / rows["num_drafts"]
    assert (per_round <= facts.verify_nodes(K)).all()
    if method != "suffix":
        assert per_round.mean() > facts.verify_nodes(K) - 0.2  # a budget or the end of the context may trim a few
    assert figure(result, "mean_time_draft_s") > 0
    assert figure(result, "mean_time_rejected_s") > 0


def test_synchronous_methods_show_the_host() -> None:
    # Trees run on SGLang, whose host the device waits for.
    for method in sorted(set(METHODS) - {"eagle_tree"}):
        host_s = figure(of_method(method)[0], "mean_time_host_s")
        if FACTS[method].is_async:
            assert host_s < 0.02 * figure(of_method(method)[0], "mean_e2el_s"), method
        else:
            assert host_s > 0.02 * figure(of_method(method)[0], "mean_e2el_s"), method


def test_methods_cost_what_they_draft() -> None:
    """Equal acceptance, so only costs differ: a head is cheaper than a model, a parallel pass than k of them."""

    def draft_s(method: str) -> float:
        return figure(of_method(method)[0], "mean_time_draft_s")

    assert draft_s("medusa") < draft_s("eagle") < draft_s("draft_model")
    passes, one_pass = (run(FIRST_RUNNER, spec(name, num_speculative_tokens=5), LONG) for name in ("eagle3", "p_eagle"))
    # Its one pass runs through four layers.
    assert figure(one_pass[0], "mean_time_draft_s") < figure(passes[0], "mean_time_draft_s")
    assert draft_s("pard") < draft_s("draft_model")
    assert draft_s("ngram_gpu") < draft_s("medusa")


@pytest.mark.parametrize(
    ("method", "acceptance"),
    [
        ("eagle3", "acceptance={model: constant, alpha: 0.7}"),
        ("eagle3", "acceptance={model: beta, mean: 0.6, concentration: 3}"),
        ("eagle3", "acceptance={model: markov, alpha_good: 0.9, alpha_bad: 0.3, p_gb: 0.1, p_bg: 0.2}"),
        ("eagle_tree", "acceptance={model: tree, rates: [0.9, 0.7, 0.4]}"),
        ("ngram", "acceptance={model: ngram, match_probability: 0.3, rates: [0.8, 0.6, 0.5], persistence: 0.5}"),
        ("suffix", "acceptance={model: ngram, match_probability: 0.6, alpha: 0.8, mean_match_tokens: 2}"),
    ],
)
def test_acceptance_models_yield_their_formula(method: str, acceptance: str) -> None:
    longer = "workload.lengths={prompt_tokens: 100, output_tokens: 400}"
    engine = SGLANG if method == "eagle_tree" else ()
    result, model = run(longer, "workload.num_requests=3000", *engine, spec(method), acceptance)
    assert model is not None
    # Requests of beta differ by 0.6: 0.011 over 3,000 of them.
    assert figure(result, "mean_acceptance_length") == pytest.approx(model.mean_acceptance_length(K), abs=0.04)


def test_suffix_decoding_takes_rounds_over_from_arctics_lstm() -> None:
    """Each number in the direction of its source: what the search drafts costs no pass of the LSTM and is longer."""

    def hybrid(match: float, k: int = 3, depth: int = 32, **more: float) -> tuple[RunResult, AcceptanceModel]:
        config = {"num_speculative_tokens": k, "enable_suffix_decoding": "true", "suffix_cache_max_depth": depth}
        chain = {"model": "chain", "alpha_good": 0.9, "alpha_bad": 0.6, "mean_match_tokens": 8.0, **more}
        acceptance = ", ".join(f"{key}: {value}" for key, value in {**chain, "match_probability": match}.items())
        result, model = run(*ARCTIC, spec("arctic", **config).replace("'", ""), f"acceptance={{{acceptance}}}")
        assert model is not None
        return result, model

    alone, _ = run(*ARCTIC, spec("arctic"), "acceptance={model: constant, alpha: 0.6}")
    never, often, sparse, cut = hybrid(0.0), hybrid(0.5), hybrid(0.5, k=1), hybrid(0.5, depth=4)
    for (result, model), most in ((never, 32), (often, 32), (sparse, 32), (cut, 4)):
        assert figure(result, "mean_acceptance_length") == pytest.approx(model.mean_acceptance_length(most), rel=0.02)
    assert never[0].requests["num_accepted_tokens"].equals(alone.requests["num_accepted_tokens"])
    assert figure(never[0], "mean_time_draft_s") > figure(alone, "mean_time_draft_s")  # the search itself
    assert figure(often[0], "mean_acceptance_length") > figure(never[0], "mean_acceptance_length")
    assert figure(often[0], "mean_time_draft_s") < figure(never[0], "mean_time_draft_s")
    assert figure(sparse[0], "mean_time_draft_s") < figure(often[0], "mean_time_draft_s")
    drafted = [result.requests["num_draft_tokens"] / result.requests["num_drafts"] for result, _ in (cut, often)]
    assert drafted[0].max() <= 4 < drafted[1].mean() < 8


@pytest.mark.parametrize("method", METHODS)
def test_more_drafts_yield_more_tokens_and_cost_more(method: str) -> None:
    few, many = of_method(method, 1)[0], of_method(method)[0]
    assert figure(few, "mean_acceptance_length") < figure(many, "mean_acceptance_length")
    drafted = [result.requests["num_draft_tokens"].sum() / figure(result, "num_drafts") for result in (few, many)]
    assert drafted[0] < drafted[1]
    if FACTS[method].plan in (DraftPlan.AUTOREGRESSIVE, DraftPlan.HEADS):  # a pass or a head for each
        seconds = [figure(result, "mean_time_draft_s") / figure(result, "num_drafts") for result in (few, many)]
        assert seconds[0] < seconds[1]


class Direction(NamedTuple):
    """From ``low`` to ``high``, two texts of ``speculative_config``, a figure rises."""

    field: str
    low: str
    high: str
    rises: str
    condition: tuple[str, ...] = (RATES,)


EAGLE3 = "{method: eagle3, num_speculative_tokens: 3, "
MODEL = "{method: draft_model, num_speculative_tokens: 3, model: llama-3.2-3b, "
TREES = "{method: eagle_tree, num_speculative_tokens: 3, "
NARROW = "{method: ngram, num_speculative_tokens: 3, tree_width: 8, max_tree_nodes: 600, "
MATCHED_TREE = "acceptance={model: tree, alpha: 0.4, match_probability: 0.5}"
OF_TREES = ("acceptance={model: tree, alpha: 0.4}", *SGLANG)
FORCED = EAGLE3 + "rejection_sample_method: synthetic, "
DSPARK = "{method: dspark, num_speculative_tokens: 7, "
UNSURE = ("acceptance={model: constant, alpha: 0.4, confidence_discrimination: 0.9}", "profile=default")
DIRECTIONS = [
    # vLLM's own keys (config/speculative.py): a shorter draft in larger batches, a larger draft model, ...
    Direction(
        "num_speculative_tokens_per_batch_size",
        EAGLE3 + "num_speculative_tokens_per_batch_size: [[1, 1, 3], [2, 1024, 1]]}",
        EAGLE3 + "}",
        "drafts a round",
    ),
    Direction("model", MODEL.replace("3b", "1b") + "}", MODEL + "}", "mean_time_draft_s"),
    # ... one that stands whole on a rank reads all its weights there, ...
    Direction(
        "draft_tensor_parallel_size",
        MODEL + "draft_tensor_parallel_size: 2}",
        MODEL + "draft_tensor_parallel_size: 1}",
        "mean_time_draft_s",
        (RATES, "engine.tensor_parallel_size=2"),
    ),
    # ... bytes of its weights and cache, ...
    Direction("quantization", MODEL + "quantization: fp8}", MODEL + "}", "mean_time_draft_s"),
    Direction("kv_cache_dtype", MODEL + "}", MODEL + "kv_cache_dtype: fp8}", "kv_cache_tokens"),
    # ... one pass for all drafts, ...
    Direction(
        "parallel_drafting",
        EAGLE3.replace(": 3,", ": 5,") + "parallel_drafting: true}",
        EAGLE3.replace(": 3,", ": 5,") + "}",
        "mean_time_draft_s",
        (LONG, FIRST_RUNNER),
    ),
    # ... the last block of a hit, ...
    Direction(
        "disable_eagle_block_drop",
        EAGLE3 + "}",
        EAGLE3 + "disable_eagle_block_drop: true}",
        "prefix_cache_hit_rate",
        (RATES, "workload.system_prompt={tokens: 160}"),
    ),
    Direction(
        "disable_lookahead_block_hashes",
        EAGLE3 + "disable_lookahead_block_hashes: true}",
        EAGLE3 + "}",
        "prefix_cache_hit_rate",
        (RATES, "workload.system_prompt={tokens: 168}", "engine.version=vllm 0.33"),
    ),
    # ... and a host that waits for the drafts' exact rows.
    Direction(
        "disable_padded_drafter_batch",
        EAGLE3 + "}",
        EAGLE3 + "disable_padded_drafter_batch: true}",
        "mean_time_host_s",
    ),
    # SuffixDecoding, arXiv 2411.04975: match and draft together are no longer than the tree is deep.
    Direction(
        "suffix_decoding_max_tree_depth",
        "{method: suffix, suffix_decoding_max_tree_depth: 2}",
        "{method: suffix}",
        "drafts a round",
        (MATCHES,),
    ),
    Direction("rejection_sample_method", EAGLE3 + "}", FORCED + "synthetic_acceptance_length: 3.9}", "length"),
    *(
        Direction(key, FORCED + f"{key}: {low}}}", FORCED + f"{key}: {high}}}", "length")
        for key, low, high in (
            ("synthetic_acceptance_length", "1.5", "3.5"),
            ("synthetic_acceptance_rates", "[0.9, 0.5, 0.1]", "[0.9, 0.8, 0.7]"),
        )
    ),
    # DSpark: what is unlikely to be accepted is not verified.
    Direction(
        "enable_adaptive_verification",
        DSPARK + "enable_adaptive_verification: true}",
        DSPARK + "}",
        "mean_time_rejected_s",
        UNSURE,
    ),
    # EAGLE-2, arXiv 2406.16858: more nodes, more of which are accepted, and more rows to verify.
    *(
        Direction(key, TREES + f"{key}: {low}}}", TREES + f"{key}: {high}}}", figure, OF_TREES)
        for key, low, high in (("tree_width", 2, 8), ("max_tree_nodes", 6, 24))
        for figure in ("length", "drafts a round")
    ),
    # Medusa, arXiv 2401.10774, section 2.3.3 and figure 4: the same; and SGLang's n-grams (trie.cpp, buildRecency).
    *(
        Direction(key, f"{trees}{more}{key}: {low}}}", f"{trees}{more}{key}: {high}}}", figure, condition)
        for trees, condition in (
            ("{method: medusa, num_speculative_tokens: 3, ", ("acceptance={model: tree, alpha: 0.4}",)),
            ("{method: ngram, num_speculative_tokens: 3, ", (MATCHED_TREE, *SGLANG)),
        )
        for key, low, high, more in (
            ("tree_width", 2, 8, "max_tree_nodes: 60, "),
            ("max_tree_nodes", 6, 24, "tree_width: 4, "),
        )
        for figure in ("length", "drafts a round", "mean_time_rejected_s")
    ),
    # A tree that narrows less has more branches (SGLang's min_bfs_breadth).
    Direction(
        "min_tree_width", *(NARROW + f"min_tree_width: {n}}}" for n in (1, 8)), "length", (MATCHED_TREE, *SGLANG)
    ),
    # A deeper tree, a head more of Medusa for each level.
    *(
        Direction(
            "num_speculative_tokens", f"{tree}num_speculative_tokens: 2}}", f"{tree}num_speculative_tokens: 4}}", *of
        )
        for tree, *of in (
            ("{method: medusa, tree_width: 4, ", "length", OF_TREES[:1]),
            ("{method: medusa, tree_width: 4, ", "mean_time_draft_s", OF_TREES[:1]),
            ("{method: ngram, tree_width: 2, max_tree_nodes: 30, ", "length", (MATCHED_TREE, *SGLANG)),
        )
    ),
]


def name_of(direction: Direction) -> str:
    method = next((f"{name}'s tree: " for name in ("medusa", "ngram") if f"{name}, " in direction.high), "")
    return (method if "tree_width" in direction.high else "") + f"{direction.field}: {direction.rises}"


@pytest.mark.parametrize("direction", DIRECTIONS, ids=name_of)
def test_a_parameter_works_in_the_direction_of_its_source(direction: Direction) -> None:
    def seen(drafts: str) -> float:
        result, _ = run(f"engine.speculative_config={drafts}", *direction.condition)
        if direction.rises == "drafts a round":
            return float(result.requests["num_draft_tokens"].sum() / result.requests["num_drafts"].sum())
        if direction.rises == "kv_cache_tokens":
            return float(result.summary["engine"][direction.rises])
        return figure(result, "mean_acceptance_length" if direction.rises == "length" else direction.rises)

    assert seen(direction.high) > 1.01 * seen(direction.low)


def test_every_parameter_of_a_method_has_its_direction() -> None:
    apart = {"method", "enable_suffix_decoding", "suffix_cache_max_depth"}  # above
    apart |= {"max_model_len"}  # bounds requests in some versions, tested in test_deployment.py
    fields = SpeculativeConfig.model_fields
    timed = {name for name in fields if UNTIMED not in fields[name].metadata}
    assert {direction.field for direction in DIRECTIONS} == timed - apart


def test_results_say_that_no_engine_runs_medusas_tree() -> None:
    result, _ = run("engine.speculative_config={method: medusa, num_speculative_tokens: 3, tree_width: 4}", OF_TREES[0])
    (note,) = (note for note in result.summary["notes"] if "Medusa" in note)
    assert "no engine's release known here runs this" in note
    assert "pull request 15918" in note


def test_synthetic_acceptance_is_what_vllm_would_make_of_it() -> None:
    synthetic = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.4}
    result, _ = run(spec("eagle3", **synthetic))
    rates = [figure(result, f"acceptance_rate_position_{j}") for j in range(K)]
    assert rates == [1.0, pytest.approx(0.4, abs=0.02), 0.0]


def test_off_by_policy_is_not_free() -> None:
    """k = 0 keeps the draft loaded and, for EAGLE, its first pass running: slower than an engine without it."""
    without, _ = run("engine.speculative_config=null")
    off, _ = run(spec("eagle3"), "policy={name: 'off'}")
    assert figure(off, "num_drafts") == 0
    assert figure(off, "mean_time_draft_s") > 0
    assert figure(off, "mean_tpot_s") > figure(without, "mean_tpot_s")
    assert figure(without, "mean_time_draft_s") == 0


def test_an_oracle_rejects_nothing() -> None:
    """Where more rows never take less time a draft that will be rejected cannot pay: any batch has its full graph."""
    graphs = ("profile=default", "engine.cudagraph_mode=FULL")
    oracle, _ = run(spec("eagle3"), RATES, "policy={name: oracle}", *graphs)
    fixed, _ = run(spec("eagle3"), RATES, *graphs)
    assert figure(oracle, "acceptance_rate") == 1.0
    assert figure(oracle, "mean_time_rejected_s") == 0.0
    assert figure(oracle, "mean_tpot_s") < figure(fixed, "mean_tpot_s")


def test_an_oracle_beats_every_fixed_k_on_measured_times() -> None:
    """It does not foresee which batches prompts will join, so it is held to those whose graphs they do not change."""
    graphs = "engine.cudagraph_mode=FULL"
    oracle, _ = run(spec("eagle3"), RATES, "policy={name: oracle}", graphs)
    for k in range(K + 1):
        fixed, _ = run(spec("eagle3", num_speculative_tokens_per_batch_size=[[1, 1, k]]), RATES, graphs)
        assert figure(oracle, "mean_tpot_s") < figure(fixed, "mean_tpot_s"), k


def test_an_oracle_drafts_in_vain_for_a_full_graph() -> None:
    """Equal rows a request replay a full graph: some rejected drafts pay, and the best batches are no worse for it."""
    oracle, _ = run(spec("eagle3"), RATES, "policy={name: oracle}")
    assert 0.0 < figure(oracle, "acceptance_rate") < 1.0
    full, _ = run(spec("eagle3"), RATES, "policy={name: oracle}", "engine.cudagraph_mode=FULL")
    assert figure(full, "acceptance_rate") > figure(oracle, "acceptance_rate")
