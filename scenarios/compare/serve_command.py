"""From a scenario's engine section to the command that starts such an engine: vLLM's, and SGLang's as far as it goes.

Only what differs from the server's own default is written. What a server needs and the scenario does not say is written
as a place to fill in, never left out. Knows flags, not whether a server accepts them together.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from typing import Any

from draftcast.errors import ScenarioError
from draftcast.kernels.model.catalog import published_id, published_ids
from draftcast.scenarios.schema import Engine, Scenario
from draftcast.sim.cost.methods import get_method

INSTRUCT = "Instruct"

# Fields of `Engine` that are no flag of their own, and one whose flag has another name.
_NO_FLAG = ("version", "model", "cudagraph_mode", "speculative_config")
_OTHER_NAME = {"num_gpu_blocks": "num-gpu-blocks-override"}
# draftcast's own keys of speculative_config: no engine knows them.
_NOT_VLLM = ("tree_width", "max_tree_nodes")
# Methods that need a head which the scenario may leave unnamed, because its shape follows from the target.
_HEADS = {
    "eagle": "an EAGLE head",
    "eagle3": "an EAGLE-3 head",
    "p_eagle": "a P-EAGLE head",
    "medusa": "a Medusa head",
    "mlp_speculator": "an MLP speculator",
    "dflash": "a DFlash draft",
    "dspark": "a DSpark draft",
}


@dataclass(frozen=True)
class ServedModels:
    """What a server loads."""

    target: str  # Hugging Face id or path
    # The same of the draft; what to fill in where the scenario names none; None where the method needs none
    draft: str | None = None
    draft_is_named: bool = True  # whether the scenario names it
    notes: tuple[str, ...] = ()  # what to know before pasting, a sentence each


def served_models(scenario: Scenario) -> ServedModels:
    """The repositories of a scenario's target and draft, as far as it names them.

    A base model and its Instruct model have one shape, so one bundled model stands for both. A draft fits only the one
    it was trained for: where its name says Instruct (or base) and the target's does not, the target's repository that
    fits is taken, with a note. The short name of a bundled draft stands for the repository that fits the target.
    """
    target, spec, method = published_id(scenario.engine.model), scenario.speculative_config, scenario.method
    if spec is None:
        return ServedModels(target)
    if spec.model is None:
        if method not in _HEADS:
            return ServedModels(target)
        kind = _HEADS[method]
        return ServedModels(
            target,
            f"<path or Hugging Face id of {kind} for {target}>",
            False,
            (f"Fill in the model of {kind} for {target}: the scenario names none, and no server starts without it.",),
        )
    fitting, notes = _repository_for(target, spec.model)
    draft = published_id(spec.model)
    if draft != spec.model:
        draft = next((each for each in published_ids(draft) if _variant(each) == _variant(fitting)), draft)
    return ServedModels(fitting, draft, True, notes)


def _repository_for(target: str, draft: str) -> tuple[str, tuple[str, ...]]:
    """The target's repository that a draft was trained for, and what to say of it."""
    kind, ids = _variant(draft), published_ids(target)
    if not kind or not ids or (kind == INSTRUCT) is (_variant(target) == INSTRUCT):
        return target, ()
    fitting = [each for each in ids if (_variant(each) == INSTRUCT) is (kind == INSTRUCT)]
    # Several models may share a shape (Llama 3.1 and 3.3): the draft's name may hold its own target's.
    fitting.sort(key=lambda each: each.rpartition("/")[2].lower() not in draft.lower())
    if not fitting:
        return target, (f"Check this pair: the draft {draft} names the {kind} model, which {target} may not be.",)
    return fitting[0], (
        f"The draft {draft} belongs to the {kind} model, so this serves {fitting[0]} instead of {target}. "
        "Both have the same shape: the forecast holds for either.",
    )


def _variant(name: str) -> str:
    """``Instruct`` or ``base`` where a repository's own name says so, else empty."""
    words = set(re.split(r"[^a-z0-9]+", name.rpartition("/")[2].lower()))
    return INSTRUCT if words & {"instruct", "chat"} else "base" if "base" in words else ""


def speculative_config_json(scenario: Scenario) -> dict[str, Any] | None:
    """The dictionary for ``vllm serve --speculative-config``: what was set, with vLLM's keys alone; None without one.

    Where the method needs a draft and the scenario names none, ``model`` says what to fill in (`served_models`).

    Raises:
        ScenarioError: a method that vLLM 0.32 does not have (``eagle_tree``).
    """
    spec = scenario.speculative_config
    if spec is None:
        return None
    method = get_method(spec.resolved_method)
    if method.vllm_method is None:
        raise ScenarioError("vLLM 0.32 drafts no trees", key="engine.speculative_config.method", value=method.name)
    values: dict[str, Any] = json.loads(spec.model_dump_json(exclude_unset=True))
    values = {key: value for key, value in values.items() if key not in _NOT_VLLM and value is not None}
    if spec.method in ("p_eagle", "pard"):
        # vLLM names the parallel drafters by their base method.
        values |= {"method": method.vllm_method, "parallel_drafting": True}
    draft = served_models(scenario).draft
    return values if draft is None else values | {"model": draft}


def vllm_flags(engine: Engine) -> list[str]:
    """Flags of ``vllm serve`` without the model and without ``--speculative-config``."""
    defaults, flags, switches = Engine(model=engine.model), [], []
    for field in Engine.model_fields:
        value = getattr(engine, field)
        if field in _NO_FLAG or value == getattr(defaults, field):
            continue
        flag = _OTHER_NAME.get(field, field.replace("_", "-"))
        if isinstance(value, bool):
            switches.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    flags += switches
    if engine.cudagraph_mode is not None:
        flags += ["--compilation-config", json.dumps({"cudagraph_mode": engine.cudagraph_mode})]
    return flags


def vllm_command(scenario: Scenario) -> str:
    """``vllm serve MODEL ...``, quoted for a shell; one replica's.

    Raises:
        ScenarioError: as `speculative_config_json`.
    """
    words = ["vllm", "serve", served_models(scenario).target, *vllm_flags(scenario.engine)]
    config = speculative_config_json(scenario)
    return shlex.join(words if config is None else [*words, "--speculative-config", json.dumps(config)])


def sglang_command(scenario: Scenario) -> str:
    """``python -m sglang.launch_server ...``, quoted for a shell (docs.sglang.io, "Speculative Decoding", 2026).

    SGLang counts verified tokens, the one before the drafts included: ``--speculative-num-draft-tokens`` is k + 1 for
    a chain of k steps. A batch schedule has no equal there.

    Raises:
        ScenarioError: a method that SGLang does not have, or a batch schedule.
    """
    engine, spec, served = scenario.engine, scenario.speculative_config, served_models(scenario)
    words = ["python", "-m", "sglang.launch_server", "--model-path", served.target]
    for field, flag in {
        "tensor_parallel_size": "--tp-size",
        "pipeline_parallel_size": "--pp-size",
        "max_model_len": "--context-length",
        "max_num_seqs": "--max-running-requests",
        "quantization": "--quantization",
    }.items():
        value = getattr(engine, field)
        if value != getattr(Engine(model=engine.model), field):
            words += [flag, str(value)]
    if spec is None:
        return shlex.join(words)
    method, k, place = spec.resolved_method, spec.k, "engine.speculative_config"
    if spec.num_speculative_tokens_per_batch_size is not None:
        key = f"{place}.num_speculative_tokens_per_batch_size"
        raise ScenarioError("SGLang takes no draft length by batch size", key=key)
    names = {"eagle": "EAGLE", "eagle3": "EAGLE3", "draft_model": "STANDALONE", "mtp": "EAGLE", "ngram": "NGRAM"}
    if method not in names:
        message = f"SGLang has no such method; it has {', '.join(names)}"
        raise ScenarioError(message, key=f"{place}.method", value=method)
    words += ["--speculative-algorithm", names[method]]
    if method != "ngram":
        words += ["--speculative-draft-model-path", served.draft] if served.draft is not None else []
        words += ["--speculative-num-steps", str(k), "--speculative-eagle-topk", "1"]
    return shlex.join([*words, "--speculative-num-draft-tokens", str(k + 1)])
