"""The papers' figures of a setting, the loss by cause, and the cliffs that are told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from draftcast import load_scenario
from draftcast.scenarios.compare.comparison import compare
from draftcast.scenarios.compare.limits import break_even, cliffs, closed_form
from draftcast.scenarios.run.deployment import cached_deployment
from draftcast.scenarios.run.fluid import FluidModel
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import with_values
from draftcast.scenarios.show.run_report import cause_line
from draftcast.sim.cost.step_time import decode_step_seconds
from draftcast.sim.output.results import TIME_PARTS

SPEC = "engine.speculative_config"
RATE = "workload.arrivals.request_rate_rps"


def drafting(method: str, k: int = 3, alpha: float = 0.6, **values: object) -> Scenario:
    config = {"method": method, "num_speculative_tokens": k, **values}
    return with_values(load_scenario("default"), {SPEC: config, "acceptance": {"model": "constant", "alpha": alpha}})


def test_block_efficiency_and_speed_up_are_leviathans() -> None:
    """(1 - alpha^(k+1)) / (1 - alpha), and that over c k + 1 (arXiv 2211.17192, equation 1 and theorem 3.8)."""
    for alpha, k in ((0.6, 3), (0.8, 5)):
        form = closed_form(drafting("draft_model", k, alpha, model="llama-3.2-1b"))
        assert form is not None
        efficiency = (1 - alpha ** (k + 1)) / (1 - alpha)
        assert form.block_efficiency == pytest.approx(efficiency, rel=1e-12)
        assert form.speedup == pytest.approx(efficiency / (form.cost_ratio * k + 1), rel=1e-12)


def test_a_draft_of_an_eighth_of_the_weights_costs_about_that_share_of_a_step() -> None:
    scenario = drafting("draft_model", model="llama-3.2-1b")
    form, memory = closed_form(scenario), cached_deployment(scenario).memory
    assert form is not None
    assert memory.draft_weight_bytes / memory.weight_bytes == pytest.approx(1.24 / 8.03, rel=0.02)
    # The target's embedding, 128,256 rows of 4,096, is not read; the draft's is its lm_head too.
    ratio = memory.draft_weight_bytes / (memory.weight_bytes - 2 * 128_256 * 4096)
    assert form.mbsu == pytest.approx(form.block_efficiency / (1 + 3 * ratio), rel=1e-12)
    # Passes of a small model reach less of the bandwidth, and each costs a launch.
    assert ratio < form.cost_ratio < 3 * ratio
    assert form.speedup < form.mbsu


@pytest.mark.parametrize("method", ["eagle", "medusa", "mlp_speculator"])
def test_a_head_reads_the_lm_head_that_it_shares_or_its_own(method: str) -> None:
    """Of Llama-3.1-8B, whose lm_head has 128,256 rows of 4,096 in 16 bits, and whose step reads 15 GB."""
    config, acceptance = {"method": method, "num_speculative_tokens": 3}, {"model": "constant", "alpha": 0.6}
    old = load_scenario(overrides=["engine.version=vllm 0.10"])  # later ones have no MLP speculator
    scenario = with_values(old, {SPEC: config, "acceptance": acceptance})
    form, memory, table = closed_form(scenario), cached_deployment(scenario).memory, 2 * 128_256 * 4096
    assert form is not None
    read = {
        "eagle": 3 * (memory.draft_weight_bytes + table),  # each pass its layer and the target's table
        "medusa": memory.draft_weight_bytes,  # three tables of its own
        "mlp_speculator": memory.draft_weight_bytes - 2 * 128_256 * 3072,  # its embedding is not read
    }
    ratio = read[method] / (memory.weight_bytes - table)
    assert form.mbsu == pytest.approx(form.block_efficiency / (1 + ratio), rel=1e-6)


@pytest.mark.parametrize(
    ("method", "version", "rows"),
    [
        ("ngram", "vllm 0.32 v1", 1.6),
        ("ngram", "vllm 0.32", 4),
        ("ngram", "sglang 0.5", 4),
        ("ngram_gpu", "vllm 0.32", 4),
    ],
)
def test_a_round_without_a_match_has_the_rows_that_are_scheduled_for_it(method: str, version: str, rows: float) -> None:
    scenario = with_values(
        drafting(method),
        {"acceptance": {"model": "ngram", "match_probability": 0.2, "alpha": 0.0}, "engine.version": version},
    )
    (_, features), _ = FluidModel.of(scenario).step(8).kinds  # those without prompts
    assert features["decode_tokens"] / features["decode_seqs"] == pytest.approx(rows)


def test_classes_without_drafts_are_no_part_of_what_a_round_accepts() -> None:
    classes = [{"name": "chat", "share": 0.5}, {"name": "batch", "share": 0.5, "speculation": False}]
    alone = drafting("eagle3")
    mixed = with_values(alone, {"workload.classes": classes})
    one, two = closed_form(alone), closed_form(mixed)
    assert one is not None
    assert two is not None
    assert two.block_efficiency == pytest.approx(one.block_efficiency, rel=1e-12)
    asked = FluidModel.of(mixed).traffic
    assert asked.tokens_per_round(3) < one.block_efficiency  # what the load needs
    rates = asked.of_drafted(mixed).unconditional(3)
    assert rates == pytest.approx([0.6, 0.36, 0.216], rel=1e-12)


def test_classes_share_the_rounds_by_what_each_yields() -> None:
    """Half of the tokens at 1 a round and half at 4: four of five rounds are of the first."""
    classes = [
        {"name": "never", "share": 0.5, "acceptance": {"model": "constant", "alpha": 0.0}},
        {"name": "always", "share": 0.5, "acceptance": {"model": "constant", "alpha": 1.0}},
    ]
    asked = replace(
        FluidModel.of(with_values(drafting("eagle3"), {"workload.classes": classes})).traffic, shares=(0.5, 0.5)
    )
    assert asked.round_shares(3) == pytest.approx([0.8, 0.2])
    assert asked.tokens_per_round(3) == pytest.approx(1.6)
    assert asked.unconditional(3) == pytest.approx([0.2, 0.2, 0.2])


def test_the_closed_form_bounds_the_simulated_step_at_batch_size_one() -> None:
    """What it leaves out (verifying more rows, the host) only costs time."""
    scenario = drafting("eagle3")
    form = closed_form(scenario)
    assert form is not None
    cost, context = cached_deployment(scenario).cost, FluidModel.of(scenario).traffic.context_tokens
    off = cached_deployment(with_values(scenario, {SPEC: None})).cost
    real = form.block_efficiency * decode_step_seconds(off, 1, 0, context) / decode_step_seconds(cost, 1, 3, context)
    assert 0.8 * form.speedup < real < form.speedup


def test_drafts_that_run_once_read_their_weights_once_and_search_none() -> None:
    once, ngram = closed_form(drafting("pard", model="llama-3.2-1b")), closed_form(drafting("ngram"))
    each = closed_form(drafting("draft_model", model="llama-3.2-1b"))
    assert once is not None
    assert each is not None
    assert ngram is not None
    assert once.mbsu > each.mbsu
    assert ngram.mbsu == ngram.block_efficiency
    assert ngram.cost_ratio < 0.2 * each.cost_ratio


def test_drafts_made_one_round_ahead_cost_what_the_target_waits_for() -> None:
    ahead = [drafting("draft_ahead", alpha=alpha, model="llama-3.2-1b") for alpha in (1.0, 0.6, 0.0)]
    forms = [form for scenario in ahead if (form := closed_form(scenario)) is not None]
    beside = drafting("draft_model", model="llama-3.2-1b")
    memory = cached_deployment(beside).memory
    ratio = memory.draft_weight_bytes / (memory.weight_bytes - 2 * 128_256 * 4096)
    waits = [0.0, (1 - 0.6**4) * 3 * ratio, 3 * ratio]  # four passes read less than the target does once
    for form, wait in zip(forms, waits, strict=True):
        assert form.mbsu == pytest.approx(form.block_efficiency / (1 + wait), rel=1e-12)
        assert form.speedup == pytest.approx(form.block_efficiency / (1 + 3 * form.cost_ratio), rel=1e-12)
    costs = [form.cost_ratio for form in forms]
    assert costs[0] == 0.0
    assert costs[1] == pytest.approx((1 - 0.6**4) * costs[2], rel=1e-12)
    serial = closed_form(beside)
    assert serial is not None
    assert costs[2] == pytest.approx(serial.cost_ratio, rel=0.1)  # the same passes of one row


def test_a_schedule_counts_at_batch_size_one() -> None:
    scheduled = drafting("eagle3", num_speculative_tokens_per_batch_size=[[1, 8, 2], [9, 64, 3]])
    assert closed_form(scheduled) is not None
    assert closed_form(drafting("eagle3", num_speculative_tokens_per_batch_size=[[1, 8, 0], [9, 64, 3]])) is None
    assert closed_form(with_values(drafting("eagle3"), {SPEC: None})) is None
    form, two = closed_form(scheduled), closed_form(drafting("eagle3", 2))
    assert form is not None
    assert two is not None
    assert form.block_efficiency == pytest.approx(two.block_efficiency)


def test_on_minus_off_by_cause_adds_up() -> None:
    small = ("workload.num_requests=200", "statistics.replications=2", f"{RATE}=10", "statistics.model_error=none")
    for alpha in (0.7, 0.02):
        accepted = f"acceptance={{model: constant, alpha: {alpha}}}"
        (point,) = compare(load_scenario("default", overrides=[*small, accepted])).points
        causes = point.by_cause()
        whole = causes.pop("all").mean
        assert set(causes) == set(TIME_PARTS)
        assert sum(each.mean for each in causes.values()) == pytest.approx(whole, rel=1e-9)
        sides = [np.mean([r["mean_e2el_s"] for r in run.replications]) for run in point.runs]
        assert whole == pytest.approx(sides[0] - sides[1], rel=1e-9)
        assert causes["draft"].mean > 0
        assert (causes["verify"].mean < 0, whole < 0) == (True, True) if alpha == 0.7 else whole > 0
        assert cause_line(point).startswith(f"With speculation a request takes {1e3 * whole:+.3g} ms on average: ")
        assert point.compared()["by_cause_s"]["all"].mean == whole


def test_at_break_even_a_batch_yields_as_many_tokens_a_second_as_without() -> None:
    shares = []
    for clients in (1, 32, 200):
        loop = {"workload.arrivals": {"process": "closed_loop", "concurrency": clients}}
        scenario = with_values(drafting("eagle3"), loop)
        share = break_even(scenario)
        cost, context = cached_deployment(scenario).cost, FluidModel.of(scenario).traffic.context_tokens
        off = cached_deployment(with_values(scenario, {SPEC: None})).cost
        tokens_per_s = clients * (1 + 3 * share) / decode_step_seconds(cost, clients, 3, context)
        assert tokens_per_s == pytest.approx(clients / decode_step_seconds(off, clients, 0, context), rel=1e-12)
        shares.append(share)
    assert shares == sorted(shares)  # a larger batch needs more of its drafts accepted


def test_cliffs_are_told_where_they_are_met() -> None:
    plain = drafting("eagle3")
    assert cliffs([with_values(plain, {RATE: 1.0})]) == ()
    assert cliffs([with_values(plain, {SPEC: None, RATE: 1.0})]) == ()
    loop = {"workload.arrivals": {"process": "closed_loop", "concurrency": 300}}
    (capture,) = cliffs([with_values(plain, loop)])
    assert capture.startswith("Beyond 128 requests a batch of 4 rows each exceeds the captured CUDA graphs (512 rows)")
    assert cliffs([with_values(plain, {**loop, "engine.max_cudagraph_capture_size": 2048})]) == ()
    schedule = [[1, 32, 3], [33, 1024, 0]]
    scheduled = drafting("eagle3", num_speculative_tokens_per_batch_size=schedule)
    (zero,) = cliffs([with_values(scheduled, {RATE: 1.0})])
    assert zero.startswith("Where the schedule says k = 0 the draft still runs")
    first = with_values(scheduled, {RATE: 1.0, "engine.version": "vllm 0.32 v1"})
    assert any("only piecewise CUDA graphs" in each for each in cliffs([first]))
    ngram = drafting("ngram", num_speculative_tokens_per_batch_size=schedule)
    assert cliffs([with_values(ngram, {RATE: 1.0})]) == ()


def test_a_schedule_leaves_no_pass_of_the_second_runner_s_draft_model_out() -> None:
    shorter = {f"{SPEC}.num_speculative_tokens_per_batch_size": [[1, 64, 1]]}
    draft = {}
    for version in ("vllm 0.32 v1", "vllm 0.32"):
        scenario = with_values(drafting("draft_model", model="llama-3.2-1b"), {"engine.version": version})
        whole, short = (FluidModel.of(each).step(8).draft_s for each in (scenario, with_values(scenario, shorter)))
        draft[version] = short / whole
    assert draft["vllm 0.32 v1"] < 0.5
    assert draft["vllm 0.32"] == pytest.approx(1.0, rel=0.01)  # its first pass takes the target's fewer rows
