"""The controls of Capacity: target, candidates, reserve, prices; all of them settings of the page, kept in the link."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import streamlit as st

from draftcast.calibration.profile.hardware import hardware_names, is_bundled_device, load_hardware
from draftcast.dashboards.session import session as keys
from draftcast.dashboards.session.session import Session
from draftcast.dashboards.widgets.view_controls import Read, number_of, read_view, set_view, some_of, view_control
from draftcast.errors import InputError
from draftcast.scenarios.cli.plan import parse_prices
from draftcast.scenarios.compare.price import Price
from draftcast.scenarios.plan.sizing import GIVEN, OFF, mean_rate
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.changes import value_text

DEGREES = ("1", "2", "4", "8", "16")
MOST_RATE, MOST_HEADROOM, MOST_SPARE = 1e6, 10.0, 100


@dataclass(frozen=True)
class Asked:
    """What the plan is asked for besides the scenario.

    Attributes:
        rate_rps: target.
        hardware, degrees, methods: candidates; degrees and methods as texts.
        headroom: share beyond the target.
        spare: replicas that may fail.
        prices: by device, of those that have one.
        options: the same for ``draftcast plan``, as far as it differs from what that takes by itself.
        settings: the keys of the link behind them.
    """

    rate_rps: float
    hardware: tuple[str, ...]
    degrees: tuple[str, ...]
    methods: tuple[str, ...]
    headroom: float
    spare: int
    prices: Mapping[str, Price]
    options: tuple[str, ...]
    settings: Mapping[str, Setting]

    @property
    def unpriced(self) -> list[str]:
        """Candidates' devices without a price."""
        return [name for name in self.hardware if name not in self.prices]


@dataclass(frozen=True)
class Setting:
    """One setting: its key in the link, its default as text, how it is read, what a choice of several offers."""

    key: str
    default: str
    read: Read[Any]
    allowed: tuple[str, ...] = ()

    def value(self, session: Session) -> Any:
        return read_view(session, self.key, self.default, self.read)

    def write(self, session: Session, text: str) -> None:
        set_view(session, self.key, text, self.default, self.read)
        # A candidate chosen for the picture may be none any more.
        session.views.pop(keys.CAPACITY_CURVE, None)


def _settings(scenario: Scenario) -> dict[str, Setting]:
    own = scenario.hardware
    own = load_hardware(own).name if is_bundled_device(own) else own
    degree = str(scenario.engine.tensor_parallel_size)
    methods = (OFF, GIVEN) if scenario.speculative_config is not None else (OFF,)
    every = [
        Setting(keys.CAPACITY_RATE, value_text(mean_rate(scenario)), number_of(1e-6, MOST_RATE)),
        _choice(keys.CAPACITY_HARDWARE, own, _with(hardware_names(), own)),
        _choice(keys.CAPACITY_TP, degree, _with(DEGREES, degree)),
        _choice(keys.CAPACITY_METHODS, ",".join(methods), methods),
        Setting(keys.CAPACITY_HEADROOM, "0", number_of(0.0, MOST_HEADROOM)),
        Setting(keys.CAPACITY_SPARE, "0", _whole(MOST_SPARE)),
        Setting(keys.CAPACITY_PRICES, "", _prices),
    ]
    return {setting.key: setting for setting in every}


def asked(session: Session) -> Asked:
    """Read the settings; what a link says wrongly is told and left out.

    Raises:
        InputError: the scenario's arrivals have no rate to plan for.
    """
    settings = _settings(session.question.scenario)
    value = {key: setting.value(session) for key, setting in settings.items()}
    hardware = value[keys.CAPACITY_HARDWARE]
    methods = value[keys.CAPACITY_METHODS]
    prices = {name: price for name, price in value[keys.CAPACITY_PRICES].items() if name in hardware}
    given = session.views
    words: list[str] = []
    for key, option in (
        (keys.CAPACITY_RATE, "--rate"),
        (keys.CAPACITY_HARDWARE, "--hardware"),
        (keys.CAPACITY_TP, "--tp"),
        (keys.CAPACITY_HEADROOM, "--headroom"),
        (keys.CAPACITY_SPARE, "--spare"),
    ):
        words += [option, given[key]] if key in given else []
    words += [word for method in methods for word in ("--method", method)] if keys.CAPACITY_METHODS in given else []
    if len(prices) == len(hardware):
        words += [word for name, price in prices.items() for word in ("--price", price_text(name, price))]
    return Asked(
        rate_rps=value[keys.CAPACITY_RATE],
        hardware=hardware,
        degrees=value[keys.CAPACITY_TP],
        methods=methods,
        headroom=value[keys.CAPACITY_HEADROOM],
        spare=value[keys.CAPACITY_SPARE],
        prices=prices,
        options=tuple(words),
        settings=settings,
    )


def controls(session: Session, shown: Asked) -> None:
    """All of them, in rows that wrap where the page is narrow."""
    settings = shown.settings

    def write(key: str, text: str) -> None:
        settings[key].write(session, text)

    def several(key: str, label: str, values: Sequence[str], help: str, width: int) -> None:
        view_control(
            st.multiselect,
            label,
            key,
            list(values),
            lambda chosen: write(key, ",".join(chosen) or settings[key].default),
            options=settings[key].allowed,
            help=help,
            width=width,
        )

    with st.container(border=True, key="controls"):
        with st.container(horizontal=True, gap="small"):
            view_control(
                st.number_input,
                "Target load, req/s",
                keys.CAPACITY_RATE,
                shown.rate_rps,
                lambda value: write(
                    keys.CAPACITY_RATE, value_text(value) if value else settings[keys.CAPACITY_RATE].default
                ),
                min_value=0.0,
                step=10.0,
                format="%.6g",
                help="Mean requests per second that the whole cluster must hold.",
                width=160,
            )
            view_control(
                st.number_input,
                "Headroom, %",
                keys.CAPACITY_HEADROOM,
                100 * shown.headroom,
                lambda value: write(keys.CAPACITY_HEADROOM, value_text(round((value or 0.0) / 100, 6))),
                min_value=0.0,
                max_value=100 * MOST_HEADROOM,
                step=10.0,
                format="%.4g",
                help="The SLO must hold at so much more than the target.",
                width=130,
            )
            view_control(
                st.number_input,
                "Spare replicas",
                keys.CAPACITY_SPARE,
                shown.spare,
                lambda value: write(keys.CAPACITY_SPARE, value_text(value or 0)),
                min_value=0,
                max_value=MOST_SPARE,
                help="Replicas that may fail: the others alone meet the SLO. 1 is N+1.",
                width=130,
            )
            several(
                keys.CAPACITY_METHODS, "Methods", shown.methods, "Speculation off, and as the scenario has it.", 230
            )
        with st.container(horizontal=True, gap="small"):
            several(keys.CAPACITY_HARDWARE, "GPU types", shown.hardware, "Devices to size the cluster of.", 400)
            several(keys.CAPACITY_TP, "Tensor parallel", shown.degrees, "GPUs of one replica.", 260)
        with st.expander("Prices", expanded=bool(shown.prices)):
            _price_controls(shown, lambda prices: write(keys.CAPACITY_PRICES, _prices_text(prices)))


def _price_controls(shown: Asked, write: Any) -> None:
    """A price and its day for each device."""
    st.caption("Yours, per GPU and hour, in any one currency; with one for every GPU type the least cost comes first.")
    today = datetime.datetime.now(datetime.UTC).date()

    def change(name: str, day: datetime.date | None, amount: float | None) -> None:
        kept = {other: price for other, price in shown.prices.items() if other != name}
        write({**kept, name: Price(amount, (day or today).isoformat())} if amount else kept)

    def date(name: str, amount: float | None, day: datetime.date | None) -> None:
        change(name, day, amount)

    for name in shown.hardware:
        price = shown.prices.get(name)
        day = datetime.date.fromisoformat(price.date) if price is not None else today
        amount = price.per_gpu_hour if price is not None else None
        with st.container(horizontal=True, gap="small"):
            view_control(
                st.number_input,
                f"{name}, a GPU and hour",
                f"{keys.CAPACITY_PRICES}:{name}",
                amount,
                partial(change, name, day),
                min_value=0.0,
                step=0.1,
                format="%.4g",
                placeholder="no price",
                width=200,
            )
            view_control(
                st.date_input,
                f"{name}, price of",
                f"{keys.CAPACITY_PRICES}:{name}:date",
                day,
                partial(date, name, amount),
                help="The day the price was asked for.",
                disabled=price is None,
                width=160,
            )


def price_text(name: str, price: Price) -> str:
    """As ``--price`` takes it."""
    return f"{name}={value_text(price.per_gpu_hour)}@{price.date}"


def _prices_text(prices: Mapping[str, Price]) -> str:
    return ",".join(price_text(name, price) for name, price in prices.items())


def _prices(text: str) -> dict[str, Price]:
    return parse_prices([part for part in text.split(",") if part])


def _whole(most: int) -> Read[int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) > most:
            raise InputError(f"must be a whole number from 0 to {most}", value=text)
        return int(text)

    return read


def _choice(key: str, default: str, allowed: tuple[str, ...]) -> Setting:
    return Setting(key, default, some_of(allowed), allowed)


def _with(names: Sequence[str], own: str) -> tuple[str, ...]:
    return (*names, *(() if own in names else (own,)))
