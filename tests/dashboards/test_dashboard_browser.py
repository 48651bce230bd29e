"""The dashboard in a real browser: one server and one Chromium for all tests of this file."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pandas as pd
import pytest
from bench_results import bench_file
from browser import Browser, Server, missing
from samples import SHORT_REQUESTS
from typer.testing import CliRunner

from draftcast.scenarios.cli import main as cli
from draftcast.scenarios.compare.capacity import capacity, settling_requests
from draftcast.scenarios.compare.comparison import simulate
from draftcast.scenarios.compare.verdict import judge
from draftcast.scenarios.run.simulate import simulate_together
from draftcast.scenarios.schema.load import load_scenario, scenario_hash, without_speculation
from draftcast.scenarios.show.run_report import load_words

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")

# Small enough to answer at once on two cores, long enough for intervals that tell something.
SHORT = {"workload.lengths": SHORT_REQUESTS}
SEARCHING = {"workload.num_requests": "400", "statistics.replications": "3"} | SHORT
# Exact step times: no search for a cutover goes on behind the page.
QUICK = SEARCHING | {"statistics.model_error": "none"}
K = "Draft tokens k"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    # Compiled here, where nothing waits for it, if this checkout never simulated.
    simulate(load_scenario(overrides=["workload.num_requests=20", "statistics.replications=1"]), record_steps=True)
    started = Server()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def chromium(server: Server) -> Iterator[Browser]:
    opened = Browser(server.url)
    yield opened
    opened.quit()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Browser]:
    """The browser; what a test does must leave nothing in its console."""
    chromium.errors()
    yield chromium
    assert chromium.errors() == []


def asked(page: Browser) -> dict[str, Any]:
    """What ``draftcast simulate --json`` gives for the command that the page shows."""
    return asked_of(shlex.split(page.find("[data-testid=stCode] code").text.replace("\n", " ")))


def asked_of(command: list[str]) -> dict[str, Any]:
    assert command[:2] == ["draftcast", "simulate"]
    done = CliRunner().invoke(cli.app, [*command[1:], "--json"])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_k_by_keyboard_updates_tiles_and_data(page: Browser) -> None:
    page.open(query=QUICK)
    assert "interpolated" in page.find("[class*=st-key-badge-] button").text
    assert not page.all("[data-testid=stSidebarNav]")
    before, drawn = page.tiles(), page.plot("latency")
    lines = {name: page.lines(name) for name in ("latency", "timeline")}
    page.slide_down(K)
    assert "num_speculative_tokens=2" in page.query()
    after = page.tiles()
    assert after["p50_tpot_s"] != before["p50_tpot_s"]
    assert page.plot("latency")[0]["x"] != drawn[0]["x"]
    for name, old in lines.items():
        new = page.lines(name)
        assert len(new) == len(old)
        # What runs without speculation stays: half of the distributions.
        assert len(set(new) - set(old)) >= (len(old) / 2 if name == "latency" else len(old)), name
    figures = asked(page)["figures"]
    shown = {name: value for name, value in after.items() if name in figures and value is not None}
    assert len(shown) >= 10
    assert shown == {name: figures[name]["mean"] for name in shown}
    assert after["tokens_per_s_per_gpu"] == figures["output_throughput"]["mean"]


def test_ten_sessions_at_once_keep_their_own_questions(page: Browser) -> None:
    """Each in a tab of its own; all change a control before any is looked at."""
    first, hashes = page.driver.current_window_handle, {}
    try:
        for index in range(10):
            page.driver.switch_to.new_window("tab")
            page.open(query=QUICK | {"statistics.seed": str(60 + index)})
            hashes[page.driver.current_window_handle] = page.run_hash()
        for index, window in enumerate(hashes):
            page.driver.switch_to.window(window)
            page.write_into("Load, req/s", f"{20 + index}")
            page.press_enter("Load, req/s")
        for index, (window, before) in enumerate(hashes.items()):
            page.driver.switch_to.window(window)
            page.answered(before)
            expected, tiles = asked(page), page.tiles()
            shown = {name: value for name, value in tiles.items() if name in expected["figures"] and value is not None}
            assert len(shown) >= 10
            assert shown == {name: expected["figures"][name]["mean"] for name in shown}
            assert page.find(".dc-verdict").get_attribute("data-verdict") == expected["verdict"]
            assert {f"statistics.seed={60 + index}", f"workload.arrivals.request_rate_rps={20 + index}"} <= set(
                page.query().split("&")
            )
        assert len({page.run_hash(), *hashes.values()}) == 11
    finally:
        for window in hashes:
            page.driver.switch_to.window(window)
            page.driver.close()
        page.driver.switch_to.window(first)


def test_the_link_reproduces_every_tile_in_a_fresh_profile(page: Browser, server: Server) -> None:
    page.open(query=QUICK | {"baseline": "{}"})
    page.slide_down(K)
    page.type_into("Load, req/s", "14")
    shown, hashed, link = page.tiles(), page.run_hash(), page.query()
    cells = page.script("return [...document.querySelectorAll('.dc-diff')].map(cell => cell.dataset.difference)")
    assert "baseline" in link
    other = Browser(server.url)
    try:
        other.open(query=link)
        assert (other.tiles(), other.run_hash()) == (shown, hashed)
        code = "return [...document.querySelectorAll('.dc-diff')].map(cell => cell.dataset.difference)"
        assert other.script(code) == cells
        assert other.errors() == []
    finally:
        other.quit()


# Whether the answer was there before any control of the sidebar or of the page.
FIRST = """
new MutationObserver((_, self) => {
  const answer = document.querySelector('[class*=st-key-verdict-]');
  const control = document.querySelector('[data-testid=stSidebar] input, .st-key-controls input');
  if (!answer && !control) return;
  window.draftcastFirst = Boolean(answer);
  self.disconnect();
}).observe(document, {subtree: true, childList: true});
"""


def test_the_answer_stands_above_the_controls_and_the_cutover_is_found_beside_it(server: Server) -> None:
    """Without scrolling on a wide and on a narrow page; a finished search is there for every session."""
    found = ""
    for width, height in ((390, 844), (1400, 1000)):
        opened = Browser(server.url, width=width, height=height)
        try:
            opened.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": FIRST})
            opened.open(query=SEARCHING)
            assert opened.script("return window.draftcastFirst"), "controls are drawn before the answer"
            card = opened.find("[class*=st-key-verdict-]")
            assert "simulated" in card.text
            code = "const box = arguments[0].getBoundingClientRect(); return [box.top, box.bottom, innerHeight]"
            top, bottom, seen = opened.script(code, card)
            assert 0 < top < bottom < seen
            controls = opened.find(".st-key-controls")
            assert opened.script(code, controls)[0] > bottom
            if not found:
                opened.until(lambda o=opened: "Searching" not in o.find(".dc-finding").text, "the cutover")
                found = opened.find(".dc-finding").text
                assert re.search("cutover|pays", found)
            assert opened.find(".dc-finding").text == found
            assert opened.errors() == []
        finally:
            opened.quit()


SHARES = (0.05, 0.9, 1.03, 1.5)


def test_the_page_says_what_judge_says_from_idle_to_overload(page: Browser) -> None:
    """At four loads around the smaller capacity: word, advice, interval, colour (`test_dashboard_answers`: twenty)."""
    scenario = load_scenario(overrides=[f"{key}={value}" for key, value in SHORT.items()])
    both = [capacity(each) for each in (scenario, without_speculation(scenario))]
    smaller = min(each.estimate.mean for each in both if each is not None)
    said = []
    # Two replications: behind the page it also searches for the cutover.
    page.open(query=SHORT | {"statistics.replications": "2"})
    for share in SHARES:
        page.type_into("Load, req/s", f"{share * smaller:.4g}")
        command = shlex.split(page.find("[data-testid=stCode] code").text.replace("\n", " "))
        changes = [text for flag, text in itertools.pairwise(command) if flag == "--set"]
        asked = load_scenario("default", overrides=changes)
        assert asked.workload.num_requests == settling_requests(asked)
        verdict = judge(asked, *simulate_together([asked, without_speculation(asked)]))
        shown = page.find(".dc-verdict")
        assert shown.text == verdict.sentence(load_words(asked))
        assert shown.get_attribute("data-verdict") == verdict.word
        assert shown.get_attribute("data-advice") == verdict.advice
        low = shown.get_attribute("data-low")
        assert low == (None if verdict.advantage is None else repr(verdict.advantage.low))
        tone = page.find(".dc-verdict b").get_attribute("class")
        assert tone == {"pays": "dc-better", "costs": "dc-worse"}.get(verdict.word, "")
        differences = page.script(
            "return [...document.querySelectorAll('.dc-diff')].filter(cell => cell.dataset.difference).length"
        )
        assert bool(differences) == (verdict.on.has_figures and verdict.off.has_figures)
        if share != SHARES[1]:
            assert asked_of(command)["verdict"] == verdict.word
        said.append(verdict.word)
    # Between them the errors of the step times leave it open which side saturates first.
    assert {"pays", "too close to call", "overloaded"} == set(said)
    assert said[-1] == "overloaded"


def test_an_infeasible_slo_names_its_tightest_constraint(page: Browser) -> None:
    page.open(query=QUICK)
    page.type_into("TPOT, ms", "1")
    text = page.find("[data-testid=stAlert]").text
    assert "SLO infeasible at any load: TPOT within 1 ms is the tightest constraint." in text
    page.type_into("TPOT, ms", "50")
    assert "SLO met. Tightest: TPOT within 50 ms" in page.text()


def test_downloads_come_back_as_they_went(page: Browser) -> None:
    page.open(query=QUICK | {"statistics.seed": "11"})
    hashed = page.run_hash()
    scenario = page.download("Scenario YAML")
    assert scenario_hash(load_scenario(scenario)).startswith(hashed)
    rows = pd.read_csv(page.download("CSV"))
    assert len(rows) == 3 * 400
    assert len(pd.read_parquet(page.download("Parquet"))) == len(rows)
    figures = json.loads(page.download("JSON").read_text())["points"][0]["on"]["figures"]
    assert figures["num_requests"]["mean"] < 400
    report = page.download("HTML report").read_text()
    assert report.count("Plotly.newPlot(") >= 3
    assert "Speculation pays at 8 req/s" in report
    page.open(query=QUICK)
    assert page.run_hash() != hashed
    page.upload("Upload a scenario (YAML)", scenario)
    page.until(lambda: page.run_hash() == hashed, "the same run hash")


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1100, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 1500, "input_length": 700, "output_length": 490, "hash_ids": [0, 3]}
"""
SHAREGPT = """[{"prompt_tokens": 12, "output_tokens": 30}, {"prompt_tokens": 5, "output_tokens": 7},
{"prompt_tokens": 8, "output_tokens": 4}, {"prompt_tokens": 9, "output_tokens": 3}]
"""
VLLM_BENCH = '{"input_lens": [10, 20, 30], "output_lens": [5, 6, 8], "start_times": [1000.5, 1001.0, 1002.5]}\n'
ACCEPTANCE = (
    '{"id": "a", "prompt_token_ids": [5, 6, 7], "generated_token_ids": [1, 2], "acc_eagle": {"acc_len": [1, 4]}}\n'
)
TRACES = {
    "azure.csv": (AZURE, "3 requests over 5 s; mean prompt 550, mean output 69 tokens"),
    "burstgpt.csv": (BURSTGPT, "2 requests over 40 s; mean prompt 780, mean output 124 tokens"),
    "mooncake.jsonl": (MOONCAKE, "2 requests over 2 s; mean prompt 900, mean output 495 tokens"),
    "sharegpt.json": (SHAREGPT, "4 requests without times: its lengths are used; mean prompt 8, mean output 11 tokens"),
    "bench.json": (VLLM_BENCH, "3 requests over 2 s; mean prompt 20, mean output 6 tokens"),
    "acceptance.jsonl": (ACCEPTANCE, "1 requests without times: its lengths are used; mean prompt 3"),
    "corrupt.csv": (AZURE.replace(",396,", ",many,"), "corrupt.csv:3: ContextTokens = 'many'"),
    "corrupt.jsonl": (MOONCAKE.replace("490", "true"), "corrupt.jsonl:2: output_length = True"),
}


def test_every_trace_format_uploads(page: Browser, tmp_path: Path) -> None:
    page.open(query=QUICK)
    page.find("[data-testid=stExpander] summary").click()
    for name, (content, said) in TRACES.items():
        path = tmp_path / name
        path.write_text(content)
        before = page.run_hash()
        page.upload("Upload a trace", path)
        page.until(lambda said=said: said in page.text(), said)
        page.settled()
        assert (page.run_hash() != before) == (not name.startswith("corrupt"))
    assert "upload:acceptance.jsonl" in unquote(page.query())


def test_outside_calibration_the_badge_leads_to_the_coverage_map(page: Browser) -> None:
    page.open(query=QUICK | {"hardware": "a10g"})
    badge = page.find(".st-key-badge-extrapolated button")
    assert "extrapolated · 100% of device time extrapolated" in badge.text
    badge.click()
    page.until(lambda: page.find("#coverage").text == "Coverage map", "the coverage map")
    page.until(lambda: "page=trust" in page.query(), "the link of Trust")
    assert "No measured profile of a10g" in page.text()


def test_a_run_compared_with_itself_differs_in_nothing(page: Browser) -> None:
    page.open(query=QUICK | {"page": "compare", "run": json.dumps(QUICK)})
    cells = page.script(
        "return [...document.querySelectorAll('.dc-compare .dc-diff')]"
        ".filter(cell => cell.dataset.difference).map(cell => [cell.dataset.difference, cell.innerText])"
    )
    assert len(cells) >= 12
    assert {float(value) for value, _ in cells} == {0.0}
    assert all("cannot tell" in text or "as offered" in text for _, text in cells)
    assert "No key: the simulated runs ask the same." in page.text()
    assert all(x == 1.0 for x in page.plot("ratios")[0]["x"])


def test_a_measured_run_stands_beside_the_simulated_one(page: Browser, tmp_path: Path) -> None:
    page.open(query=QUICK | {"page": "compare"})
    page.find("[data-testid=stExpander] summary").click()
    page.upload("Upload a measured run", bench_file(tmp_path))
    page.until(lambda: "measured: bench.json" in page.text(), "the measured run")
    page.settled()
    shown = page.script(
        "return [...document.querySelectorAll('.dc-compare [data-figure=p50_ttft_s]')].map(cell => cell.dataset.value)"
    )
    assert float(shown[1]) == pytest.approx(0.3)
    assert "measured=bench.json" in page.query()


# What a page needs to be at its fullest.
PAGES = {
    "start": {},
    "what-if": {"baseline": "{}", "slo": "{tpot_ms: 20}"},
    "compare": {"run": json.dumps({"engine.speculative_config": "null"})},
    "trust": {},
    "cutover": {},
    "capacity": {"slo": "{tpot_ms: 20, attainment: 0.9}", "view.capacity.methods": "off", "view.capacity.spare": "1"},
    "sweep": {},
}
# Whatever sticks out of the page to the right and does not scroll by itself.
WIDER = """
const main = document.querySelector('[data-testid=stMain]');
const found = [...main.querySelectorAll('[data-testid=stMainBlockContainer] *')].filter(each => {
  const box = each.getBoundingClientRect();
  return box.width && box.right > innerWidth + 1 && !each.closest('.dc-table, pre, svg, [data-testid=stCode]')
    && !each.closest('details:not([open]) > :not(summary)');  // what is folded is laid out when it is opened
});
return [main.scrollWidth - main.clientWidth, found.slice(0, 5).map(each => each.outerHTML.slice(0, 200))];
"""
IS_DARK = """
const app = getComputedStyle(document.querySelector('[data-testid=stApp]'));
return Math.max(...app.backgroundColor.match(/[0-9]+/g).map(Number)) < 64;
"""
# Text whose colour is nearly that of what is behind it.
PALE = """
const parse = text => (text.match(/[0-9.]+/g) ?? []).map(Number);
const light = rgb => {
  const [r, g, b] = rgb.map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b; };
const ground = light(parse(getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor));
return [...document.querySelectorAll(
  '.dc-tile td, .dc-tile th, .dc-verdict, .dc-why, .dc-table td, .dc-footer span, h1, h2, h3')]
  .filter(each => each.innerText.trim()).filter(each => {
    const own = light(parse(getComputedStyle(each).color));
    return (Math.max(own, ground) + .05) / (Math.min(own, ground) + .05) < 4.5;
  }).slice(0, 5).map(e => e.outerHTML.slice(0, 200));
"""


# Visible controls that a keyboard should reach. Of a group of radio buttons one is enough: arrows lead to the others.
CONTROLS = """
const name = each => each.getAttribute('aria-label') || each.innerText?.trim() || each.title ||
  (each.id && document.querySelector(`label[for="${each.id}"]`)?.innerText) || each.closest('label')?.innerText || '';
window.draftcastSeen = new Set();
document.addEventListener('focusin', event => window.draftcastSeen.add(event.target));
window.draftcastControls = [...document.querySelectorAll(
  'input, button:not([role=radio][aria-checked=false]), select, textarea, a[href], summary, [role=slider],'
  + '[role=checkbox], [role=tab][aria-selected=true]')]
  .filter(each => each.tabIndex >= 0 && !each.disabled && each.offsetParent)
  .filter(each => !each.closest('details:not([open]) > :not(summary)'))
  .filter(each => getComputedStyle(each).visibility !== 'hidden');
return window.draftcastControls.map(name);
"""
# What else the Tab key stops at: tables that scroll, the browser's own bar.
OTHER_STOPS = "return document.querySelectorAll('[tabindex=\"0\"]').length + 10;"
UNSEEN = """
const seen = window.draftcastSeen, group = each => each.closest('[data-testid=stButtonGroup]');
const reached = each => seen.has(each) || (group(each) && [...seen].some(other => group(other) === group(each)));
return window.draftcastControls.filter(each => !reached(each)).map(each => each.outerHTML.slice(0, 200));
"""


AXE = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
# Serious and critical faults that axe-core finds, each with the elements that have it.
FAULTS = """
axe.run({resultTypes: ['violations']}).then(found => arguments[0](found.violations
  .filter(rule => ['serious', 'critical'].includes(rule.impact))
  .map(rule => [rule.id, ...rule.nodes.slice(0, 5).map(node => node.html.slice(0, 200) + node.failureSummary)])));
"""


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_worked_by_keyboard_and_fit_wide_and_narrow_light_and_dark(page: Browser, name: str) -> None:
    try:
        page.open(query=QUICK | PAGES[name] | {"page": name})
        names = page.script(CONTROLS)
        assert len(names) >= 15
        assert all(names), names
        page.tab(len(names) + page.script(OTHER_STOPS))
        assert page.script(UNSEEN) == []
        page.driver.set_script_timeout(page.wait_s)
        page.script(AXE + "; window.axe = axe;")
        for (width, height), dark in itertools.product(((1400, 1000), (390, 844)), (False, True)):
            page.resize(width, height)
            page.theme(dark)
            page.until(lambda dark=dark: page.script(IS_DARK) == dark, "the theme")
            page.settled()
            page.until(lambda: page.script(WIDER) == [0, []], f"a page that fits {width} px")
            page.until(lambda: page.script(PALE) == [], "text that can be read")
            if dark == (width < 1000):  # each width and each theme once: what axe looks at depends on one of them
                assert page.driver.execute_async_script(FAULTS) == []
        assert "nan" not in page.text().lower().split()
    finally:
        page.resize(1280, 900)
        page.theme(False)


def test_capacity_names_its_gpus_and_the_bound_that_no_gpu_keeps(page: Browser) -> None:
    slo = {"slo": '{"tpot_ms": 20.0, "attainment": 0.9}', "view.capacity.rate": "500"}
    page.open(query=QUICK | slo | {"page": "capacity"})
    gpus = int(page.find(".dc-verdict").get_attribute("data-gpus"))
    assert gpus >= 2
    assert f"{gpus} GPUs:" in page.text()
    knee = next(trace for trace in page.plot("goodput") if trace["name"] == "within the SLO")
    below, beyond = knee["y"][0], knee["y"][-1]
    assert below == pytest.approx(knee["x"][0], rel=0.3)
    # Where these few requests do not tell whether the load is above the capacity, nothing is drawn.
    assert beyond is None or beyond < 0.9 * knee["x"][-1]
    page.type_into("Target load, req/s", "1000")
    assert int(page.find(".dc-verdict").get_attribute("data-gpus")) > gpus
    assert "view.capacity.rate=1000" in page.query()
    page.type_into("TPOT, ms", "1")
    assert "Infeasible." in page.text()
    assert "TPOT within 1 ms is the tightest constraint" in page.text()


def test_long_words_of_a_swept_cell_leave_its_link_in_sight(page: Browser) -> None:
    page.resize(1280, 900)
    page.open(query=QUICK | {"page": "sweep", "view.sweep.grid": "rate=4,400,700;k=0,2"})
    page.find(".st-key-sweep\\.start button, [class*=st-key-sweep-start] button").click()
    page.until(lambda: page.all(".dc-cells a"), "the table")
    page.settled()
    hidden = "const table = document.querySelector('.dc-cells'); return table.scrollWidth - table.clientWidth"
    assert page.driver.execute_script(hidden) <= 0


def test_a_swept_cell_opens_in_what_if(page: Browser) -> None:
    page.open(query=QUICK | {"page": "sweep", "view.sweep.grid": "rate=4,16;k=0,2"})
    page.find(".st-key-sweep\\.start button, [class*=st-key-sweep-start] button").click()
    page.until(lambda: page.all(".st-key-pareto .js-plotly-plot"), "the Pareto picture")
    page.settled()
    link = page.query()
    marks = page.plot("pareto")
    assert [trace["name"] for trace in marks] == ["Pareto front", "k=0", "k=2"]
    page.click_mark("pareto", 2, 1)
    page.until(lambda: "page=sweep" not in page.query() and page.tiles(), "What-if")
    page.settled()
    assert "num_speculative_tokens=2" in page.query()
    assert "request_rate_rps=16" in page.query()
    tokens = page.tiles()["tokens_per_s_per_gpu"]
    assert tokens == marks[2]["x"][1]
    page.driver.back()
    page.until(lambda: page.query() == link and page.all(".st-key-pareto .js-plotly-plot"), "the sweep again")


@pytest.mark.parametrize("name", PAGES)
def test_the_path_of_a_page_leads_to_it(page: Browser, name: str) -> None:
    page.open(name, query={"statistics.seed": "5"})
    page.until(lambda: page.find("h1").text == name.capitalize(), f"the page {name}")
    assert page.script("return location.pathname") == "/"
    assert "statistics.seed=5" in page.query()
    # Streamlit looks for its server below the path first.
    assert all(f"/{name}/_stcore/" in error for error in page.errors())
