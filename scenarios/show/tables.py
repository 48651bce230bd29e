"""Results for people: the comparison table, the table of one run, and the sentence under them (rich)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from draftcast.scenarios.compare.comparison import Comparison, Point
from draftcast.scenarios.schema import Scenario

if TYPE_CHECKING:
    from draftcast.scenarios.compare.verdict import Side
    from draftcast.scenarios.run.simulate import RunResult
    from draftcast.sim.statistics.intervals import Estimate

# Without a terminal there is nobody to resize the window: take what the widest table needs.
PLAIN_WIDTH = 150
COMPARED = (
    ("TTFT ms", "mean_ttft_s", 1e3),
    ("TPOT ms", "mean_tpot_s", 1e3),
    ("E2E s", "mean_e2el_s", 1.0),
    ("token goodput tok/s", "output_throughput", 1.0),
)
ONE_RUN = (
    ("request throughput", "request_throughput", 1.0, "req/s"),
    ("SLO goodput", "request_goodput", 1.0, "req/s"),
    ("SLO attainment", "slo_attainment", 1e2, "%"),
    ("token goodput", "output_throughput", 1.0, "tok/s"),
    ("mean TTFT", "mean_ttft_s", 1e3, "ms"),
    ("p99 TTFT", "p99_ttft_s", 1e3, "ms"),
    ("mean TPOT", "mean_tpot_s", 1e3, "ms"),
    ("p99 TPOT", "p99_tpot_s", 1e3, "ms"),
    ("p99 ITL", "p99_itl_s", 1e3, "ms"),
    ("mean E2E", "mean_e2el_s", 1.0, "s"),
    ("p99 E2E", "p99_e2el_s", 1.0, "s"),
    ("mean acceptance length", "mean_acceptance_length", 1.0, "tokens, bonus included"),
    ("preemptions", "preemptions", 1.0, ""),
    ("prefix cache hit rate", "prefix_cache_hit_rate", 1e2, "%"),
)
ENGINE = (
    ("KV cache", "kv_cache_tokens", "tokens"),
    ("KV lost to speculation", "kv_blocks_lost_to_speculation", "blocks"),
    ("concurrency of mean requests", "max_concurrency", "requests"),
    ("concurrency lost to speculation", "concurrency_lost_to_speculation", "requests"),
)
ORIGINS = ("measured", "interpolated", "extrapolated")
SHARES = (
    ("queue", "queue"),
    ("prefill", "prefill"),
    ("draft", "draft"),
    ("verify", "verify"),
    ("rejected", "rejected work"),
    ("host", "host"),
    ("kv_pressure", "kv pressure"),
)


def make_console() -> Console:
    """Standard output; wide enough for the tables when it is a file or a pipe."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PLAIN_WIDTH)
    return console


def show(value: Estimate | None, factor: float = 1.0) -> str:
    """Mean and half width of the interval; a dash when undefined."""
    if value is None or math.isnan(value.mean):
        return "-"
    scaled = value.scaled(factor)
    digits = 0 if abs(scaled.mean) >= 1000 else 1 if abs(scaled.mean) >= 100 else 2
    text = f"{scaled.mean:,.{digits}f}"
    return text if math.isnan(scaled.half_width) else f"{text} ±{scaled.half_width:,.{digits}f}"


def comparison_table(comparison: Comparison) -> Table:
    """One row per rate; each figure without and with speculation, 95 % (or as asked) half widths behind ±."""
    compared = any(point.off is not None for point in comparison.points)
    table = Table(title=title(comparison.scenario), title_justify="left", show_lines=False)
    table.add_column("req/s", justify="right")
    if compared:
        table.add_column("SD")
    for name, _, _ in COMPARED:
        table.add_column(name, justify="right")
    if compared:
        table.add_column("advantage", justify="right")
    table.add_column("verdict")
    for point in comparison.points:
        _add_rows(table, point, compared)
    return table


def _add_rows(table: Table, point: Point, compared: bool) -> None:
    rate = "-" if point.request_rate_rps is None else f"{point.request_rate_rps:g}"
    cells = {
        which: [show(point.figures(which).get(key), factor) for _, key, factor in COMPARED] for which in ("off", "on")
    }
    if not compared or point.verdict is None:
        table.add_row(rate, *cells["on"], point.word)
        return
    advantage = f"{show(point.advantage)} x" if point.advantage is not None else "-"
    table.add_row(rate, "off", *cells["off"], "", point.verdict.why)
    table.add_row("", "on", *cells["on"], advantage, point.word, end_section=True)


def cutover_line(comparison: Comparison) -> str:
    """What the rates looked at say about the cutover, in a few sentences."""
    cut = comparison.cutover
    if cut is None:
        return "Cutover: not looked for (it needs --rates)."
    level = f"{cut.confidence:.0%}"
    rated = [(p.request_rate_rps, p.word) for p in comparison.points if p.request_rate_rps is not None]
    above, below = cut.above, cut.below
    if cut.kind == "crosses":
        first, last = cut.gap
        rises = "" if cut.falls else "; speculation costs below, pays above"
        text = f"Cutover: between {first:g} and {last:g} req/s ({level} at each rate){rises}."
    elif above is not None and below is not None:
        text = "Cutover: not one; along the rates speculation is significantly faster and significantly slower in turn."
    elif above is not None:
        every = "at every rate looked at" if above[1] == rated[-1][0] else "at every rate that can be compared"
        text = f"Cutover: none seen; speculation pays {every}, up to {above[1]:g} req/s ({level} at each)."
    elif below is not None:
        text = f"Cutover: none seen; speculation pays at no rate looked at, costs from {below[0]:g} req/s on."
    else:
        text = "Cutover: cannot tell; at no rate looked at is speculation significantly faster or slower."
    overloaded = [rate for rate, verdict in rated if verdict == "overloaded"]
    if overloaded:
        text += f" From {min(overloaded):g} req/s on both sides are overloaded."
    undecided = [f"{rate:g}" for rate, verdict in rated if verdict in ("too close to call", "not settled")]
    if undecided:
        text += f" Undecided: {', '.join(undecided)} req/s; more requests decide more."
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


def title(scenario: Scenario, *, with_policy: bool = True) -> str:
    """What was asked, on one line."""
    engine, spec = scenario.engine, scenario.speculative_config
    drafted = f"{scenario.method}, k={spec.k}" if spec is not None else "no speculation"
    size = f"{scenario.cluster.replicas} x TP{engine.tensor_parallel_size}"
    policy = f"; policy {scenario.resolved_policy.name}" if with_policy else ""
    return f"{engine.model} on {scenario.hardware} ({size}); {drafted}{policy}"


def run_table(scenario: Scenario, point: Point) -> Table:
    """The figures of one load and where the time went; beside them, when compared, those without speculation."""
    confidence = scenario.statistics.confidence
    columns: list[Mapping[str, Estimate]] = [point.figures(which) for which in ("on", "off")[: len(point.runs)]]
    table = Table(title=title(scenario), title_justify="left")
    table.add_column("figure")
    for name in ("with speculation", "without") if len(columns) > 1 else ("",):
        table.add_column(f"{name} mean ±{confidence:.0%} half width".strip(), justify="right")
    table.add_column("unit")

    def add(rows: Sequence[tuple[str, str, float, str]]) -> None:
        known = [row for row in rows if any(row[1] in c and not math.isnan(c[row[1]].mean) for c in columns)]
        for name, key, factor, unit in known:
            cells = [show(column.get(key), factor) for column in columns]
            table.add_row(name, *cells, unit, end_section=key == known[-1][1])

    add(ONE_RUN)
    add([(f"device time {origin}", f"share_device_time_{origin}", 1e2, "%") for origin in ORIGINS])
    add([(f"where time goes: {label}", f"share_time_{name}", 1e2, "%") for name, label in SHARES])
    if scenario.speculative_config is not None:
        table.caption = "Rejected work: the time of each step less its time without the rejected rows and their drafts."
    for name, key, unit in ENGINE:
        values = [run.summary["engine"][key] for run in point.runs]
        table.add_row(name, *(f"{value:,.0f}" for value in values), unit)
    return table


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


def note_lines(result: RunResult) -> list[str]:
    """What a reader must know before trusting the figures, one line each."""
    return [f"note: {note}" for note in result.summary.get("notes", [])]
