"""The scenario file: what it accepts, and that every mistake is one line that names key, value and what is allowed."""

from __future__ import annotations

import json
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftcast.calibration.acceptance.references import reference
from draftcast.errors import InputError, ScenarioError
from draftcast.frozen import nearest_key
from draftcast.kernels.model.dtypes import KV_BYTES, WEIGHT_BYTES
from draftcast.scenarios.run.deployment import deploy
from draftcast.scenarios.run.workload_spec import acceptance_models, workload_spec
from draftcast.scenarios.schema import METHODS, POLICIES, ROUTERS, batch_defaults
from draftcast.scenarios.schema.engine import DTYPES, KV_DTYPES, QUANTIZATIONS
from draftcast.scenarios.schema.load import (
    apply_overrides,
    dump_scenario,
    embedded_scenarios,
    load_scenario,
    scenario_hash,
    to_mapping,
    with_rate,
    with_values,
    without_speculation,
)
from draftcast.scenarios.schema.speculation import SpeculativeConfig
from draftcast.sim import policies
from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.acceptance.compiled import MAX_K
from draftcast.sim.cluster import routers
from draftcast.sim.cost import methods
from draftcast.yaml_text import parse_yaml, write_yaml

RATE = "workload.arrivals.request_rate_rps"
SPEC = "engine.speculative_config"
SGLANG = "engine.version=sglang 0.5"
TREE = f"{SPEC}={{method: eagle_tree, num_speculative_tokens: 3}}"


def refused(*overrides: str, **how: Any) -> str:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(overrides=overrides, **how)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        # unknown keys and wrong units
        ("workload.arrivals.request_rate_ms=3", ["request_rate_ms = 3", "did you mean request_rate_rps?", "allowed: "]),
        ("workload.arrivals.request_rate=3", ["did you mean request_rate_rps?"]),
        ("workload.arrivals.qps=3", ["did you mean request_rate_rps?"]),
        ("slo={ttft_s: 0.2}", ["slo.ttft_s", "did you mean ttft_ms?"]),
        ("engine.max_num_batched_token=8", ["did you mean max_num_batched_tokens?"]),
        ("engine.num_gpu_blocks_override=800", ["did you mean num_gpu_blocks?"]),
        ("max_num_seqs=64", ["did you mean engine.max_num_seqs?"]),
        ("request_rate=3", ["did you mean workload.arrivals.request_rate_rps?"]),
        ("engine.speculative_config.foo=1", ["engine.speculative_config.foo = 1", "unknown key"]),
        ("workload.arrivals.burstiness=2", ["unknown key"]),
        # numbers
        (f"{RATE}=-3", [f"{RATE} = -3", "must be above 0"]),
        (f"{RATE}=0", ["must be above 0"]),
        (f"{RATE}=.nan", ["nan", "must be a finite number"]),
        (f"{RATE}=.inf", ["inf", "must be a finite number"]),
        (f"{RATE}=fast", ["'fast'", "must be a number"]),
        ('engine.max_num_seqs="64"', ["'64'", "must be a whole number"]),
        ("engine.max_num_seqs=1.5", ["1.5", "must be a whole number"]),
        ("engine.tensor_parallel_size=true", ["must be a whole number"]),
        ("engine.gpu_memory_utilization=1.2", ["must be at most 1"]),
        ("engine.watermark=1", ["must be below 1"]),
        ("workload.num_requests=0", ["must be at least 1"]),
        ("workload.lengths.prompt_tokens=0", ["workload.lengths.prompt_tokens", "must be at least 1"]),
        # beyond what is simulated
        (f"{RATE}=1e300", ["1e+300", "must be at most 1000000000"]),
        ("workload.num_requests=100000000", ["must be at most 67108864"]),
        ("workload.lengths.prompt_tokens={distribution: uniform, low: 1, high: 3000000000}", ["high = 3000000000"]),
        ("workload.lengths.prompt_tokens={distribution: gamma, mean: 100, std: 1e-300}", ["std = 1e-300"]),
        ("workload.arrivals={process: closed_loop, concurrency: 2, think_time_s: 1e300}", ["think_time_s = 1e+300"]),
        ("engine.num_gpu_blocks=100000000000", ["engine.num_gpu_blocks = 100000000000", "must be at most 33554432"]),
        ("engine.max_model_len=1", ["engine.max_model_len = 1", "must be at least 2"]),
        ("cluster.replicas=5000", ["must be at most 1024"]),
        ("engine.tensor_parallel_size=2000", ["must be at most 1024"]),
        ("acceptance={model: beta, mean: 0.5, concentration: 1e-300}", ["acceptance.concentration = 1e-300"]),
        ('name="\\ud800"', ["name", "not valid YAML"]),
        # choices
        ("cluster.router=fastest", ["'fastest'", *ROUTERS]),
        (f"{SPEC}.method=magic", ["'magic'", *METHODS]),
        ("workload.arrivals.process=storm", ["'storm'", "poisson", "closed_loop"]),
        (f"{SPEC}.method=any_mtp", ["'any_mtp'", "deepseek_mtp", "qwen3_next_mtp"]),
        ("engine.dtype=bf17", ["'bf17'", "bfloat16"]),
        ("engine.quantization=q4", ["'q4'", "awq"]),
        ("engine.kv_cache_dtype=int3", ["'int3'", "fp8_e4m3"]),
        ("policy.name=clever", ["'clever'", *POLICIES]),
        ("statistics.warmup=some", ["auto or none"]),
        ("schema_version=2", ["schema_version = 2", "must be 1"]),
        # acceptance
        ("acceptance=null", ["acceptance", "required when speculation is on"]),
        ("acceptance={model: trace, path: x, match_probability: 0.5}", ["probability = 0.5", "only for methods ngram"]),
        (f"{SPEC}.num_speculative_tokens=0", ["must be at least 1"]),
        (f"{SPEC}.num_speculative_tokens=65", ["must be at most 64"]),
        (f"{SPEC}.num_speculative_tokens=null", ["required for method eagle3"]),
        ("acceptance.rates=[0.5, 0.6, 0.1]", ["acceptance.rates.1 = 0.6", "never rise"]),
        ("acceptance.rates=[1.5, 0.6, 0.1]", ["acceptance.rates.0 = 1.5", "must be at most 1"]),
        ("acceptance={model: ngram, match_probability: 0.5, alpha: 0.3}", ["only for methods ngram"]),
        ("acceptance={model: tree, rates: [0.9, 0.8, 0.7]}", ["goes with draft trees", "eagle3 drafts a chain"]),
        ("acceptance={model: trace}", ["specdecode_bench"]),
        ("acceptance={model: constant}", ["acceptance.alpha", "required"]),
        # sections that do not agree
        ("workload.arrivals.process=gamma", ["workload.arrivals.burstiness", "required"]),
        ("workload.num_requests=null", ["workload.num_requests", "required with poisson arrivals"]),
        ("workload.lengths=null", ["workload.lengths", "required"]),
        ("workload.classes=[{name: a, share: 0.5}]", ["must sum to 1"]),
        ("workload.classes=[{name: a, share: 0.5}, {name: a, share: 0.5}]", ["classes.1.name", "must differ"]),
        ("workload.classes=[{name: a, share: 1.0, priority: 1}]", ["has no effect unless"]),
        (f"{SPEC}.draft_tensor_parallel_size=2", ["must be 1 or the target's"]),
        (f"{SPEC}.method=draft_model", ["needs a draft model"]),
        (f"{SPEC}.synthetic_acceptance_length=2.0", ["only with rejection_sample_method: synthetic"]),
        (f"{SPEC}.num_speculative_tokens_per_batch_size=[[1, 4, 3], [3, 8, 1]]", ["overlap"]),
        (f"{SPEC}.num_speculative_tokens_per_batch_size=[[2, 4, 3]]", ["must start at batch size 1"]),
        (
            f"{SPEC}={{method: eagle_tree, num_speculative_tokens: 3, rejection_sample_method: synthetic,"
            " synthetic_acceptance_length: 2}",
            ["rejection_sample_method = 'synthetic'", "not a tree's"],
        ),
        ("policy={name: batch_schedule, parameters: {schedule: [[1, 4, 1]]}}", ["policy.parameters.schedule", SPEC]),
        ("policy.name=batch_schedule", ["needs engine.speculative_config.num_speculative_tokens_per_batch_size"]),
        ("slo={attainment: 0.9}", ["give at least one of ttft_ms"]),
        # --set itself
        ("engine", ["'engine'", "key=value"]),
        ("engine.model.x=1", ["goes below a plain value"]),
        ("workload.classes.3.share=1", ["not an index into a list"]),
        ("engine=[1", ["not valid YAML"]),
        (f"{SPEC}.method=dflash2", ["= 'dflash2': DFlash2 is a kind of draft head: give method dflash"]),
        ("engine.=5", ["--set: 'engine.=5': must look like key.key=value"]),
        ("replications=2", ["did you mean statistics.replications?"]),
        ("replica=2", ["did you mean cluster.replicas?"]),
        # what is no schedule
        (f"{SPEC}.num_speculative_tokens_per_batch_size=[[0, 4, 1]]", ["[0, 4, 1]", "1 <= first <= last"]),
        (f"{SPEC}.num_speculative_tokens_per_batch_size=[[1, 0, 1]]", ["[1, 0, 1]", "1 <= first <= last"]),
        (f"{SPEC}.num_speculative_tokens_per_batch_size=[[1, 4, -1]]", ["[1, 4, -1]", "k >= 0"]),
        (f"{SPEC}.num_speculative_tokens_per_batch_size=[[1, 4]]", ["num_speculative_tokens_per_batch_size.0"]),
        (f"{SPEC}.num_speculative_tokens_per_batch_size=[[one, 4, 1]]", ["num_speculative_tokens_per_batch_size.0.0"]),
        (f"{SPEC}.num_speculative_tokens_per_batch_size=[]", ["num_speculative_tokens_per_batch_size"]),
        (f"{SPEC}.num_speculative_tokens_per_batch_size=3", ["num_speculative_tokens_per_batch_size"]),
    ],
)
def test_a_mistake_is_one_line_with_place_key_value_and_choices(override: str, parts: list[str]) -> None:
    base: dict[str, Any] = {}
    if override.startswith("workload.classes.3"):
        base["source"] = "closed-loop-classes"
    elif override.startswith(f"{SPEC}.method=draft_model"):
        text = refused(f"{SPEC}.model=null", override)
        assert all(part in text for part in parts), text
        return
    text = refused(override, **base)
    for part in parts:
        assert part in text, text


@pytest.mark.parametrize(
    ("tree", "acceptance", "parts"),
    [
        ("tree_width=4", "rates: [0.9, 0.8, 0.7]", ["acceptance.rates", "are of one tree", "acceptance.tree_width"]),
        ("tree_width=4", "alpha: 0.5, widths: [4, 5, 1]", ["acceptance.widths.1 = 5", "tree_width = 4"]),
        ("max_tree_nodes=8", "alpha: 0.5, widths: [4, 4, 1]", ["acceptance.widths = ", "9 branches", "nodes = 8"]),
        ("max_tree_nodes=2", "alpha: 0.5", [f"{SPEC}.max_tree_nodes = 2", "depth 3"]),
        ("max_tree_nodes=null", "alpha: 0.5, tree_width: 4", ["acceptance.tree_width = 4", "alpha needs none"]),
        ("tree_width=2000", "alpha: 0.5", [f"{SPEC}.tree_width = 2000", "at most 1024"]),
    ],
)
def test_a_tree_and_its_acceptance_must_agree(tree: str, acceptance: str, parts: list[str]) -> None:
    text = refused(SGLANG, TREE, f"{SPEC}.{tree}", f"acceptance={{model: tree, {acceptance}}}")
    assert all(part in text for part in parts), text


def test_medusa_and_ngram_draft_trees_where_a_shape_is_given() -> None:
    own, matches = (
        "acceptance={model: tree, alpha: 0.5}",
        "acceptance={model: tree, alpha: 0.5, match_probability: 0.4}",
    )
    medusa = f"{SPEC}={{method: medusa, num_speculative_tokens: 3, tree_width: 4}}"
    ngram = f"{SPEC}={{method: ngram, num_speculative_tokens: 3, max_tree_nodes: 9}}"
    for drafts, acceptance, shape, name in (
        (medusa, own, (4, 63), "medusa_tree"),
        (ngram, matches, (10, 9), "ngram_tree"),
        (TREE, own, (10, 60), "eagle_tree"),
    ):
        spec = load_scenario(overrides=[SGLANG, drafts, acceptance]).speculative_config
        assert spec is not None
        assert spec.tree is not None
        assert (spec.tree.tree_width, spec.tree.max_tree_nodes, spec.drafting) == (*shape, name)
    rates = "acceptance={model: per_position, rates: [0.6, 0.4, 0.2]}"
    chain = load_scenario(overrides=[f"{SPEC}={{method: medusa, num_speculative_tokens: 3}}", rates]).speculative_config
    assert chain is not None
    assert (chain.tree, chain.drafting) == (None, "medusa")
    # Medusa's tree runs on no engine of today, an n-gram's on SGLang.
    assert load_scenario(overrides=[medusa, own]).method == "medusa"
    assert "vllm 0.32 cannot run it: it drafts no trees" in refused(ngram, matches)
    chain_model = "acceptance={model: ngram, alpha: 0.5, match_probability: 0.4}"
    assert "ngram drafts a tree here" in refused(SGLANG, ngram, chain_model)
    assert "only for methods ngram" in refused(SGLANG, TREE, matches)
    assert "only with methods eagle_tree, medusa, ngram" in refused(f"{SPEC}.tree_width=4")
    assert "are of one tree" in refused(medusa, "acceptance={model: tree, rates: [0.6, 0.4, 0.2]}")


@pytest.mark.parametrize(("key", "small", "large"), [("tree_width", 4, 9), ("max_tree_nodes", 6, 40)])
def test_rates_of_a_larger_tree_are_fewer_in_a_smaller_one(key: str, small: int, large: int) -> None:
    """The same rates as measured with two trees, carried over to one that is smaller than both."""
    drafts = f"{SPEC}={{method: ngram, num_speculative_tokens: 2, tree_width: 2, max_tree_nodes: 4}}"
    shape = {"tree_width": 9, "max_tree_nodes": 40}

    def length(**measured: int) -> float:
        shapes = ", ".join(f"{name}: {value}" for name, value in {**shape, **measured}.items())
        section = f"acceptance={{model: tree, rates: [0.8, 0.4], match_probability: 0.5, {shapes}}}"
        (model,) = acceptance_models(load_scenario(overrides=[SGLANG, drafts, section]))
        return model.mean_acceptance_length(2)

    assert length(**{key: small}) > length(**{key: large})
    own = "acceptance={model: tree, rates: [0.6, 0.4, 0.2], "
    assert "of method ngram's trees alone" in refused(SGLANG, TREE, f"{own}min_tree_width: 1}}")
    matched = f"{own}match_probability: 0.5, tree_width: 2, min_tree_width: 3}}"
    assert "at most 2" in refused(SGLANG, drafts, matched)
    assert "only with method ngram, at most" in refused(SGLANG, TREE, f"{SPEC}.min_tree_width=2")
    assert length(tree_width=9, max_tree_nodes=600, min_tree_width=1) > length(tree_width=9, max_tree_nodes=600)


def test_the_acceptance_of_a_search_s_tree_is_that_of_its_rounds_with_a_match() -> None:
    drafts = f"{SPEC}={{method: ngram, num_speculative_tokens: 2, tree_width: 2, max_tree_nodes: 3}}"
    matches = "match_probability: 0.4, persistence: 0.5"
    for alpha, rates in (
        ("alpha: 0.5", [0.75, 0.25]),
        ("alpha: 0.5, widths: [2, 1]", [0.75, 0.375]),
        ("rates: [0.8, 0.4], tree_width: 2, max_tree_nodes: 3", [0.8, 0.4]),
    ):
        section = f"acceptance={{model: tree, {alpha}, {matches}}}"
        (model,) = acceptance_models(load_scenario(overrides=[SGLANG, drafts, section]))
        assert model == Chain(model="ngram", rates=tuple(rates), match_probability=0.4, persistence=0.5)


def test_the_shape_of_a_tree_changes_its_acceptance() -> None:
    def rates(tree: str, acceptance: str) -> list[float]:
        tree_and_model = (SGLANG, TREE, f"{SPEC}.{tree}", f"acceptance={{model: tree, {acceptance}}}")
        return acceptance_models(load_scenario(overrides=tree_and_model))[0].unconditional(3).tolist()

    assert rates("tree_width=1", "alpha: 0.5") == [0.5, 0.25, 0.125]  # a chain
    assert rates("tree_width=4", "alpha: 0.5")[0] == 1 - 0.5**4
    measured = "rates: [0.9, 0.7, 0.5], tree_width: 4, max_tree_nodes: 60"
    assert rates("tree_width=4", measured) == [0.9, 0.7, 0.5]
    wider, narrower = rates("tree_width=8", measured), rates("tree_width=2", measured)
    assert all(a > b > c for a, b, c in zip(wider, [0.9, 0.7, 0.5], narrower, strict=True))


def test_an_error_names_set_for_overrides_and_the_file_for_the_rest(tmp_path: Path) -> None:
    assert refused(f"{RATE}=-1").startswith("--set: workload.arrivals")
    path = tmp_path / "mine.yaml"
    path.write_text(embedded_scenarios()["default"].replace("request_rate_rps: 8.0", "request_rate_rps: -8"))
    text = refused(source=path)
    assert text.startswith(f"{path}: {RATE} = -8: must be above 0")


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"engine: {a: 1\nb: 2", [":", "not valid YAML"]),
        (b"hardware: a\nengine: {}\nhardware: b\n", [":3: hardware", "duplicate key, first given in line 1"]),
        (b"engine:\n  model: a\n  model: b\n", [":3: model", "duplicate key"]),
        (b"- a\n- b\n", ["must be a mapping"]),
        (b"", ["must be a mapping"]),
        (b"name: caf\xe9\n", ["not UTF-8"]),
        (b"name: !!python/object/apply:os.system ['true']\n", ["not valid YAML"]),
        (b"1: 2\n", ["keys must be plain words"]),
        (b"schema_version: 1\n", ["engine", "required"]),
    ],
)
def test_a_broken_file_is_one_line_with_its_line(tmp_path: Path, content: bytes, parts: list[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(content)
    text = refused(source=path)
    assert text.startswith(str(path))
    assert all(part in text for part in parts), text


@pytest.mark.parametrize("policy", ["fixed", "goodput", "my.module:Mine"])
def test_a_schedule_that_the_policy_would_ignore_is_refused(policy: str) -> None:
    schedule = f"{SPEC}.num_speculative_tokens_per_batch_size=[[1, 4, 3], [5, 64, 0]]"
    text = refused(schedule, f"policy.name={policy}")
    assert f"policy.name = '{policy}': would ignore {SPEC}.num_speculative_tokens_per_batch_size" in text
    for kept in ("batch_schedule", "off"):
        assert load_scenario(overrides=[schedule, f"policy.name={kept}"]).resolved_policy.name == kept


def test_a_missing_file_lists_the_embedded_scenarios(tmp_path: Path) -> None:
    text = refused(source="no-such-scenario")
    assert "no such file" in text
    assert "default" in text
    assert "is a directory" in refused(source=tmp_path)


def test_what_the_stated_version_cannot_run_is_refused_with_the_reason() -> None:
    drafts = f"{SPEC}={{method: mlp_speculator, num_speculative_tokens: 3}}"
    own = "acceptance={model: constant, alpha: 0.5}"
    assert "vllm 0.32 cannot run it: V1 never had the MLP speculator" in refused(drafts, own)
    assert load_scenario(overrides=[drafts, own, "engine.version=vllm 0.10"]).method == "mlp_speculator"
    drafts = f"{SPEC}={{method: arctic, num_speculative_tokens: 3}}"
    assert "vllm 0.32 cannot run it: Arctic Inference 0.1.1, its last release, is for vLLM 0.11.0" in refused(
        drafts, own
    )
    assert load_scenario(overrides=[drafts, own, "engine.version=vllm 0.11"]).method == "arctic"


@pytest.mark.parametrize(
    ("method", "last", "first"),
    [
        ("suffix", "0.10.2", "0.11"),
        ("p_eagle", "0.14", "0.15"),
        ("dflash", "0.15.1", "0.16"),
        ("dspark", "0.21", "0.22"),
    ],
)
def test_what_the_stated_version_cannot_run_yet_is_refused_with_the_reason(method: str, last: str, first: str) -> None:
    drafts = f"{SPEC}={{method: {method}, num_speculative_tokens: 3}}"
    match = "model: ngram, match_probability: 0.5" if method == "suffix" else "model: constant"
    own = f"acceptance={{{match}, alpha: 0.5}}"
    assert f"vllm {last} cannot run it: " in refused(drafts, own, f"engine.version=vllm {last}")
    assert load_scenario(overrides=[drafts, own, f"engine.version=vllm {first}"]).method == method


@pytest.mark.parametrize("method", ["p_eagle", "pard", "medusa", "suffix", "ngram_gpu"])
def test_what_sglang_has_not_is_refused(method: str) -> None:
    model = ", model: llama-3.2-1b" if method == "pard" else ""
    drafts = f"{SPEC}={{method: {method}, num_speculative_tokens: 3{model}}}"
    match = "model: ngram, match_probability: 0.5" if method in ("suffix", "ngram_gpu") else "model: constant"
    own = f"acceptance={{{match}, alpha: 0.5}}"
    assert load_scenario(overrides=[drafts, own]).method == method
    assert "sglang 0.5 cannot run it: it" in refused(drafts, own, SGLANG)


def test_what_lies_between_two_versions_is_refused() -> None:
    """V0 ran draft models, V1 at first did not (vLLM issue 31883); and vLLM 0.32 drafts no trees."""
    own, drafts = (
        "acceptance={model: constant, alpha: 0.5}",
        f"{SPEC}={{method: draft_model, model: llama-3.2-1b, num_speculative_tokens: 3}}",
    )
    for version, runs in (("0.10", True), ("0.11", False), ("0.13", False), ("0.14", True), ("0.32", True)):
        overrides = [drafts, own, f"engine.version=vllm {version}"]
        if runs:
            assert load_scenario(overrides=overrides).method == "draft_model"
        else:
            assert "V1 had none yet" in refused(*overrides)
    tree = "acceptance={model: tree, alpha: 0.5}"
    assert "vllm 0.32 cannot run it: it drafts no trees (sglang 0.5 does)" in refused(TREE, tree)
    assert load_scenario(overrides=[TREE, tree, SGLANG]).method == "eagle_tree"


def test_a_search_beside_a_head_has_its_own_acceptance() -> None:
    old = "engine.version=vllm 0.11"
    drafts = f"{SPEC}={{method: arctic, num_speculative_tokens: 3, enable_suffix_decoding: true}}"
    own, both = "acceptance={model: constant, alpha: 0.5}", "match_probability: 0.3, alpha_good: 0.9, alpha_bad: 0.5"
    assert "with enable_suffix_decoding give match_probability" in refused(old, drafts, own)
    assert load_scenario(overrides=[old, drafts, f"acceptance={{model: chain, {both}}}"]).num_speculative_tokens == 64
    ngram = f"{SPEC}={{method: ngram, num_speculative_tokens: 3}}"
    assert "only for method arctic with enable_suffix_decoding" in refused(
        ngram, f"acceptance={{model: chain, {both}}}"
    )
    assert "only with method arctic" in refused(f"{SPEC}.enable_suffix_decoding=true")
    assert "only with enable_suffix_decoding" in refused(f"{SPEC}.suffix_cache_max_depth=8")


@pytest.mark.parametrize("name", sorted(embedded_scenarios()))
def test_embedded_scenarios_round_trip_with_the_same_hash(name: str, tmp_path: Path) -> None:
    scenario = load_scenario(name)
    path = tmp_path / "again.yaml"
    path.write_text(dump_scenario(scenario), "utf-8")
    again = load_scenario(path) if name != "azure-conversation" else load_scenario(to_mapping(scenario))
    assert again == scenario
    assert scenario_hash(again) == scenario_hash(scenario)
    assert dump_scenario(again) == dump_scenario(scenario)


@pytest.mark.parametrize("name", sorted(embedded_scenarios()))
def test_embedded_scenarios_reach_the_simulator_s_own_words(name: str) -> None:
    scenario = load_scenario(name)
    spec = workload_spec(scenario)
    models = acceptance_models(scenario)
    assert len(models) == len(spec.classes)
    assert all(model.tokens_per_round(3) == 1.0 for model in acceptance_models(without_speculation(scenario)))
    assert set(scenario.slos) <= {entry.name for entry in spec.classes}
    if name == "default":
        # What was measured on its kind of traffic, with its head.
        measured = reference("llama-3.1-8b-instruct/eagle3/sharegpt")
        assert scenario.speculative_config is not None
        assert scenario.speculative_config.model == measured.head
        np.testing.assert_allclose(models[0].unconditional(3), measured.unconditional(3), atol=5e-4)


@settings(max_examples=50, deadline=None)
@given(
    rate=st.floats(1e-6, 1e6),
    k=st.integers(1, 64),
    alpha=st.floats(0, 1),
    seed=st.integers(0, 2**63 - 1),
    name=st.text(max_size=20).filter(lambda text: text.isprintable()),
)
def test_any_scenario_survives_yaml(rate: float, k: int, alpha: float, seed: int, name: str) -> None:
    values = {
        RATE: rate,
        f"{SPEC}.num_speculative_tokens": k,
        "acceptance": {"model": "constant", "alpha": alpha},
        "statistics.seed": seed,
        "name": name,
    }
    scenario = with_values(load_scenario(), values)
    again = load_scenario(parse_yaml(dump_scenario(scenario), "dump"))
    assert again == scenario
    assert scenario_hash(again) == scenario_hash(scenario)


def test_the_hash_ignores_names_and_defaults_written_out_but_nothing_that_changes_a_result(tmp_path: Path) -> None:
    base = load_scenario()
    same = scenario_hash(base)
    assert scenario_hash(with_values(base, {"name": "other", "description": "words"})) == same
    assert scenario_hash(with_values(base, {f"{SPEC}.parallel_drafting": False})) == same
    for override in (f"{RATE}=9.0", "statistics.seed=1", "acceptance.rates=[0.7, 0.5, 0.3]", "policy.name=off"):
        assert scenario_hash(load_scenario(overrides=[override])) != same
    hashes = set()
    for folder, text in (("a", "x"), ("b", "x"), ("c", "y")):
        trace = tmp_path / folder / "t.csv"
        trace.parent.mkdir()
        trace.write_text(text)
        hashes.add(scenario_hash(load_scenario(trace=trace)))
    assert len(hashes) == 2  # by content, not by place


def test_speculative_config_is_taken_verbatim_and_null_turns_it_off() -> None:
    ngram = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'
    scenario = load_scenario(speculative_config=ngram, overrides=["acceptance={model: constant, alpha: 0.5}"])
    assert scenario.method == "ngram"
    assert scenario.num_speculative_tokens == 3
    spec = scenario.speculative_config
    assert spec is not None
    assert spec.model is None  # nothing left of the scenario's own
    assert spec.without_effect == ("prompt_lookup_max",)
    off = load_scenario(speculative_config="null")
    assert off.method == "none"
    assert off.resolved_policy.name == "off"
    assert off.acceptance_of() is None
    assert "not valid JSON" in refused(speculative_config="{method: ngram}")
    assert refused(speculative_config='{"method": "ngram", "k": 3}').startswith("--speculative-config: ")


@pytest.mark.parametrize("method", ["eagle", "p_eagle", "ngram", "suffix", "medusa"])
def test_another_method_is_refused_without_acceptance_of_its_own(method: str) -> None:
    config = {"method": method, "num_speculative_tokens": 3}
    said = f"acceptance: was given for eagle3, and the method is now {method}: give that of {method} with --set"
    assert said in refused(speculative_config=json.dumps(config))
    assert said in refused(f"{SPEC}.method={method}")
    with pytest.raises(ScenarioError, match=said):
        with_values(load_scenario(), {SPEC: config})
    example = (
        "{model: ngram, match_probability: ..." if method in ("ngram", "suffix") else "{model: per_position, rates:"
    )
    assert f"--set 'acceptance={example}" in refused(f"{SPEC}.method={method}")
    # Its own, another k, off, and off before: nothing is carried over from another method.
    asked = load_scenario(speculative_config=json.dumps(config), overrides=["acceptance={model: constant, alpha: 0.5}"])
    assert asked.method == method
    assert with_values(load_scenario(), {SPEC: config, "acceptance.rates": [0.5, 0.4, 0.3]}).method == method
    assert load_scenario(overrides=[f"{SPEC}.num_speculative_tokens=2"]).num_speculative_tokens == 2
    off = load_scenario(overrides=[f"{SPEC}=null"])
    assert with_values(off, {SPEC: config}).method == method


def test_a_prescribed_acceptance_goes_with_its_method() -> None:
    config = {"method": "eagle", "num_speculative_tokens": 3, "rejection_sample_method": "synthetic"}
    scenario = load_scenario(speculative_config={**config, "synthetic_acceptance_length": 2.5})
    assert scenario.acceptance_of() is not None


def test_the_acceptance_of_every_class_is_to_be_given() -> None:
    classes = [
        {"name": name, "share": 0.5, "acceptance": {"model": "constant", "alpha": 0.5}, "lengths": lengths}
        for name in ("chat", "code")
        for lengths in [{"prompt_tokens": 10, "output_tokens": 10}]
    ]
    base = with_values(load_scenario(), {"workload.classes": classes})
    own = {"model": "constant", "alpha": 0.2}
    ngram = {f"{SPEC}.method": "ngram", "workload.classes.0.acceptance": own}
    with pytest.raises(ScenarioError, match=r"workload\.classes\.1\.acceptance: was given for eagle3"):
        with_values(base, ngram)
    with pytest.raises(ScenarioError, match=r"workload\.classes\.0\.acceptance: was given for eagle3"):
        with_values(base, {f"{SPEC}.method": "ngram", "acceptance": own})
    assert with_values(base, {**ngram, "workload.classes.1.acceptance": own}).method == "ngram"
    assert with_values(base, {f"{SPEC}.method": "ngram", "workload.classes": classes}).method == "ngram"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "eagle3"}, "use_heterogeneous_vocab = True: only with method draft_model"),
        ({"model": "x", "draft_sample_method": "probabilistic"}, "draft_sample_method = 'probabilistic': not with"),
        ({"model": "x", "use_local_argmax_reduction": True}, "use_local_argmax_reduction = True: not with"),
    ],
)
def test_another_vocabulary_goes_with_a_greedy_draft_model(given: dict[str, Any], message: str) -> None:
    config = json.dumps({"num_speculative_tokens": 3, "use_heterogeneous_vocab": True, **given})
    assert message in refused(f"{SPEC}={config}")


def test_keys_that_change_no_simulated_time_are_named() -> None:
    given = {"enforce_eager": True, "rejection_sample_method": "block", "suffix_decoding_max_tree_depth": 8}
    spec = SpeculativeConfig(method="suffix", num_speculative_tokens=3, **given)
    assert set(spec.without_effect) == set(given)
    assert SpeculativeConfig(method="suffix", suffix_decoding_max_tree_depth=8).without_effect == ()


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({"method": "eagle3", "num_speculative_tokens": 3}, "eagle3"),
        ({"method": "eagle3", "num_speculative_tokens": 3, "parallel_drafting": True}, "p_eagle"),
        ({"model": "x", "num_speculative_tokens": 3, "parallel_drafting": True}, "pard"),
        ({"model": "x", "num_speculative_tokens": 3}, "draft_model"),
        ({"model": "ngram", "num_speculative_tokens": 3}, "ngram"),
        ({"method": "deepseek_mtp", "num_speculative_tokens": 1}, "mtp"),
        ({"method": "suffix"}, "suffix"),
    ],
)
def test_the_method_follows_vllm_s_inference(given: dict[str, Any], method: str) -> None:
    spec = SpeculativeConfig(**given)
    assert spec.resolved_method == method
    assert spec.k == given.get("num_speculative_tokens", 24)


@pytest.mark.parametrize("acceptance", ["null", "{model: constant, alpha: 0.1}"])
def test_synthetic_acceptance_is_the_acceptance_whatever_else_is_given(acceptance: str) -> None:
    config = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.4}
    overrides = [f"{SPEC}.{key}={value}" for key, value in config.items()]
    scenario = load_scenario(overrides=[*overrides, f"acceptance={acceptance}"])
    rates = acceptance_models(scenario)[0].unconditional(3)
    assert rates == pytest.approx([1.0, 0.4, 0.0])  # vLLM: whole positions certain, one fractional
    assert 1 + sum(rates) == pytest.approx(2.4)


def test_policies_default_to_vllm_s_and_off_is_a_word() -> None:
    assert load_scenario().resolved_policy.name == "fixed"
    scheduled = load_scenario(overrides=[f"{SPEC}.num_speculative_tokens_per_batch_size=[[33, 64, 0], [1, 32, 3]]"])
    assert scheduled.resolved_policy.name == "batch_schedule"
    assert scheduled.speculative_config is not None
    assert scheduled.speculative_config.num_speculative_tokens_per_batch_size == ((1, 32, 3), (33, 64, 0))
    assert load_scenario(overrides=["policy.name=off"]).resolved_policy.name == "off"
    assert load_scenario(overrides=["policy.name=my/file.py:Mine"]).resolved_policy.name == "my/file.py:Mine"
    assert parse_yaml("[off, no, yes, on, y, true, 1e-3, 2024-01-01]", "t") == [
        *("off", "no", "yes", "on", "y"),
        *(True, 0.001, "2024-01-01"),
    ]
    assert parse_yaml(write_yaml({"a": "true", "b": "1e3", "c": "off", "d": None}), "t")["b"] == "1e3"


def test_overrides_are_typed_and_reach_into_lists() -> None:
    scenario = load_scenario(
        "closed-loop-classes", overrides=["workload.classes.0.share=0.5", "workload.classes.1.share=0.5"]
    )
    assert [entry.share for entry in scenario.workload.classes] == [0.5, 0.5]
    original = {"a": {"b": 1}}
    assert apply_overrides(original, ["a.b=[1, x]", "c.d=null"]) == {"a": {"b": [1, "x"]}, "c": {"d": None}}
    assert original == {"a": {"b": 1}}


def test_a_trace_replaces_arrivals_and_lengths_and_keeps_trace_options() -> None:
    scenario = load_scenario(trace="some/file.csv")
    assert scenario.workload.arrivals.process == "trace"
    assert Path(scenario.workload.arrivals.path) == Path("some/file.csv").absolute()
    assert scenario.workload.lengths is None
    assert scenario.workload.num_requests is None
    azure = load_scenario("azure-conversation", trace="some/file.csv", overrides=["workload.arrivals.stop_s=60"])
    assert azure.workload.arrivals.process == "trace"
    assert azure.workload.arrivals.stop_s == 60


def test_paths_are_taken_from_the_scenario_s_folder(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(embedded_scenarios()["azure-conversation"])
    arrivals = load_scenario(path).workload.arrivals
    assert arrivals.process == "trace"
    assert arrivals.path == str(tmp_path / "AzureLLMInferenceTrace_conv.csv")


def own_files(folder: Path) -> dict[str, Any]:
    """A model, a device, a profile and a policy of one's own, in files beside a scenario; the scenario's mapping."""
    folder.mkdir()
    bundled = Path(str(files("draftcast")))
    shutil.copy(bundled / "kernels/models/Llama-3.1-8B.json", folder / "config.json")
    shutil.copy(bundled / "calibration/hardware/h100-sxm.yaml", folder / "gpu.yaml")
    shutil.copytree(bundled / "calibration/profiles/h100-sxm", folder / "measured")
    (folder / "mine.py").write_text(
        "from draftcast.sim import Policy\nclass Two(Policy):\n    def decide(self, batch):\n        return 2\n"
    )
    data = to_mapping(load_scenario(overrides=["workload.num_requests=20", "statistics.replications=1"]))
    data["engine"] |= {"model": "config.json"}
    return data | {"hardware": "gpu.yaml", "profile": "measured", "policy": {"name": "mine.py:Two"}}


def test_every_path_is_taken_from_the_scenario_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = own_files(tmp_path / "here")
    (tmp_path / "here/s.yaml").write_text(write_yaml(data))
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    # A file of the same name in the current directory is not the one that is meant.
    (tmp_path / "there/gpu.yaml").write_text("nonsense")
    scenario = load_scenario(tmp_path / "here/s.yaml")
    assert scenario.hardware == str(tmp_path / "here/gpu.yaml")
    deployment = deploy(scenario)
    assert deployment.model.name == str(tmp_path / "here/config.json")
    assert type(deployment.policy).__name__ == "Two"
    (tmp_path / "here/gpu.yaml").unlink()
    with pytest.raises(InputError, match=r"here/gpu\.yaml"):
        deploy(load_scenario(tmp_path / "here/s.yaml"))
    # Without a file there is no folder but the current one; bundled names stay names.
    monkeypatch.chdir(tmp_path / "here")
    assert type(deploy(load_scenario({**data, "hardware": "h100-sxm"})).policy).__name__ == "Two"
    assert load_scenario({**data, "hardware": "H100"}).hardware == "H100"


@pytest.mark.parametrize(
    "name", ["config.json", "gpu.yaml", "measured/profile.yaml", "measured/manifest.json", "mine.py"]
)
def test_the_hash_takes_what_a_scenario_names_by_content(tmp_path: Path, name: str) -> None:
    hashes = []
    for folder in ("a", "b"):
        data = own_files(tmp_path / folder)
        (tmp_path / folder / "s.yaml").write_text(write_yaml(data))
        hashes.append(scenario_hash(load_scenario(tmp_path / folder / "s.yaml")))
    assert hashes[0] == hashes[1]  # by content, not by place
    with (tmp_path / "b" / name).open("a") as file:
        file.write("\n")
    assert scenario_hash(load_scenario(tmp_path / "b/s.yaml")) != hashes[0]


def test_the_hash_takes_a_policy_s_module_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "policies_of_mine.py"
    module.write_text("x = 1\n")
    scenario = load_scenario(overrides=["policy.name=policies_of_mine:Two"])
    before = scenario_hash(scenario)
    module.write_text("x = 2\n")
    assert scenario_hash(scenario) != before
    assert scenario_hash(load_scenario(overrides=["policy.name=no_such_module:Two"])) != before


def test_another_trace_is_not_read_in_the_format_of_the_one_it_replaces() -> None:
    assert load_scenario("azure-conversation").workload.arrivals.format == "azure"  # type: ignore[union-attr]
    assert load_scenario("azure-conversation", trace="t.jsonl").workload.arrivals.format == "auto"  # type: ignore[union-attr]
    given = load_scenario("azure-conversation", trace="t", overrides=["workload.arrivals.format=mooncake"])
    assert given.workload.arrivals.format == "mooncake"  # type: ignore[union-attr]


def test_with_rate_rescales_a_trace_and_refuses_what_has_no_rate() -> None:
    arrivals = with_rate(
        load_scenario(trace="t.csv", overrides=["workload.arrivals.time_scale=2.0"]), 3.0
    ).workload.arrivals
    assert arrivals.process == "trace"
    assert (arrivals.request_rate_rps, arrivals.time_scale) == (3.0, 1.0)
    # It names the key, not an option: sweeps, plans and Python ask too.
    with pytest.raises(ScenarioError, match=r"^workload\.arrivals\.process = 'closed_loop': has no single"):
        with_rate(load_scenario("closed-loop-classes"), 3.0)


def test_a_scenario_is_frozen() -> None:
    scenario = load_scenario()
    with pytest.raises(ValueError, match="frozen"):
        scenario.engine.block_size = 32  # type: ignore[misc]


def test_the_names_are_those_of_the_simulator() -> None:
    assert set(METHODS) == set(methods.METHODS) - {"none"}
    assert set(POLICIES) == set(policies.BUILT_IN)
    assert set(ROUTERS) == set(routers.ROUTERS)
    assert {*DTYPES.values(), *QUANTIZATIONS.values()} <= set(WEIGHT_BYTES)
    assert set(KV_DTYPES.values()) <= set(KV_BYTES)
    assert MAX_K >= 64


def test_batch_defaults_are_vllm_s() -> None:
    gib = 2**30
    assert batch_defaults(79.2 * gib, "h100-sxm") == (1024, 8192)
    assert batch_defaults(79.2 * gib, "a100-80g") == (256, 2048)
    assert batch_defaults(178 * gib, "b200") == (1024, 16384)
    assert batch_defaults(22 * gib, "a10g") == (256, 2048)
    assert batch_defaults(256 * gib, "cpu", 2) == (256, 4096)


def test_nearest_key_prefers_the_unit_then_the_synonym_then_the_spelling() -> None:
    known = ["request_rate_rps", "burstiness", "num_requests"]
    assert nearest_key("request_rate_ms", known) == "request_rate_rps"
    assert nearest_key("num_prompts", known) == "num_requests"
    assert nearest_key("burstyness", known) == "burstiness"
    assert nearest_key("colour", known) is None
