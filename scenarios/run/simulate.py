"""Simulate a scenario: replications under common random numbers, their figures with intervals, one row per request."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from draftcast.calibration.profile.spec import AffineProfile
from draftcast.errors import CapacityError, InputError
from draftcast.files import check_memory, picked, read_frame, read_json
from draftcast.kernels.arrays import FloatArray, IntArray
from draftcast.scenarios.run import run_directory as on_disk
from draftcast.scenarios.run.deployment import NOTES, Deployment, assumed_of, deployments_of
from draftcast.scenarios.run.workload_spec import acceptance_models, confidences, workload_spec
from draftcast.scenarios.schema import Scenario, members
from draftcast.sim.acceptance.compile import compile_acceptance
from draftcast.sim.cluster.cluster import ClosedLoop, Cluster
from draftcast.sim.cluster.data_parallel import DataParallel
from draftcast.sim.cluster.routers import ROUTERS
from draftcast.sim.compiled.random_streams import replication_seed
from draftcast.sim.engine.replica import Replica, check_fits, request_rows
from draftcast.sim.output import results
from draftcast.sim.output.metrics import Metrics, compute_metrics, do_not_differ, summarise
from draftcast.sim.output.steady_state import MOST_SHORTFALL, Stability, Warmup, find_warmup
from draftcast.sim.progress import Progress, parts_of
from draftcast.sim.statistics.intervals import Estimate
from draftcast.sim.workload.arrivals import ClosedLoopArrivals
from draftcast.sim.workload.build_requests import build_requests, load_traces
from draftcast.sim.workload.request_table import RequestTable

# Of one replication, its tables and what is measured of them; by the largest resident size of runs of 100,000.
REQUEST_BYTES = 740
State = Literal["steady", "finite", "not settled", "at capacity", "overloaded"]
"""Of a run, or of a setting at a load. ``overloaded``: the queue grows; ``not settled``: the run was too short to reach
a steady state; ``finite``: a list of requests that ends, of which every request counts and no steady state is asked;
``at capacity``: the load lies inside the capacity's interval (only a setting, see ``scenarios/compare/verdict.py``)."""

# Of a run, in its directory's manifest; the rest has files of its own.
_KEPT = "state slo_met replications closed_loop shortfall is_warm"


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """As read from JSON, which holds null for NaN."""
    return {name: math.nan if value is None else value for name, value in values.items()}


def _estimate(values: Mapping[str, Any]) -> Estimate:
    """A bound above a known one is infinite where JSON has null."""
    numbers = _numbers(values)
    if values["low"] is not None and values["high"] is None:
        numbers["high"] = numbers["half_width"] = math.inf
    return Estimate(**numbers)


class HasPicture:
    """An answer with a picture; ``picture`` is the function of ``scenarios/show`` that draws it."""

    picture: ClassVar[str]

    def plot(self) -> Any:
        """The Plotly figure that the command line and the dashboard draw of it.

        Raises:
            InputError: nothing to draw, such as a comparison of fewer than two rates.
        """
        # Pictures are made of answers, so their package is above; it is looked up when a picture is asked for.
        module, _, function = self.picture.partition(".")
        return getattr(import_module(f"draftcast.scenarios.show.{module}"), function)(self)


@dataclass(frozen=True, repr=False)
class RunResult(HasPicture):
    """A simulated scenario.

    ``requests`` (and ``steps``, when recorded) contain all replications, distinguished by the column ``replication``.
    ``summary`` has every figure as mean with interval, and stability, memory and SLO; an overloaded run has no figures
    (NaN). Intervals under ``figures`` cover sampling noise only, those under ``predicted_figures`` the errors of step
    times and acceptance too. ``replications`` holds each replication's figures, for paired comparisons.
    """

    picture = "run_report.run_figure"
    summary: dict[str, Any]
    requests: pd.DataFrame
    steps: pd.DataFrame | None
    manifest: dict[str, Any]
    state: State
    slo_met: bool | None
    replications: tuple[Mapping[str, float], ...] = field(repr=False)
    closed_loop: bool = False
    shortfall: float = 0.0
    """By how much the mean latency may still fall short of the steady state, as a share of it (the warm-up's rest)."""
    is_warm: bool = True
    """Whether the warm-up ended within the first half of the requests; never of a run close to its capacity."""
    slo_use: Mapping[str, FloatArray] = field(default_factory=dict, repr=False)
    """By class, of all counted requests in rising order: the largest of a request's times over its limit (up to 1 the
    SLO is met; infinite: not finished). Empty without an SLO, of overloaded runs, and of what `load` reads."""

    def frame(self) -> pd.DataFrame:
        """Every figure with its interval, a row each, in SI units: columns ``mean``, ``low``, ``high``.

        Prediction intervals where there are any: of latencies, throughput and SLO attainment.
        """
        figures = self.summary["figures"] | self.summary.get("predicted_figures", {})
        rows = [picked(estimate, "mean low high") for estimate in figures.values()]
        return pd.DataFrame(rows, index=pd.Index(figures, name="figure"))

    def save(self, path: str | Path, **more: Any) -> Path:
        """Write the run directory of ``--out`` (`draftcast.scenarios.run.run_directory`), ``more`` in the summary."""
        manifest = self.manifest | {"result": picked(self, _KEPT)}
        tables = picked(self, "requests steps")
        return on_disk.write_run_directory(path, manifest=manifest, summary=self.summary | more, **tables)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """What `save` or ``--out`` wrote; intervals are `Estimate` again under ``figures``.

        Raises:
            InputError: no run directory of this version, or a damaged one.
        """
        folder = Path(path)
        manifest, summary = read_json(folder / on_disk.MANIFEST), read_json(folder / on_disk.SUMMARY)
        try:
            stored = manifest.pop("result")
            if (manifest["format"], manifest["format_version"]) != (on_disk.FORMAT, on_disk.FORMAT_VERSION):
                raise KeyError(on_disk.FORMAT)
            for part in (summary, *summary.get("groups", ())):
                for name in {"figures"} | ({"predicted_figures"} & part.keys()):
                    part[name] = {figure: _estimate(values) for figure, values in part[name].items()}
            fields = {name: stored[name] for name in _KEPT.split()}
            fields["replications"] = tuple(map(_numbers, stored["replications"]))
        except (AttributeError, KeyError, TypeError):
            message = "is no run of this version: a manifest with a result and a summary with figures are needed"
            raise InputError(message, file=str(folder)) from None
        steps = read_frame(folder / on_disk.STEPS) if (folder / on_disk.STEPS).exists() else None
        return cls(summary, read_frame(folder / on_disk.REQUESTS), steps, manifest, **fields)

    def __repr__(self) -> str:
        latency, rate = (self.summary["figures"][name].mean for name in ("mean_e2el_s", "request_throughput"))
        done = f"completing {rate:.3g} requests/s, {len(self.requests)} requests"
        return f"RunResult({self.state}: mean E2E {latency:.3g} s, {done})"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{self.frame().to_html(float_format='{:.4g}'.format)}"


@dataclass(frozen=True)
class Replication:
    """What the engine left behind, not measured yet."""

    requests: pd.DataFrame
    steps: pd.DataFrame | None
    itl_counts: IntArray
    accepted_per_position: IntArray
    engine: dict[str, float]
    stability: Stability


def build_replicas(
    scenario: Scenario, deployments: Sequence[Deployment], table: RequestTable, seed: int, *, record_steps: bool = False
) -> list[Replica | DataParallel]:
    """The replicas of one replication, nothing sent yet; ``deployments`` are those of the scenario's `members`. Raises
    CapacityError: a request that an engine could never finish."""
    rows = request_rows(table)
    rows["undrafted"] = np.array([not entry.speculation for entry in scenario.request_classes])[table.class_id]
    replicas: list[Replica | DataParallel] = []
    seeds = (replication_seed(seed, rank) for rank in itertools.count())  # of the ranks of all replicas together
    for member, deployment in zip(members(scenario), deployments, strict=True):
        settings, policy, cost = deployment.settings, deployment.policy, deployment.cost
        check_fits(settings, rows)
        acceptance = compile_acceptance(
            acceptance_models(member),
            table.class_id,
            seed,
            member.num_speculative_tokens,
            confidence=confidences(member),
            prompt_tokens=table.prompt_tokens,
            offsets=table.acceptance_offsets,
            lengths=table.acceptance_lengths,
        )
        for _ in range(member.cluster.replicas):
            ranks = [
                Replica(settings, rows, table, policy.fresh(), cost, acceptance, seed=stream, record_steps=record_steps)
                for stream in itertools.islice(seeds, settings.data_parallel_size)
            ]
            replicas.append(DataParallel(ranks, lockstep=settings.lockstep_ranks > 1) if len(ranks) > 1 else ranks[0])
    return replicas


def front_end_work_s(deployment: Deployment, prompt_tokens: ArrayLike) -> FloatArray:
    """Seconds that an API server works on a request of each prompt, alone; 0: a whole-step fit knows no front end."""
    constants = deployment.settings.generation.constants
    work_s = constants.front_end_request_s.value + constants.front_end_token_s.value * np.asarray(prompt_tokens, float)
    return work_s * (not isinstance(deployment.profile, AffineProfile))


def front_end_servers(scenario: Scenario, deployments: Sequence[Deployment]) -> list[Deployment]:
    """The engine behind each API server of all replicas, in the order in which they take requests."""
    return [
        deployment
        for member, deployment in zip(members(scenario), deployments, strict=True)
        for _ in range(member.cluster.replicas * deployment.settings.api_server_count)
    ]


def front_end_s(scenario: Scenario, deployments: Sequence[Deployment], table: RequestTable) -> FloatArray:
    """Seconds from the sending of each request until its engine has it, shape [requests]. The API servers of all
    replicas take requests in turn, one at a time; clients of a closed loop or session wait for its own work alone."""
    servers = front_end_servers(scenario, deployments)
    work_s, done_s = np.empty(len(table)), np.empty(len(table))
    for server, deployment in enumerate(servers):
        mine = slice(server, None, len(servers))
        work_s[mine] = front_end_work_s(deployment, table.prompt_tokens[mine])
        busy_s = np.cumsum(work_s[mine])
        # Lindley (1952): work that began after some earlier sending and never paused since; the latest such end.
        done_s[mine] = busy_s + np.maximum.accumulate(table.arrival_s[mine] - busy_s + work_s[mine])
    if scenario.is_closed_loop or table.session is not None:
        return np.full(len(table), work_s.mean() + scenario.more_front_end_s)
    return np.maximum.accumulate(done_s) - table.arrival_s + scenario.more_front_end_s


def replicate(
    scenario: Scenario,
    loop: ClosedLoop | None,
    deployments: Sequence[Deployment],
    table: RequestTable,
    seed: int,
    progress: Progress | None,
    record_steps: bool,
    late_s: FloatArray | float = 0.0,
) -> Replication:
    """Serve the requests of ``table`` once: at their arrival times, or as the clients of ``loop`` send them. Raises
    CapacityError: one that could never be served. ``late_s``: see `requests_frame`."""
    replicas = build_replicas(scenario, deployments, table, seed, record_steps=record_steps)
    router = ROUTERS[scenario.cluster.router](table, len(replicas), seed)
    cluster = Cluster(replicas, table, router, loop, progress=progress)
    cluster.run()
    by_replica = [replica.ranks for replica in replicas]
    ranks = list(itertools.chain.from_iterable(by_replica))
    return Replication(
        results.requests_frame(ranks, table, cluster.assigned, cluster.counted, late_s),
        results.steps_frame(by_replica, cluster.end_s if table.num_extra else math.inf) if record_steps else None,
        results.itl_counts(ranks),
        results.accepted_per_position(ranks),
        results.engine_figures(ranks, cluster.engines),
        cluster.stability,
    )


@dataclass(frozen=True)
class ServedScenario:
    """A scenario whose requests were all served; `measure` makes its figures, as often as asked."""

    scenario: Scenario
    deployments: tuple[Deployment, ...]  # one for each of the scenario's `members`
    replications: list[Replication]
    notes: tuple[str, ...]

    @functools.cached_property
    def state(self) -> State:
        """What most replications say: one that falls behind by chance makes no system unstable."""
        verdicts = [r.stability.verdict for r in self.replications]
        if verdicts[0] == "finite":
            return "finite"
        if verdicts.count("unstable") * 2 > len(verdicts):
            return "overloaded"
        return "steady" if verdicts.count("stable") * 2 > len(verdicts) else "not settled"

    @functools.cached_property
    def warmup(self) -> Warmup | None:
        """What to leave out at the front; None of a finite run, and of one that never warms up."""
        if self.state in ("finite", "overloaded"):
            return None
        return find_warmup([r.requests for r in self.replications], closed_loop=self.scenario.is_closed_loop)

    @functools.cached_property
    def requests(self) -> pd.DataFrame:
        """One row per request of all replications; whatever is cut, they stay the same."""
        return _stack([r.requests for r in self.replications])

    def without_steps(self) -> Self:
        """The same without step records, which are the bulk of a run."""
        return dataclasses.replace(self, replications=[dataclasses.replace(r, steps=None) for r in self.replications])


def simulate_together(
    scenarios: Sequence[Scenario], *, progress: Progress | None = None, record_steps: bool = False
) -> list[RunResult]:
    """Simulate scenarios whose figures are to be compared, with as many replications each of as many requests: all
    leave out the same requests, see `measure`. Arguments and errors as of `simulate`."""
    parts = parts_of(progress, scenarios)
    return measure([serve(scenario, progress=part, record_steps=record_steps) for scenario, part in parts])


def measure(served: Sequence[ServedScenario], alone: Sequence[RunResult | None] = ()) -> list[RunResult]:
    """The figures of runs that are to be compared: all leave out the same requests, the longest warm-up's. ``alone``:
    what this gave for each by itself, which is kept where it left out as many."""
    cut = max((run.warmup.requests for run in served if run.warmup is not None), default=0)
    return [
        result
        if result is not None and (run.warmup is None or run.warmup.requests == cut)
        else _result(run, cut if run.warmup is not None else None)
        for run, result in zip(served, alone or [None] * len(served), strict=True)
    ]


def _check_run_memory(requests: int, replications: int) -> None:
    what = f"{requests:,} requests x {replications} replications"
    check_memory(REQUEST_BYTES * requests * replications, what, key="workload.num_requests")


def serve(
    scenario: Scenario,
    *,
    progress: Progress | None = None,
    record_steps: bool | Literal["first"] = False,
    deployment: Deployment | None = None,
) -> ServedScenario:
    """Run the engine over the scenario's requests, without measuring; arguments and errors as of `simulate`, but that
    ``record_steps="first"`` keeps those of the first replication. Threads may serve scenarios side by side."""
    done, count, goes_on = [], scenario.statistics.replications, scenario.statistics.warmup == "auto"
    try:
        deployments = (deployment,) if deployment is not None else deployments_of(scenario)
        spec = workload_spec(scenario)
        traces = load_traces(spec)
        _check_run_memory(scenario.workload.num_requests or 0, count)
        for replication, part in parts_of(progress, range(count)):
            seed = replication_seed(scenario.statistics.seed, replication)
            table = build_requests(spec, seed, None, deployments[0].settings.max_model_len, traces, goes_on)
            _check_run_memory(len(table), count - replication)
            late_s = front_end_s(scenario, deployments, table)
            loop = None
            if isinstance(spec.arrivals, ClosedLoopArrivals):
                loop = ClosedLoop(spec.arrivals.concurrency, spec.arrivals.draw_think_s(seed, len(table)) + late_s[0])
            else:
                table = dataclasses.replace(table, arrival_s=table.arrival_s + late_s)
            if table.think_s is not None:
                table = dataclasses.replace(table, think_s=table.think_s + late_s)
            recorded = replication == 0 if record_steps == "first" else record_steps
            late_s = late_s[: table.num_counted]
            done.append(replicate(scenario, loop, deployments, table, seed, part, recorded, late_s))
    except MemoryError as error:  # refused like a run that the simulated device cannot hold
        message = NOTES["too_large"].format(each=REQUEST_BYTES, error=error)
        raise CapacityError(message, key="workload.num_requests") from None
    return ServedScenario(scenario, deployments, done, table.notes)


def _stack(frames: list[pd.DataFrame]) -> pd.DataFrame:
    # A copy, though not of one frame's columns: the frames may be measured again.
    together = frames[0].copy(deep=False) if len(frames) == 1 else pd.concat(frames, ignore_index=True)
    together.insert(0, "replication", np.repeat(np.arange(len(frames)), [len(frame) for frame in frames]))
    return together


def _slo_met(scenario: Scenario, measured: list[Metrics], state: State) -> bool | None:
    """Whether every class attains its SLO as often as that asks for; False when overloaded: a growing queue breaks any
    in the end. None without an SLO, and where attainment would be a statement about the run's length."""
    if not scenario.slos or state == "not settled":
        return None
    if state == "overloaded":
        return False
    slos = scenario.slos
    attained = {name: [np.mean(m.slo_use[name] <= 1.0) for m in measured if name in m.slo_use] for name in slos}
    return not any(shares and np.mean(shares) < slos[name].attainment for name, shares in attained.items())


def _engine_facts(deployment: Deployment) -> dict[str, Any]:
    """Which engine's step times were assumed, for the manifest; a whole-step fit holds its own."""
    settings, generation = deployment.settings, deployment.settings.generation
    facts = {"version": settings.version, "generation": generation.name, "checksum": generation.checksum()}
    if isinstance(deployment.profile, AffineProfile):
        return facts | {"step_times": "whole-step fit"}
    return facts | {"cudagraph_mode": settings.cudagraph_mode, "provisional": list(generation.provisional)}


def _engine_summary(deployment: Deployment, mean_tokens: float) -> dict[str, Any]:
    """The limits of one replica, and its memory; ``mean_tokens``: prompt and output of a mean request."""
    memory, settings = deployment.memory, deployment.settings
    return {
        **picked(settings, "num_gpu_blocks max_num_seqs max_num_batched_tokens max_model_len async_scheduling"),
        "kv_cache_tokens": memory.kv_tokens,
        "kv_bytes_per_token": memory.kv_bytes_per_token,
        "kv_blocks_lost_to_speculation": memory.lost_blocks,
        "max_concurrency": memory.max_concurrency(round(mean_tokens), settings.lookahead),
        "concurrency_lost_to_speculation": memory.lost_concurrency(round(mean_tokens), settings.lookahead),
    }


def _result(served: ServedScenario, cut: int | None) -> RunResult:
    scenario, deployments, done = served.scenario, served.deployments, served.replications
    state, warmup = served.state, served.warmup
    shortfall = warmup.shortfall(cut) if warmup is not None and cut is not None else 0.0
    if state == "steady" and shortfall > MOST_SHORTFALL:
        state = "not settled"
    groups = scenario.cluster.groups
    measured = [
        compute_metrics(
            r.requests,
            r.itl_counts,
            slo=scenario.slos or None,
            warmup=cut,
            percentiles=state in ("steady", "finite"),
            replicas=scenario.cluster.replicas,
            accepted_per_position=r.accepted_per_position,
            group_of=np.repeat(np.arange(len(groups)), [group.replicas for group in groups]),
        )
        for r in done
    ]
    figures = tuple({**m.values, **r.engine} for m, r in zip(measured, done, strict=True))
    # What a reader must know before trusting the figures.
    notes, is_warm = [*assumed_of(deployments), *served.notes], warmup is None or warmup.is_over
    if do_not_differ(figures):
        notes.append(NOTES["all_alike"])
    if not is_warm:
        notes.append(NOTES["not_warm"])
    if state == "overloaded":
        figures = tuple(dict.fromkeys(values, math.nan) for values in figures)
    mean_tokens = float(np.mean([(r.requests["prompt_tokens"] + r.requests["output_tokens"]).mean() for r in done]))
    engines = [_engine_summary(deployment, mean_tokens) for deployment in deployments]
    # Of groups what is the same in all; null elsewhere.
    alike = {name: value if all(e[name] == value for e in engines) else None for name, value in engines[0].items()}
    facts = [_engine_facts(deployment) for deployment in deployments]
    summary: dict[str, Any] = {
        "figures": summarise(figures, scenario.statistics.confidence),
        "stability": {
            "state": state,
            "unstable": state == "overloaded",
            "steady": state == "steady" if state != "finite" else None,
            "verdicts": [r.stability.verdict for r in done],
            "reasons": [r.stability.reason for r in done],
            # Of an overloaded run, see `draftcast.scenarios.compare.verdict.side`.
            "largest_stable_rate_rps": None,
            "saturated_rates_rps": [],
        },
        "warmup_requests": [m.warmup_requests for m in measured],
        "warmup_reliable": is_warm,
        "cooldown_requests": [0 for _ in measured],
        "by_class": [m.by_class if state != "overloaded" else {} for m in measured],
        "engine": alike,
        "profile": ", ".join(dict.fromkeys(deployment.profile.name for deployment in deployments)),
        **({"correction": scenario.correction.model_dump(mode="json")} if scenario.correction is not None else {}),
        "notes": notes,
    }
    if groups:
        by_group = [[m.by_group.get(str(index), {}) for m in measured] for index in range(len(groups))]
        summary["groups"] = [
            {
                "replicas": member.cluster.replicas,
                "hardware": member.hardware,
                "layout": member.engine.layout,
                "num_gpus": member.cluster.replicas * member.engine.num_gpus,
                "speculation": member.speculative_config and f"{member.method} k={member.num_speculative_tokens}",
                "engine": engine,
                "figures": summarise(values, scenario.statistics.confidence) if state != "overloaded" else {},
            }
            for member, engine, values in zip(members(scenario), engines, by_group, strict=True)
        ]
    summary["slo_asked"] = bool(scenario.slos)
    slo_met = summary["slo_met"] = _slo_met(scenario, measured, state)
    used = {name: [m.slo_use[name] for m in measured if name in m.slo_use] for m in measured for name in m.slo_use}
    return RunResult(
        summary=summary,
        requests=served.requests,
        steps=_stack([r.steps for r in done if r.steps is not None]) if done[0].steps is not None else None,
        manifest=on_disk.make_manifest(scenario, ", ".join(dict.fromkeys(d.profile.checksum() for d in deployments)))
        | {"engine": facts[0] if len(facts) == 1 else {"groups": facts}},
        state=state,
        slo_met=slo_met,
        replications=figures,
        closed_loop=scenario.is_closed_loop,
        shortfall=shortfall,
        is_warm=is_warm,
        slo_use={name: np.sort(np.concatenate(uses)) for name, uses in used.items()} if state != "overloaded" else {},
    )
