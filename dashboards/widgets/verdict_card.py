"""The answer above the controls: verdict, advantage, headroom to the cutover, capacity, and how far it was checked.

First from mean steps alone, marked as an estimate, then as simulated. Beside it stands the advantage over the load: the
estimate at once, the simulated cutover when a search beside the page has found it.
"""

import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import NamedTuple

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from draftcast.dashboards.session.answers import question_key
from draftcast.dashboards.session.session import Session, literal
from draftcast.dashboards.widgets.page import CONFIG, LONG, PICTURES, beside_page
from draftcast.dashboards.widgets.tiles import number
from draftcast.errors import InputError
from draftcast.scenarios.compare.candidate import longest_draft
from draftcast.scenarios.compare.model_error import Prediction, Response, response
from draftcast.scenarios.compare.verdict import BY_SIGN, Verdict
from draftcast.scenarios.cutover.probe import step_level_rate_rps
from draftcast.scenarios.cutover.search import Cutover, CutoverQuestion, cutover
from draftcast.scenarios.evidence.summary import errors, shipped_forecasts
from draftcast.scenarios.run.fluid import FluidModel
from draftcast.scenarios.run.kept import AnswerCache
from draftcast.scenarios.schema import Scenario, with_values, without_speculation
from draftcast.scenarios.show.cutover_report import advantage_figure, headline
from draftcast.sim.progress import Progress
from draftcast.sim.statistics.crossing import Probe
from draftcast.sim.statistics.intervals import Estimate

RATES = 32  # loads at which the estimate is drawn, up to the larger capacity
LONGEST = 8  # draft tokens up to which the estimate is made
K = "engine.speculative_config.num_speculative_tokens"
HEADS = {"pays": "ON", "costs": "OFF"}
LOOK_EVERY_S = 2.0


@dataclass(frozen=True)
class StepEstimate:
    """What mean steps alone say of a scenario with an open loop: no queues, no chance, but the errors of the model."""

    errors: Response
    rates: tuple[float, ...]
    # Latency without speculation over with it, at each rate; NaN where one side is overloaded
    ratios: tuple[float, ...]
    advantages: tuple[Prediction, ...]  # the same with the errors of the model
    here: Prediction

    @functools.cached_property
    def cutover_rps(self) -> float | None:
        """First rate from which speculation is slower; None: none up to the capacity, or slower from the start."""
        rate = step_level_rate_rps(*self.errors.fluids)
        return rate if self.ratios[0] > 1.0 and not math.isnan(rate) else None


_estimates: AnswerCache[StepEstimate | None] = AnswerCache(96)


def step_estimate(scenario: Scenario) -> StepEstimate | None:
    """None where mean steps say nothing: without speculation, of other arrivals than a rate, of exact step times."""

    def make() -> StepEstimate | None:
        errors = response(scenario)
        if errors is None or scenario.rate_rps is None:
            return None
        most = max(fluid.capacity_rps() for fluid in errors.fluids)
        rates = tuple((np.arange(1, RATES + 1) * most / RATES).tolist())
        confidence = scenario.statistics.confidence
        loads = (*rates, scenario.rate_rps)
        predictions = [replace(errors, rate_rps=rate).predict(Probe(rate), confidence) for rate in loads]
        sides = ([fluid.in_system(rate) for fluid in errors.fluids] for rate in rates)
        ratios = [off / on if math.isfinite(on) else math.nan for on, off in sides]
        return StepEstimate(errors, rates, tuple(ratios), tuple(predictions[:-1]), predictions[-1])

    return _estimates.get(question_key(scenario), make)


@dataclass(frozen=True)
class DraftLength:
    """What mean steps say of k drafts a round at the scenario's load."""

    k: int
    latency_s: float  # of a mean request; infinite where overloaded
    capacity_rps: float
    is_given: bool  # else the acceptance is continued beyond the rates that were given


_lengths: AnswerCache[tuple[DraftLength, ...]] = AnswerCache(96)


def draft_lengths(scenario: Scenario) -> tuple[DraftLength, ...]:
    """From 0 (off) to `LONGEST`; none where no fixed k decides, or the load has no mean. Raises as of `simulate`."""
    clients = float(getattr(scenario.workload.arrivals, "concurrency", 0.0))
    if scenario.resolved_policy.name != "fixed" or not (clients or scenario.rate_rps):
        return ()
    first = with_values(scenario, {K: 1})

    def length(k: int) -> DraftLength:
        fluid = FluidModel.of(with_values(scenario, {K: k}) if k else without_speculation(scenario))
        if scenario.rate_rps is not None:
            latency_s = fluid.in_system(scenario.rate_rps) / scenario.rate_rps
        else:
            latency_s = fluid.latency_s(min(clients, fluid.slots)) * max(1.0, clients / fluid.slots)
        return DraftLength(k, latency_s, fluid.capacity_rps(), k <= longest_draft(first, LONGEST))

    return _lengths.get(question_key(first), lambda: tuple(map(length, range(LONGEST + 1))))


def best_length(lengths: Sequence[DraftLength]) -> DraftLength:
    """The fastest; where all are overloaded, the one of the largest capacity."""
    return min(lengths, key=lambda length: (length.latency_s, -length.capacity_rps))


def draft_length_strip(lengths: Sequence[DraftLength], chosen: int) -> str:
    """A bar for every k as HTML: how many times faster than without speculation; the best one stands out."""
    best, off = best_length(lengths), lengths[0]
    fastest_s = best.latency_s if math.isfinite(best.latency_s) else 1.0
    cells = []
    for length in lengths:
        ratio = off.latency_s / length.latency_s if math.isfinite(length.latency_s) else math.nan
        label = "full" if math.isnan(ratio) else f"{ratio:.2f}" if math.isfinite(ratio) else "holds"
        looks = ["dc-k", *(["dc-best"] if length is best else []), *([] if length.is_given else ["dc-beyond"])]
        mark = " aria-current='true'" if length.k == chosen else ""
        height = 100 * fastest_s / length.latency_s
        cells.append(
            f"<li class='{' '.join(looks)}'{mark}><b>{label}</b><span><i style='height:{height:.0f}%'></i></span>"
            f"<small>{length.k}</small></li>"
        )
    what = "off" if best.k == 0 else f"k = {best.k}"
    text = f"Best k at this load by mean steps: {what}. Bars: times faster than off."
    if not all(math.isfinite(length.latency_s) for length in lengths):
        text += " Full: overloaded."
    if math.isinf(off.latency_s) and math.isfinite(best.latency_s):
        text += " Holds: keeps up with the load, which is too much for off."
    longest = max(length.k for length in lengths if length.is_given)
    if longest < lengths[-1].k:
        text += f" Striped: acceptance was given for {longest}; beyond it the last conditional rate continues."
    return f"<div class='dc-ks'><ol aria-label='Draft tokens k'>{''.join(cells)}</ol><p>{escape(text)}</p></div>"


@functools.cache
def _checked(stratum: str) -> tuple[str, str]:
    """How far such speed-ups were off, as the page Trust says; on what that was measured."""
    error = errors([f for f in shipped_forecasts() if f.stratum == stratum], "speedup")
    if error is None:
        return "never", "no speed-up like this was measured on a GPU"
    return f"{error.median:.0%} off", f"at the median: speed-ups at {error.points} GPU measurements"


class Card(NamedTuple):
    """The card's text as Markdown; ``estimate`` or ``simulated``; ``better``, ``worse`` or neither."""

    text: str
    state: str
    tone: str


def card(scenario: Scenario, estimate: StepEstimate | None, verdict: Verdict | None = None) -> Card:
    """``verdict``: as simulated, None as long as it is not."""
    state = "simulated" if verdict is not None else "estimate"
    if scenario.speculative_config is None:
        return Card("Speculation: **not chosen**", state, "")
    word, advantage, facts = "", None, []
    if verdict is not None:
        word, advantage = verdict.word, verdict.advantage
    elif estimate is not None:
        advantage = estimate.here.advantage
        word = "overloaded" if advantage is None else BY_SIGN[estimate.here.sign]
    if advantage is not None:
        facts.append(("Advantage in mean E2E latency", *_advantage(advantage)))
    if estimate is not None:
        facts.append(("Headroom to the cutover", *_headroom(scenario, estimate)))
        facts.append(("Full load", *_capacity(estimate, verdict)))
        facts.append(("Checked", *_checked(estimate.errors.error.stratum)))
    how = "simulated" if verdict is not None else "estimate of mean steps; simulating"
    lines = [f"Speculation: **{HEADS.get(word, word.upper()) or 'SIMULATING'}** *{how}*", ""]
    lines += [f"- {name} **{literal(value)}** *{literal(more)}*" for name, value, more in facts]
    return Card("\n".join(lines), state, {"pays": "better", "costs": "worse"}.get(word, "even"))


def show_card(
    place: DeltaGenerator, scenario: Scenario, estimate: StepEstimate | None, verdict: Verdict | None = None
) -> None:
    """As Markdown, which the front end draws at once: for HTML and all other elements it has to load code first."""
    text, state, tone = card(scenario, estimate, verdict)
    place.container(key=f"verdict-{state}-{tone}").markdown(text)


def _advantage(value: Estimate) -> tuple[str, str]:
    if not 0.0 < value.mean < math.inf:
        return "–", f"overloaded {'with' if value.mean <= 0.0 else 'without'} speculation alone"
    return f"{value.mean:.2f} x", f"{value.low:.2f} to {value.high:.2f} ({value.confidence:.0%})"


def _headroom(scenario: Scenario, estimate: StepEstimate) -> tuple[str, str]:
    # As a search has found it, on this page or on Cutover, in any session.
    (simulated,) = LONG.known(search_key(scenario)) or (None,)
    if simulated is not None and simulated.verdict != "cannot tell":
        about, rate = "", simulated.crossing.best if simulated.verdict == "crosses" else None
        if simulated.verdict == "never pays":
            return "none", "speculation pays at no load"
    else:
        about, rate = "about ", estimate.cutover_rps
    if rate is None:
        return "to capacity", "no cutover below it"
    share = rate / (scenario.rate_rps or math.nan)
    return (f"{share:.1f} x" if share >= 1 else "none"), f"cutover at {about}{number(rate)} req/s"


def _capacity(estimate: StepEstimate, verdict: Verdict | None) -> tuple[str, str]:
    """Of both sides, simulated where the verdict needed them."""
    sides = (verdict.on.capacity_rps, verdict.off.capacity_rps) if verdict is not None else (None, None)
    simulated = [capacity.mean for capacity in sides if capacity is not None]
    on, off = simulated if len(simulated) == 2 else (float(fluid.capacity_rps()) for fluid in estimate.errors.fluids)
    about = "" if len(simulated) == 2 else "about "
    return f"{on / off - 1:+.0%}", f"{about}{number(on)} req/s with, {number(off)} without"


def search_key(scenario: Scenario) -> tuple[Hashable, ...]:
    """Of the search for the cutover, as the page Cutover keeps its answer."""
    return (*question_key(scenario), "cutover", "rate", "e2e")


def advantage_over_load(session: Session, estimate: StepEstimate) -> None:
    """The advantage over the load, drawn again when the search that begins once the page stands finds the cutover."""
    scenario = session.question.scenario
    key = search_key(scenario)
    first, refused = [True], [""]

    def search(progress: Progress) -> tuple[Cutover, ...]:
        return cutover(CutoverQuestion(scenario, "rate", "e2e"), progress=progress)

    def draw() -> None:
        try:
            searched = LONG.known(key) if first or refused[0] else beside_page(session, key, search)
        except InputError as error:
            searched, refused[0] = None, str(error)
        if searched is not None and not first:
            st.rerun()
        first.clear()
        rate = estimate.cutover_rps
        until = f"up to about {number(rate)} req/s" if rate is not None else "up to the capacity"
        verdict = f"faster {until}" if estimate.ratios[0] > 1.0 else "slower"
        doing = f"No search for the cutover: {refused[0]}" if refused[0] else "Searching for the cutover."
        estimated = f"Estimate of mean steps: speculation is {verdict}. {doing}"
        simulated = searched[0] if searched else None
        finding = headline(simulated).partition(". ")[0] + "." if simulated is not None else estimated
        st.html(f"<p class='dc-finding'>{escape(finding)}</p>")
        figure = advantage_figure(scenario, estimate.rates, estimate.ratios, estimate.advantages, simulated)
        name = "advantage-over-load"
        st.plotly_chart(figure, key=name, config=CONFIG, theme="streamlit", alt=PICTURES[name]["alt"])

    st.fragment(draw, run_every=LOOK_EVERY_S if LONG.known(key) is None else None)()
