"""From a scenario's engine section to what a replica needs: models, device, memory, settings, step cost.

Everything that does not depend on the seed is resolved here once, however many replications follow.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from draftcast.calibration.profile.hardware import HardwareSpec, load_hardware
from draftcast.calibration.profile.load import HardwareProfile
from draftcast.errors import CapacityError, ScenarioError
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.model.spec import ModelSpec
from draftcast.scenarios.run.error_places import DRAFT_MODEL, engine_keys
from draftcast.scenarios.run.profile_cache import cached_profile
from draftcast.scenarios.run.workload_spec import confidences, request_classes, slos
from draftcast.scenarios.schema import BatchDefaults, Engine, Scenario, batch_defaults
from draftcast.scenarios.schema import Policy as AskedPolicy
from draftcast.scenarios.schema.engine import MOST_BLOCKS
from draftcast.sim.cost.memory import MemoryBudget, memory_budget
from draftcast.sim.cost.methods import Method, get_method
from draftcast.sim.cost.step_cost import compile_step_cost
from draftcast.sim.cost.step_tables import head_of
from draftcast.sim.cost.step_time import StepCost
from draftcast.sim.engine.state import EngineSettings
from draftcast.sim.policies import Policy, load_policy
from draftcast.sim.policies.base import NEEDS_CONFIDENCE


@dataclass(frozen=True)
class Deployment:
    """One replica's engine, resolved."""

    model: ModelSpec
    draft: ModelSpec | None
    method: Method
    hardware: HardwareSpec
    profile: HardwareProfile
    memory: MemoryBudget
    settings: EngineSettings
    policy: Policy
    cost: StepCost

    @functools.cached_property
    def profile_checksum(self) -> str:
        """The profile's; a deployment is asked for it by every run on it."""
        return self.profile.checksum()


def policy_of(scenario: Scenario) -> Policy:
    """The policy that runs. One that is given is checked though nothing drafts.

    Raises:
        ScenarioError: an unknown policy or parameter, or the scenario lacks what the policy goes by.
    """
    with engine_keys():
        return _policy(scenario)


def _policy(scenario: Scenario) -> Policy:
    spec = scenario.speculative_config
    asked = scenario.resolved_policy
    if asked.name == "batch_schedule" and spec is not None:
        return load_policy("batch_schedule", schedule=spec.num_speculative_tokens_per_batch_size)
    if spec is None and scenario.policy is not None and scenario.policy.name != "batch_schedule":
        _load_policy(scenario, scenario.policy)
    policy = _load_policy(scenario, asked)
    if policy.needs_confidence and None in confidences(scenario):
        raise ScenarioError(NEEDS_CONFIDENCE, key="acceptance.confidence_discrimination", value=None)
    return policy


def _load_policy(scenario: Scenario, asked: AskedPolicy) -> Policy:
    parameters = dict(asked.parameters)
    if asked.name == "slo_aware":
        given, classes = parameters.get("tpot_s"), len(request_classes(scenario))
        if "tpot_s" not in parameters:
            parameters["tpot_s"] = _tpot_s(scenario)
        if isinstance(given, list | tuple) and len(given) != classes:
            raise ScenarioError(
                f"must be one number, or one for each of {classes} classes", key="policy.tpot_s", value=given
            )
    try:
        policy = load_policy(asked.name, **parameters)
        policy.compile(1, 1)  # what it is made of has to be numbers
        return policy
    except (ValueError, TypeError, OverflowError) as error:
        raise ScenarioError(str(error), key="policy.parameters", value=asked.parameters) from None


def _tpot_s(scenario: Scenario) -> list[float]:
    """The TPOT of every class in the order of their ids, 0 where it has none."""
    found = slos(scenario)
    limits = [found[entry.name].tpot_ms if entry.name in found else None for entry in request_classes(scenario)]
    if not any(limits):
        raise ScenarioError("needs slo.tpot_ms, or policy.parameters.tpot_s", key="policy.name", value="slo_aware")
    return [(limit or 0.0) / 1000.0 for limit in limits]


def _method(scenario: Scenario) -> Method:
    method = get_method(scenario.method)
    spec = scenario.speculative_config
    return method.with_tree(*spec.tree_shape) if spec is not None and method.is_tree else method


def _batch_limits(engine: Engine, hardware: HardwareSpec, max_model_len: int) -> BatchDefaults:
    """The batch flags with vLLM's defaults for what is absent.

    vLLM 0.32 ``EngineArgs._set_default_max_num_seqs_and_batched_tokens_args`` and ``SchedulerConfig``; the schema
    checks flags against each other, here they are checked against the defaults too.

    Raises:
        ScenarioError: limits that contradict each other.
    """
    seqs, tokens = batch_defaults(hardware.memory_bytes, hardware.name, engine.tensor_parallel_size)
    seqs = engine.max_num_seqs or seqs
    if engine.max_num_batched_tokens is None:
        if not engine.enable_chunked_prefill:
            tokens = max(tokens, max_model_len)
        tokens = min(tokens, seqs * max_model_len)
    else:
        tokens = engine.max_num_batched_tokens
    if engine.max_num_seqs is None:
        seqs = min(seqs, tokens)
    for key, value, limit, name in (
        ("max_num_seqs", seqs, tokens, "max_num_batched_tokens"),
        ("max_num_scheduled_tokens", engine.max_num_scheduled_tokens or 0, tokens, "max_num_batched_tokens"),
        ("long_prefill_token_threshold", engine.long_prefill_token_threshold, max_model_len, "max_model_len"),
    ):
        if value > limit:
            raise ScenarioError(f"must not exceed {name} = {limit}", key=f"engine.{key}", value=value)
    if not engine.enable_chunked_prefill and tokens < max_model_len:
        raise ScenarioError(
            f"must be at least max_model_len = {max_model_len} without chunked prefill",
            key="engine.max_num_batched_tokens",
            value=tokens,
        )
    return BatchDefaults(seqs, tokens)


def deploy(scenario: Scenario) -> Deployment:
    """Resolve the scenario's engine on its hardware.

    Raises:
        ModelError, HardwareError: an unknown model, device or profile.
        CapacityError: weights, or one request of max_model_len, do not fit in memory.
        ScenarioError: settings that vLLM refuses.
    """
    with engine_keys():
        return _deploy(scenario)


def _deploy(scenario: Scenario) -> Deployment:
    engine, spec = scenario.engine, scenario.speculative_config
    model = load_model(engine.model)
    hardware = load_hardware(scenario.hardware)
    profile = cached_profile(scenario.profile, hardware)
    method = _method(scenario)
    k = scenario.num_speculative_tokens
    # Heads follow from the target; only a draft model of its own is looked up by name.
    named = None
    if spec is not None and spec.model and method.needs_draft_model:
        with engine_keys(DRAFT_MODEL):
            named = load_model(spec.model)
    with engine_keys("engine.speculative_config.method"):
        draft = head_of(method, model, named, k)
    max_model_len = engine.max_model_len or model.max_position_embeddings
    if max_model_len > model.max_position_embeddings:
        raise ScenarioError(
            f"must not exceed the model's own maximum of {model.max_position_embeddings} (vLLM refuses it)",
            key="engine.max_model_len",
            value=max_model_len,
        )
    max_num_seqs, max_num_batched_tokens = _batch_limits(engine, hardware, max_model_len)
    is_async = method.is_async if engine.async_scheduling is None else engine.async_scheduling
    if is_async and not method.is_async:
        raise ScenarioError(
            f"vLLM cannot schedule asynchronously with method {method.name}",
            key="engine.async_scheduling",
            value=True,
        )
    slots = method.slots(k)
    if max_num_batched_tokens <= slots:
        raise ScenarioError(
            f"must exceed the {slots} input rows that {method.name} with k = {k} adds per request",
            key="engine.max_num_batched_tokens",
            value=max_num_batched_tokens,
        )
    memory = memory_budget(
        model,
        hardware,
        tp=engine.tensor_parallel_size,
        dtype=engine.weight_dtype,
        kv_cache_dtype=engine.kv_dtype,
        draft=draft,
        draft_tp=engine.draft_tensor_parallel_size,
        draft_dtype=engine.draft_weight_dtype,
        draft_kv_cache_dtype=engine.draft_kv_dtype,
        k=k,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        block_size=engine.block_size,
        max_model_len=max_model_len,
        enforce_eager=engine.enforce_eager,
        num_gpu_blocks=engine.num_gpu_blocks,
    )
    if memory.num_gpu_blocks > MOST_BLOCKS:
        raise CapacityError(
            f"leaves room for {memory.num_gpu_blocks} blocks, more than {MOST_BLOCKS}; take a larger block size",
            key="engine.block_size",
            value=engine.block_size,
        )
    policy = _policy(scenario)
    threshold, rows = engine.long_prefill_token_threshold, method.verify_rows(k)
    if k and not policy.is_dynamic and 0 < threshold < rows:
        raise ScenarioError(
            f"must be 0 or at least 1 + the {rows - 1} drafts of a round: vLLM pads a request's first decode step to "
            f"{rows} rows, and its scheduler fails where the threshold cuts them",
            key="engine.long_prefill_token_threshold",
            value=threshold,
        )
    settings = EngineSettings(
        block_size=engine.block_size,
        num_gpu_blocks=memory.num_gpu_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        max_num_scheduled_tokens=engine.max_num_scheduled_tokens,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        watermark=engine.watermark,
        slots=slots,
        lookahead=method.lookahead(k),
        num_speculative_tokens=method.verify_nodes(k),
        pads_single_tokens=not policy.is_dynamic,
        async_scheduling=is_async,
        scheduling_policy=engine.scheduling_policy,
        enable_prefix_caching=engine.enable_prefix_caching,
        enable_chunked_prefill=engine.enable_chunked_prefill,
        drops_last_hit=method.drops_last_prefix_block and not (spec and spec.disable_eagle_block_drop),
        sliding_window=model.sliding_window,
        proposes_on_host=method.proposes_on_host,
        proposes_by_match=method.proposes_by_match,
        tree_depth=k if method.is_tree else 0,
    )
    cost = compile_step_cost(
        model,
        method,
        draft,
        k,
        engine.tensor_parallel_size,
        engine.draft_tensor_parallel_size,
        engine.weight_dtype,
        engine.kv_dtype,
        profile,
        hardware,
        max_num_batched_tokens,
        max_num_seqs,
        engine.enforce_eager,
        draft_dtype=engine.draft_weight_dtype,
        draft_kv_cache_dtype=engine.draft_kv_dtype,
        async_scheduling=is_async,
        max_model_len=max_model_len,
    )
    return Deployment(model, draft, method, hardware, profile, memory, settings, policy, cost)
