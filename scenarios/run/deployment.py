"""From a scenario's engine section to what a replica needs, whatever the seed: models, device, memory, settings,
cost."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import attrgetter
from typing import Any

from draftcast.calibration.acceptance.references import reference
from draftcast.calibration.profile.engines import BLOCKS, generation_of, graphs_hold_prompts, is_since, parse_version
from draftcast.calibration.profile.hardware import HardwareSpec, load_hardware
from draftcast.calibration.profile.load import find_profile, has_profile, load_profile, usual_profile
from draftcast.calibration.profile.roofline import Origin
from draftcast.calibration.profile.spec import HardwareProfile
from draftcast.errors import CapacityError, InputError, ScenarioError
from draftcast.files import picked
from draftcast.kernels.model.catalog import canonical_name, is_bundled_model, load_model
from draftcast.kernels.model.dtypes import COMPUTE_DTYPE, NEEDS_UNITS, WEIGHT_BYTES, wide_dtype
from draftcast.kernels.model.heads import Head, has_head, is_bundled_head, resolve_head
from draftcast.kernels.model.spec import WINDOWS, ModelSpec
from draftcast.scenarios.run.fp8_blocks import check_blocks, cut_expert
from draftcast.scenarios.run.kept import AnswerCache
from draftcast.scenarios.run.workload_spec import confidences
from draftcast.scenarios.schema import Engine, PolicySpec, Scenario, SpeculativeConfig, batch_defaults
from draftcast.scenarios.schema.correction import MEASURED_DEGREES, Correction
from draftcast.scenarios.schema.engine import MOST_BLOCKS, weight_dtype
from draftcast.scenarios.schema.load import key_in_group, members, to_mapping
from draftcast.scenarios.schema.raw import NAMES
from draftcast.scenarios.schema.references import put_checksums
from draftcast.scenarios.schema.speculation import RESEARCH, cannot_run
from draftcast.sim.acceptance.compiled import MAX_K
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.memory import MemoryBudget, memory_budget, memory_share
from draftcast.sim.cost.methods import Method, get_method
from draftcast.sim.cost.step_cost import compile_step_cost
from draftcast.sim.cost.step_time import StepCost
from draftcast.sim.policies.base import Policy
from draftcast.sim.policies.batch import NEEDS_CONFIDENCE
from draftcast.sim.policies.registry import load_policy
from draftcast.sim.workload.build_requests import trace_specs
from draftcast.yaml_text import yaml_beside

NOTES: dict[str, str] = yaml_beside(__file__, "notes.yaml")
MOST_KEPT = 16
# What a scenario holds that shapes no engine.
_NOT_DEPLOYED = ("name", "description", "cluster", "statistics")
_LOAD = ("arrivals", "lengths", "num_requests", "duration_s")
MODEL, DRAFT_MODEL = "engine.model", "engine.speculative_config.model"
# Errors about these name the model they do not go with as their file.
_NEVER_IN_A_FILE = ("tensor_parallel_size", "draft_tensor_parallel_size")

_profiles: AnswerCache[HardwareProfile] = AnswerCache(MOST_KEPT)


def cached_profile(name_or_path: str | None, hardware: HardwareSpec) -> HardwareProfile:
    """`load_profile`, or what it gave for the same files and device before, as to read and check a profile takes longer
    than simulating two thousand requests; errors as there."""
    place = find_profile(usual_profile(hardware) if name_or_path is None else name_or_path)
    status = {str(file): file.stat() for file in (sorted(place.iterdir()) if place.is_dir() else [place])}
    stamps = tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in status.items())
    return _profiles.get((stamps, repr(hardware)), lambda: load_profile(name_or_path, hardware))


@dataclass(frozen=True)
class Deployment:
    """One replica's engine, resolved; ``assumed`` says what the scenario leaves open of it, a sentence each."""

    model: ModelSpec
    draft: ModelSpec | None
    assumed: tuple[str, ...]
    hardware: HardwareSpec
    profile: HardwareProfile
    memory: MemoryBudget
    settings: EngineConfig
    policy: Policy
    cost: StepCost


deployments: AnswerCache[Deployment] = AnswerCache(MOST_KEPT)


def engine_key(data: Mapping[str, Any]) -> str:
    """Text that is equal for scenarios (as mappings) that differ in their load and statistics only."""
    rest = {name: part for name, part in data.items() if name not in _NOT_DEPLOYED}
    rest["workload"] = {name: part for name, part in data["workload"].items() if name not in _LOAD}
    return json.dumps(rest, sort_keys=True)


def deployments_of(scenario: Scenario) -> tuple[Deployment, ...]:
    """`cached_deployment` of each of the scenario's `members`; errors as of `deploy`, which name the group."""
    made = []
    for index, member in enumerate(members(scenario)):
        try:
            made.append(cached_deployment(member))
        except InputError as error:
            if not scenario.cluster.groups:
                raise
            raise error.at(key=key_in_group(f"cluster.groups.{index}", error.key)) from None
    return tuple(made)


def check_alike(scenario: Scenario) -> None:
    """Refuse a question that is asked of one engine where the cluster's groups have one each."""
    if scenario.cluster.groups:
        sweep = "draftcast sweep --grid cluster.groups.0.replicas=1,2,3"
        message = f"this is asked of one engine: take the groups away, or sweep keys of one of them ({sweep})"
        raise ScenarioError(message, key="cluster.groups")


def cached_deployment(scenario: Scenario) -> Deployment:
    """`deploy`, or its answer for the same engine and contents of files: it takes as long as hundreds of requests."""
    check_alike(scenario)
    if scenario.resolved_policy.is_in_notebook:
        return deploy(scenario)
    data = to_mapping(scenario)
    for name in _LOAD:
        data["workload"].pop(name)  # a trace is not read for its checksum
    put_checksums(data)
    return deployments.get((engine_key(data), _may_share(scenario)), lambda: deploy(scenario))


def _may_share(scenario: Scenario) -> bool:
    """Whether prompts may begin alike, those of files among them."""
    return scenario.workload.shares_prefixes or bool(trace_specs(scenario.workload))


def assumptions(scenario: Scenario) -> tuple[str, ...]:
    """What the forecast of a scenario's engine assumes because the scenario leaves it open; errors as of `deploy`."""
    return assumed_of(deployments_of(scenario))


def assumed_of(deployments: Iterable[Deployment]) -> tuple[str, ...]:
    """What they assume, each sentence once."""
    return tuple(dict.fromkeys(sentence for deployment in deployments for sentence in deployment.assumed))


@contextmanager
def engine_keys(model: str = MODEL) -> Iterator[None]:
    """Errors about the engine, its hardware or its policy name the scenario's key; ``model`` is that of a model's."""
    try:
        yield
    except InputError as error:
        # An error in a file names that file's key.
        if error.key is None or (error.file is not None and error.key not in _NEVER_IN_A_FILE):
            raise
        raise error.at(key=_scenario_key(error.key, model)) from None


def _scenario_key(key: str, model: str) -> str:
    other_names: dict[str, str] = {"model": model, **NAMES["engine"]}
    if key in other_names:
        return other_names[key]
    if key.startswith("policy.") and not key.startswith(("policy.name", "policy.parameters")):
        return f"policy.parameters.{key.removeprefix('policy.')}"
    if key in Engine.model_fields:
        return f"engine.{key}"
    return f"engine.speculative_config.{key}" if key in SpeculativeConfig.model_fields else key


@engine_keys()
def policy_of(scenario: Scenario) -> Policy:
    """The policy that runs; one that is given is checked though nothing drafts. Raises ScenarioError: an unknown policy
    or parameter, or the scenario lacks what the policy goes by."""
    spec = scenario.speculative_config
    resolved = scenario.resolved_policy
    if resolved.name == "batch_schedule" and spec is not None:
        return load_policy("batch_schedule", schedule=spec.num_speculative_tokens_per_batch_size)
    if spec is None and scenario.policy is not None and scenario.policy.name != "batch_schedule":
        _load_policy(scenario, scenario.policy)
    policy = _load_policy(scenario, resolved)
    if policy.needs_confidence and None in confidences(scenario):
        raise ScenarioError(NEEDS_CONFIDENCE, key="acceptance.confidence_discrimination", value=None)
    return policy


def _load_policy(scenario: Scenario, config: PolicySpec) -> Policy:
    parameters = dict(config.parameters)
    if config.name == "slo_aware":
        tpot_s, classes = parameters.get("tpot_s"), len(scenario.request_classes)
        if "tpot_s" not in parameters:
            slos = [scenario.slo_of(entry.name) for entry in scenario.request_classes]
            limits = [slo.tpot_ms if slo is not None else None for slo in slos]
            if not any(limits):
                message = "needs slo.tpot_ms, or policy.parameters.tpot_s"
                raise ScenarioError(message, key="policy.name", value="slo_aware")
            # Of every class in the order of their ids, 0 where it has none.
            parameters["tpot_s"] = [(limit or 0.0) / 1000.0 for limit in limits]
        if isinstance(tpot_s, list | tuple) and len(tpot_s) != classes:
            message = f"must be one number, or one for each of {classes} classes"
            raise ScenarioError(message, key="policy.tpot_s", value=tpot_s)
    try:
        policy = load_policy(config.name, **parameters)
        policy.compile(1, 1)  # what it is made of has to be numbers
    except (ValueError, TypeError, OverflowError) as error:
        raise ScenarioError(str(error), key="policy.parameters", value=config.parameters) from None
    kind = type(policy)
    if kind.rule is None and kind.decide is Policy.decide:
        message = "decides nothing: the class must override decide of draftcast.sim.Policy"
        raise ScenarioError(message, key="policy.name", value=config.name)
    return policy


def _batch_limits(engine: Engine, hardware: HardwareSpec, model: ModelSpec, max_model_len: int) -> dict[str, int]:
    """The batch flags with the engine's defaults for what is absent (vLLM 0.32 ``SchedulerConfig`` and
    ``EngineArgs._set_default_max_num_seqs_and_batched_tokens_args``). The schema checks flags against each other, this
    checks them against the defaults too. Raises ScenarioError: they contradict each other."""
    seqs, tokens = batch_defaults(hardware.memory_bytes, hardware.name, engine.tensor_parallel_size, engine.version)
    generation = generation_of(engine.version)
    ranks = engine.data_parallel_size if generation.limits_of_ranks and model.is_moe else 1
    tokens //= ranks
    fewer = generation.drafting_requests if engine.speculative_config is not None else None
    fewer = generation.compressed_requests if model.kv_compression else fewer
    seqs = engine.max_num_seqs or (seqs if fewer is None else max(fewer // ranks, 1))
    whole_prompt = 0 if engine.enable_chunked_prefill else max_model_len
    tokens = engine.max_num_batched_tokens or min(max(tokens, whole_prompt), seqs * max_model_len)
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
        message = f"must be at least max_model_len = {max_model_len} without chunked prefill"
        raise ScenarioError(message, key="engine.max_num_batched_tokens", value=tokens)
    return {"max_num_seqs": seqs, "max_num_batched_tokens": tokens}


def _draft(scenario: Scenario, method: Method, model: ModelSpec) -> Head | None:
    """The draft that is served and what was assumed of it; None where nothing drafts with a model."""
    spec = scenario.speculative_config
    if spec is None:
        return None
    if has_head(method.name):
        with engine_keys("engine.speculative_config.method"):
            head = resolve_head(method.name, model, method.of_head(scenario.num_speculative_tokens), spec.model)
        version = scenario.engine.version
        why = cannot_run(*parse_version(version)[:2], "dflash2") if head.spec.selector_rank else None
        if why is not None:
            raise ScenarioError(f"{version} cannot run it: {why}", key=DRAFT_MODEL, value=spec.model)
        return head
    if not method.needs_draft_model or spec.model is None:
        return None
    if is_bundled_head(spec.model):
        raise ScenarioError("is a draft head: give its method", key=DRAFT_MODEL, value=spec.model)
    with engine_keys(DRAFT_MODEL):
        draft = load_model(spec.model)
    refuse = partial(_refuse, scenario.engine, key="speculative_config.model")
    states = "has linear attention layers: drafts with states of their own are not simulated"
    refuse(draft.num_linear_layers > 0, why=states)
    speaks_another = draft.vocab_size != model.vocab_size and not spec.use_heterogeneous_vocab
    refuse(speaks_another, why=NOTES["other_vocabulary"].format(draft=draft.vocab_size, target=model.vocab_size))
    billions = {"draft": draft.num_parameters / 1e9, "target": model.num_parameters / 1e9}
    refuse(draft.num_parameters > model.num_parameters, why=NOTES["larger_draft"].format(**billions))
    return Head(draft)


def _assumed_acceptance(scenario: Scenario) -> tuple[str, ...]:
    """What each acceptance that others measured was measured on, where rates are continued, and which has no effect."""
    spec = scenario.speculative_config
    if spec is not None and spec.synthetic_rates is not None:
        acceptances = [scenario.acceptance, *(entry.acceptance for entry in scenario.workload.classes)]
        return (NOTES["synthetic_decides"],) if any(acceptances) else ()
    models = [scenario.acceptance_of(entry.name) for entry in scenario.request_classes]
    named = sorted({name for model in models if (name := getattr(model, "reference", None)) is not None})
    notes, served = list[str](), scenario.engine.model
    for measured in map(reference, named):
        notes.append(f"acceptance as others measured it with {measured.setting} ({measured.source})")
        # Of a model in a file of one's own it is not known whether it is another.
        if is_bundled_model(served) and canonical_name(measured.model) != canonical_name(served):
            notes[-1] += f": another model than {canonical_name(served)}, whose acceptance may differ"
    positions = min((model.known_positions() or MAX_K for model in models if model is not None), default=MAX_K)
    if scenario.num_speculative_tokens > positions:
        plural = "" if positions == 1 else "s"
        notes.append(f"acceptance is known for {positions} draft{plural}; beyond, the last conditional rate goes on")
    return tuple(notes)


def _refuse(engine: Engine, is_refused: bool, key: str, why: str) -> None:
    """Raises ScenarioError about a key of the engine's section."""
    if is_refused:
        raise ScenarioError(why, key=f"engine.{key}", value=attrgetter(key)(engine))


def _check_parallel(engine: Engine, model: ModelSpec) -> None:
    """What vLLM 0.32 refuses (``ModelConfig.verify_with_parallel_config``), and stages without a layer."""
    tp, dcp, kv_heads = engine.tensor_parallel_size, engine.decode_context_parallel_size, model.num_key_value_heads
    refuse, layers = partial(_refuse, engine), model.num_hidden_layers
    no_experts = engine.enable_expert_parallel and not model.is_moe
    refuse(no_experts, "enable_expert_parallel", f"{model.name} has no experts (vLLM refuses it)")
    in_groups = engine.groups_experts and parse_version(engine.version)[0] == "vllm"
    refuse(in_groups, "expert_parallel_size", f"{engine.version} spreads experts over all ranks of a layer")
    too_deep = engine.pipeline_parallel_size > layers
    refuse(too_deep, "pipeline_parallel_size", f"must not exceed the {layers} layers of {model.name}")
    if dcp > 1 and not model.is_mla:
        key, most, queries = "decode_context_parallel_size", tp // kv_heads, model.num_attention_heads // kv_heads
        refuse(tp <= kv_heads, key, f"needs a tensor_parallel_size above the {kv_heads} KV heads of the model")
        refuse(dcp > most, key, f"must not exceed tensor_parallel_size / KV heads = {most}")
        refuse(queries % dcp > 0, key, f"must divide the {queries} query heads of a KV head")


def _check_what_vllm_refuses(engine: Engine, config: EngineConfig, model: ModelSpec) -> None:
    """What vLLM 0.32 refuses together (``config/vllm.py``, ``config/speculative.py``). Raises ScenarioError."""
    method, spec, refuse = config.method, engine.speculative_config, partial(_refuse, engine)
    if engine.async_scheduling:
        key, never = "async_scheduling", "cannot schedule asynchronously with"
        may = method.is_async or is_since(engine.version, config.generation.async_since.get(method.name))
        refuse(not may, key, f"vLLM {never} method {method.name}")
        staged = engine.pipeline_parallel_size > 1 and config.generation.runner != "v2"
        refuse(staged, key, f"vLLM's first model runner {never} pipeline parallelism")
    if spec is None or parse_version(engine.version)[0] != "vllm":
        return
    misses = config.generation.runner == "v2" and not config.generation.runs(engine.version, method.name, is_plain=True)
    refuse(misses, "version", f"vLLM's second model runner does not run method {method.name}")
    if engine.async_scheduling:
        unpadded = "speculative_config.disable_padded_drafter_batch"
        waits = spec.disable_padded_drafter_batch and not config.follows("unpadded_async")
        refuse(waits, key, f"vLLM {never} {unpadded}")
    unknown = spec.disable_lookahead_block_hashes and not config.follows("hashes_cover_lookahead")
    refuse(unknown, "speculative_config.disable_lookahead_block_hashes", "only from vLLM 0.33 on")
    for name, of in (("dspark_draft_topk", "dspark"), ("index_share_for_mtp_iteration", "mtp")):
        misplaced = getattr(spec, name) is not None and method.name != of
        refuse(misplaced, f"speculative_config.{name}", f"only with method {of} (vLLM refuses it)")
    # Only this method has MTP layers, and k below their number leaves some unused.
    k, layers = config.num_speculative_tokens, model.num_nextn_layers
    leaves_some = method.name == "mtp" and k > layers > 0 and k % layers > 0
    refuse(leaves_some, "speculative_config.num_speculative_tokens", NOTES["unused_layers"].format(layers=layers))


@engine_keys()
def deploy(scenario: Scenario) -> Deployment:
    """Resolve the scenario's engine on its hardware. Raises ModelError or HardwareError: an unknown model, device or
    profile; CapacityError: weights, or one request of max_model_len, do not fit in memory; ScenarioError: settings that
    vLLM refuses, or replicas that are not alike (`deployments_of`)."""
    check_alike(scenario)
    engine, spec = scenario.engine, scenario.speculative_config
    model = load_model(engine.model)
    hardware = load_hardware(scenario.hardware)
    profile = cached_profile(scenario.profile, hardware)
    _check_parallel(engine, model)
    method, k = get_method(scenario.method), scenario.num_speculative_tokens
    if spec is not None:
        method = spec.tree or replace(method, head_drafts=spec.head_drafts)
    head = _draft(scenario, method, model)
    draft, assumed = (head.spec, [*head.assumed]) if head is not None else (None, [])
    timed_on = profile.timed_on if profile.kind == "roofline" else None
    if timed_on is not None or (scenario.profile is None and not has_profile(hardware)):
        kernels = "assumed efficiencies at" if timed_on is None else f"those of {timed_on.name}, stretched by"
        assumed.append(f"no kernel was timed on {hardware.name}: {kernels} the rates of its data sheet")
    elif scenario.profile is None and profile.kind == "roofline" and not profile.times("attention_decode"):
        rates = "assumed efficiencies at the rates of its data sheet"
        assumed.append(f"matrices and experts alone were timed on {hardware.name}: of other kernels {rates}")
    if spec is not None and spec.drafting in RESEARCH:
        assumed.append(f"no engine's release known here runs this: {RESEARCH[spec.drafting]}")
    assumed += _assumed_acceptance(scenario)
    refuse, longest = partial(_refuse, engine), model.max_position_embeddings
    max_model_len = engine.max_model_len or longest
    too_long = max_model_len > longest
    refuse(too_long, "max_model_len", f"must not exceed the model's own maximum of {longest} (vLLM refuses it)")
    if spec is not None and spec.max_model_len is not None and draft is not None:
        limit = min(max_model_len, draft.max_position_embeddings) if method.needs_draft_model else max_model_len
        allowed = f"must not exceed {limit}, the lower of the target's and the draft's own (vLLM refuses it)"
        refuse(spec.max_model_len > limit, "speculative_config.max_model_len", allowed)
    version, is_plain = engine.version, not (model.is_moe or model.is_hybrid)
    generation = generation_of(version, method.name, is_plain=is_plain)
    # The second runner's kernels are Triton's, which CPUs lack, and it knows one vocabulary (config/vllm.py of 0.32).
    if generation.runner == "v2" and ("cpu" in hardware.name or (spec is not None and spec.use_heterogeneous_vocab)):
        why = "vLLM's second model runner runs neither on CPUs nor with a draft model of another vocabulary"
        refuse(parse_version(version)[2] == "v2", "version", f"{why} (vLLM refuses it)")
        version = f"{version} v1"
        generation = generation_of(version, method.name, is_plain=is_plain)
    drafted, bounds = max_model_len, generation.follows("draft_bounds_length", version)
    if spec is not None and draft is not None and method.needs_draft_model and bounds:
        drafted = spec.max_model_len or draft.max_position_embeddings
    if drafted < max_model_len:
        max_model_len = drafted
        assumed.append(NOTES["draft_bounds_length"].format(version=version, length=drafted))
    elif spec is not None and spec.max_model_len is not None:
        assumed.append(NOTES["no_draft_length"].format(version=version))
    # A flag of one name in the scenario and in the engine is handed on as it is.
    flags = {flag.name: getattr(engine, flag.name, None) for flag in fields(EngineConfig)}
    padded = spec is None or not spec.disable_padded_drafter_batch or parse_version(engine.version)[0] != "vllm"
    if engine.async_scheduling is None and not (padded or generation.follows("unpadded_async", version)):
        flags["async_scheduling"] = False
    whole = engine.pipeline_parallel_size == engine.decode_context_parallel_size == 1
    if whole and model.has_window_groups and parse_version(engine.version)[0] == "vllm" and not _may_share(scenario):
        # Blocks behind a window that no other request will hit are given to whoever needs one, as vLLM does.
        flags["enable_prefix_caching"] = False
    flags |= {
        "version": version,
        "method": method,
        "num_speculative_tokens": k,
        "max_model_len": max_model_len,
        **_batch_limits(engine, hardware, model, max_model_len),
        "request_limit": engine.max_num_seqs if generation.follows("request_limit_cuts_graphs", version) else None,
        "api_server_count": engine.api_server_count or engine.data_parallel_size,
        **picked(model, "is_moe is_hybrid is_multimodal sliding_window num_nextn_layers"),
        "graphs_hold_prompts": graphs_hold_prompts(model, hardware),
        "temperature": scenario.workload.temperature,
        "window_kind": WINDOWS.index(model.window_kind),
        **(picked(spec, "disable_eagle_block_drop disable_lookahead_block_hashes") if spec is not None else {}),
    }
    config = EngineConfig(**{name: value for name, value in flags.items() if value is not None})
    config, formats = _latent_formats(engine, config, model, draft, hardware)
    assumed += formats
    _check_what_vllm_refuses(engine, config, model)
    pipelined = config.pipeline_parallel_size > 1
    needed = config.lookahead if config.follows("blocks_drafted_apart") else config.slots
    if config.max_num_batched_tokens <= needed:
        message = f"must exceed the {needed} rows that {method.name} with k = {k} needs for the drafts of a request"
        raise ScenarioError(message, key="engine.max_num_batched_tokens", value=config.max_num_batched_tokens)
    _check_formats(config, model, hardware)
    config = replace(config, cuts_blocks=cut_expert(config, model) > 0)
    try:
        memory = memory_budget(config, model, None if method.drafts_ahead else draft, hardware)
        if draft is not None and method.drafts_ahead:
            blocks = memory_ahead(config, draft, hardware).num_gpu_blocks
            memory = replace(memory, num_gpu_blocks=min(memory.num_gpu_blocks, blocks))
    except CapacityError as error:
        if error.key in ("max_num_batched_tokens", "num_gpu_blocks"):  # says what helps; no other GPU or format does
            raise
        message = f"{error.message}; {_what_fits(config, model, draft, hardware)}"
        raise CapacityError(message, key=error.key, value=error.value) from None
    if memory.num_gpu_blocks > MOST_BLOCKS:
        message = f"leaves room for {memory.num_gpu_blocks} blocks, more than {MOST_BLOCKS}; take a larger block size"
        raise CapacityError(message, key="engine.block_size", value=engine.block_size)
    policy = policy_of(scenario)
    keeps_schedule = generation.keeps_schedule(version, method.name)
    if (engine.data_parallel_size > 1 or not keeps_schedule) and scenario.resolved_policy.name == "batch_schedule":
        policy = load_policy("fixed")
        why = f"{version}'s first model runner and method {method.name}" if not keeps_schedule else "data parallelism"
        assumed.append(NOTES["no_schedule"].format(why=why))
    ranks = "data-parallel ranks of a model with experts"
    if config.lockstep_ranks > 1 and policy.is_dynamic and policy.name != "off":
        message = f"{ranks} must draft equally many tokens; this policy lets them differ"
        raise ScenarioError(message, key="policy.name", value=policy.name)
    stages = config.lockstep_ranks > 1 and pipelined
    refuse(stages, "pipeline_parallel_size", f"must be 1: {ranks} are simulated without pipeline stages")
    if pipelined and policy.name == "adaptive_verification":
        raise ScenarioError("vLLM has no adaptive verification with pipeline parallelism", key="policy.name")
    threshold, rows = config.long_prefill_token_threshold, method.verify_rows(k)
    cuts_round = k > 0 and not policy.is_dynamic and 0 < threshold < rows
    refuse(cuts_round, "long_prefill_token_threshold", NOTES["cut_round"].format(drafts=rows - 1, rows=rows))
    # Of vLLM's own schedule. Other policies ask what a runner that can draft less would give.
    in_full = policy.name == "batch_schedule" and config.makes_all_drafts
    if in_full:
        assumed.append(NOTES["all_drafts_made"].format(version=version, k=k))
    most_requests, rows = min(config.max_num_seqs, memory.most_requests or config.max_num_seqs), config.lookahead
    if config.drafts_apart and config.max_num_batched_tokens // rows < most_requests:
        most_requests = config.max_num_batched_tokens // rows
        assumed.append(NOTES["drafts_bound_requests"].format(version=version, requests=most_requests, rows=rows))
    config = replace(
        config,
        **picked(memory, "num_gpu_blocks block_size fixed_blocks window_groups"),
        max_num_seqs=most_requests,
        gpu_memory_utilization=memory_share(config, model, hardware),
        is_dynamic=policy.is_dynamic,
        drafts_in_full=in_full,
    )
    if (model.num_linear_layers or model.kv_compression) and config.enable_prefix_caching:
        config = replace(config, enable_prefix_caching=False)
        assumed.append(NOTES["no_state_cache"])
    kind, ratio = config.generation.step_ratio(config.version, model, config.weight_dtype, hardware)
    if ratio != 1.0 and profile.kind != "affine":
        what = "weights in fp8 by blocks" if kind == BLOCKS else "this attention"
        assumed.append(f"steps take {ratio:g} times as long as timed: {version} ran {what} slower on this GPU")
    together = config.tensor_parallel_size * config.pipeline_parallel_size * config.lockstep_ranks
    if together > hardware.linked_devices:
        assumed.append(NOTES["between_nodes"].format(together=together, linked=hardware.linked_devices))
    cost = compile_step_cost(config, model, draft, profile)
    if scenario.correction is not None:
        _check_correction(scenario.correction, scenario, profile)
        cost = with_excess(cost, scenario.correction.step_factor - 1.0, seconds=scenario.correction.step_s)
    return Deployment(model, draft, tuple(assumed), hardware, profile, memory, config, policy, cost)


def _latent_formats(
    engine: Engine, config: EngineConfig, model: ModelSpec, draft: ModelSpec | None, hardware: HardwareSpec
) -> tuple[EngineConfig, list[str]]:
    """The configuration with the formats in which the engine keeps latents, and notes of what was not asked for."""
    generation, wanted, spec, notes = config.generation, config.kv_dtype, engine.speculative_config, []
    is_open = engine.kv_cache_dtype == "auto" and (not model.kv_cache_dtype or model.kv_compression > 0)
    if is_open and generation.caches_in_fp8(config.version, model, hardware):
        wanted = "fp8"
        notes.append(NOTES["fp8_latents"].format(version=config.version, model=model.name, device=hardware.name))
    if wanted != "fp8" and not generation.has_wide_latents(config.version, model, hardware):
        message = f"must be auto or fp8: {config.version} has no other latents of {model.name} on {hardware.name}"
        raise ScenarioError(message, key="engine.kv_cache_dtype", value=engine.kv_cache_dtype)
    packs = wanted == "fp8" and generation.packs_latents(config.version, model, hardware)
    if packs:
        size = model.kv_bytes_per_layer("fp8", packed=True)
        notes.append(NOTES["packed_latents"].format(bytes=size, version=config.version))
    follows = draft is not None and draft.is_mla and (spec is None or spec.kv_cache_dtype in (None, "auto"))
    draft_dtype = wanted if follows else config.draft_kv_dtype
    return replace(config, kv_dtype=wanted, draft_kv_dtype=draft_dtype, packs_latents=packs), notes


def memory_ahead(config: EngineConfig, draft: ModelSpec, hardware: HardwareSpec) -> MemoryBudget:
    """Of a draft model on GPUs of its own, where it stands as a target would."""
    alone = replace(
        config,
        method=get_method("none"),
        num_speculative_tokens=0,
        tensor_parallel_size=config.draft_tensor_parallel_size,
        pipeline_parallel_size=1,
        decode_context_parallel_size=1,
        weight_dtype=config.draft_weight_dtype,
        kv_dtype=config.draft_kv_dtype,
        **picked(draft, "is_moe is_hybrid sliding_window"),
        window_kind=WINDOWS.index(draft.window_kind),
    )
    return memory_budget(alone, draft, None, hardware)


def _what_fits(config: EngineConfig, model: ModelSpec, draft: ModelSpec | None, hardware: HardwareSpec) -> str:
    """Of an out-of-memory error: the smallest tensor parallelism and the widest format with which the engine fits."""

    own, draft_tp = config.tensor_parallel_size, config.draft_tensor_parallel_size

    def first(degrees: tuple[int, ...], formats: tuple[str, ...]) -> list[str]:
        for tp, name in itertools.product(degrees, formats):
            of_draft = tp if draft_tp == own else draft_tp
            changed = replace(config, tensor_parallel_size=tp, draft_tensor_parallel_size=of_draft)
            changed = replace(changed, weight_dtype=weight_dtype("auto", name)) if name else changed
            with suppress(InputError):
                _check_formats(changed, model, hardware)
                memory_budget(changed, model, draft, hardware)
                words = {"tensor_parallel_size": tp if tp != own else "", "quantization": name}
                return [" and ".join(f"{key} {value}" for key, value in words.items() if value)]
        return []

    peaks, size = hardware.peak_flops, WEIGHT_BYTES[config.weight_dtype]
    units = {"fp8": "fp8" in peaks, "nvfp4": "fp4" in peaks, "awq": True}
    formats = tuple(name for name, there in units.items() if there and WEIGHT_BYTES[weight_dtype("auto", name)] < size)
    degrees = tuple(tp for tp in (2, 4, 8) if tp > own)
    ways = first(degrees, ("",)) + first((own,), formats) or first(degrees, formats)
    return f"fits with {' or with '.join(ways)}" if ways else "fits with no tensor_parallel_size up to 8 and no format"


def _check_formats(config: EngineConfig, model: ModelSpec, hardware: HardwareSpec) -> None:
    """Refuse formats that change nothing of the model, or that the device has no units for."""
    dtype, units = config.weight_dtype, hardware.peak_flops
    groups = model.parameter_groups()
    narrow = [group for group in groups if model.stored(group, dtype)[0] == dtype]
    if dtype != wide_dtype(dtype) and not any(groups[group] for group in narrow):
        stored = ", ".join(narrow)
        raise ScenarioError(f"stores {stored} alone, and {model.name} has none", key="engine.quantization", value=dtype)
    if dtype in NEEDS_UNITS and COMPUTE_DTYPE[dtype] not in units:
        have = f"{hardware.name} has no {dtype} matrix units; it has {', '.join(units)}"
        raise ScenarioError(have, key="engine.quantization", value=dtype)
    if config.kv_dtype == "nvfp4" and "fp4" not in units:
        have = f"{hardware.name} has no fp4 matrix units; it has {', '.join(units)}"
        raise ScenarioError(have, key="engine.kv_cache_dtype", value="nvfp4")
    check_blocks(config, model, hardware)


def _check_correction(correction: Correction, scenario: Scenario, profile: HardwareProfile) -> None:
    """A correction holds for the engine and the profile it was made with."""
    engine = scenario.engine
    compared: tuple[tuple[str, object, object], ...] = (
        ("model", canonical_name(engine.model), canonical_name(correction.model)),
        ("hardware", load_hardware(scenario.hardware).name, load_hardware(correction.hardware).name),
        *((name, getattr(engine, name), getattr(correction, name)) for name in ("quantization", *MEASURED_DEGREES)),
    )
    for key, value, measured in compared:
        if value != measured:
            message = f"was measured with {measured}, the scenario has {value}: calibrate to a run of this engine"
            raise ScenarioError(message, key=f"correction.{key}")
    if correction.profile_checksum not in (None, profile.checksum()):
        message = f"was made with other step times than those of profile {profile.name}: calibrate again"
        raise ScenarioError(message, key="correction.profile_checksum")


def with_excess(cost: StepCost, decode: float, prompt: float | None = None, seconds: float = 0.0) -> StepCost:
    """``cost`` with every step longer: by a share of its time (steps without and with prompts; None: the same), and by
    ``seconds`` on the device.
    """
    params, target = cost.params.copy(), cost.target
    p = params[0]
    for name, share in (("decode_excess", decode), ("prompt_excess", decode if prompt is None else prompt)):
        p[name] = (1.0 + p[name]) * (1.0 + share) - 1.0
    if seconds and p["affine"]:
        p["fit_target"]["fixed_s"] += seconds / (1.0 + p["decode_excess"])
    elif seconds:
        target = target.copy()
        target[1:, Origin.EXTRAPOLATED] += seconds / (1.0 + p["decode_excess"])
    return cost._replace(params=params, target=target)
