"""The Capacity page without a browser: it gives what ``draftcast plan`` gives, and every control changes it."""

from __future__ import annotations

import json
import re
import shlex
from html import unescape
from typing import Any
from urllib.parse import parse_qs

import pytest
from paths import APP

pytest.importorskip("streamlit")
from app_pages import html_of, told
from samples import SHORT_REQUESTS
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from draftcast.dashboards.pages import capacity
from draftcast.dashboards.session.link import read_link
from draftcast.dashboards.session.session import ScenarioPair, Session
from draftcast.scenarios.cli import main as cli
from draftcast.scenarios.compare.comparison import simulate

WAIT_S = 1800  # the first page of a fresh checkout compiles the engine
SMALL = {
    "page": "capacity",
    "workload.num_requests": "150",
    "workload.lengths": SHORT_REQUESTS,
    "statistics.replications": "2",
}
ASKED = {
    "slo": '{"tpot_ms": 20.0, "attainment": 0.9}',
    "view.capacity.rate": "250",
    "view.capacity.methods": "off",
}


def open_page(query: dict[str, str] | None = None) -> AppTest:
    app = AppTest.from_file(str(APP), default_timeout=WAIT_S)
    for key, value in (SMALL | ASKED | (query or {})).items():
        app.query_params[key] = value
    app.run()
    assert not app.exception, app.exception
    return app


def gpus(app: AppTest) -> int:
    assert not app.exception, app.exception
    return int(re.findall(r"data-gpus='(\d+)'", html_of(app))[0])


def metrics(app: AppTest) -> dict[str, str]:
    return dict(zip([each.label for each in app.metric], told(app.metric), strict=True))


def asked(app: AppTest) -> dict[str, Any]:
    """What the command that the page shows prints."""
    command = shlex.split(app.code[0].value)
    assert command[:2] == ["draftcast", "plan"]
    done = CliRunner().invoke(cli.app, [*command[1:], "--json"])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_page_gives_the_plan_of_the_command_it_shows() -> None:
    app = open_page({"view.capacity.spare": "1", "view.capacity.headroom": "0.1", "view.capacity.tp": "1,2"})
    found = asked(app)
    best = found["candidates"][0]
    assert len(found["candidates"]) == 2
    assert best["spare_replicas"] == 1
    assert gpus(app) == best["num_gpus"]
    assert metrics(app)["Headroom"] == f"{best['headroom']:+.0%}"
    assert f"{best['hardware']} tp {best['tensor_parallel_size']} {best['method']}" in html_of(app)
    # The knee of the picture is the plan's.
    drawn = json.loads(next(each.proto.spec for each in app.get("plotly_chart") if "knee" in each.proto.spec))
    labels = [shape["label"] for shape in drawn["layout"]["shapes"]]
    # At different ends of their lines, so that they cannot overlap however close these are.
    assert [label["textposition"] for label in labels] == ["start", "end"]
    texts = [label["text"] for label in labels]
    assert texts == ["target 250", f"knee {best['largest_rate_rps']:.4g}"]


def test_numbers_change_the_gpus_and_the_link() -> None:
    app = open_page()
    for key, value, text in (("rate", 500.0, "500"), ("headroom", 60.0, "0.6"), ("spare", 2, "2")):
        before = gpus(app)
        app.number_input(key=f"control:view.capacity.{key}").set_value(value).run()
        assert gpus(app) > before
        assert app.query_params[f"view.capacity.{key}"] == text
    app.number_input(key="control:view.capacity.rate").set_value(None).run()
    assert "view.capacity.rate" not in app.query_params  # the scenario's own again


def test_choices_of_several_change_the_candidates() -> None:
    app = open_page()
    assert html_of(app).count("<tr><td>") == 1
    app.multiselect(key="control:view.capacity.methods").set_value(["off", "given"]).run()
    assert html_of(app).count("<tr><td>") == 2
    assert "view.capacity.methods" not in app.query_params
    app.multiselect(key="control:view.capacity.hardware").set_value(["h100-sxm", "a100-80g"]).run()
    assert html_of(app).count("<tr><td>") == 4
    assert app.query_params["view.capacity.hardware"] == "h100-sxm,a100-80g"
    assert {each["hardware"] for each in asked(app)["candidates"]} == {"h100-sxm", "a100-80g"}
    app.multiselect(key="control:view.capacity.tp").set_value([]).run()
    assert "view.capacity.tp" not in app.query_params


def test_prices_rank_and_cost_without_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page({"view.capacity.hardware": "h100-sxm,a100-80g"})
    assert metrics(app)["Cost an hour"] == "–"
    monkeypatch.setattr(capacity, "plan", None)
    prefix = "control:view.capacity.prices"
    app.number_input(key=f"{prefix}:h100-sxm").set_value(2.5).run()
    assert "a price is missing: a100-80g" in " ".join(told(app.caption))
    app.number_input(key=f"{prefix}:a100-80g").set_value(0.01).run()
    cheap = gpus(app)
    assert ">a100-80g<" in html_of(app).partition("<tbody>")[2].partition("</td>")[0]
    assert metrics(app)["Cost an hour"] == f"{0.01 * cheap:,.2f}"
    assert float(metrics(app)["Cost per 1M tokens"]) > 0
    app.number_input(key=f"{prefix}:a100-80g").set_value(900.0).run()
    assert metrics(app)["Cost an hour"] == f"{2.5 * gpus(app):,.2f}"
    app.date_input(key=f"{prefix}:h100-sxm:date").set_value("2026-11-01").run()
    assert app.query_params["view.capacity.prices"].endswith("h100-sxm=2.5@2026-11-01")
    monkeypatch.undo()
    assert asked(app)["candidates"][0]["cost_per_hour"] == pytest.approx(2.5 * gpus(app))


def test_fields_show_the_price_that_counts_and_take_no_headroom_beyond_the_plans() -> None:
    app = open_page({"view.capacity.prices": "h100-sxm=215.75@2026-11-01"})
    price = app.number_input(key="control:view.capacity.prices:h100-sxm")
    assert price.proto.format % price.value == "215.75"
    assert app.number_input(key="control:view.capacity.headroom").max == 1000.0  # percent
    assert app.number_input(key="control:view.capacity.spare").max == 100


def test_an_infeasible_slo_says_so_and_names_its_tightest_bound() -> None:
    app = open_page({"slo": '{"ttft_ms": 900.0, "tpot_ms": 1.0, "attainment": 0.9}'})
    assert "data-verdict='infeasible'" in html_of(app)
    assert not app.metric
    said = told(app.error)
    assert any("TPOT within 1 ms is the tightest constraint" in text for text in said), said
    assert asked(app)["feasible"] is False


def test_without_an_slo_the_page_asks_for_one() -> None:
    app = open_page({"slo": "null"})
    assert "needs an SLO" in app.info[0].value
    app.button(key="usual-slo").click().run()
    assert gpus(app) >= 1
    assert json.loads(app.query_params["slo"])["tpot_ms"] == 50.0


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("view.capacity.rate", "fast", "must be a number from"),
        ("view.capacity.hardware", "/etc/passwd", "choose from"),
        ("view.capacity.tp", "3", "choose from 1, 2, 4, 8, 16"),
        ("view.capacity.methods", "eagle9", "choose from off, given"),
        ("view.capacity.headroom", "-1", "must be a number from 0 to 10"),
        ("view.capacity.spare", "1.5", "must be a whole number"),
        ("view.capacity.prices", "h100-sxm=2.5", "must look like"),
        ("view.capacity.curve", "nothing", "choose from"),
    ],
)
def test_a_bad_setting_in_a_link_is_named_and_the_page_stands(key: str, value: str, said: str) -> None:
    app = open_page({key: value})
    (warning,) = [text for text in told(app.warning) if text.startswith(key)]
    assert said in warning
    assert gpus(app) >= 1
    assert key not in app.query_params


def test_a_load_without_a_rate_is_told() -> None:
    app = open_page({"workload.arrivals": '{"process": "closed_loop", "concurrency": 4}'})
    assert "closed_loop" in told(app.error)[0]
    assert not app.metric


def test_a_candidate_leads_to_its_own_run(monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page()
    href = unescape(re.findall(r"<td><a href='([^']*)'", html_of(app))[0])
    state: dict[str, Any] = {}
    monkeypatch.setattr("streamlit.session_state", state)
    other = state["session"] = Session(ScenarioPair.opening("default"))
    read_link(other, parse_qs(href.removeprefix("?")))
    assert not other.warnings
    opened = other.question.scenario
    best = asked(app)["candidates"][0]
    assert opened.cluster.replicas == best["replicas"] >= 2
    figures = simulate(opened).summary["figures"]
    assert figures["request_goodput"].mean == best["figures"]["request_goodput"]["mean"]


def test_a_fraction_of_a_replica_is_refused() -> None:
    app = open_page()
    app.number_input(key="control:view.capacity.spare").set_value(1.7).run()
    assert "view.capacity.spare = '1.7': must be a whole number from 0 to 100" in told(app.error)[0]
    assert app.number_input(key="control:view.capacity.spare").value == 0
    app.number_input(key="control:statistics.seed").set_value(2.5).run()
    assert "statistics.seed = 2.5: must be a whole number" in told(app.error)[0]


def test_a_price_waits_for_its_device() -> None:
    app = open_page({"view.capacity.prices": "a100-80g=1.5@2026-11-01"})
    app.number_input(key="control:view.capacity.prices:h100-sxm").set_value(2.5).run()
    app.multiselect(key="control:view.capacity.hardware").set_value(["h100-sxm", "a100-80g"]).run()
    assert app.number_input(key="control:view.capacity.prices:a100-80g").value == 1.5
