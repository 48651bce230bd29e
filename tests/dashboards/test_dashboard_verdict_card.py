"""The answer above the controls: its words at any load, the estimate behind it, and the search beside the page."""

from __future__ import annotations

import re
import threading
import time

import pytest

pytest.importorskip("streamlit")
from draftcast.dashboards.session.answers import answer
from draftcast.dashboards.session.session import ScenarioPair, Session
from draftcast.dashboards.widgets import page
from draftcast.dashboards.widgets.verdict_card import (
    LONGEST,
    RATES,
    Card,
    best_length,
    card,
    draft_length_strip,
    draft_lengths,
    step_estimate,
)
from draftcast.errors import InputError
from draftcast.scenarios.compare.metric import METRICS
from draftcast.scenarios.cutover.axis import axis_named
from draftcast.scenarios.cutover.probe import Prober
from draftcast.scenarios.evidence.summary import scorecard, shipped_forecasts
from draftcast.scenarios.schema.load import load_scenario, with_values, without_speculation
from draftcast.scenarios.show.cutover_report import advantage_figure
from draftcast.sim.progress import Progress

SMALL = load_scenario(overrides=["workload.num_requests=400", "statistics.replications=3"])
RATE = "workload.arrivals.request_rate_rps"


def words(shown: Card) -> tuple[str, str]:
    """The verdict, and whether it is estimated or simulated."""
    found = re.match(r"Speculation: \*\*([^*]+)\*\*", shown.text)
    assert found is not None, shown
    return found[1], shown.state


@pytest.mark.parametrize(
    ("changes", "stratum"),
    [
        ({}, "dense, measured"),
        ({"hardware": "l4", "engine.model": "Qwen3-8B-FP8"}, "dense, not measured"),
    ],
)
def test_the_card_says_how_far_speed_ups_were_off_as_trust_does(changes: dict[str, object], stratum: str) -> None:
    scenario = with_values(SMALL, {"engine.speculative_config.model": None, **changes})
    (score,) = (s for s in scorecard(shipped_forecasts(), "speedup") if (s.stratum, s.engine) == (stratum, ""))
    shown = card(scenario, step_estimate(scenario)).text
    assert f"**{score.errors.median:.0%} off**" in shown
    assert f"at {score.errors.points} GPU measurements" in shown


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({RATE: 8.0}, "ON"),
        ({RATE: 8.0, "acceptance": {"model": "constant", "alpha": 0.0}}, "OFF"),
        ({RATE: 400.0}, "OVERLOADED"),
    ],
)
def test_the_estimate_says_what_the_simulation_says(changes: dict[str, object], word: str) -> None:
    scenario = with_values(SMALL, changes)
    estimate = step_estimate(scenario)
    assert words(card(scenario, estimate)) == (word, "estimate")
    assert words(card(scenario, estimate, answer(scenario).point.verdict)) == (word, "simulated")


def test_the_estimate_is_unsure_at_its_cutover_where_sides_change_places() -> None:
    estimate = step_estimate(SMALL)
    assert estimate is not None
    rate = estimate.cutover_rps
    assert rate is not None
    # One estimate on all pages.
    assert rate == Prober(SMALL, axis_named("rate"), METRICS["e2e"], 0).step_level_crossing([1.0])
    above = next(index for index, each in enumerate(estimate.rates) if each >= rate)
    for index, faster in ((above - 1, True), (above, False)):
        at_s = [fluid.latency_s(fluid.in_system(estimate.rates[index])) for fluid in estimate.errors.fluids]
        assert (at_s[0] < at_s[1]) == faster
    at = with_values(SMALL, {RATE: rate})
    assert words(card(at, step_estimate(at)))[0] == "TOO CLOSE TO CALL"
    assert len(estimate.rates) == len(estimate.advantages) == RATES
    # A longer prompt leaves less room: the same load is nearer to the cutover.
    longer = step_estimate(with_values(SMALL, {"workload.lengths.prompt_tokens.mean": 1500}))
    assert longer is not None
    assert longer.rates[-1] < estimate.rates[-1]


def test_where_the_estimate_has_no_cutover_the_card_says_so_plainly() -> None:
    scenario = load_scenario("ngram-code-editing")
    assert "**to capacity** *no cutover below it*" in card(scenario, step_estimate(scenario)).text


def test_no_ratio_where_one_side_alone_is_overloaded() -> None:
    estimate = step_estimate(SMALL)
    assert estimate is not None
    on, off = (fluid.capacity_rps() for fluid in estimate.errors.fluids)
    between = with_values(SMALL, {RATE: float(0.1 * on + 0.9 * off)})
    shown = card(between, step_estimate(between)).text
    assert "overloaded with speculation alone" in shown
    assert "0.00 x" not in shown


def test_the_best_k_is_the_fastest_and_continued_acceptance_is_marked() -> None:
    few = with_values(SMALL, {"acceptance": {"model": "per_position", "rates": [0.8, 0.6]}})
    lengths = draft_lengths(few)
    assert [length.k for length in lengths] == list(range(LONGEST + 1))
    assert [length.k for length in lengths if not length.is_given] == list(range(3, LONGEST + 1))
    estimate = step_estimate(few)
    assert estimate is not None
    on, off = estimate.errors.fluids
    for fluid, length in ((on, lengths[few.num_speculative_tokens]), (off, lengths[0])):
        assert length.latency_s == pytest.approx(fluid.in_system(8.0) / 8.0)
    best = best_length(lengths)
    assert best.latency_s == min(length.latency_s for length in lengths)
    strip = draft_length_strip(lengths, 2)
    assert strip.count("dc-beyond") == LONGEST - 2
    assert f"k = {best.k}. Bars" in strip
    # Without any acceptance no draft is better than none; where all are overloaded capacity decides.
    none = draft_lengths(with_values(few, {"acceptance": {"model": "constant", "alpha": 0.0}}))
    assert best_length(none).k == 0
    assert all(length.is_given for length in none)
    full = draft_lengths(with_values(few, {RATE: 400.0}))
    assert best_length(full).capacity_rps == max(length.capacity_rps for length in full)
    strip = draft_length_strip(full, 2)
    assert "<b>full</b>" in strip
    assert "Full: overloaded." in strip
    assert "Holds: " not in strip
    # A load that is too much for off alone.
    good = {"acceptance": {"model": "constant", "alpha": 0.95}}
    strip = draft_length_strip(draft_lengths(with_values(few, {RATE: 1.01 * lengths[0].capacity_rps} | good)), 2)
    assert "<b>holds</b>" in strip
    assert "Full: overloaded. Holds: keeps up with the load, which is too much for off." in strip
    assert "Full: " not in draft_length_strip(lengths, 2)


def test_draft_lengths_of_clients_and_of_no_load() -> None:
    loop = {"workload.arrivals": {"process": "closed_loop", "concurrency": 4}}
    few, many = (draft_lengths(with_values(SMALL, loop | {"workload.arrivals.concurrency": n})) for n in (4, 400))
    assert best_length(few).k > best_length(many).k
    assert draft_lengths(with_values(SMALL, {"policy": {"name": "goodput"}})) == ()


@pytest.mark.parametrize(
    "changes", [{"workload.arrivals": {"process": "closed_loop", "concurrency": 4}}, {"statistics.model_error": "none"}]
)
def test_where_mean_steps_say_nothing_the_card_waits(changes: dict[str, object]) -> None:
    scenario = with_values(SMALL, changes)
    assert step_estimate(scenario) is None
    assert words(card(scenario, None)) == ("SIMULATING", "estimate")
    assert words(card(scenario, None, answer(scenario).point.verdict)) == ("ON", "simulated")


def test_without_speculation_there_is_nothing_to_say() -> None:
    assert words(card(without_speculation(SMALL), None)) == ("not chosen", "estimate")


LOOKER = Session(ScenarioPair.opening("default"))


def looked_for(key: str, make: object) -> object:
    """Ask as a page does, until there is an answer."""
    for _ in range(500):
        found = page.beside_page(LOOKER, key, make)  # type: ignore[arg-type]
        if found is not None:
            return found
        time.sleep(0.01)
    raise AssertionError("no answer")


def test_a_search_beside_the_page_is_made_once_and_kept() -> None:
    made = []

    def make(progress: Progress) -> str:
        progress(0.5)
        made.append(threading.current_thread())
        return "found"

    assert page.LONG.known("kept") is None
    assert looked_for("kept", make) == looked_for("kept", make) == page.LONG.known("kept") == "found"
    assert len(made) == 1
    assert made[0] is not threading.main_thread()


@pytest.mark.parametrize("leaves", ["the dashboard", "the question"])
def test_a_search_nobody_looks_at_ends_and_begins_anew_for_who_asks_again(
    leaves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ended, go_on = threading.Event(), threading.Event(), threading.Event()

    def make(progress: Progress) -> str:
        began.set()
        assert go_on.wait(30)
        try:
            progress(0.5)
        finally:
            ended.set()
        return "found"

    key = f"left {leaves}"
    assert page.beside_page(LOOKER, key, make) is None
    assert began.wait(30)
    if leaves == "the question":
        page.look_away(LOOKER, "another")
    else:
        monkeypatch.setattr(page, "_PATIENCE_S", -1.0)
    go_on.set()
    assert ended.wait(30)
    assert page.LONG.known(key) is None
    monkeypatch.undo()
    assert looked_for(key, make) == "found"


def test_a_search_goes_on_for_another_session() -> None:
    other = Session(LOOKER.question)
    began, go_on = threading.Event(), threading.Event()

    def make(progress: Progress) -> str:
        began.set()
        assert go_on.wait(30)
        progress(0.5)
        return "found"

    assert page.beside_page(LOOKER, "shared", make) is page.beside_page(other, "shared", make) is None
    assert began.wait(30)
    page.look_away(LOOKER, "another")
    go_on.set()
    page._running["shared"].result(30)
    assert page.LONG.known("shared") == "found"


def test_a_refused_search_is_told() -> None:
    def make(progress: Progress) -> str:
        raise InputError("cannot be searched")

    with pytest.raises(InputError, match="cannot be searched"):
        looked_for("refused", make)


@pytest.mark.parametrize(("rate", "side"), [(5, "left"), (60, "right")])
def test_the_mark_of_this_load_has_its_words_inside_the_picture(rate: float, side: str) -> None:
    scenario = with_values(SMALL, {RATE: rate})
    estimate = step_estimate(scenario)
    assert estimate is not None
    drawn = advantage_figure(scenario, estimate.rates, estimate.ratios, estimate.advantages, None)
    (words_here,) = (each for each in drawn.layout.annotations if each.text == "you are here")
    assert (words_here.x, words_here.xanchor) == (rate, side)
