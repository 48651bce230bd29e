"""The controls of Capacity: target, candidates, reserve, prices; all of them settings of the page, kept in the link."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import streamlit as st

from draftcast.calibration.profile.hardware import hardware_names, is_bundled_device, load_hardware
from draftcast.dashboards.session.session import Session, View, count_of, number_of, some_of
from draftcast.dashboards.widgets.controls import Look, control
from draftcast.scenarios.cli.options import parse_prices
from draftcast.scenarios.compare.candidate import OFF
from draftcast.scenarios.compare.price import Price
from draftcast.scenarios.plan.question import GIVEN, mean_rate
from draftcast.scenarios.schema.changes import value_text

DEGREES = ("1", "2", "4", "8", "16")
RATE, HEADROOM, SPARE = number_of(1e-6, 1e6), number_of(0.0, 10.0), count_of(100)
OPTIONS = {
    View.CAPACITY_RATE: "--rate",
    View.CAPACITY_HARDWARE: "--hardware",
    View.CAPACITY_TP: "--tp",
    View.CAPACITY_HEADROOM: "--headroom",
    View.CAPACITY_SPARE: "--spare",
}


@dataclass(frozen=True)
class PlanSettings:
    """What the plan is asked for besides the scenario."""

    arguments: Mapping[str, Any]  # of a plan's question; prices only rank, so they stand apart
    prices: Mapping[str, Price]  # by device, of the candidates that have one
    options: Sequence[str]  # the same for ``draftcast plan``, as far as it differs from what that takes by itself

    @property
    def key(self) -> str:
        """What the plan depends on, as text."""
        return json.dumps(self.arguments)

    @property
    def unpriced(self) -> list[str]:
        """Candidates' devices without a price."""
        return [name for name in self.arguments["hardware"] if name not in self.prices]


def plan_settings(session: Session) -> PlanSettings:
    """Draw the controls, in rows that wrap where the page is narrow, and read them.

    What a link says wrongly is told and left out.

    Raises:
        InputError: the scenario's arrivals have no rate to plan for.
    """
    scenario = session.question.scenario
    rate, degree, device = value_text(mean_rate(scenario)), scenario.engine.tensor_parallel_size, scenario.hardware
    device = load_hardware(device).name if is_bundled_device(device) else device
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
            degrees = _several(session, View.CAPACITY_TP, (str(degree),), DEGREES)
            arguments["tensor_parallel_sizes"] = [int(degree) for degree in degrees]
        prices = _prices(session, arguments["hardware"])
    options = [word for view in OPTIONS if view in session.views for word in (OPTIONS[view], session.views[view])]
    if View.CAPACITY_METHODS in session.views:
        options += [word for method in arguments["methods"] for word in ("--method", method)]
    if len(prices) == len(arguments["hardware"]):
        options += [word for name, price in prices.items() for word in ("--price", _price_text(name, price))]
    return PlanSettings(arguments, prices, options)


def _write(session: Session, view: View, default: str, read: Callable[[str], Any], text: str) -> None:
    """Change a setting; empty: its default."""
    session.see(view, text or default, default, read)
    # A candidate chosen for the picture may be none any more.
    session.views.pop(View.CAPACITY_CURVE, None)


def _number(session: Session, view: View, default: str, read: Callable[[str], Any], scale: int = 1) -> Any:
    """A number from 0 that is shown ``scale`` times as large."""
    value = session.view(view, default, read)

    def write(shown: float | None) -> None:
        _write(session, view, default, read, value_text(round(shown / scale, 6)) if shown else "")

    form = "%.6g" if isinstance(value, float) else None
    control(st.number_input, view, scale * value, write, format=form, min_value=type(value)(0))
    return value


def _several(session: Session, view: View, default: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Some of the names and the default's own."""
    allowed, text = list(dict.fromkeys([*names, *default])), ",".join(default)
    read = some_of(allowed)
    value = session.view(view, text, read)

    def write(chosen: Sequence[str]) -> None:
        _write(session, view, text, read, ",".join(chosen))

    control(st.multiselect, view, list(value), write, options=allowed)
    return value


def _prices(session: Session, hardware: Sequence[str]) -> Mapping[str, Price]:
    """A price and its day for each device; those that are given."""
    given = session.view(View.CAPACITY_PRICES, "", _read_prices)
    prices = {name: price for name, price in given.items() if name in hardware}
    today = datetime.datetime.now(datetime.UTC).date()

    def write(name: str, amount: float | None, day: datetime.date | None) -> None:
        changed = {other: price for other, price in prices.items() if other != name}
        if amount:
            changed[name] = Price(amount, (day or today).isoformat())
        text = ",".join(_price_text(*entry) for entry in changed.items())
        _write(session, View.CAPACITY_PRICES, "", _read_prices, text)

    with st.expander("Prices", expanded=bool(prices)):
        st.caption("Your prices per GPU and hour, in one currency. With one for each GPU type the cheapest is first.")
        for name in hardware:
            price = prices.get(name)
            amount = price.per_gpu_hour if price is not None else None
            day = datetime.date.fromisoformat(price.date) if price is not None else today
            key = f"{View.CAPACITY_PRICES}:{name}"
            amounts = Look(f"{name}, per GPU hour", "", 200, 0.1, "no price")
            days = Look(f"{name}, price date", "The day of the price.", 160)
            with st.container(horizontal=True, gap="small"):
                written = partial(write, name, day=day)
                control(st.number_input, key, amount, written, amounts, min_value=0.0, format="%.4g")
                written = partial(write, name, amount)
                control(st.date_input, f"{key}:date", day, written, days, disabled=price is None)
    return prices


def _price_text(name: str, price: Price) -> str:
    """As ``--price`` takes it."""
    return f"{name}={value_text(price.per_gpu_hour)}@{price.date}"


def _read_prices(text: str) -> dict[str, Price]:
    return parse_prices([part for part in text.split(",") if part])
