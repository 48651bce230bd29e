"""From a scenario's engine section to the command that starts such an engine: vLLM's, SGLang's, TensorRT-LLM's.

Only what differs from the server's own default is written. What a server needs and the scenario does not say is written
as a place to fill in, never left out; what the scenario says and a server has no word for becomes a note. vLLM's names
are the scenario's own; the others' stand in ``servers.yaml``. `read_command.py` reads the commands back.
"""

import itertools
import json
import math
import operator
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from draftcast.calibration.profile.engines import parse_version
from draftcast.errors import ScenarioError
from draftcast.files import picked
from draftcast.kernels.model.catalog import published_id, published_ids
from draftcast.kernels.model.heads import says_kind
from draftcast.scenarios.compare.candidate import SCHEDULE, SPEC
from draftcast.scenarios.compare.server_table import COMMANDS, TABLES, ServerField, ServerTable, Units, Words
from draftcast.scenarios.run.deployment import cached_deployment, policy_of
from draftcast.scenarios.schema import Engine, Scenario, SpeculativeConfig
from draftcast.scenarios.schema.speculation import RESEARCH, cannot_run
from draftcast.sim.cost.methods import get_method
from draftcast.sim.policies.ema_tiers import EmaTiers
from draftcast.yaml_text import write_yaml

INSTRUCT = "Instruct"
VLLM = ("vLLM 0.32", "vLLM 0.33")  # releases whose flags are written
SERVERS = ("vllm", "sglang", "trtllm")
ADAPTIVE_FILE, OPTIONS_FILE = "adaptive.json", "trtllm.yaml"
# What makes a server accept so many tokens a round, whatever the text.
FORCED = {"sglang": "SGLANG_SIMULATE_ACC_LEN", "trtllm": "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"}
DP = "data_parallel_size"
VARYING = ("batch_schedule", "ema_tiers")  # policies whose draft length servers can vary
DEFAULT_LOOKUP = 5  # length of vLLM's n-grams where none is given


@dataclass(frozen=True)
class ServedModels:
    """What a server loads."""

    target: str  # Hugging Face id or path
    draft: str | None = None  # the same, or what to fill in where none is named; None where the method needs none
    draft_is_named: bool = True  # whether the scenario names it
    notes: tuple[str, ...] = ()  # what to know before pasting, a sentence each


def served_models(scenario: Scenario) -> ServedModels:
    """The repositories of a scenario's target and draft, as far as it names them.

    A base model and its Instruct model have one shape, so one bundled model stands for both. A draft fits only the one
    it was trained for: where its name says Instruct (or base) and the target's does not, the target's repository that
    fits is taken, with a note. The short name of a bundled draft stands for the repository that fits the target.
    """
    target, spec, method = published_id(scenario.engine.model), scenario.speculative_config, scenario.method
    if spec is None or (spec.model is None and method not in COMMANDS["heads"]):
        return ServedModels(target)
    if spec.model is None:
        head = f"{COMMANDS['heads'][method]} for {target}"
        note = f"Fill in the model of {head}: the scenario names none, and no server starts without it."
        return ServedModels(target, f"<path or Hugging Face id of {head}>", False, (note,))
    fitting, notes = _repository_for(target, spec.model)
    draft = published_id(spec.model)
    if draft != spec.model:
        draft = next((name for name in published_ids(draft) if _variant(name) == _variant(fitting)), draft)
    return ServedModels(fitting, draft, True, notes)


def class_notes(scenario: Scenario) -> tuple[str, ...]:
    """What an engine cannot be told of the request classes."""
    undrafted = [entry.name for entry in scenario.workload.classes if not entry.speculation]
    if not undrafted or scenario.speculative_config is None:
        return ()
    return (f"No engine switches drafts off by request: serve the class {', '.join(undrafted)} apart.",)


def _repository_for(target: str, draft: str) -> tuple[str, tuple[str, ...]]:
    """The target's repository that a draft was trained for, and what to say of it."""
    kind, ids = _variant(draft), published_ids(target)
    if not kind or not ids or (kind == INSTRUCT) is (_variant(target) == INSTRUCT):
        return target, ()
    fitting = [name for name in ids if (_variant(name) == INSTRUCT) is (kind == INSTRUCT)]
    # Several models may share a shape (Llama 3.1 and 3.3): the draft's name may hold its own target's.
    fitting.sort(key=lambda name: name.rpartition("/")[2].lower() not in draft.lower())
    if not fitting:
        return target, (f"Check this pair: the draft {draft} names the {kind} model, which {target} may not be.",)
    return fitting[0], (COMMANDS["other_target"].format(draft=draft, kind=kind, fitting=fitting[0], target=target),)


def _variant(name: str) -> str:
    """``Instruct`` or ``base`` where a repository's own name says so, else empty."""
    words = set(re.split(r"[^a-z0-9]+", name.rpartition("/")[2].lower()))
    return INSTRUCT if words & {"instruct", "chat"} else "base" if "base" in words else ""


def speculative_config_json(scenario: Scenario) -> dict[str, Any] | None:
    """The dictionary for ``vllm serve --speculative-config``: what was set, with vLLM's keys alone; None without one. A
    missing ``model`` says what to fill in (`served_models`). Raises ScenarioError: this vLLM lacks the method."""
    spec = scenario.speculative_config
    if spec is None:
        return None
    _refuse_unknown("vllm", _vllm(scenario), spec)
    values: dict[str, Any] = json.loads(spec.model_dump_json(exclude_unset=True))
    values = {key: value for key, value in values.items() if key not in COMMANDS["not_vllm"] and value is not None}
    if spec.method in ("p_eagle", "pard"):
        # vLLM names the parallel drafters by their base method.
        values |= {"method": get_method(spec.method).vllm_method, "parallel_drafting": True}
    if _verifies_adaptively(scenario):
        values["enable_adaptive_verification"] = True
    draft = served_models(scenario).draft
    values |= {} if draft is None else {"model": draft}
    return {key: values[key] for key in SpeculativeConfig.model_fields if key in values}


def _verifies_adaptively(scenario: Scenario) -> bool:
    """Whether the policy is what vLLM does with ``enable_adaptive_verification``."""
    policy = scenario.resolved_policy
    return policy.name == "adaptive_verification" and not policy.parameters and scenario.method == "dspark"


def flag_of(name: str) -> str:
    """vLLM's flag for a field of `Engine`, without its dashes."""
    return str(COMMANDS["other_names"].get(name, name.replace("_", "-")))


def vllm_flags(engine: Engine) -> list[str]:
    """Flags of ``vllm serve`` without the model and without ``--speculative-config``."""
    usual = Engine(model=engine.model)
    names = [name for name in Engine.model_fields if getattr(engine, name) != getattr(usual, name)]
    said = {name: getattr(engine, name) for name in names if name not in COMMANDS["no_flag"]}
    switches = [f"--{'' if value else 'no-'}{flag_of(name)}" for name, value in said.items() if isinstance(value, bool)]
    valued = [(f"--{flag_of(name)}", str(value)) for name, value in said.items() if not isinstance(value, bool)]
    flags = [*itertools.chain.from_iterable(valued), *switches]
    if engine.cudagraph_mode is not None:
        flags += ["--compilation-config", json.dumps({"cudagraph_mode": engine.cudagraph_mode})]
    return flags


@dataclass(frozen=True)
class ServerCommand:
    """What starts one replica of a scenario's engine on a server."""

    version: str  # the server and the version whose documentation this follows
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # content by name, in the folder where the command runs
    notes: tuple[str, ...] = ()  # what to know before pasting, a sentence each

    @property
    def line(self) -> str:
        """The command with its environment, quoted for a shell."""
        return " ".join([*(f"{name}={value}" for name, value in self.environment.items()), shlex.join(self.command)])

    @property
    def text(self) -> str:
        """For a shell: comments, the files, the command."""
        written = (f"cat > {name} <<'EOF'\n{content.rstrip()}\nEOF" for name, content in self.files.items())
        return "\n".join([*(f"# {note}" for note in self.notes), *written, self.line])

    def summary(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"command": self.line, **picked(self, "version files notes")}


def server_command(scenario: Scenario, server: str) -> ServerCommand:
    """What starts the scenario's engine on ``server``, one of `SERVERS`; what cannot be set there becomes a note.
    Raises ScenarioError: the server cannot run the method, or not with the scenario's schedule or parallelism."""
    served, spec = served_models(scenario), scenario.speculative_config
    if server == "vllm":
        if scenario.engine.groups_experts:
            message, size = "vLLM spreads experts over all ranks of a layer", scenario.engine.expert_parallel_size
            raise ScenarioError(message, key="engine.expert_parallel_size", value=size)
        flags = vllm_flags(scenario.engine)
        if spec is not None:
            flags += ["--speculative-config", json.dumps(speculative_config_json(scenario))]
        runner = parse_version(scenario.engine.version)[2]
        env = {"VLLM_USE_V2_MODEL_RUNNER": str(int(runner == "v2"))} if runner else {}
        words_of_vllm = ("vllm", "serve", served.target, *flags)
        return ServerCommand(_vllm(scenario), words_of_vllm, env, notes=_common_notes(scenario, server))
    table = TABLES[server]
    words, notes = _engine_words(table, scenario)
    words |= _parallel_words(server, scenario)
    drafts, files, environment = Words(), dict[str, str](), dict[str, str]()
    if spec is not None:
        drafts, more = _draft_words(server, scenario, served.draft)
        notes += more
        if spec.synthetic_rates is not None:
            environment = forced_acceptance(server, spec.synthetic_rates, is_tree=spec.tree is not None)
            if spec.synthetic_acceptance_rates is not None:
                notes.append(f"{FORCED[server]} forces the mean of synthetic_acceptance_rates, no rate by position.")
    notes = [*_common_notes(scenario, server), *notes]
    varied = spec if scenario.resolved_policy.name in VARYING else None
    if server == "sglang":
        if varied is not None:
            tiers = _tiers(scenario, varied)
            lengths = [k for tier in tiers.values() if isinstance(tier, dict) for k in tier["candidate_steps"]]
            if not any(lengths):
                message = f"{table.version} has no schedule that never drafts; leave speculation out instead"
                raise ScenarioError(message, key=f"{SPEC}.{SCHEDULE}", value=lengths)
            start = varied.k if varied.k in lengths else max(lengths)
            drafts |= {"speculative-num-steps": start, "speculative-num-draft-tokens": start + 1}
            drafts |= {"speculative-adaptive": True, "speculative-adaptive-config": ADAPTIVE_FILE}
            files[ADAPTIVE_FILE] = json.dumps(tiers) + "\n"
        flags = []
        for name, value in (words | drafts).items():
            flags += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        command = ["python", "-m", "sglang.launch_server", "--model-path", served.target, *flags]
    else:
        settings = _nested(words)
        if drafts:
            settings["speculative_config"] = drafts | (_draft_len_schedule(scenario, varied) if varied else {})
        files[OPTIONS_FILE] = write_yaml(settings)
        command = ["trtllm-serve", served.target, "--extra_llm_api_options", OPTIONS_FILE]
    return ServerCommand(table.version, tuple(command), environment, files, tuple(notes))


def forced_acceptance(server: str, rates: Sequence[float], *, is_tree: bool) -> dict[str, str]:
    """Environment that makes a server accept as many drafts as unconditional ``rates`` say, whatever the text.

    SGLang counts the token that comes with the drafts, TensorRT-LLM does not (its pull request 13569). SGLang draws
    the number by another rule unless told to match its mean, and gives token 100 for every accepted draft unless told
    to give the draft's own; of a tree it cannot (srt/speculative/spec_utils.py, eagle_utils.py).
    """
    length = math.fsum(rates) + (server == "sglang")
    forced = {FORCED[server]: f"{length:.6g}"}
    if server == "sglang":
        forced["SGLANG_SIMULATE_ACC_METHOD"] = "match-expected"
        if not is_tree:
            forced["SGLANG_SIMULATE_ACC_TOKEN_MODE"] = "real-draft-token"
    return forced


def bench_note(server: str, rates: Sequence[float], *, is_tree: bool) -> str:
    """How a test bench forces acceptance at unconditional ``rates``, in a sentence."""
    if server == "vllm":
        forced = {"synthetic_acceptance_rates": [round(rate, 4) for rate in rates]}
        how = json.dumps({"rejection_sample_method": "synthetic", **forced}) + " in --speculative-config"
    else:
        how = " ".join(f"{name}={value}" for name, value in forced_acceptance(server, rates, is_tree=is_tree).items())
    return f"On a test bench, {how} forces the forecast's acceptance."


def _engine_words(table: ServerTable, scenario: Scenario) -> tuple[Words, list[str]]:
    """Words of the engine's fields, and notes on those that have none."""
    engine, settings = scenario.engine, cached_deployment(scenario).settings
    words, notes = Words(), list[str]()
    rows = settings.method.verify_rows(settings.num_speculative_tokens)
    units = {"block_size": engine.block_size, "per_rows": 1 / rows}
    for name, default in Engine(model=engine.model):
        row, value = table.engine.get(name), getattr(engine, name)
        if row is not None and row.resolved:
            value = getattr(settings, name) if value is None else value
        elif value == default or name in ("version", *COMMANDS["said_apart"]):
            continue
        _write(table, row, f"engine.{name}", value, units, words, notes)
    return words, notes


def _draft_words(server: str, scenario: Scenario, draft: str | None) -> tuple[Words, list[str]]:
    """Words of the speculation, and notes on what has none. Raises ScenarioError: the server cannot run it."""
    table, spec = TABLES[server], scenario.speculative_config
    assert spec is not None
    # EAGLE's trees are told apart by their heads.
    method = "eagle3_tree" if spec.drafting == "eagle_tree" and says_kind("eagle3", spec.model) else spec.drafting
    key, version = f"{SPEC}.method", table.version
    if method not in table.methods:
        _refuse_unknown(server, version, spec)
    deployment = cached_deployment(scenario)
    model = deployment.model
    named = deployment.draft if deployment.settings.method.needs_draft_model else None
    if named is not None and named.vocab_size != model.vocab_size:
        message = f"{version} maps no drafts of another vocabulary to the target's"
        raise ScenarioError(message, key=f"{SPEC}.use_heterogeneous_vocab", value=True)
    for degree, alone in table.alone.items():
        if scenario.method in alone and getattr(scenario.engine, degree) > 1 and (degree != DP or model.is_moe):
            raise ScenarioError(f"{version} cannot run it with {degree} above 1", key=key, value=scenario.method)
    if scenario.resolved_policy.name in VARYING and method not in table.scheduled:
        message = f"{version} varies no draft length of method {scenario.method}"
        raise ScenarioError(message, key=f"{SPEC}.{SCHEDULE}")
    terms = {"k": spec.k, "lookup": spec.prompt_lookup_max or spec.prompt_lookup_min or DEFAULT_LOOKUP}
    if spec.tree is not None:
        width, nodes = spec.tree.tree_width, spec.tree.verify_nodes(spec.k)
        terms |= {"width": width, "nodes": nodes, "narrowest": spec.tree.min_tree_width or width}
    words = table.method_words(method, terms)
    shares_attention = scenario.engine.data_parallel_size > 1 and model.is_moe  # what SGLang has this flag for
    if method in ("dflash", "dspark") and server == "sglang" and shares_attention:
        words |= {"enable-dp-lm-head": True}
    notes = [table.method_notes[method]] if method in table.method_notes else []
    for name in sorted(spec.model_fields_set.difference(COMMANDS["drafts_apart"])):
        value, row = getattr(spec, name), table.speculation.get(name)
        is_written = "max_matching_ngram_size" in words and name == "prompt_lookup_max"
        is_written |= name == "rejection_sample_method" and spec.synthetic_rates is not None  # by the environment
        if value != type(spec).model_fields[name].default and not is_written:
            _write(table, row, f"{SPEC}.{name}", value, {}, words, notes)
    if draft is not None:
        words[table.speculation["model"].name] = draft
        # SGLang's draft takes the target's format, vLLM's does not.
        row = table.speculation.get("quantization")
        if row is not None and scenario.engine.quantization is not None:
            words.setdefault(row.name, "unquant")
    return words, notes


def _write(
    table: ServerTable, row: ServerField | None, key: str, value: Any, units: Units, words: Words, notes: list[str]
) -> None:
    """Write one value, or note that it has no counterpart."""
    try:
        if row is None:
            raise LookupError
        word = row.write(value, units)
    except LookupError:
        why = table.missing.get(key.rpartition(".")[2], "")
        text = value if isinstance(value, str) else json.dumps(value)
        notes.append(f"{key} = {text} has no counterpart in {table.version}{': ' if why else ''}{why}.")
        return
    if word is not None:
        words[row.name] = word
        notes += [row.note] if row.note else []
        if row.times and row.read(word, units) != value:
            rows = f"{word} requests of {round(1 / units[row.times])} rows, {row.read(word, units)} in all"
            notes.append(f"{key} = {value} is {row.name} {word} in {table.version}: {rows}.")


def _parallel_words(server: str, scenario: Scenario) -> Words:
    """Data and expert parallelism, and whole prompts, which are no flag of their own."""
    engine, model = scenario.engine, cached_deployment(scenario).model
    dp, ranks, words = engine.data_parallel_size, engine.tensor_parallel_size * engine.data_parallel_size, Words()
    names = ("tp-size", "ep-size") if server == "sglang" else ("tensor_parallel_size", "moe_expert_parallel_size")
    if dp > 1 and model.is_moe:
        # Attention is data parallel inside one group of all ranks, which share the experts.
        words |= {names[0]: ranks} | ({"attn-dp-size": dp} if server == "sglang" else {"enable_attention_dp": True})
    elif dp > 1 and server == "sglang":
        words["dp-size"] = dp
    if server == "trtllm" and dp > 1 and (engine.tensor_parallel_size > 1 or not model.is_moe):
        message = "TensorRT-LLM knows data parallelism of attention alone, of models with experts and one GPU a rank"
        raise ScenarioError(f"{message}; start one server a rank instead", key=f"engine.{DP}", value=dp)
    if engine.enable_expert_parallel:
        words[names[1]] = engine.expert_parallel_size or ranks
    if server == "sglang" and not engine.enable_chunked_prefill:
        # Then another flag bounds the tokens of a batch.
        tokens = cached_deployment(scenario).settings.max_num_batched_tokens
        words |= {"chunked-prefill-size": -1, "max-prefill-tokens": tokens}
    if server == "sglang" and engine.scheduling_policy == "priority":
        words["schedule-low-priority-values-first"] = True
    return words


def _tiers(scenario: Scenario, spec: SpeculativeConfig) -> dict[str, Any]:
    """SGLang's adaptive speculation: one draft length a tier is a schedule by batch size."""
    schedule = spec.num_speculative_tokens_per_batch_size
    if schedule is not None:
        return {str(first): {"candidate_steps": [min(k, spec.k)]} for first, _, k in schedule}
    rule = policy_of(scenario)
    assert isinstance(rule, EmaTiers)
    adaptive = picked(rule, "ema_alpha update_interval warmup_batches")
    for tier in rule.tiers:
        steps = sorted({k for k in tier.steps if k <= spec.k}) or [0]
        adaptive[str(tier.batch_size)] = {"candidate_steps": steps, **picked(tier, "up_hysteresis down_hysteresis")}
    return adaptive


def _draft_len_schedule(scenario: Scenario, spec: SpeculativeConfig) -> Words:
    """The draft length up to each batch size, none beyond the last. Raises ScenarioError: it has no such one."""
    schedule, policy = spec.num_speculative_tokens_per_batch_size, scenario.resolved_policy.name
    if schedule is None:
        raise ScenarioError("TensorRT-LLM adapts no draft length to acceptance", key="policy.name", value=policy)
    lengths = [min(k, spec.k) for _, _, k in schedule]
    if lengths[0] != spec.k:
        message = f"TensorRT-LLM drafts all {spec.k} tokens in its smallest batches (draft_len_schedule)"
        raise ScenarioError(message, key=f"{SPEC}.{SCHEDULE}", value=[list(entry) for entry in schedule])
    # A range holds until the next begins, the last for all larger batches.
    ends = [first - 1 for first, _, _ in schedule[1:]] + [cached_deployment(scenario).settings.max_num_seqs]
    drafting = dict(zip(ends, lengths, strict=True))
    while drafting and not drafting[max(drafting)]:
        del drafting[max(drafting)]
    if list(drafting.values()) == [spec.k]:
        return {"max_concurrency": ends[0]}
    return {"draft_len_schedule": drafting}


def _nested(words: Words) -> Words:
    """Keys with dots as mappings inside mappings; the word ``none`` as YAML's null."""
    nested = Words()
    for name, value in words.items():
        section, _, key = name.rpartition(".")
        inside = nested.setdefault(section, Words()) if section else nested
        if isinstance(inside, dict):
            inside[key] = None if value == "none" else value
    return nested


def _refuse_unknown(server: str, version: str, spec: SpeculativeConfig) -> None:
    """Refuse what the server does not run. Raises ScenarioError."""
    why = cannot_run(server, _release(version), spec.drafting) or RESEARCH.get(spec.drafting)
    if why is not None:
        raise ScenarioError(f"{version} cannot run it: {why}", key=f"{SPEC}.method", value=spec.resolved_method)


def _vllm(scenario: Scenario) -> str:
    """The scenario's own release of vLLM where its flags are written, else the first of those."""
    engine, number, _ = parse_version(scenario.engine.version)
    return next((version for version in VLLM if engine == "vllm" and number[:2] == _release(version)), VLLM[0])


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.rpartition(" ")[2].split("."))


def _common_notes(scenario: Scenario, server: str) -> tuple[str, ...]:
    """Of every server: models to fill in, and what of the scenario stands in no server's command."""
    notes, policy, version = list(served_models(scenario).notes), scenario.resolved_policy.name, scenario.engine.version
    followed = _vllm(scenario) if server == "vllm" else TABLES[server].version
    engine, number, _ = parse_version(version)
    if engine != server or any(map(operator.ne, number, _release(followed))):
        notes.append(f"The forecast is of {version}; {followed} schedules and times its steps in its own way.")
    written = ("fixed", "batch_schedule", *(("ema_tiers",) if server == "sglang" else ()))
    written_by_flag = server == "vllm" and _verifies_adaptively(scenario)
    if scenario.speculative_config is not None and policy not in written and not written_by_flag:
        notes.append(f"policy.name = {policy} has no counterpart in {followed}.")
    if scenario.cluster.replicas > 1:
        replicas, router = scenario.cluster.replicas, scenario.cluster.router
        notes.append(f"Start {replicas} of them behind a router ({router}).")
    return tuple(notes)
