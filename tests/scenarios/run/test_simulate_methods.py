"""Every drafting method and acceptance model through ``draftcast.simulate``: it runs and yields what it implies."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from request_checks import check_requests

from draftcast import RunResult, load_scenario, simulate
from draftcast.scenarios.run.workload_spec import acceptance_models
from draftcast.scenarios.schema import METHODS
from draftcast.sim.acceptance.model import AcceptanceModel
from draftcast.sim.cost.methods import METHODS as FACTS

SMALL = (
    "workload.num_requests=300",
    "workload.arrivals.request_rate_rps=20",
    "workload.lengths={prompt_tokens: 200, output_tokens: 150}",
    "statistics={replications: 1, warmup: none}",
)
K = 3
RATES = "acceptance={model: per_position, rates: [0.8, 0.5, 0.3]}"
ARCTIC = ("engine.version=vllm 0.11",)
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


def of_method(method: str) -> tuple[RunResult, AcceptanceModel]:
    facts = FACTS[method]
    fields = {"model": "llama-3.2-1b"} if facts.needs_draft_model else {}
    acceptance = TREE if facts.is_tree else MATCHES if facts.proposes_by_match else RATES
    engine = {"mtp": DEEPSEEK, "mlp_speculator": ("engine.version=vllm 0.10",), "arctic": ARCTIC}.get(method, ())
    result, model = run(*engine, spec(method, **fields), acceptance)
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
    for method in METHODS:
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
    assert draft_s("p_eagle") < draft_s("eagle3")
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
    result, model = run(longer, "workload.num_requests=3000", spec(method), acceptance)
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
