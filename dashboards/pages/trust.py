"""Trust: a scorecard of forecasts beside what was measured on real GPUs, then what this scenario's times rest on."""

import contextlib
from datetime import UTC, datetime

import pandas as pd
import streamlit as st

from draftcast.calibration.profile.hardware import hardware_names, load_hardware
from draftcast.calibration.profile.load import has_profile, usual_profile
from draftcast.calibration.profile.measured import FAMILY, TablePart, parts_of
from draftcast.calibration.profile.roofline_fit import OperatorErrors
from draftcast.dashboards.session.answers import SimulateAnswer, answers
from draftcast.dashboards.session.session import Session, View, literal
from draftcast.dashboards.session.uploads import VALIDATION
from draftcast.dashboards.widgets.controls import WORDS, uploader, view_choice
from draftcast.dashboards.widgets.page import Report, html_table, verdict_line
from draftcast.errors import HardwareError
from draftcast.files import read_bytes
from draftcast.scenarios.compare.model_error import stratum_of
from draftcast.scenarios.evidence import summary
from draftcast.scenarios.evidence.forecast import SIDES
from draftcast.scenarios.run.coverage import ORIGINS, coverage_of, fidelity
from draftcast.scenarios.show import evidence_report, profile_view
from draftcast.scenarios.show.device_plots import coverage_figure, fit_figure
from draftcast.scenarios.show.plots import OFF, ON, on_page
from draftcast.scenarios.show.validation_sweep_report import SweepSummary, bars_line, read_summary, shipped_summaries


def render(session: Session, report: Report) -> None:
    (current,) = answers(session.question.scenario)
    figures = current.run.summary["figures"]
    report.badge([figures])
    trusted = fidelity([figures])
    _scorecard(report, current)
    st.header("Where this scenario's step times come from", anchor="origin")
    if trusted is not None:
        origins = [(word, f"{trusted.shares[word]:.0%}", WORDS["origins"][word]) for word in ORIGINS]
        head = ("device time", "share", "what it means")
        st.html(html_table(head, origins, look="facts", name="Origin of the device time"))
    _coverage(report, current)
    device, named = load_hardware(current.scenario.hardware), current.scenario.profile
    profile = named or usual_profile(device)
    fits_any = profile_view.fits_any_device(profile)
    opened = _open(profile, device.name if fits_any else None)
    if opened.folder is not None:
        with st.expander("Fit and residuals"):
            _fit(session, report, opened)
    facts = _origin(current, opened)
    profile_table = html_table(("", ""), list(facts.items()), look="facts", name="Profile")
    st.expander("Where the profile comes from").html(profile_table)
    name = current.run.summary["profile"]
    report.title, report.lines = f"Trust: {name}", [f"{fact}: {text}" for fact, text in facts.items()]
    st.header("Validation against live runs", anchor="validation")
    sweeps, uploaded = shipped_summaries(), session.path / session.validation
    if session.validation and uploaded.is_file():
        sweeps[session.validation] = read_summary(read_bytes(uploaded), uploaded.name)
    for name_of_sweep, sweep in sweeps.items():
        _sweep(report, name_of_sweep, sweep)
    uploader(session, VALIDATION)
    option = f" --hardware {current.scenario.hardware}" if fits_any else ""
    report.footer(current.hash, f"draftcast profile show {name}{option}", current)
    table = report.tables.get("Held-out errors", pd.DataFrame(list(facts.items()), columns=["fact", "value"]))
    report.downloads(f"draftcast-trust-{name}", lambda: table, lambda: {**facts, "device_time": trusted})


def _coverage(report: Report, current: SimulateAnswer) -> None:
    st.subheader("Coverage map", anchor="coverage")
    try:
        covered = coverage_of(current.scenario, current.deployment, current.run.requests)
        report.figure("coverage", coverage_figure(covered))
    except HardwareError:
        measured = [name for name in hardware_names() if has_profile(load_hardware(name))]
        device = literal(current.scenario.hardware)
        text = WORDS["trust"]["no profile"].format(device=device, measured=", ".join(measured))
        st.warning(text, icon=":material/map:")


_open = st.cache_resource(max_entries=8, show_spinner=False)(profile_view.open_profile)


@st.cache_resource(max_entries=32, show_spinner=False)
def _points(checksum: str, part: TablePart, _opened: profile_view.OpenProfile) -> OperatorErrors:
    return profile_view.fit_points(_opened, part)


def _fit(session: Session, report: Report, opened: profile_view.OpenProfile) -> None:
    parts = {str(part): part for part, _ in parts_of(opened.table) if part.operator in FAMILY}
    names = sorted(parts, key=lambda name: not name.startswith("attention_decode (bf16"))
    chosen = view_choice(session, View.TRUST_OPERATOR, list(parts), default=names[0])
    with st.spinner("Predicting held-out points"):
        held_out = _points(opened.profile.checksum(), parts[chosen], opened)
    report.figure("fit", fit_figure(held_out.predictions), errors=held_out.interpolated, points=held_out.points)
    report.tables["Held-out errors"] = pd.DataFrame(profile_view.errors_of(opened))
    shown = []
    for row in profile_view.errors_of(opened):
        formats = f"{row['dtype']}, KV {row['kv_dtype']}" if row["kv_dtype"] else row["dtype"]
        shares = ("–" if row[name] is None else f"{row[name]:.1%}" for name in ("median", "p90", "worst"))
        shown.append((f"{row['operator']} {formats}", f"{row['points']:,}", f"{row['held_out']:,}", *shares))
    head = ("operator", "points", "held out", "median error", "p90", "worst")
    st.html(html_table(head, shown, name="Held-out errors"))


def _origin(current: SimulateAnswer, opened: profile_view.OpenProfile) -> dict[str, str]:
    profile, manifest = current.deployment.profile, opened.manifest
    age = ""
    with contextlib.suppress(ValueError):
        days = (datetime.now(UTC).date() - datetime.fromisoformat(profile.date).date()).days
        age = " (today)" if days <= 0 else f" ({days} day{'s' if days > 1 else ''} old)"
    facts = {"profile": profile.name, "source": profile.source, "checksum": profile.checksum()[:12]}
    if manifest is not None and manifest.sources:
        facts["measured"] = "the source gives no date; not before the release of the versions below"
        facts["imported"] = profile.date
    else:
        facts["measured" if manifest is not None else "date"] = profile.date + age
    if manifest is not None:
        clocks = ", ".join(f"{name} {value:g}" for name, value in manifest.clocks.items())
        facts |= {
            "device": manifest.device,
            "driver": manifest.driver or "not recorded by the source",
            "clocks": clocks or "not recorded",
            "versions": ", ".join(f"{name} {version}" for name, version in manifest.versions.items()),
            "licence": manifest.licence,
            "made by": manifest.command,
        }
    return {name: text for name, text in facts.items() if text}


def _sweep(report: Report, name: str, sweep: SweepSummary) -> None:
    """How many checks hold and which miss their bar; folded, the forecasts beside what was measured."""
    first, verdict, *rest = sweep.head()
    st.subheader(literal(name), anchor=False)
    verdict_line(verdict, held=sweep.held, of=sweep.of)
    text = WORDS["trust"]["continuation"].format(counts=sweep.known_continuation)
    lines = [first, *rest, text, bars_line(), *([f"Made by {sweep.command}."] if sweep.command else [])]
    with st.expander(f"Checks and tables of {literal(name)}"):
        st.caption("  \n".join(map(literal, lines)))
        for title, (head, *body) in sweep.tables().items():
            st.caption(title)
            st.html(html_table(head, body, look="facts" if title == "Bars" else "", name=f"{title}: {name}"))
            report.tables[f"Validation {name}: {title}"] = pd.DataFrame(body, columns=head)
        if sweep.notes:
            st.caption("Notes  \n" + "  \n".join(map(literal, sweep.notes)))


def _scorecard(report: Report, current: SimulateAnswer) -> None:
    """How forecasts have done beside what others measured on real GPUs; those like this scenario's stand out."""
    st.header("Forecast against measured", anchor="evidence")
    forecasts, stratum = summary.shipped_forecasts(), stratum_of(current.deployment)
    engine = current.scenario.engine.version.split()[0]
    like = [f for f in forecasts if f.stratum == stratum]
    tables = {}
    for side in SIDES:
        scores = summary.scorecard(forecasts, side)
        marked = [index for index, s in enumerate(scores) if s.stratum == stratum and s.engine in ("", engine)]
        rows = evidence_report.score_rows(scores)
        name = f"Errors of {WORDS['sides'][side]}"
        tables[side] = html_table(evidence_report.SCORES, rows, name=name, marked=marked)
        report.tables[name] = pd.DataFrame(rows, columns=list(evidence_report.SCORES))
        if side == "speedup":
            near = next((scores[index] for index in marked if not scores[index].engine), None)
    if near is None:
        verdict_line(f"No measured speed-up is like this scenario ({stratum}).", tone="worse", points=0)
    else:
        text = WORDS["trust"]["like this"].format(errors=near.errors, stratum=stratum)
        verdict_line(text, bold=text.index(":"), points=near.errors.points, sources=near.errors.sources)
    st.caption(WORDS["trust"]["evidence"].format(when=evidence_report.measured_when(forecasts)))
    st.caption("Relative errors of the forecast speed-up")
    st.html(tables.pop("speedup"))
    groups = {"others": (OFF, [f for f in forecasts if f.stratum != stratum]), "like this scenario": (ON, like)}
    figure = on_page(evidence_report.evidence_figure(forecasts, groups), height=420)
    figure.update_layout(legend_y=1.08, margin_t=64)
    report.figure("evidence", figure, signs=" ".join(evidence_report.sign_lines(forecasts)))
    with st.expander("Errors of times, and every point"):
        for side, table in tables.items():
            st.caption(f"Errors of {WORDS['sides'][side]}: below 0 the forecast is too fast")
            st.html(table)
        for source, members in evidence_report.by_source(like).items():
            st.caption(literal(f"{source}, like this scenario"))
            st.html(html_table(evidence_report.COLUMNS, evidence_report.rows(members), name=source))
        st.caption("`draftcast evidence` forecasts every point anew.")
