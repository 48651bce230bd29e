"""Results for people: the comparison table, the table of one run, and the sentence under them (rich)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from draftcast.scenarios.comparison import Comparison, Point, estimates
from draftcast.scenarios.schema import Scenario

if TYPE_CHECKING:
    from draftcast.scenarios.simulate import RunResult
    from draftcast.sim.statistics import Estimate

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
SHARES = ("queue", "prefill", "draft", "verify", "rejected", "host", "kv_pressure")


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
    if not compared:
        table.add_row(rate, *cells["on"], point.verdict)
        return
    table.add_row(rate, "off", *cells["off"], "", "")
    table.add_row("", "on", *cells["on"], show(point.advantage) + " x", point.verdict, end_section=True)


def cutover_line(comparison: Comparison) -> str:
    """What the rates looked at say about the cutover, in a few sentences."""
    cut = comparison.cutover
    if cut is None:
        return "Cutover: not looked for (it needs --compare-off and --rates)."
    level = f"{cut.confidence:.0%}"
    rated = [(p.request_rate_rps, p.verdict) for p in comparison.points if p.request_rate_rps is not None]
    above, below = cut.above, cut.below
    if cut.kind == "crosses":
        first, last = cut.gap
        rises = "" if cut.falls else "; speculation costs below, pays above"
        text = f"Cutover: between {first:g} and {last:g} req/s ({level} at each rate){rises}."
    elif above is not None and below is not None:
        text = "Cutover: not one; along the rates speculation surely pays and surely costs in turn."
    elif above is not None:
        every = "at every rate looked at" if above[1] == rated[-1][0] else "at every rate that can be compared"
        text = f"Cutover: none seen; speculation pays {every}, up to {above[1]:g} req/s ({level} at each)."
    elif below is not None:
        text = f"Cutover: none seen; speculation pays at no rate looked at, costs from {below[0]:g} req/s on."
    else:
        text = "Cutover: cannot tell; at no rate looked at does speculation surely pay or surely cost."
    overloaded = [rate for rate, verdict in rated if verdict == "overloaded"]
    if overloaded:
        text += f" From {min(overloaded):g} req/s on both sides are overloaded."
    undecided = [f"{rate:g}" for rate, verdict in rated if verdict in ("even", "not settled", "undefined")]
    if undecided:
        text += f" Undecided: {', '.join(undecided)} req/s; more requests decide more."
    return text


def capacity_line(comparison: Comparison) -> str:
    """What the cluster completes at most, on and off; empty where that is not known."""
    last = comparison.points[-1]
    sides = (("with speculation", last.capacity_on), ("without", last.capacity_off))
    known = [f"{show(capacity)} req/s {name}" for name, capacity in sides if capacity is not None]
    return f"Saturated, the cluster completes {', '.join(known)}." if known else ""


def title(scenario: Scenario, *, with_policy: bool = True) -> str:
    """What was asked, on one line."""
    engine, spec = scenario.engine, scenario.speculative_config
    drafted = f"{scenario.method}, k={spec.k}" if spec is not None else "no speculation"
    size = f"{scenario.cluster.replicas} x TP{engine.tensor_parallel_size}"
    policy = f"; policy {scenario.resolved_policy.name}" if with_policy else ""
    return f"{engine.model} on {scenario.hardware} ({size}); {drafted}{policy}"


def run_table(scenario: Scenario, result: RunResult) -> Table:
    """The figures of one run and where its time went."""
    confidence = scenario.statistics.confidence
    figures: Mapping[str, Estimate] = estimates(result, confidence)
    table = Table(title=title(scenario), title_justify="left")
    table.add_column("figure")
    table.add_column(f"mean ±{confidence:.0%} half width", justify="right")
    table.add_column("unit")
    shown = [row for row in ONE_RUN if row[1] in figures and not math.isnan(figures[row[1]].mean)]
    for name, key, factor, unit in shown:
        table.add_row(name, show(figures[key], factor), unit, end_section=key == shown[-1][1])
    for origin in ("measured", "interpolated", "extrapolated"):
        key = f"share_device_time_{origin}"
        if key in figures and not math.isnan(figures[key].mean):
            table.add_row(f"device time {origin}", show(figures[key], 1e2), "%", end_section=origin == "extrapolated")
    shares = [name for name in SHARES if f"share_time_{name}" in figures]
    for index, name in enumerate(shares):
        label = "where time goes: " + name.replace("_", " ").replace("rejected", "rejected work")
        last = index == len(shares) - 1
        table.add_row(label, show(figures[f"share_time_{name}"], 1e2), "%", end_section=last)
    if scenario.speculative_config is not None and shares:
        table.caption = "Rejected work: the time of each step less its time without the rejected rows and their drafts."
    for name, key, unit in ENGINE:
        value = result.summary.get("engine", {}).get(key)
        if value is not None:
            table.add_row(name, f"{value:,.0f}", unit)
    return table


def status_line(result: RunResult) -> str:
    """Stability and SLO in one sentence; empty when there is nothing to say."""
    if result.unstable:
        rate = result.summary.get("stability", {}).get("largest_stable_rate_rps")
        sustained = f" It completes {rate:.3g} req/s: the largest stable rate is about that." if rate else ""
        return "UNSTABLE: the queue grows, so there is no steady state; latencies describe this run only." + sustained
    if not result.steady:
        slo = " Whether the SLO is met cannot be told." if result.summary.get("slo_asked") else ""
        return (
            "NOT SETTLED: requests in flight still grow at the end, so there is no steady state; more requests will "
            "tell whether the load is too high or the run too short." + slo
        )
    if result.slo_met is None:
        return ""
    return "SLO met." if result.slo_met else "SLO NOT MET."


def note_lines(result: RunResult) -> list[str]:
    """What a reader must know before trusting the figures, one line each."""
    return [f"note: {note}" for note in result.summary.get("notes", [])]
