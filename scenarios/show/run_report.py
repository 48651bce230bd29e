"""A simulation as text, tables and pictures: one run, several rates, vLLM's result file, latencies, load over time."""

import datetime
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from draftcast.scenarios.compare.comparison import LATENCY, TOKENS, Comparison, RatePoint
from draftcast.scenarios.compare.slo_answer import measured_requests, slo_answer
from draftcast.scenarios.compare.verdict import Side
from draftcast.scenarios.run.coverage import ORIGINS
from draftcast.scenarios.run.simulate import RunResult
from draftcast.scenarios.run.timeline import Timeline
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.show import plots
from draftcast.scenarios.show.plots import COLOURS, LIMIT, OFF, ON, interval_bars, means, series
from draftcast.scenarios.show.tables import LOOKS, make_table, saturated_line, show, title
from draftcast.sim.output.results import TIME_PARTS, RequestColumns
from draftcast.sim.output.vllm_result import vllm_result
from draftcast.sim.statistics.intervals import Estimate
from draftcast.yaml_text import yaml_beside

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
        every = "every simulated rate" if {word for _, word in rated} == {"pays"} else "every rate that is decided"
        text = f"Cutover: none seen; speculation pays at {every}, up to {above[1]:g} req/s ({level} at each)."
    elif below is not None:
        text = f"Cutover: none seen; speculation pays at no rate, costs from {below[0]:g} req/s on."
    else:
        text = "Cutover: cannot tell; at no simulated rate is speculation significantly faster or slower."
    if overloaded := [rate for rate, verdict in rated if verdict == "overloaded"]:
        text += f" From {min(overloaded):g} req/s on both sides are overloaded."
    if undecided := [p for p in comparison.points if p.word in ("too close to call", "not settled")]:
        predictions = [p.verdict.prediction if p.verdict is not None else None for p in undecided]
        advice = dict.fromkeys(p.advice if p is not None else "More requests may decide." for p in predictions)
        text += f" Undecided: {', '.join(f'{p.request_rate_rps:g}' for p in undecided)} req/s. {' '.join(advice)}"
    return text


def capacity_line(comparison: Comparison) -> str:
    """What the cluster completes at most, on and off; empty where that is not known."""
    names = {"on": "with speculation" if comparison.points[0].verdict is not None else "", "off": "without"}
    sides = comparison.saturated.items()
    return saturated_line({names[which]: one.predicted_capacity_rps for which, one in sides if one is not None})


def load_words(scenario: Scenario) -> str:
    """The load, as a sentence ends with it."""
    arrivals = scenario.workload.arrivals
    if arrivals.process == "closed_loop":
        return "with 1 client" if arrivals.concurrency == 1 else f"with {arrivals.concurrency} clients"
    return f"at {scenario.rate_rps:g} req/s" if scenario.rate_rps is not None else "under this load"


def run_table(scenario: Scenario, point: RatePoint) -> Table:
    """The figures of one load and where the time went; beside them, when compared, those without speculation."""
    level = f"mean ±{scenario.statistics.confidence:.0%} interval"
    columns = [point.figures(side) for side in ("on", "off")[: len(point.runs)]]
    sides = ("with speculation ", "without ") if len(columns) > 1 else ("",)
    rows, sections = [["figure", *(f"{side}{level}" for side in sides), "unit"]], []
    origins = [(f"device time {origin}", f"share_device_time_{origin}", 1e2, "%") for origin in ORIGINS]
    labels = {"rejected": "rejected work", "kv_pressure": "kv pressure"}
    shares = [(f"where time goes: {labels.get(part, part)}", f"share_time_{part}", 1e2, "%") for part in TIME_PARTS]
    for section in (ONE_RUN, origins, shares):
        for name, key, factor, unit in section:
            if any(key in figures and not math.isnan(figures[key].mean) for figures in columns):
                rows.append([name, *(show(figures.get(key), factor) for figures in columns), unit])
        sections.append(len(rows) - 2)
    for name, key, unit in ENGINE if not scenario.cluster.groups else ():
        rows.append([name, *(f"{run.summary['engine'][key]:,.0f}" for run in point.runs), unit])
    caption = f"{engine_line(point.runs[0])} Intervals of latencies, throughput and SLO cover {_covered(scenario)}."
    if scenario.statistics.model_error != "none" and scenario.statistics.replications > 1:
        caption += " The interval of TTFT is too narrow."
    if scenario.speculative_config is not None:
        caption += " Rejected work: the time of each step less its time without the rejected rows and their drafts."
    return make_table(rows, title=title(scenario), caption=caption, sections=sections)


def groups_tables(point: RatePoint) -> list[Table]:
    """What each group of unlike replicas is, what it served and what a replica holds; none where all are alike."""
    columns = {"KV tokens": "kv_cache_tokens", "blocks lost to SD": "kv_blocks_lost_to_speculation"}
    columns |= {"concurrency": "max_concurrency"}
    rows = [["group", "replicas", "GPUs", "SD", "requests", *(name for name, _, _ in COMPARED[:3]), *columns]]
    sections = []
    for run in point.runs:
        for index, group in enumerate(run.summary.get("groups", ())):
            figures, memory = group["figures"], group["engine"]
            requests = f"{figures['num_requests'].mean:,.0f}" if figures else "-"
            latencies = [show(figures.get(key), factor) for _, key, factor in COMPARED[:3]]
            gpus, drafts = f"{group['num_gpus']} {group['hardware']}", group["speculation"] or "off"
            row = [f"{index}: {group['layout']}", str(group["replicas"]), gpus, drafts, requests, *latencies]
            rows.append(row + [f"{memory[key]:,.0f}" for key in columns.values()])
        sections.append(len(rows) - 2)
    heading = "Groups of replicas (intervals: sampling noise only)"
    return [make_table(rows, title=heading, sections=sections)] if len(rows) > 1 else []


def _covered(scenario: Scenario) -> str:
    if scenario.statistics.replications == 1:
        return "nothing: one replication has no interval"
    noise = f"sampling noise ({scenario.statistics.replications} replications)"
    errors = "" if scenario.statistics.model_error == "none" else " and the errors of step times and acceptance"
    return f"{noise}{errors}"


def cause_line(point: RatePoint) -> str:
    """Why speculation made requests faster or slower, on minus off; empty where that is not known."""
    causes = {name: 1e3 * estimate.mean for name, estimate in point.by_cause().items()}
    if not causes:
        return ""
    whole = causes.pop("all")
    parts = ", ".join(f"{name.replace('_', ' ')} {value:+.3g}" for name, value in causes.items() if abs(value) >= 5e-4)
    return f"With speculation a request takes {whole:+.3g} ms on average: {parts} ms."


def engine_line(result: RunResult) -> str:
    """Which engine's step times a run assumed, in a sentence."""
    engines = []
    for engine in result.manifest["engine"].get("groups", [result.manifest["engine"]]):
        how = engine.get("step_times") or f"CUDA graphs {engine['cudagraph_mode']}"
        engines.append(f"{engine['version']} (generation {engine['generation']}, {how})")
    return f"Engine: {'; '.join(dict.fromkeys(engines))}."


def status_line(scenario: Scenario, side: Side) -> str:
    """Stability and SLO in one sentence; empty when there is nothing to say."""
    if side.state == "overloaded":
        most = f" It completes at most {show(side.predicted_capacity_rps)} req/s." if side.capacity is not None else ""
        return "OVERLOADED: the queue grows, so there is no steady state and no latency to show." + most
    slo = " Whether the SLO is met cannot be decided." if scenario.slos else ""
    if side.state == "at capacity" and side.capacity is not None:
        return f"AT CAPACITY: the cluster completes at most {show(side.predicted_capacity_rps)} req/s." + slo
    if not side.has_figures:
        return (
            "NOT SETTLED: the run did not reach a steady state; more requests will tell whether the load is too high "
            "or the run too short." + slo
        )
    answer = slo_answer(scenario, side)
    return answer.sentence if answer is not None else ""


def vllm_bench_result(scenario: Scenario, run: RunResult) -> dict[str, Any]:
    """The first replication of ``scenario`` as ``vllm bench serve --save-result --save-detailed`` would write it."""
    arrivals = scenario.workload.arrivals
    return vllm_result(
        run.replications[0],
        run.requests[run.requests["replication"] == 0],
        model_id=scenario.engine.model,
        date=datetime.datetime.now().strftime("%Y%m%d-%H%M%S"),
        request_rate=math.inf if scenario.rate_rps is None else scenario.rate_rps,
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
        yield from (cause_line(single), status_line(answer.scenario, single.side))
    else:
        yield comparison_table(answer)
        if any(point.off is not None for point in answer.points):
            yield "advantage: mean E2E latency without speculation / with it, same requests; above 1 it is faster with."
            if len(answer.points) > 1:
                yield cutover_line(answer)
        level = f"{answer.scenario.statistics.confidence:.0%}"
        yield f"± is half the {level} interval, brackets are its bounds. It covers {_covered(answer.scenario)}."
        yield capacity_line(answer)
    yield from _notes(answer)


def _notes(answer: Comparison) -> Iterator[str]:
    """Of all runs, each sentence once; what is true without speculation alone says so."""
    notes = dict.fromkeys(note for point in answer.points for note in point.on.summary.get("notes", []))
    yield from (f"note: {note}" for note in notes)
    without = [point.off for point in answer.points if point.off is not None]
    others = dict.fromkeys(note for run in without for note in run.summary.get("notes", []) if note not in notes)
    yield from (f"note: without speculation: {note}" for note in others)


PARTS: dict[str, str] = LOOKS["parts"]
LATENCIES = (("ttft", "TTFT, ms", 1e3), ("tpot", "TPOT, ms", 1e3), ("e2el", "E2E latency, s", 1.0))
POINTS = 121
GAP = 0.03  # between panels, as a share of the picture
SHOWN = 0.995
# What is drawn while a key is pressed has fixed margins: plotly finds them by drawing the plot twice.
KNOWN_X: dict[str, Any] = {"automargin": False, "ticklabeloverflow": "allow"}
KNOWN_Y: dict[str, Any] = KNOWN_X | {"rangemode": "tozero"}
MARGIN = {"l": 64, "r": 16, "b": 48}


def comparison_figure(comparison: Comparison) -> Any:
    """Advantage over the rate with the cutover; below, latency and token goodput. Raises InputError: `check_points`."""
    points = [p for p in comparison.points if p.off is not None and p.request_rate_rps is not None]
    plots.check_points(len(points))
    titles = "Advantage: mean E2E latency off / on", "Mean E2E latency, s", "Token goodput, tokens/s"
    grid = {"specs": [[{"colspan": 2}, None], [{}, {}]], "row_heights": [0.56, 0.44]}
    figure = plots.panels(*titles, rows=2, vertical_spacing=0.16, horizontal_spacing=0.09, **grid)
    lines = [("advantage", ON, [p.advantage for p in points], (1, 1))]
    for (col, key), (side, colour) in itertools.product(((1, LATENCY), (2, TOKENS)), (("on", ON), ("off", OFF))):
        lines.append((f"SD {side}", colour, [p.figures(side).get(key) for p in points], (2, col)))
    rates = [p.request_rate_rps for p in points]
    for name, colour, values, cell in lines:
        bars = interval_bars(values, thickness=1.5, width=4)
        style = {"mode": "lines+markers", "line_width": 2.5, "error_y": bars, "showlegend": cell == (2, 1)}
        series(figure, name, colour, rates, means(values), cell=cell, **style)
    figure.add_hline(y=1.0, line=plots.BREAK_EVEN_LINE, row=1, col=1)
    cut = comparison.cutover
    if cut is not None and cut.kind == "crosses":
        (x0, x1), label = cut.gap, {"text": "cutover", "font": {"color": LIMIT}}
        figure.add_vrect(x0, x1, fillcolor=LIMIT, opacity=0.15, line_width=0, label=label, row=1, col=1)
    figure.update_xaxes(title_text="request rate, req/s")
    return plots.in_file(figure, title(comparison.scenario), [cutover_line(comparison)], height=760)


def run_figure(run: RunResult) -> Any:
    return latency_figure({"run": measured_requests(run)}, run.manifest["scenario"]["slo"] or {})


def latency_figure(
    runs: Mapping[str, pd.DataFrame],
    limits_ms: Mapping[str, float | None],
    colours: Mapping[str, str] | None = None,
    latencies: Sequence[tuple[str, str, float]] = LATENCIES,
) -> Any:
    """Cumulative share of requests by TTFT, TPOT and E2E latency, one line a run.

    Args:
        runs: requests by name of the run, see `measured_requests`; at most as many as `COLOURS`.
        limits_ms: the SLO's ``ttft_ms``, ``tpot_ms``, ``e2el_ms`` where it has them.
        colours: of the runs; `colour_of` where None.
        latencies: of `LATENCIES`, a panel each, side by side; the legend stands above where there are several.
    """
    shares = np.linspace(0.0, 1.0, POINTS)
    colours = colours or {name: colour_of(name, list(runs)) for name in runs}
    longest = dict.fromkeys((latency for latency, _, _ in latencies), 0.0)
    traces: list[dict[str, Any]] = []
    for name, requests in runs.items():
        columns = RequestColumns.of(requests)
        for panel, (latency, _, scale) in zip(("", "2", "3"), latencies, strict=False):
            values = getattr(columns, f"{latency}_s")
            values = values[np.isfinite(values)]
            if values.size:
                longest[latency] = max(longest[latency], scale * float(np.quantile(values, SHOWN)))
            x = (np.quantile(values, shares) * scale).round(6) if values.size else []
            line = {"name": name, "legendgroup": name, "line": {"color": colours[name], "width": 2.2}}
            hover = f"%{{y:.0f}} % of requests within %{{x:.3g}}<extra>{name}</extra>"
            place = {"xaxis": f"x{panel}", "showlegend": panel == "", "hovertemplate": hover}
            traces.append({"type": "scatter", "mode": "lines", "x": x, "y": 100 * shares} | line | place)
    layout = plots.look(height=300, legend=len(latencies) > 1)
    layout["yaxis"] = KNOWN_Y | {"title": {"text": "requests, %"}}
    limits = []
    for index, (latency, heading, scale) in enumerate(latencies):
        panel = str(index + 1) if index else ""
        # The last requests of a long tail would squeeze all others against the axis.
        top = 1.05 * longest[latency] or 1
        left = index * (1 + GAP) / len(latencies)
        domain = [left, left + (1 + GAP) / len(latencies) - GAP]
        layout[f"xaxis{panel}"] = KNOWN_X | {"domain": domain, "title": {"text": heading}, "range": [0, top]}
        if (limit := limits_ms.get(f"{latency}_ms")) is not None:
            x = limit * scale / 1e3
            across = {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "xref": f"x{panel}", "yref": "y domain"}
            limits.append(across | {"line": {"color": LIMIT, "dash": "dot", "width": 1.5}})
    return _drawn(traces, layout | {"shapes": limits})


def _drawn(traces: Sequence[Mapping[str, Any]], layout: dict[str, Any]) -> Any:
    """In one call that checks all of it: adding traces and axes one by one takes ten times as long."""
    import plotly.graph_objects as go

    return go.Figure({"data": traces, "layout": layout | {"margin": layout["margin"] | MARGIN}})


def timeline_figure(shown: Timeline) -> Any:
    """Waiting and running requests, and the KV cache's use where it was recorded."""
    levels: list[tuple[str, Any, str, str]] = [
        ("waiting", shown.waiting, PARTS["queue"], "requests"),
        ("running", shown.running, ON, "requests"),
    ]
    if shown.kv_usage is not None:
        levels.append(("KV cache", 100 * shown.kv_usage, PARTS["prefill"], "%"))
    rows = len(levels)
    layout = plots.look(height=110 * rows + 40, legend=False)
    layout["xaxis"] = KNOWN_X | {"anchor": f"y{rows}", "title": {"text": "time, s"}}
    traces = []
    for row, (name, values, colour, unit) in enumerate(levels):
        panel = str(row + 1) if row else ""
        hover = f"%{{y:.3g}} {unit} at %{{x:.1f}} s<extra>{name}</extra>"
        line = {"name": name, "line": {"color": colour, "width": 1.6}, "fill": "tozeroy", "hovertemplate": hover}
        place = {"x": shown.time_s.round(3), "y": np.asarray(values).round(4), "yaxis": f"y{panel}"}
        traces.append({"type": "scatter", "mode": "lines"} | line | place)
        top = 1 - row * (1 + 2 * GAP) / rows
        layout[f"yaxis{panel}"] = KNOWN_Y | {
            "domain": [max(top - (1 + 2 * GAP) / rows + 2 * GAP, 0), top],
            "title": {"text": f"{name}, %" if unit == "%" else name},
        }
    return _drawn(traces, layout)


def time_figure(runs: Mapping[str, RunResult]) -> Any:
    """Where a mean request's time goes: stacked seconds by part, one bar a run."""
    names = list(runs)[::-1]
    traces = []
    for part, colour in PARTS.items():
        x = [round(runs[name].summary["figures"][f"mean_time_{part}_s"].mean, 6) for name in names]
        label = part.replace("kv_pressure", "KV pressure").replace("rejected", "rejected work")
        bar = {"type": "bar", "orientation": "h", "x": x, "y": names, "name": label, "marker": {"color": colour}}
        traces.append(bar | {"hovertemplate": "%{x:.3g} s<extra>" + part.replace("_", " ") + "</extra>"})
    layout = plots.look(height=150 + 44 * len(names))
    layout |= {"barmode": "stack", "legend": layout["legend"] | {"traceorder": "normal"}}
    layout["margin"]["t"] = 64
    layout |= {"xaxis": KNOWN_X | {"title": {"text": "seconds of a mean request"}}, "yaxis": KNOWN_Y}
    return _drawn(traces, layout)


def colour_of(name: str, names: Sequence[str]) -> str:
    """The same run has the same colour in every picture."""
    return {"SD off": OFF, "baseline": plots.BASELINE}.get(name, COLOURS[names.index(name) % len(COLOURS)])


def ratio_figure(rows: Mapping[str, Sequence[tuple[str, Estimate | None]]], colours: Mapping[str, str]) -> Any:
    """``rows``: by run, how many times as large each figure is as in the reference, by its label (None: not known)."""
    figure = plots.panels()
    for name, ratios in rows.items():
        finite = {label: ratio for label, ratio in ratios if ratio is not None and math.isfinite(ratio.mean)}
        x, bars = means(list(finite.values())), interval_bars(list(finite.values()), thickness=1.4, width=5)
        hover = "%{y}: %{x:.3f} times the reference"
        series(figure, name, colours[name], x, list(finite), error_x=bars, marker_size=9, hover=hover)
    figure.add_vline(x=1.0, line={"color": OFF, "dash": "dash", "width": 1.5})
    figure.update_layout(scattermode="group", scattergap=0.35)
    plots.label_axes(figure, "times the reference")
    labels = max(map(len, rows.values()), default=0)
    shown = plots.styled(figure, height=130 + labels * max(26, 15 * len(rows)))
    return shown.update_yaxes(type="category", autorange="reversed", rangemode="normal")
