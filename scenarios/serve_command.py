"""From a scenario's engine section to the command that starts such an engine: vLLM's, and SGLang's as far as it goes.

Only what differs from the server's own default is written. Knows flags, not whether a server accepts them together.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from draftcast.errors import ScenarioError
from draftcast.kernels.catalog import published_id
from draftcast.scenarios.schema import Engine, Scenario, SpeculativeConfig

# Flags whose value is the field's; the scenario's defaults are vLLM's, so an unset field needs no flag.
_VALUES = {
    "tensor_parallel_size": "--tensor-parallel-size",
    "dtype": "--dtype",
    "quantization": "--quantization",
    "kv_cache_dtype": "--kv-cache-dtype",
    "max_model_len": "--max-model-len",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "max_num_scheduled_tokens": "--max-num-scheduled-tokens",
    "block_size": "--block-size",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "num_gpu_blocks": "--num-gpu-blocks-override",
    "long_prefill_token_threshold": "--long-prefill-token-threshold",
    "watermark": "--watermark",
    "scheduling_policy": "--scheduling-policy",
}
_SWITCHES = {
    "enable_prefix_caching": "enable-prefix-caching",
    "enable_chunked_prefill": "enable-chunked-prefill",
    "async_scheduling": "async-scheduling",
    "enforce_eager": "enforce-eager",
}
# draftcast's own keys of speculative_config: no engine knows them.
_NOT_VLLM = ("tree_width", "max_tree_nodes")


def speculative_config_json(spec: SpeculativeConfig) -> dict[str, Any]:
    """The dictionary for ``vllm serve --speculative-config``: what was set, with vLLM's keys alone.

    Raises:
        ScenarioError: a method that vLLM 0.32 does not have (``eagle_tree``).
    """
    if spec.resolved_method == "eagle_tree":
        raise ScenarioError(
            "vLLM 0.32 drafts no trees", key="engine.speculative_config.method", value=spec.resolved_method
        )
    values: dict[str, Any] = json.loads(spec.model_dump_json(exclude_unset=True))
    values = {key: value for key, value in values.items() if key not in _NOT_VLLM and value is not None}
    if spec.method in ("p_eagle", "pard"):
        # vLLM names the parallel drafters by their base method.
        values |= {"method": "eagle" if spec.method == "p_eagle" else "draft_model", "parallel_drafting": True}
    if spec.model is not None:
        values["model"] = published_id(spec.model)
    return values


def vllm_flags(engine: Engine) -> list[str]:
    """Flags of ``vllm serve`` without the model and without ``--speculative-config``."""
    defaults = Engine(model=engine.model)
    flags: list[str] = []
    for field, flag in _VALUES.items():
        value = getattr(engine, field)
        if value != getattr(defaults, field):
            flags += [flag, str(value)]
    for field, flag in _SWITCHES.items():
        value = getattr(engine, field)
        if value != getattr(defaults, field):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
    return flags


def vllm_command(scenario: Scenario) -> str:
    """``vllm serve MODEL ...``, quoted for a shell; one replica's.

    Raises:
        ScenarioError: as `speculative_config_json`.
    """
    words = ["vllm", "serve", published_id(scenario.engine.model), *vllm_flags(scenario.engine)]
    if scenario.speculative_config is not None:
        words += ["--speculative-config", json.dumps(speculative_config_json(scenario.speculative_config))]
    return shlex.join(words)


def sglang_flags(spec: SpeculativeConfig | None) -> list[str]:
    """SGLang's speculation flags (docs.sglang.io, "Speculative Decoding", 2026): a chain of k drafts.

    SGLang counts verified tokens, the one before the drafts included: ``--speculative-num-draft-tokens`` is k + 1 for
    a chain of k steps. A batch schedule has no equal there.

    Raises:
        ScenarioError: a method that SGLang does not have, or a batch schedule.
    """
    if spec is None:
        return []
    method, k = spec.resolved_method, spec.k
    if spec.num_speculative_tokens_per_batch_size is not None:
        raise ScenarioError(
            "SGLang takes no draft length by batch size",
            key="engine.speculative_config.num_speculative_tokens_per_batch_size",
        )
    if method == "ngram":
        return ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(k + 1)]
    names = {"eagle": "EAGLE", "eagle3": "EAGLE3", "draft_model": "STANDALONE", "mtp": "EAGLE"}
    if method not in names:
        raise ScenarioError(
            f"SGLang has no such method; it has {', '.join((*names, 'ngram'))}",
            key="engine.speculative_config.method",
            value=method,
        )
    flags = ["--speculative-algorithm", names[method]]
    if spec.model is not None:
        flags += ["--speculative-draft-model-path", published_id(spec.model)]
    chain = {"--speculative-num-steps": k, "--speculative-eagle-topk": 1, "--speculative-num-draft-tokens": k + 1}
    return flags + [str(word) for pair in chain.items() for word in pair]


def sglang_command(scenario: Scenario) -> str:
    """``python -m sglang.launch_server ...``, quoted for a shell.

    Raises:
        ScenarioError: as `sglang_flags`.
    """
    engine = scenario.engine
    words = ["python", "-m", "sglang.launch_server", "--model-path", published_id(engine.model)]
    for field, flag in {
        "tensor_parallel_size": "--tp-size",
        "max_model_len": "--context-length",
        "max_num_seqs": "--max-running-requests",
        "quantization": "--quantization",
    }.items():
        value = getattr(engine, field)
        if value != getattr(Engine(model=engine.model), field):
            words += [flag, str(value)]
    return shlex.join([*words, *sglang_flags(scenario.speculative_config)])
