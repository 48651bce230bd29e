"""A scenario on a real vLLM server: the command that starts it, the requests it is sent, the run that is recorded.

What a server cannot do (several replicas, policies of draftcast's own) is refused by name. Acceptance is the server's
own: on a testbed (`draftcast live checkpoint`) the draft was built for it and n-gram prompts are built here for the
scenario's; any other model accepts what it accepts.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from draftcast.calibration.live import continuation as texts
from draftcast.calibration.live.checkpoint import DTYPES, TARGET, draft_folder
from draftcast.calibration.live.continuation import Continuation, DraftLayout, NgramTarget
from draftcast.calibration.live.load import LoadPlan
from draftcast.calibration.live.record import record
from draftcast.calibration.live.run_directory import SERVER_LOG, LiveRun, LiveRunWriter
from draftcast.calibration.live.server import EngineServer, RunningServer, ServerFlags
from draftcast.errors import LiveError, ScenarioError
from draftcast.files import write_text
from draftcast.kernels.arrays import IntArray
from draftcast.kernels.extras import require
from draftcast.kernels.model.catalog import load_model
from draftcast.scenarios.compare.serve_command import served_models, speculative_config_json, vllm_flags
from draftcast.scenarios.run.workload_spec import workload_spec
from draftcast.scenarios.schema import Scenario, to_mapping
from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.workload.arrivals import ClosedLoopArrivals
from draftcast.sim.workload.build_requests import build_requests
from draftcast.sim.workload.request_table import RequestTable
from draftcast.yaml_text import write_yaml, yaml_beside

SCENARIO = "scenario.yaml"
LIVE_POLICIES = ("fixed", "batch_schedule")
_PROMPT_LOOKUP = 5  # vLLM 0.32: where neither is given both are 5; where one is, the other is the same
_WARMUP_SEED = 2**31


@dataclass(frozen=True)
class LiveOptions:
    """How a live run is made, beside what the scenario says."""

    url: str | None = None  # of a server that somebody else started; None: we start one
    server_log: Path | None = None  # its log, where it is on this machine
    vllm: tuple[str, ...] = ()  # how vLLM's server is called; empty: found
    server_arguments: tuple[str, ...] = ()  # more flags for our server, verbatim
    port: int | None = None  # of our server; None: a free one
    start_timeout_s: float = 600.0  # after which a server has failed
    request_timeout_s: float = 120.0  # after which a request has failed
    warmup_requests: int = 8  # sent before and not recorded
    send_for_s: float | None = None  # no request is sent later; None: all are sent


@dataclass(frozen=True)
class LiveProgress:
    """What a live run tells of itself while it goes on."""

    say: Callable[[str], None] = lambda _: None  # called with a line for people
    waiting: Callable[[float], None] = lambda _: None  # called with the seconds our server has been starting
    # Called with the number of requests and the client's progress (sent, done, failed, tokens, time_s)
    load: Callable[[int, dict[str, Any]], None] = lambda _, __: None


def server_flags(scenario: Scenario, options: LiveOptions) -> ServerFlags:
    """The server a scenario asks for. Raises ScenarioError: something a single vLLM server cannot be told."""
    engine, spec = scenario.engine, scenario.speculative_config
    if scenario.cluster.replicas != 1:
        raise ScenarioError("a live run has one server", key="cluster.replicas", value=scenario.cluster.replicas)
    policy = scenario.policy
    if spec is not None and policy is not None and (policy.name not in LIVE_POLICIES or policy.parameters):
        names = " and ".join(LIVE_POLICIES)
        message = f"vLLM has no policies; {names} without parameters are what speculative_config says"
        raise ScenarioError(message, key="policy.name", value=policy.name)
    served = served_models(scenario)
    model, flags = _weights("engine.model", served.target), vllm_flags(engine)
    if (config := speculative_config(scenario)) is not None:
        if served.draft is not None and served.draft_is_named:
            _weights("engine.speculative_config.model", served.draft)
        elif served.draft is not None and options.url is None:
            raise ScenarioError("a server does not start without", key="engine.speculative_config.model", value=None)
        flags += ["--speculative-config", json.dumps(config)]
    flags += options.server_arguments
    return ServerFlags(model, tuple(flags), options.vllm, scenario.hardware == "cpu", options.port)


def speculative_config(scenario: Scenario) -> dict[str, Any] | None:
    """vLLM's ``--speculative-config``, None for none. Raises ScenarioError: a method that vLLM does not have."""
    config = speculative_config_json(scenario)
    if config is not None and not served_models(scenario).draft_is_named:
        del config["model"]  # a place to fill in, which a record is not
    return config


def live_requests(scenario: Scenario, seed: int) -> RequestTable:
    """The requests a run sends: those of the simulation's first replication at this seed.

    Raises ScenarioError: as the simulation, or what no client here sends: shared prompts, requests without drafts.
    """
    for key, present in (
        ("system_prompt or workload.sessions", scenario.workload.shares_prefixes),
        ("classes.speculation", not all(entry.speculation for entry in scenario.workload.classes)),
    ):
        if present:
            raise ScenarioError("is only simulated: live runs send independent requests", key=f"workload.{key}")
    limit = scenario.engine.max_model_len or load_model(scenario.engine.model).max_position_embeddings
    return build_requests(workload_spec(scenario), seed, None, limit)


def live_prompts(scenario: Scenario, table: RequestTable, seed: int) -> tuple[list[IntArray], list[IntArray] | None]:
    """Prompts of the table's lengths, on a testbed with answers. Raises InputError: too short for the acceptance."""
    folder, spec = Path(scenario.engine.model), scenario.speculative_config
    continuation = Continuation.read(folder)
    if continuation is None:
        return texts.random_prompts(table.prompt_tokens, load_model(scenario.engine.model).vocab_size, seed), None
    layout = DraftLayout.read(Path(spec.model)) if spec is not None and spec.model is not None else None
    target = ngram_target(scenario)
    return texts.continuation_prompts(table.prompt_tokens, table.output_tokens, continuation, seed, layout, target)


def ngram_target(scenario: Scenario) -> NgramTarget | None:
    """What n-gram drafting shall find in prompts made for this scenario; None where it does not draft so.

    Raises ScenarioError: an acceptance model that does not say how often there is a match, or with factors.
    """
    spec, acceptance = scenario.speculative_config, scenario.acceptance_of()
    if spec is None or scenario.method not in ("ngram", "ngram_gpu"):
        return None
    if not isinstance(acceptance, Chain) or acceptance.match_probability is None:
        raise ScenarioError("needed for n-gram prompts on a testbed", key="acceptance.match_probability", value=None)
    if acceptance.factors is not None:
        raise ScenarioError("a testbed's prompts match alike everywhere", key="acceptance.factors", value="given")
    lookup_min = spec.prompt_lookup_min or spec.prompt_lookup_max or _PROMPT_LOOKUP
    return NgramTarget(acceptance.match_probability, tuple(acceptance.unconditional(spec.k).tolist()), lookup_min)


def load_plan(
    scenario: Scenario, endpoint: RunningServer, table: RequestTable, seed: int, options: LiveOptions
) -> LoadPlan:
    (prompts, answers), loop = live_prompts(scenario, table, seed), scenario.workload.arrivals
    closed: dict[str, Any] = {"due_s": table.arrival_s.tolist()}
    if isinstance(loop, ClosedLoopArrivals):
        think_s = loop.draw_think_s(seed, len(table)).tolist()
        closed = {"concurrency": loop.concurrency, "think_s": think_s if any(think_s) else None}
    return LoadPlan(
        url=endpoint.url,
        model=endpoint.model,
        prompts=[prompt.tolist() for prompt in prompts],
        output_tokens=table.output_tokens.tolist(),
        classes=[table.class_names[class_id] for class_id in table.class_id],
        answers=[answer.tolist() for answer in answers] if answers is not None else None,
        request_timeout_s=options.request_timeout_s,
        send_for_s=options.send_for_s,
        **closed,
    )


def record_scenario(
    scenario: Scenario,
    endpoint: RunningServer,
    writer: LiveRunWriter,
    options: LiveOptions,
    *,
    seed: int | None = None,
    warm: bool = True,
    progress: LiveProgress = LiveProgress(),  # frozen
) -> LiveRun:
    """Record the scenario on a server that answers.

    Args:
        seed: of lengths, arrivals and prompts; None: the scenario's. Runs on one server need different seeds, or the
            later ones find their prompts in the prefix cache.
        warm: send a few requests before, unrecorded.

    Raises InputError: the scenario cannot be run; LiveError: the disk refuses.
    """
    seed = scenario.statistics.seed if seed is None else seed
    table = live_requests(scenario, seed)
    plan = load_plan(scenario, endpoint, table, seed, options)
    warmup = None
    if warm and options.warmup_requests:
        few = table.slice(0, options.warmup_requests)
        # Other prompts of the same lengths, two at a time: every kind of step has run once before it counts.
        sent = load_plan(scenario, endpoint, few, seed + _WARMUP_SEED, options)
        warmup = replace(sent, due_s=None, think_s=None, concurrency=min(2, len(few)), send_for_s=None)
    config = speculative_config(scenario)
    writer.update(name=scenario.name, scenario=to_mapping(scenario), seed=seed, speculative_config=config)
    return record(writer, endpoint, plan, warmup=warmup, progress=partial(progress.load, len(plan)))


def live_run(
    scenario: Scenario,
    out: Path,
    options: LiveOptions = LiveOptions(),  # frozen
    progress: LiveProgress = LiveProgress(),  # frozen
) -> LiveRun:
    """Start the scenario's server (or take the one at ``options.url``), record the scenario, stop the server.

    Raises:
        InputError: the scenario cannot be run, or ``out`` is not empty.
        LiveError: no server; what was recorded is in ``out``, marked incomplete.
    """
    flags = server_flags(scenario, options)
    table = live_requests(scenario, scenario.statistics.seed)
    live_prompts(scenario, table, scenario.statistics.seed)  # what is wrong with them shows before a server starts
    require("live", "aiohttp", place="draftcast live run")
    writer = LiveRunWriter.create(out)
    with ExitStack() as running:
        with writer.noting():
            if options.url is not None:
                endpoint = RunningServer.of(options.url.rstrip("/").removesuffix("/v1"), options.server_log)
            else:
                server = running.enter_context(EngineServer.start(flags, writer.folder / SERVER_LOG))
                for line in (*served_models(scenario).notes, server.shown):
                    progress.say(line)
                server.wait_ready(options.start_timeout_s, progress.waiting)
                endpoint = RunningServer.of(server.url, server.log, server)
        return record_scenario(scenario, endpoint, writer, options, progress=progress)


def _weights(key: str, model: str) -> str:
    if "/" not in model and not Path(model).is_dir():
        message = "is a shape without weights; a server needs a folder or a Hugging Face id"
        raise ScenarioError(message, key=key, value=model)
    return model


def testbed_scenario(folder: Path, rates: Sequence[float], ks: Sequence[int], dtype: str, hardware: str) -> Path:
    """Write ``folder/scenario.yaml``: the target with the draft of the largest k, a light Poisson load."""
    k, on_cpu = max(ks), hardware == "cpu"
    content = yaml_beside(__file__, "testbed.yaml")
    content |= {"name": f"testbed, draft_model k={k}", "hardware": hardware}
    content["engine"] |= {
        "model": TARGET,
        "dtype": DTYPES[dtype],
        # vLLM's attention on a CPU takes multiples of 32, and graphs there would need a compiler.
        "block_size": 32 if on_cpu else 16,
        "enforce_eager": on_cpu,
        "speculative_config": {"method": "draft_model", "model": draft_folder(k), "num_speculative_tokens": k},
    }
    content["acceptance"] = {"model": "per_position", "rates": [float(rate) for rate in rates]}
    path = folder / SCENARIO
    write_text(path, write_yaml(content), LiveError)
    return path
