"""Capacity: how many GPUs of which type a load needs for its SLO, what they cost, and where they stop keeping it."""

import datetime
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import streamlit as st

from draftcast.calibration.profile.hardware import hardware_names, recognised
from draftcast.dashboards.session.answers import answer, question_key
from draftcast.dashboards.session.session import Number, ScenarioPair, Session, View, literal, some_of
from draftcast.dashboards.widgets.controls import WORDS, control, filled, number_field, view_choice
from draftcast.dashboards.widgets.page import Report, html_table, link, long_answer, verdict_line
from draftcast.dashboards.widgets.tiles import number
from draftcast.errors import InputError
from draftcast.scenarios.cli.options import parse_prices
from draftcast.scenarios.compare.metric import Price
from draftcast.scenarios.compare.slo_answer import idle_scenario, slo_answer
from draftcast.scenarios.plan.question import GIVEN, PlanQuestion, mean_rate
from draftcast.scenarios.plan.search import LoadCheck, cluster_scenario
from draftcast.scenarios.plan.sizing import CapacityPlan, SizedCandidate, curve_frame, goodput_curve, plan, with_prices
from draftcast.scenarios.run.choices import OFF
from draftcast.scenarios.schema.changes import value_text
from draftcast.scenarios.show.plan_report import answer_line, basis_line, goodput_figure, plan_rows, sizing_figure
from draftcast.scenarios.show.tables import title

ENERGY = "Every board at its rated power, without hosts and cooling."
# A start for those who have no SLO yet: pressed, it stands in the sidebar to be changed.
USUAL_SLO = {"ttft_ms": 500.0, "tpot_ms": 50.0, "attainment": 0.95}
DEGREES = ("1", "2", "4", "8", "16")
RATE, HEADROOM, SPARE = Number(1e-6, 1e6), Number(0.0, 10.0), Number(0, 100)
# Named as the options of ``draftcast plan``.
OPTIONS = (View.CAPACITY_RATE, View.CAPACITY_HARDWARE, View.CAPACITY_TP, View.CAPACITY_HEADROOM, View.CAPACITY_SPARE)


@dataclass(frozen=True)
class PlanSettings:
    """What the plan is asked for besides the scenario."""

    arguments: Mapping[str, Any]  # of a plan's question; prices only rank, so they stand apart
    prices: Mapping[str, Price]  # by device, of the candidates that have one
    options: Sequence[str]  # the same for ``draftcast plan``, as far as it differs from what that takes by itself

    @property
    def unpriced(self) -> list[str]:
        return [name for name in self.arguments["hardware"] if name not in self.prices]


def render(session: Session, report: Report) -> None:
    scenario = session.question.scenario
    settings = plan_settings(session)
    if not scenario.slos:
        st.info(WORDS["slo"]["missing"], icon=":material/flag:")
        label = WORDS["slo"]["usual"].format(**USUAL_SLO)
        st.button(label, key="usual-slo", on_click=lambda: session.change(lambda: {"slo": USUAL_SLO}))
        return
    key = (*question_key(scenario), json.dumps(settings.arguments))
    question = PlanQuestion(scenario, **settings.arguments)
    sized = long_answer((*key, "plan"), "Sizing every candidate", lambda progress: plan(question, progress))
    answered = with_prices(sized, {} if settings.unpriced else settings.prices)
    feasible = {sizing.candidate.label: sizing for sizing in answered.sizings if sizing.feasible}
    report.title = title(scenario)
    lines, basis = [answer_line(answered), *_tightest(answered)], basis_line(answered)
    report.lines = [*lines, *filter(None, [basis])]
    report.badge([sizing.check.figures for sizing in answered.sizings if sizing.check is not None])
    _show_answer(answered, lines)
    if basis:
        st.caption(literal(basis))
    _show_candidates(session, report, answered, settings)
    checks = _curve(session, report, key, feasible) if feasible else ()
    candidates, points = answered.frame(), curve_frame(checks)
    report.tables = {"Candidates": candidates.dropna(axis=1, how="all"), "Goodput against load": points}
    run = hashlib.sha256(repr(key).encode()).hexdigest()
    report.footer(run, session.question.command("plan", *settings.options))
    report.downloads(
        f"draftcast-plan-{run[:12]}",
        lambda: candidates,
        lambda: {**answered.summary(), "goodput_curve": points.to_dict("records")},
    )


def _tightest(answered: CapacityPlan) -> list[str]:
    """Which bound of the SLO no idle server keeps, where that is why nothing will do."""
    if answered.best is not None:
        return []
    idle_question = idle_scenario(answered.sizings[0].candidate.scenario)
    try:
        idle = answer(idle_question).side
    except InputError:  # it does not even fit the device: the plan says so
        return []
    slo = slo_answer(idle_question, idle, idle.run)
    return [slo.sentence] if slo is not None and not slo.met else []


def _show_answer(answered: CapacityPlan, lines: Sequence[str]) -> None:
    best, (text, *tightest) = answered.best, lines
    if best is None:
        verdict_line(text, bold=text.index(".") + 1, tone="worse", verdict="infeasible", gpus=0)
        for line in tightest:
            st.error(literal(line), icon=":material/flag:")
        return
    verdict_line(text, bold=text.index(":") + 1, tone="better", verdict="feasible", gpus=best.num_gpus)
    assert best.largest is not None
    spare = f" + {best.spare} spare" if best.spare else ""
    price = f"Your price of {best.price.date}." if best.price is not None else "No price was given for every GPU type."
    hourly, tokens, energy = best.cost_per_hour, best.cost_per_million_tokens, best.kwh_per_million_tokens
    figures = {
        "GPUs": (f"{best.num_gpus}", f"{best.candidate.label}: {best.replicas} replicas{spare}"),
        "Headroom": (f"{best.headroom:+.0%}", "Load beyond the target that meets the SLO, without spare replicas."),
        "Largest req/s": (number(best.largest.met), "Largest load at which the SLO is met; the knee below."),
        "Cost an hour": ("–" if hourly is None else f"{hourly:,.2f}", price),
        "Cost per 1M tokens": ("–" if tokens is None else f"{tokens:.3g}", "Of output, at the target."),
        "kWh per 1M tokens": ("–" if energy is None else f"{energy:.3g}", ENERGY),
    }
    with st.container(horizontal=True, key="figures"):
        for label, (value, explained) in figures.items():
            st.metric(label, value, help=literal(explained), border=True, width=170)


def _show_candidates(session: Session, report: Report, answered: CapacityPlan, settings: PlanSettings) -> None:
    st.subheader("GPUs by type")
    head, *rows = plan_rows(answered)
    for sizing, cells in zip(answered.sizings, rows, strict=True):
        if sizing.feasible:
            scenario = cluster_scenario(sizing.candidate.scenario, sizing.replicas, sizing.target_rps)
            href = ScenarioPair(session.question.base, scenario).href
            cells[0] = link(cells[0], href, f"What-if of {sizing.candidate.label} at the target, in a new tab")
    st.html(html_table(head, rows, look="remarks", name="Candidates"))
    if settings.prices and settings.unpriced:
        st.caption(f"No costs, because a price is missing: {literal(', '.join(settings.unpriced))}.")
    if sum(sizing.feasible for sizing in answered.sizings) > 1:
        report.figure("gpus", sizing_figure(answered))


def _curve(
    session: Session, report: Report, key: tuple[Any, ...], feasible: dict[str, SizedCandidate]
) -> Sequence[LoadCheck]:
    text = "Goodput against load"
    st.subheader(text)
    label = view_choice(session, View.CAPACITY_CURVE, list(feasible))
    chosen = feasible[label]
    checks = long_answer((*key, label), text, partial(goodput_curve, chosen))
    replicas = f"{chosen.replicas} replica{'s' if chosen.replicas > 1 else ''}"
    candidate = literal(chosen.candidate.label)
    report.figure("goodput", goodput_figure(chosen, checks), replicas=replicas, candidate=candidate)
    return checks


def plan_settings(session: Session) -> PlanSettings:
    """Draw the controls and read them. Raises InputError: the scenario's arrivals have no rate to plan for."""
    scenario = session.question.scenario
    rate, degree, device = value_text(mean_rate(scenario)), scenario.engine.tensor_parallel_size, scenario.hardware
    device = bundled.name if (bundled := recognised(device)) else device
    methods = (OFF, GIVEN) if scenario.speculative_config is not None else (OFF,)
    with st.container(border=True, key="controls"):
        with st.container(horizontal=True, gap="small"):
            arguments = {
                "rate_rps": _number(session, View.CAPACITY_RATE, rate, RATE),
                "headroom": _number(session, View.CAPACITY_HEADROOM, "0", HEADROOM, scale=100),
                "spare": _number(session, View.CAPACITY_SPARE, "0", SPARE),
                "methods": _several(session, View.CAPACITY_METHODS, methods, methods),
            }
        with st.container(horizontal=True, gap="small"):
            arguments["hardware"] = _several(session, View.CAPACITY_HARDWARE, (device,), hardware_names())
            sizes = _several(session, View.CAPACITY_TP, (str(degree),), DEGREES)
            arguments["tensor_parallel_sizes"] = list(map(int, sizes))
        prices = _prices(session, arguments["hardware"])
    options = [(f"--{view.rpartition('.')[2]}", session.views[view]) for view in OPTIONS if view in session.views]
    if View.CAPACITY_METHODS in session.views:
        options += [("--method", method) for method in arguments["methods"]]
    if len(prices) == len(arguments["hardware"]):
        options += [("--price", _price_text(name, price)) for name, price in prices.items()]
    return PlanSettings(arguments, prices, list(itertools.chain(*options)))


def _write(session: Session, view: View, default: str, read: Callable[[str], Any], text: str) -> None:
    """Change a setting; empty: its default."""
    session.see(view, text or default, default, read)
    # A candidate chosen for the picture may be none any more.
    session.views.pop(View.CAPACITY_CURVE, None)


def _number(session: Session, view: View, default: str, read: Number, scale: int = 1) -> Any:
    """A number from 0 to the highest that is read, shown ``scale`` times as large."""
    value = session.view(view, default, read)

    def write(shown: float | None) -> None:
        _write(session, view, default, read, value_text(round(shown / scale, 6)) if shown else "")

    number_field(view, scale * value, write, whole=isinstance(read.high, int), low=0, high=scale * read.high)
    return value


def _several(session: Session, view: View, default: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Some of the names and the default's own."""
    allowed, text = list(dict.fromkeys([*names, *default])), ",".join(default)
    read = some_of(allowed)
    value = session.view(view, text, read)
    write = partial(_write, session, view, text, read)
    control(st.multiselect, view, list(value), lambda chosen: write(",".join(chosen)), options=allowed)
    return value


def _prices(session: Session, hardware: Sequence[str]) -> Mapping[str, Price]:
    """A price and its day for each device; those that are given."""
    all_prices = session.view(View.CAPACITY_PRICES, "", _read_prices)
    prices = {name: price for name, price in all_prices.items() if name in hardware}
    today = datetime.datetime.now(datetime.UTC).date()

    def write(name: str, amount: float | None, day: datetime.date | None) -> None:
        # With those of devices that are not chosen now: chosen again they have their price.
        changed = {other: price for other, price in all_prices.items() if other != name}
        if amount:
            changed[name] = Price(amount, (day or today).isoformat())
        text = ",".join(_price_text(*entry) for entry in changed.items())
        _write(session, View.CAPACITY_PRICES, "", _read_prices, text)

    with st.expander("Prices", expanded=bool(prices)):
        st.caption("Your prices per GPU hour, in one currency. With one for every GPU type, the cheapest comes first.")
        for name in hardware:
            price = prices.get(name)
            amount = price.per_gpu_hour if price is not None else None
            day = datetime.date.fromisoformat(price.date) if price is not None else None
            key = f"{View.CAPACITY_PRICES}:{name}"
            look, write_amount = filled("price.amount", device=name), partial(write, name, day=day)
            with st.container(horizontal=True, gap="small"):
                control(st.number_input, key, amount, write_amount, look, min_value=0.0, format="%.10g")
                if day is not None:
                    write_day, look = partial(write, name, amount), filled("price.date", device=name)
                    control(st.date_input, f"{key}:date", day, write_day, look)
    return prices


def _price_text(name: str, price: Price) -> str:
    return f"{name}={value_text(price.per_gpu_hour)}@{price.date}"


def _read_prices(text: str) -> dict[str, Price]:
    return parse_prices([part for part in text.split(",") if part])
