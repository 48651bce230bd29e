"""Trust: what the times rest on - coverage of the scenario, fit, residuals, the profile's environment and age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

import pandas as pd
import streamlit as st

from draftcast.calibration.profile.hardware import hardware_names, load_hardware
from draftcast.calibration.profile.held_out import OperatorErrors
from draftcast.calibration.profile.load import has_profile
from draftcast.dashboards.pages.published import published_results
from draftcast.dashboards.pages.validated import validation_results
from draftcast.dashboards.session.plain_text import literal
from draftcast.dashboards.session.results import Answer, answers
from draftcast.dashboards.session.session import TRUST_OPERATOR as PART
from draftcast.dashboards.session.session import Session
from draftcast.dashboards.widgets.footer import Exports, footer
from draftcast.dashboards.widgets.page import badge, cannot_run, figure, run_facts, simulating
from draftcast.dashboards.widgets.table import html_table
from draftcast.errors import HardwareError, InputError
from draftcast.scenarios.run.coverage import coverage_of
from draftcast.scenarios.run.fidelity import ORIGINS, fidelity
from draftcast.scenarios.show.coverage_plot import coverage_figure, fit_figure
from draftcast.scenarios.show.fit_points import Part, fit_points, parts_of
from draftcast.scenarios.show.profile_view import OpenProfile, errors_of, open_profile

MEANING = {
    "measured": "measured times of just these shapes",
    "interpolated": "between measured shapes",
    "extrapolated": "beyond what was measured: the fitted or assumed roofline",
}


def render(session: Session) -> None:
    """Origin of the device time, coverage map, fit and residuals, the profile's origin."""
    try:
        (found,) = answers([session.question.scenario], simulating)
    except InputError as error:
        cannot_run(session, error)
        return
    trusted = fidelity([found.run.summary["figures"]])
    badge(session, trusted)
    if trusted is not None:
        rows = [(word, f"{trusted.shares[word]:.0%}", MEANING[word]) for word in ORIGINS]
        st.html(
            html_table(("device time", "share", "what it means"), rows, facts=True, name="Origin of the device time")
        )
    opened, tables, pictures = _opened(session), {}, []
    st.header("Coverage map", anchor="coverage")
    try:
        covered = coverage_figure(coverage_of(found.scenario, found.deployment, found.run.requests))
        pictures.append(covered)
        figure(
            "coverage",
            covered,
            "Grey: shapes that were timed. Coloured: what this scenario asks; an open diamond or a red outline was not "
            "timed itself. Rows of a step and queries per sequence are further axes that the map does not show.",
            "Maps of measured shapes with the shapes this scenario asks on top.",
        )
    except HardwareError:
        measured = [name for name in hardware_names() if has_profile(load_hardware(name))]
        st.warning(
            f"No measured profile of {literal(found.scenario.hardware)} is in use: all its times are the data sheet's "
            f"rates at assumed efficiencies. Measured: {', '.join(measured)}. `draftcast calibrate` measures your own.",
            icon=":material/map:",
        )
    if opened is not None and opened.folder is not None:
        st.header("Fit and residuals", anchor="fit")
        pictures += _fit(session, opened)
        tables["Held-out errors"] = pd.DataFrame(errors_of(opened))
        with st.expander("Held-out errors of every operator"):
            st.html(_errors_table(errors_of(opened)))
    st.header("Where the profile comes from", anchor="profile")
    facts = _origin(found, opened)
    st.html(html_table(("", ""), list(facts.items()), facts=True, name="Profile"))
    tables |= validation_results(session)
    published = published_results(session)
    if published is not None:
        tables["Published results"] = published
    footer(run_facts(found), _command(found), _exports(found, facts, tables, pictures))


def _opened(session: Session) -> OpenProfile | None:
    scenario = session.question.scenario
    device = load_hardware(scenario.hardware)
    name = scenario.profile or (device.name if has_profile(device) else "default")
    return _open(name, device.name if name == "default" else None)


@st.cache_resource(max_entries=8, show_spinner=False)
def _open(name: str, hardware: str | None) -> OpenProfile:
    return open_profile(name, hardware)


@st.cache_resource(max_entries=32, show_spinner=False)
def _points(checksum: str, part: Part, _opened: OpenProfile) -> OperatorErrors:
    return fit_points(_opened, part)


def _fit(session: Session, opened: OpenProfile) -> list[Any]:
    """Choice of an operator and its picture."""
    parts = {str(part): part for part in parts_of(opened.table())}
    preferred = [name for name in parts if name.startswith("attention_decode (bf16")] or list(parts)
    chosen = session.view(PART, preferred[0], list(parts))
    st.session_state[PART] = chosen
    st.selectbox(
        "Operator",
        list(parts),
        key=PART,
        help="Points that took no part in the curves, predicted from the others.",
        width=320,
        on_change=lambda: session.see(PART, st.session_state[PART], preferred[0]),
    )
    with st.spinner("Predicting held-out points"):
        found = _points(opened.profile.checksum(), parts[chosen], opened)
    errors = found.interpolated
    drawn = fit_figure(found.predictions)
    figure(
        "fit",
        drawn,
        f"{errors.points:,} held-out points of {found.points:,}: median error {errors.median:.1%}, 90 % within "
        f"{errors.p90:.1%}, worst {errors.worst:.0%} at {errors.worst_point}.",
        "Predicted against measured time of held-out points, and the distribution of their errors.",
    )
    return [drawn]


def _origin(found: Answer, opened: OpenProfile | None) -> dict[str, str]:
    profile = found.deployment.profile
    facts = {"profile": profile.name, "source": profile.source, "checksum": profile.checksum()[:12]}
    day = _day(profile.date)
    facts["date"] = profile.date if day is None else f"{profile.date} ({_age(day)})"
    manifest = opened.manifest if opened is not None else None
    if manifest is not None:
        facts["device"] = manifest.device
        facts["driver"] = manifest.driver or "not recorded by the source"
        facts["clocks"] = ", ".join(f"{name} {value:g}" for name, value in manifest.clocks.items()) or "not recorded"
        facts["versions"] = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
        facts["licence"] = manifest.licence
        facts["made by"] = manifest.command
    return {name: text for name, text in facts.items() if text}


def _day(text: str) -> date | None:
    try:
        return datetime.fromisoformat(text).date()
    except ValueError:
        return None


def _age(day: date) -> str:
    days = (datetime.now(UTC).date() - day).days
    return "today" if days <= 0 else f"{days} day{'s' if days > 1 else ''} old"


def _errors_table(rows: Sequence[Mapping[str, Any]]) -> str:
    shown = [
        (
            f"{row['operator']} {row['dtype']}" + (f", KV {row['kv_dtype']}" if row["kv_dtype"] else ""),
            f"{row['points']:,}",
            f"{row['held_out']:,}",
            *("–" if row[name] is None else f"{row[name]:.1%}" for name in ("median", "p90", "worst")),
        )
        for row in rows
    ]
    return html_table(("operator", "points", "held out", "median error", "p90", "worst"), shown, name="Held-out errors")


def _command(found: Answer) -> str:
    name = found.run.summary["profile"]
    return f"draftcast profile show {name}" + (f" --hardware {found.scenario.hardware}" if name == "default" else "")


def _exports(
    found: Answer, facts: Mapping[str, str], tables: Mapping[str, pd.DataFrame], pictures: Sequence[Any]
) -> Exports:
    rows = tables.get("Held-out errors", pd.DataFrame(list(facts.items()), columns=["fact", "value"]))
    return Exports(
        name=f"draftcast-trust-{found.run.summary['profile']}",
        rows=lambda: rows,
        summary=lambda: {**facts, "device_time": fidelity([found.run.summary["figures"]])},
        scenario=found.scenario,
        title=f"Trust: {found.run.summary['profile']}",
        lines=[f"{name}: {text}" for name, text in facts.items()],
        tables=lambda: tables,
        figures=lambda: pictures,
    )
