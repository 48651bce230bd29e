"""Whatever a scenario holds, it is simulated or refused in one line: no traceback, no figure that is not a number."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftcast import load_scenario, simulate
from draftcast.errors import InputError
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import with_values

REQUESTS = 3


def sized(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers of every size from ``low`` to ``high``, both ends among them."""
    between = st.floats(math.log(low), math.log(high)).map(lambda x: min(max(math.exp(x), low), high))
    return st.sampled_from((low, high)) | between


def whole(low: int, high: int) -> st.SearchStrategy[int]:
    return sized(low, high).map(lambda x: min(max(int(x), low), high))


# Beyond the schema's bounds too: what lies there must be refused, not run.
ANY = sized(1e-300, 1e300)
TOKENS = whole(1, 2**40)
LENGTH = st.one_of(
    whole(1, 5000),
    st.fixed_dictionaries({"distribution": st.just("uniform"), "low": whole(1, 200), "high": TOKENS}),
    st.fixed_dictionaries(
        {"distribution": st.sampled_from(("lognormal", "gamma")), "mean": sized(0.01, 1e12), "std": ANY, "max": TOKENS}
    ),
    st.fixed_dictionaries(
        {"distribution": st.sampled_from(("exponential", "geometric")), "mean": ANY, "min": whole(1, 2000)}
    ),
    st.fixed_dictionaries(
        {
            "distribution": st.just("empirical"),
            "values": st.lists(TOKENS, min_size=1, max_size=3),
            "weights": st.lists(ANY | st.just(0.0), min_size=1, max_size=3),
        }
    ),
)
SEGMENT = st.fixed_dictionaries({"duration_s": ANY, "request_rate_rps": ANY | st.just(0.0)})
ARRIVALS = st.one_of(
    st.fixed_dictionaries({"process": st.sampled_from(("poisson", "deterministic")), "request_rate_rps": ANY}),
    st.fixed_dictionaries({"process": st.just("gamma"), "request_rate_rps": ANY, "burstiness": ANY}),
    st.fixed_dictionaries({"process": st.just("piecewise"), "segments": st.lists(SEGMENT, min_size=1, max_size=3)}),
    st.fixed_dictionaries(
        {
            "process": st.just("closed_loop"),
            "concurrency": TOKENS,
            "think_time_s": ANY | st.just(0.0),
            "think_time_distribution": st.sampled_from(("exponential", "constant")),
        }
    ),
)
SHARE = st.floats(0, 1)
ACCEPTANCE = st.one_of(
    st.fixed_dictionaries({"model": st.sampled_from(("constant", "tree")), "alpha": SHARE}),
    st.fixed_dictionaries({"model": st.just("beta"), "mean": sized(1e-300, 1 - 1e-16), "concentration": ANY}),
    st.fixed_dictionaries(
        {"model": st.just("markov"), "alpha_good": SHARE, "alpha_bad": SHARE, "p_gb": SHARE, "p_bg": SHARE}
    ),
    st.fixed_dictionaries(
        {
            "model": st.just("ngram"),
            "match_probability": SHARE,
            "alpha": SHARE,
            "persistence": st.floats(0, 1, exclude_max=True),
            "mean_match_tokens": sized(1, 1e300),
        }
    ),
)
LOOSE = st.integers(-3, 2**70) | st.floats() | st.text(max_size=3) | st.none() | st.lists(st.integers(), max_size=2)
POLICY = st.none() | st.fixed_dictionaries(
    {
        "name": st.sampled_from(("off", "fixed", "goodput", "ema_tiers", "oracle", "batch_schedule")),
        "parameters": st.dictionaries(
            st.sampled_from(("weight", "probe_interval_steps", "tiers", "ema_alpha", "update_interval", "schedule")),
            LOOSE | st.lists(st.fixed_dictionaries({"batch_size": LOOSE, "steps": LOOSE}), max_size=2),
            max_size=1,
        ),
    }
)
SCHEDULE = st.lists(
    st.tuples(whole(1, 2**40), whole(1, 2**70), st.integers(0, 2**70)).map(list), min_size=1, max_size=2
)
RATES = {"model": "per_position", "rates": [0.7, 0.5, 0.3]}
METHODS = ("eagle", "eagle3", "ngram", "ngram_gpu", "suffix", "medusa", "dflash", "mtp", "eagle_tree", "draft_model")
SPEC = "engine.speculative_config"
MODELS = ("opt-125m", "llama-3.2-1b", "llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "none")
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "name": st.text(),
    "hardware": st.sampled_from(("h100-sxm", "a10g", "cpu", "b200", "none")),
    "profile": st.sampled_from(("default", "h100-llama-3.1-8b-affine", "h100-sxm", "none")),
    "engine.version": st.sampled_from(("vllm 0.32", "sglang 0.5")),
    "engine.model": st.sampled_from(MODELS),
    "engine.tensor_parallel_size": whole(1, 2**70),
    "engine.quantization": st.sampled_from((None, "fp8", "awq")),
    "engine.kv_cache_dtype": st.sampled_from(("auto", "fp8")),
    "engine.max_model_len": TOKENS,
    "engine.max_num_seqs": TOKENS,
    "engine.max_num_batched_tokens": TOKENS,
    "engine.max_num_scheduled_tokens": TOKENS,
    "engine.block_size": TOKENS,
    "engine.gpu_memory_utilization": sized(1e-300, 1.0),
    "engine.num_gpu_blocks": TOKENS,
    "engine.enable_prefix_caching": st.booleans(),
    "engine.enable_chunked_prefill": st.booleans(),
    "engine.long_prefill_token_threshold": TOKENS,
    "engine.watermark": sized(1e-300, 0.999999),
    "engine.async_scheduling": st.booleans(),
    "engine.enforce_eager": st.booleans(),
    SPEC: st.none(),
    f"{SPEC}.method": st.sampled_from(METHODS),
    f"{SPEC}.model": st.sampled_from(MODELS),
    f"{SPEC}.num_speculative_tokens": whole(1, 2**70),
    f"{SPEC}.draft_tensor_parallel_size": whole(1, 2**70),
    f"{SPEC}.num_speculative_tokens_per_batch_size": SCHEDULE,
    f"{SPEC}.suffix_decoding_max_tree_depth": TOKENS,
    f"{SPEC}.tree_width": TOKENS,
    f"{SPEC}.max_tree_nodes": TOKENS,
    f"{SPEC}.rejection_sample_method": st.sampled_from(("standard", "synthetic")),
    f"{SPEC}.synthetic_acceptance_length": sized(1, 1e300),
    "cluster.replicas": st.integers(1, 2) | whole(2**11, 2**70),
    "cluster.router": st.sampled_from(("round_robin", "least_loaded", "power_of_two", "prefix_affinity")),
    "workload.arrivals": ARRIVALS,
    "workload.duration_s": ANY,
    "workload.max_model_len_action": st.sampled_from(("error", "clip", "drop")),
    "workload.lengths.prompt_tokens": LENGTH,
    "workload.lengths.output_tokens": LENGTH,
    "acceptance": ACCEPTANCE,
    "policy": POLICY,
    "slo": st.fixed_dictionaries({"ttft_ms": ANY, "attainment": sized(1e-300, 1)}),
    "statistics.replications": st.integers(1, 2) | whole(2**11, 2**70),
    "statistics.confidence": st.floats(0.5, 1),
    "statistics.warmup": st.sampled_from(("auto", "none")),
}
VALUES = st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=4, unique=True).flatmap(
    lambda keys: st.fixed_dictionaries({key: FIELDS[key] for key in keys})
)
# Another method is refused without acceptance of its own: it comes with some.
VALUES = VALUES.map(lambda values: {"acceptance": RATES, **values} if f"{SPEC}.method" in values else values)


@pytest.fixture(scope="module")
def default() -> Scenario:
    changes = ("statistics.replications=1", "engine.max_model_len=null", "workload.lengths.output_tokens.max=200")
    return load_scenario(overrides=[f"workload.num_requests={REQUESTS}", *changes])


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(values=VALUES)
def test_every_scenario_is_simulated_or_refused(default: Scenario, values: dict[str, Any]) -> None:
    try:
        result = simulate(with_values(default, values))
    except InputError as error:
        refusal = error
    else:
        figures = result.summary["figures"]
        assert figures["completed"].mean <= REQUESTS
        for name in ("mean_ttft_s", "mean_e2el_s", "output_throughput"):
            assert math.isfinite(figures[name].mean), name
        return
    assert "\n" not in str(refusal)
    assert refusal.key or refusal.file
