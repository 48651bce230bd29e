"""A simulation as text: the table of one run, that of several rates, the sentences under them, vLLM's result file."""

import datetime
import math
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from draftcast.calibration.yaml_text import yaml_beside
from draftcast.scenarios.compare.comparison import CAUSES, Comparison, RatePoint
from draftcast.scenarios.compare.verdict import Side
from draftcast.scenarios.run.coverage import ORIGINS
from draftcast.scenarios.run.simulate import RunResult
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.show.tables import make_table, show, title
from draftcast.sim.output.vllm_result import vllm_result

_FIGURES = yaml_beside(__file__, "run_report.yaml")
COMPARED, ONE_RUN, ENGINE = (tuple(map(tuple, _FIGURES[table])) for table in ("compared", "one_run", "engine"))


def comparison_table(comparison: Comparison) -> Table:
    """One row per rate, or one without and one with speculation; half widths of the intervals behind ±."""
    compared = any(point.off is not None for point in comparison.points)
    figures = [name for name, _, _ in COMPARED]
    rows = [["req/s", "SD", *figures, "advantage", "verdict"] if compared else ["req/s", *figures, "verdict"]]
    sections = []
    for point in comparison.points:
        rate = "-" if point.request_rate_rps is None else f"{point.request_rate_rps:g}"
        off, on = (
            [show(point.figures(side).get(key), factor) for _, key, factor in COMPARED] for side in ("off", "on")
        )
        if not compared or point.verdict is None:
            rows.append([rate, *on, point.word])
            continue
        advantage = f"{show(point.advantage)} x" if point.advantage is not None else "-"
        rows += [[rate, "off", *off, "", point.verdict.why], ["", "on", *on, advantage, point.word]]
        sections.append(len(rows) - 2)
    return make_table(rows, title=title(comparison.scenario), sections=sections)


def cutover_line(comparison: Comparison) -> str:
    """What the simulated rates say about the cutover, in a few sentences."""
    cut = comparison.cutover
    if cut is None:
        return "Cutover: not searched (it needs --rates)."
    level = f"{cut.confidence:.0%}"
    rated = [(p.request_rate_rps, p.word) for p in comparison.points if p.request_rate_rps is not None]
    above, below = cut.above, cut.below
    if cut.kind == "crosses":
        first, last = cut.gap
        rises = "" if cut.falls else "; speculation costs below, pays above"
        text = f"Cutover: between {first:g} and {last:g} req/s ({level} at each rate){rises}."
    elif above is not None and below is not None:
        text = "Cutover: more than one; significantly faster and significantly slower rates alternate."
    elif above is not None:
        every = "at every simulated rate" if above[1] == rated[-1][0] else "at every rate that can be compared"
        text = f"Cutover: none seen; speculation pays {every}, up to {above[1]:g} req/s ({level} at each)."
    elif below is not None:
        text = f"Cutover: none seen; speculation pays at no rate, costs from {below[0]:g} req/s on."
    else:
        text = "Cutover: cannot tell; at no simulated rate is speculation significantly faster or slower."
    if overloaded := [rate for rate, verdict in rated if verdict == "overloaded"]:
        text += f" From {min(overloaded):g} req/s on both sides are overloaded."
    if undecided := [f"{rate:g}" for rate, verdict in rated if verdict in ("too close to call", "not settled")]:
        text += f" Undecided: {', '.join(undecided)} req/s; more requests may decide them."
    return text


def capacity_line(comparison: Comparison) -> str:
    """What the cluster completes at most, on and off; empty where that is not known."""
    names = {"on": "with speculation" if comparison.points[0].verdict is not None else "", "off": "without"}
    sides = comparison.capacities.items()
    known = [f"{show(capacity)} req/s {names[which]}".rstrip() for which, capacity in sides if capacity is not None]
    return f"Saturated, the cluster completes {', '.join(known)}." if known else ""


def load_words(scenario: Scenario) -> str:
    """The load, as a sentence ends with it."""
    arrivals = scenario.workload.arrivals
    if arrivals.process == "closed_loop":
        return f"with {arrivals.concurrency} clients"
    rate = getattr(arrivals, "request_rate_rps", None)
    return f"at {rate:g} req/s" if rate is not None else "under this load"


def run_table(scenario: Scenario, point: RatePoint) -> Table:
    """The figures of one load and where the time went; beside them, when compared, those without speculation."""
    level = f"mean ±{scenario.statistics.confidence:.0%} half width"
    columns = [point.figures(side) for side in ("on", "off")[: len(point.runs)]]
    sides = ("with speculation ", "without ") if len(columns) > 1 else ("",)
    rows, sections = [["figure", *(f"{side}{level}" for side in sides), "unit"]], []
    origins = [(f"device time {origin}", f"share_device_time_{origin}", 1e2, "%") for origin in ORIGINS]
    labels = {"rejected": "rejected work", "kv_pressure": "kv pressure"}
    shares = [(f"where time goes: {labels.get(part, part)}", f"share_time_{part}", 1e2, "%") for part in CAUSES]
    for section in (ONE_RUN, origins, shares):
        for name, key, factor, unit in section:
            if any(key in figures and not math.isnan(figures[key].mean) for figures in columns):
                rows.append([name, *(show(figures.get(key), factor) for figures in columns), unit])
        sections.append(len(rows) - 2)
    for name, key, unit in ENGINE if not scenario.cluster.groups else ():
        rows.append([name, *(f"{run.summary['engine'][key]:,.0f}" for run in point.runs), unit])
    caption = engine_line(point.runs[0])
    if scenario.speculative_config is not None:
        caption += " Rejected work: the time of each step less its time without the rejected rows and their drafts."
    return make_table(rows, title=title(scenario), caption=caption, sections=sections)


def groups_tables(point: RatePoint) -> list[Table]:
    """What each group of unlike replicas is, what it served and what a replica holds; none where all are alike."""
    held = {"KV tokens": "kv_cache_tokens", "blocks lost to SD": "kv_blocks_lost_to_speculation"}
    held |= {"concurrency": "max_concurrency"}
    rows = [["group", "replicas", "GPUs", "SD", "requests", *(name for name, _, _ in COMPARED[:3]), *held]]
    sections = []
    for run in point.runs:
        for index, group in enumerate(run.summary.get("groups", ())):
            figures, memory = group["figures"], group["engine"]
            requests = f"{figures['num_requests'].mean:,.0f}" if figures else "-"
            latencies = [show(figures.get(key), factor) for _, key, factor in COMPARED[:3]]
            gpus, drafts = f"{group['num_gpus']} {group['hardware']}", group["speculation"] or "off"
            row = [f"{index}: {group['layout']}", str(group["replicas"]), gpus, drafts, requests, *latencies]
            rows.append(row + [f"{memory[key]:,.0f}" for key in held.values()])
        sections.append(len(rows) - 2)
    return [make_table(rows, title="Groups of replicas", sections=sections)] if len(rows) > 1 else []


def cause_line(point: RatePoint) -> str:
    """Why speculation made requests faster or slower, on minus off; empty where that is not known."""
    causes = {name: 1e3 * each.mean for name, each in point.by_cause().items()}
    if not causes:
        return ""
    whole = causes.pop("all")
    parts = ", ".join(f"{name.replace('_', ' ')} {value:+.3g}" for name, value in causes.items() if abs(value) >= 5e-4)
    return f"With speculation a request takes {whole:+.3g} ms on average: {parts} ms."


def engine_line(result: RunResult) -> str:
    """Which engine's step times a run assumed, in a sentence."""
    told = []
    for engine in result.manifest["engine"].get("groups", [result.manifest["engine"]]):
        how = engine.get("step_times") or f"CUDA graphs {engine['cudagraph_mode']}"
        told.append(f"{engine['version']} (generation {engine['generation']}, {how})")
    return f"Engine: {'; '.join(dict.fromkeys(told))}."


def status_line(result: RunResult, own: Side) -> str:
    """Stability and SLO in one sentence; empty when there is nothing to say."""
    if own.state == "overloaded":
        most = f" It completes at most {show(own.capacity.estimate)} req/s." if own.capacity is not None else ""
        return "OVERLOADED: the queue grows, so there is no steady state and no latency to show." + most
    slo = " Whether the SLO is met cannot be told." if result.summary["slo_asked"] else ""
    if own.state == "at capacity" and own.capacity is not None:
        return f"AT CAPACITY: the cluster completes at most {show(own.capacity.estimate)} req/s." + slo
    if not own.has_figures:
        return (
            "NOT SETTLED: the run did not reach a steady state; more requests will tell whether the load is too high "
            "or the run too short." + slo
        )
    if result.slo_met is None:
        return ""
    return "SLO met." if result.slo_met else "SLO NOT MET."


def vllm_bench_result(scenario: Scenario, run: RunResult) -> dict[str, Any]:
    """The first replication of ``scenario`` as ``vllm bench serve --save-result --save-detailed`` would write it."""
    arrivals = scenario.workload.arrivals
    rate = getattr(arrivals, "request_rate_rps", None)
    return vllm_result(
        run.replications[0],
        run.requests[run.requests["replication"] == 0],
        model_id=scenario.engine.model,
        date=datetime.datetime.now().strftime("%Y%m%d-%H%M%S"),
        request_rate=math.inf if rate is None else rate,
        burstiness=getattr(arrivals, "burstiness", 1.0),
        max_concurrency=getattr(arrivals, "concurrency", None),
    )


def answer_parts(answer: Comparison, single: RatePoint | None) -> Iterator[str | Table]:
    """One load, or several rates, as the terminal shows them."""
    if single is not None:
        if single.verdict is not None:
            yield single.verdict.sentence(load_words(answer.scenario))
        yield run_table(answer.scenario, single)
        yield from groups_tables(single)
        yield from (cause_line(single), status_line(single.on, single.own))
    else:
        yield comparison_table(answer)
        if any(point.off is not None for point in answer.points):
            statistics = answer.scenario.statistics
            yield (
                "advantage: mean E2E latency without speculation / with it, same requests; above 1 it is faster with. "
                f"± is half the {statistics.confidence:.0%} interval of {statistics.replications} replications."
            )
            if len(answer.points) > 1:
                yield cutover_line(answer)
        yield from filter(None, [capacity_line(answer)])
    notes = (note for point in answer.points for run in point.runs for note in run.summary.get("notes", []))
    yield from (f"note: {note}" for note in dict.fromkeys(notes))
