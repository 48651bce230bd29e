"""Do all surfaces give the same word at a load, is no word wrong, and does every load away from the cutover get one?

``python benchmarks/verdicts.py`` asks 50 loads from 5 to 150 % of the smaller capacity: what ``simulate``,
``recommend``, ``sweep`` and ``cutover`` say at the scenario's own effort, what the page says at its own, and beside
them runs of 60,000 requests. Prints a row a load, then what differs, what is wrong and what is undecided further than
5 % from the cutover, whether ``plan`` promises more than the capacity, then one JSON line. ``--loads N`` asks fewer.
"""

import json
from typing import Annotated

import numpy as np
import typer

from draftcast import load_scenario
from draftcast.scenarios.compare.capacity import capacity, page_effort
from draftcast.scenarios.compare.comparison import compare
from draftcast.scenarios.compare.recommend import recommend
from draftcast.scenarios.cutover.search import CutoverQuestion, cutover
from draftcast.scenarios.plan.question import PlanQuestion, parse_objectives
from draftcast.scenarios.plan.sizing import plan
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import with_rate, with_values, without_speculation
from draftcast.scenarios.sweep.run import sweep

LONG = {"workload.num_requests": 60_000, "statistics.seed": 7_000_000}
DECIDED = ("pays", "costs", "overloaded")
NEAR = 0.05


def smaller_capacity(scenario: Scenario) -> float:
    """Requests per second, with speculation or without."""
    both = [capacity(each) for each in (scenario, without_speculation(scenario))]
    return min(each.estimate.mean for each in both if each is not None)


def word(scenario: Scenario) -> str:
    return compare(scenario).points[0].word


def recommended(scenario: Scenario) -> str:
    """What ``recommend`` says of the scenario's own setting."""
    k = scenario.speculative_config.k
    answer, label = recommend(scenario, max_k=k), f"{scenario.method} k={k}"
    return next(each.verdicts[0].word for each in answer.outcomes if each.candidate.label == label)


def planned_too_much(scenario: Scenario) -> dict[str, tuple[float, float]]:
    """Rate that ``plan`` finds under an SLO that anything meets, and the capacity, where the rate is larger."""
    answer = plan(PlanQuestion(scenario, objectives=parse_objectives("e2e:mean<1000s")))
    found = {}
    for sizing in answer.sizings:
        most = capacity(sizing.candidate.scenario)
        if sizing.largest is not None and sizing.largest.met > most.estimate.high * sizing.replicas:
            found[sizing.candidate.label] = (sizing.largest.met, most.estimate.high)
    return found


def main(
    loads: int = 50,
    chance: Annotated[bool, typer.Option("--chance", help="take step times for exact: chance alone decides")] = False,
) -> None:
    scenario = load_scenario("default", overrides=["statistics.model_error=none"] if chance else [])
    smaller = smaller_capacity(scenario)
    answer = cutover(CutoverQuestion(scenario))[0]
    crossing, prediction = answer.crossing, answer.prediction
    low, high = (prediction.low, prediction.high) if prediction is not None else (crossing.low, crossing.high)
    low, high = (0.0 if np.isnan(low) else low), (np.inf if np.isnan(high) else high)
    print(f"cutover: {low:.2f} to {high:.2f} req/s ({crossing.kind})", flush=True)
    differ, wrong, undecided, rows = [], [], [], []
    rates = [float(rate) for rate in np.linspace(0.05, 1.5, loads) * smaller]
    swept = {cell.values["rate"]: cell.verdict for cell in sweep(scenario, {"rate": rates}).cells}
    for rate in rates:
        asked = with_rate(scenario, rate)
        words = {"simulate": word(asked), "recommend": recommended(asked), "sweep": swept[rate]}
        page = word(with_values(asked, page_effort(asked)))
        truth = word(with_values(asked, LONG))
        if crossing.kind == "crosses" and not low <= rate <= high:
            side = "pays" if (rate < low) == crossing.falls else "costs"
            words["cutover"] = "overloaded" if words["simulate"] == "overloaded" and side == "costs" else side
        if len(set(words.values())) > 1:
            differ.append((rate, words))
        said = {*words.values(), page}
        wrong += [(rate, each, truth) for each in said if each in DECIDED and truth in DECIDED and each != truth]
        away = not low * (1 - NEAR) <= rate <= high * (1 + NEAR)
        undecided += [(rate, each) for each in said if each not in DECIDED and away]
        rows.append({"rate_rps": rate, **words, "page": page, "long": truth})
        print(f"{rate:7.2f} req/s  {words}  page: {page}  60,000 requests: {truth}", flush=True)
    counts = {"differ": len(differ), "wrong": len(wrong), "undecided": len(undecided)}
    text = "{differ} loads with different words, {wrong} wrong words, {undecided} undecided away from it"
    print(text.format(**counts))
    for each in (*differ, *wrong, *undecided):
        print(" ", each)
    promised = planned_too_much(scenario)
    print(f"plan promises more than the capacity: {promised or 'no'}")
    print(json.dumps({**counts, "promised": len(promised), "loads": rows}))


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
