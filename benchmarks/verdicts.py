"""Do all surfaces give the same word at a load, is no word wrong, and do the intervals of short runs hold the truth?

    python benchmarks/verdicts.py words [--loads N] [--chance]
    python benchmarks/verdicts.py intervals [--trials N] [--scenario NAME ...]
    python benchmarks/verdicts.py recommendations [--replications N]

``words`` asks 50 loads from 5 to 150 % of the smaller capacity: what ``simulate``, ``recommend``, ``sweep`` and
``cutover`` say at the scenario's own effort, what the page says at its own, and beside them runs of 60,000 requests.
Prints a row a load, then what differs, what is wrong and what is undecided further than 5 % from the cutover, and
whether ``plan`` promises more than the capacity.

``intervals`` compares 200 trials of six stable scenarios with long runs: for every scenario and effort, the coverage of
the nominal 95 % intervals of five figures and their mean half widths. A trial that did not settle counts as a miss. The
truth is a run whose half width is under a quarter of a trial's; a shorter one is refused. All of it takes about half an
hour of two cores.

``recommendations`` asks whether the recommended setting is significantly worse than the best fixed k or than off, over
bundled scenarios and loads. It is made with one seed and judged with another, so that it cannot profit from its own
noise; a recorded trace is the same under any seed: there only the drawn acceptance differs. Seconds are processor time,
those that compile left out. Each ends with one JSON line.
"""

import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Annotated, Any

import numpy as np
import typer
from engine import AZURE

from draftcast import load_scenario
from draftcast.scenarios.compare.capacity import capacity, page_effort
from draftcast.scenarios.compare.comparison import compare, simulate
from draftcast.scenarios.compare.metric import METRICS
from draftcast.scenarios.compare.recommend import ComparedLoad, recommend
from draftcast.scenarios.compare.verdict import judge
from draftcast.scenarios.cutover.search import CutoverQuestion, cutover
from draftcast.scenarios.plan.question import PlanQuestion, parse_objectives
from draftcast.scenarios.plan.sizing import plan
from draftcast.scenarios.run.simulate import simulate_together
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import with_rate, with_values, without_speculation
from draftcast.scenarios.sweep.run import sweep
from draftcast.sim.statistics.intervals import Estimate, replication_interval

LONG = {"workload.num_requests": 60_000, "statistics.seed": 7_000_000}
DECIDED = ("pays", "costs", "overloaded")
NEAR = 0.05
FIGURES = {"E2E": "mean_e2el_s", "TTFT": "mean_ttft_s", "TPOT": "mean_tpot_s", "output tok/s": "output_throughput"}
REFERENCE = {"statistics.replications": 24, "workload.num_requests": 48_000, "statistics.seed": 1_000_000}
REFERENCE_SHARE = 0.25
BURSTS = (
    "workload.arrivals={process: gamma, request_rate_rps: 8, burstiness: 0.5}",
    "cluster={replicas: 2, router: least_loaded}",
)
# Load as a share of the smaller capacity, with speculation or without, and changes of the scenario.
CASES: dict[str, tuple[float, tuple[str, ...]]] = {
    **{f"chat at {share} %": (share / 100, ()) for share in (10, 45, 80, 85)},
    "64 slots at 70 %": (0.70, ("engine.max_num_seqs=64",)),
    "two replicas, bursts, at 60 %": (0.60, BURSTS),
}
EFFORTS = ("file", "page")
RATE, CLIENTS = "workload.arrivals.request_rate_rps", "workload.arrivals.concurrency"
RECOMMENDED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *(("default", f"{rate:g} req/s", {RATE: rate}) for rate in (2.0, 10.0, 30.0, 50.0, 60.0, 66.0)),
    *(("ngram-code-editing", f"{rate:g} req/s", {RATE: rate}) for rate in (1.0, 4.0, 8.0)),
    *(("closed-loop-classes", f"{clients} clients", {CLIENTS: clients}) for clients in (8, 64, 256)),
    ("azure-conversation", "recorded", {}),
    ("azure-conversation", "20 req/s", {RATE: 20.0}),
)
app = typer.Typer(help=__doc__, add_completion=False)


def smaller_capacity(scenario: Scenario) -> float:
    """Requests per second, with speculation or without."""
    capacities = [capacity(side) for side in (scenario, without_speculation(scenario))]
    return min(most.estimate.mean for most in capacities if most is not None)


def word(scenario: Scenario) -> str:
    return compare(scenario).points[0].word


def recommended(scenario: Scenario) -> str:
    """What ``recommend`` says of the scenario's own setting."""
    k = scenario.speculative_config.k
    answer, label = recommend(scenario, max_k=k), f"{scenario.method} k={k}"
    return next(outcome.verdicts[0].word for outcome in answer.outcomes if outcome.candidate.label == label)


def planned_too_much(scenario: Scenario) -> dict[str, tuple[float, float]]:
    """Rate that ``plan`` finds under an SLO that anything meets, and the capacity, where the rate is larger."""
    answer = plan(PlanQuestion(scenario, objectives=parse_objectives("e2e:mean<1000s")))
    promised = {}
    for sizing in answer.sizings:
        most = capacity(sizing.candidate.scenario)
        if sizing.largest is not None and sizing.largest.met > most.estimate.high * sizing.replicas:
            promised[sizing.candidate.label] = (sizing.largest.met, most.estimate.high)
    return promised


@app.command()
def words(
    loads: int = 50,
    chance: Annotated[bool, typer.Option("--chance", help="take step times for exact: chance alone decides")] = False,
) -> None:
    scenario = load_scenario("default", overrides=["statistics.model_error=none"] if chance else [])
    smaller = smaller_capacity(scenario)
    answer = cutover(CutoverQuestion(scenario))[0]
    crossing, bounds = answer.crossing, answer.prediction or answer.crossing
    low, high = (0.0 if np.isnan(bounds.low) else bounds.low), (np.inf if np.isnan(bounds.high) else bounds.high)
    print(f"cutover: {low:.2f} to {high:.2f} req/s ({crossing.kind})", flush=True)
    differ, wrong, undecided, rows = [], [], [], []
    rates = [float(rate) for rate in np.linspace(0.05, 1.5, loads) * smaller]
    swept = {cell.values["rate"]: cell.verdict for cell in sweep(scenario, {"rate": rates}).cells}
    for rate in rates:
        rated = with_rate(scenario, rate)
        by_surface = {"simulate": word(rated), "recommend": recommended(rated), "sweep": swept[rate]}
        page = word(with_values(rated, page_effort(rated)))
        truth = word(with_values(rated, LONG))
        if crossing.kind == "crosses" and not low <= rate <= high:
            side = "pays" if (rate < low) == crossing.falls else "costs"
            by_surface["cutover"] = "overloaded" if by_surface["simulate"] == "overloaded" and side == "costs" else side
        if len(set(by_surface.values())) > 1:
            differ.append((rate, by_surface))
        claims = {*by_surface.values(), page}
        wrong += [(rate, claim, truth) for claim in claims if claim in DECIDED and truth in DECIDED and claim != truth]
        away = not low * (1 - NEAR) <= rate <= high * (1 + NEAR)
        undecided += [(rate, claim) for claim in claims if claim not in DECIDED and away]
        rows.append({"rate_rps": rate, **by_surface, "page": page, "long": truth})
        print(f"{rate:7.2f} req/s  {by_surface}  page: {page}  60,000 requests: {truth}", flush=True)
    counts = {"differ": len(differ), "wrong": len(wrong), "undecided": len(undecided)}
    print(
        f"{len(differ)} loads with different words, {len(wrong)} wrong words, {len(undecided)} undecided away from it"
    )
    for case in (*differ, *wrong, *undecided):
        print(" ", case)
    promised = planned_too_much(scenario)
    print(f"plan promises more than the capacity: {promised or 'no'}")
    print(json.dumps({**counts, "promised": len(promised), "loads": rows}))


def figures(scenario: Scenario) -> dict[str, Estimate] | None:
    """The five figures of the scenario's own setting; None where it did not settle."""
    on, off = simulate_together([scenario, without_speculation(scenario)])
    advantage = judge(scenario, on, off).advantage
    if advantage is None:
        return None
    return {name: on.summary["figures"][key] for name, key in FIGURES.items()} | {"advantage": advantage}


def cover(
    scenario: Scenario, truth: Mapping[str, Estimate], trials: int, workers: ProcessPoolExecutor
) -> dict[str, dict[str, float]]:
    """Coverage, mean half width and mean error of each figure, both as shares of the truth, and what did not settle."""
    seeded = (with_values(scenario, {"statistics.seed": seed}) for seed in range(1, trials + 1))
    settled = [values for values in workers.map(figures, seeded) if values is not None]
    rows = {"not settled": {"share": 1 - len(settled) / trials}}
    for name, true in truth.items():
        estimates = [values[name] for values in settled]
        half = float(np.mean([estimate.half_width for estimate in estimates]))
        if not true.half_width < REFERENCE_SHARE * half:
            raise SystemExit(f"{name}: the long run is too short to judge by ({true} against ± {half:.3g})")
        rows[name] = {
            "coverage": sum(estimate.contains(true.mean) for estimate in estimates) / trials,
            "half_width": half / true.mean,
            "error": float(np.mean([estimate.mean for estimate in estimates])) / true.mean - 1.0,
        }
    return rows


@app.command()
def intervals(
    trials: int = 200, scenario: Annotated[list[str] | None, typer.Option(help=f"of {', '.join(CASES)}")] = None
) -> None:
    if unknown := set(scenario or ()) - set(CASES):
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}", param_hint="--scenario")
    answer: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    cells = []
    print(f"{'scenario':30} {'effort':12} {'figure':13} coverage  half width  mean error", flush=True)
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        for case in scenario or CASES:
            share, overrides = CASES[case]
            loaded = load_scenario("default", overrides=[*overrides, "statistics.model_error=none"])
            loaded = with_rate(loaded, share * smaller_capacity(loaded))
            truth = workers.submit(figures, with_values(loaded, REFERENCE)).result()
            assert truth is not None, f"{case}: the long run has not settled"
            for effort in EFFORTS:
                sized = loaded if effort == "file" else with_values(loaded, page_effort(loaded))
                size = f"{sized.statistics.replications} x {sized.workload.num_requests}"
                rows = cover(sized, truth, trials, workers)
                answer.setdefault(case, {})[effort] = rows
                for name in truth:
                    row = rows[name]
                    cells.append(row["coverage"])
                    numbers = f"{row['coverage']:7.1%} {row['half_width']:10.2%} {row['error']:+11.2%}"
                    print(f"{case:30} {size:12} {name:13} {numbers}", flush=True)
                print(f"{case:30} {size:12} not settled   {rows['not settled']['share']:7.1%}", flush=True)
    print(f"{len(cells)} cells: {min(cells):.1%} to {max(cells):.1%}, mean {np.mean(cells):.2%}")
    print(json.dumps({"trials": trials, "cases": answer}))


@app.command()
def recommendations(replications: int = 5) -> None:
    worse = 0
    seconds = []
    recommend(with_values(load_scenario("closed-loop-classes"), {"workload.num_requests": 50}))  # compiles, or loads
    print(f"{'scenario':<22}{'load':>12}  {'recommended':<58}{'over off':>16}{'over best fixed k':>26}{'CPU s':>7}")
    for name, label, values in RECOMMENDED:
        trace = AZURE if name == "azure-conversation" else None  # not bundled
        if trace is not None and not trace.exists():
            print(f"{name:<22}{label:>12}  not run, {trace} is absent")
            continue
        scenario = with_values(load_scenario(name, trace=trace), {**values, "statistics.replications": replications})
        start = time.process_time()
        answer = recommend(scenario, loads=[ComparedLoad(label, {})])
        seconds.append(time.process_time() - start)
        best = next(outcome for outcome in answer.outcomes if " k=" in outcome.candidate.label)
        off = next(outcome for outcome in answer.outcomes if outcome.candidate.label == "off")
        fresh = {"statistics.seed": scenario.statistics.seed + 1000}
        logs = [
            np.log([r[METRICS["e2e"].figure] for r in simulate(with_values(o.candidate.scenario, fresh)).replications])
            for o in (answer.chosen, best, off)
        ]
        over_best, over_off = (replication_interval(other - logs[0]) for other in logs[1:])
        significant = max(over_best.high, over_best.mean) < 0 or max(over_off.high, over_off.mean) < 0
        worse += significant
        shown = f"{np.exp(over_best.mean):.4f} [{np.exp(over_best.low):.4f}, {np.exp(over_best.high):.4f}]"
        mark = "  WORSE" if significant else ""
        figures = f"{np.exp(over_off.mean):>16.3f}{shown:>26}{seconds[-1]:>7.1f}{mark}"
        print(f"{name:<22}{label:>12}  {answer.chosen.candidate.label:<58}{figures}", flush=True)
    print(json.dumps({"cases": len(seconds), "significantly_worse": worse, "slowest_s": round(max(seconds), 1)}))


if __name__ == "__main__":
    app()
