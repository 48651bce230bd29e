"""What is read out of a run: timeline, differences, fidelity, limits, SLO, verdict, files to take away."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from draftcast.scenarios.compare.comparison import compare, difference, simulate
from draftcast.scenarios.compare.limits import limits_at, operating_point, target_work
from draftcast.scenarios.compare.model_error import setting_error
from draftcast.scenarios.compare.slo_answer import idle_scenario, measured_requests, slo_answer
from draftcast.scenarios.compare.verdict import Side, judge, side
from draftcast.scenarios.run.coverage import fidelity
from draftcast.scenarios.run.deployment import deploy
from draftcast.scenarios.run.fluid import FluidModel
from draftcast.scenarios.run.simulate import measure, serve, simulate_together
from draftcast.scenarios.run.timeline import timeline
from draftcast.scenarios.schema.load import load_scenario, with_values, without_speculation
from draftcast.scenarios.show.run_report import answer_parts, latency_figure, load_words, time_figure, timeline_figure
from draftcast.scenarios.show.tables import html_report, json_bytes
from draftcast.sim.cost import step_time as st
from draftcast.sim.statistics.intervals import Estimate, normal_quantile

NGRAM = "engine.speculative_config={method: ngram, num_speculative_tokens: 3}"
RATES = "acceptance.rates=[0.661, 0.377, 0.216]"
CLIP = "workload.max_model_len_action=clip"
SMALL = ("workload.num_requests=200", "statistics.replications=2")
EXPERTS = "engine.enable_expert_parallel=true"


def estimate(mean: float) -> Estimate:
    return Estimate(mean, mean, mean, 0.0, 2)


def test_timeline_is_the_average_of_each_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftcast.scenarios.run.timeline.STRETCHES", 4)
    requests = pd.DataFrame(
        {
            "arrival_s": [0.0, 2.0, 3.5],
            "first_scheduled_s": [1.0, 2.0, math.nan],
            "finish_s": [3.0, 4.0, math.nan],
        }
    )
    recorded = {
        "replica": 0,
        "start_s": [0.0, 1.0, 3.0],
        "duration_s": [1.0, 1.0, 1.0],
        "kv_used_blocks": [5, 10, 10],
        "running": [1, 1, 0],
        "waiting": [0, 0, 0],
    }
    shown = timeline(requests, pd.DataFrame(recorded), 10)
    assert shown.time_s.tolist() == [0.5, 1.5, 2.5, 3.5]
    assert shown.waiting.tolist() == [1.0, 0.0, 0.0, 0.5]
    assert shown.running.tolist() == [0.0, 1.0, 2.0, 1.0]
    # 5 of 10 blocks from the first step's end at 1 s to the second's at 2 s, then 10 to 4 s, then nobody is there.
    assert shown.kv_usage is not None
    assert shown.kv_usage.tolist() == [0.0, 0.5, 1.0, 1.0]
    assert timeline(requests, None, 10).kv_usage is None


def test_differences_are_paired() -> None:
    slow = [{"mean_e2el_s": value} for value in (1.0, 2.0, 3.0)]
    fast = [{"mean_e2el_s": value - 0.5} for value in (1.0, 2.0, 3.0)]
    found = difference("mean_e2el_s", fast, slow)
    assert found is not None
    assert found.ratio is not None
    assert (found.difference.mean, found.difference.half_width, found.verdict) == (-0.5, 0.0, "better")
    assert found.ratio.mean == 0.75
    back = difference("mean_e2el_s", slow, fast)
    assert back is not None
    assert back.verdict == "worse"
    assert difference("mean_e2el_s", fast, slow, doubt=abs(math.log(found.ratio.mean)) + 1e-6).verdict == "cannot tell"
    assert difference("mean_e2el_s", fast, slow, doubt=abs(math.log(found.ratio.mean)) - 1e-6).verdict == found.verdict
    itself = difference("mean_e2el_s", slow, slow)
    assert itself is not None
    assert (itself.difference.mean, itself.verdict) == (0.0, "cannot tell")


@pytest.mark.parametrize(
    ("figure", "verdict_of_more"),
    [
        ("p99_ttft_s", "worse"),
        ("output_throughput", "better"),
        ("slo_attainment", "better"),
        ("num_steps", "cannot tell"),
    ],
)
def test_what_more_of_a_figure_means(figure: str, verdict_of_more: str) -> None:
    more, less = ([{figure: value + extra} for extra in (0.0, 0.1)] for value in (2.0, 1.0))
    found = difference(figure, more, less)
    assert found is not None
    assert found.verdict == verdict_of_more


def test_runs_that_cannot_be_paired_have_no_interval() -> None:
    found = difference("mean_tpot_s", [{"mean_tpot_s": 2.0}], [{"mean_tpot_s": 1.0}, {"mean_tpot_s": 3.0}])
    assert found is not None
    assert (found.difference.mean, found.verdict) == (0.0, "cannot tell")
    assert math.isnan(found.difference.low)
    assert difference("p99_tpot_s", [{}], [{"p99_tpot_s": 1.0}]) is None
    assert difference("p99_tpot_s", [{"p99_tpot_s": math.nan}], [{"p99_tpot_s": 1.0}]) is None


@pytest.mark.parametrize(
    ("measured", "interpolated", "extrapolated", "word"),
    [(0.7, 0.2, 0.1, "measured"), (0.6, 0.3, 0.1, "interpolated"), (0.0, 0.6, 0.4, "extrapolated")],
)
def test_fidelity_in_a_word(measured: float, interpolated: float, extrapolated: float, word: str) -> None:
    shares = {"measured": measured, "interpolated": interpolated, "extrapolated": extrapolated}
    figures = {f"share_device_time_{name}": estimate(share) for name, share in shares.items()}
    better = {f"share_device_time_{name}": estimate(share) for name, share in zip(shares, (1.0, 0.0, 0.0), strict=True)}
    found = fidelity([better, figures])
    assert found is not None
    assert (found.word, found.shares["extrapolated"]) == (word, extrapolated)
    assert str(found) == f"{word} · {extrapolated:.0%} of device time extrapolated"
    assert fidelity([]) is None


def test_verifying_more_drafts_moves_towards_compute() -> None:
    scenario = load_scenario()
    deployment = deploy(scenario)
    peak, bandwidth = deployment.profile.hardware.ceilings("linear", "bf16")
    points = [operating_point(deployment, 16, k, 512.0) for k in range(4)]
    assert [point.rows for point in points] == [16.0, 32.0, 48.0, 64.0]
    # Weights and KV are read once whatever k is: the bytes barely grow, the FLOPs in proportion to the rows.
    assert points[3].flops / points[0].flops == pytest.approx(4.0, rel=0.01)
    assert points[3].bytes / points[0].bytes == pytest.approx(1.0, rel=0.04)
    weights = deployment.model.weight_bytes("bf16")
    assert points[0].bytes == pytest.approx(weights, rel=0.15)
    assert all(point.bytes / point.seconds < bandwidth for point in points)
    assert points[3].intensity < peak / bandwidth
    crowded = operating_point(deployment, 1024, 3, 512.0)
    assert crowded.flops_per_s / peak > crowded.bytes / crowded.seconds / bandwidth


@pytest.mark.usefixtures("rough_capacity")
@pytest.mark.parametrize(
    ("overrides", "limit", "said"),
    [
        ((), "memory bandwidth", "its bytes at peak bandwidth"),
        (("engine.max_num_seqs=2", "LOAD=12"), "max_num_seqs", "requests wait for one"),
        (("engine.num_gpu_blocks=400", "engine.max_model_len=4608", "LOAD=40"), "KV cache", "of the blocks are in use"),
        (("workload.lengths={prompt_tokens: 6000, output_tokens: 2}", "LOAD=4"), "compute", "prompts included"),
        (("engine.model=opt-125m", NGRAM, RATES, "engine.max_model_len=2048", CLIP), "host", "exposed host work"),
    ],
)
def test_what_limits_has_its_numbers(overrides: tuple[str, ...], limit: str, said: str) -> None:
    changes = [each.replace("LOAD", "workload.arrivals.request_rate_rps") for each in ("LOAD=10", *overrides)]
    scenario = load_scenario(overrides=[*SMALL, *changes])
    own = side(scenario, simulate(scenario))
    assert own.run is not None
    means = {name: each.mean for name, each in own.run.summary["figures"].items()} if own.has_figures else {}
    found = limits_at(scenario, FluidModel.of(scenario), means)
    assert (found.limit, said in found.sentence) == (limit, True), found.sentence


def test_rare_prompts_do_not_make_every_step_read_all_experts() -> None:
    """A mean of rows would: one request's decodes touch 8 of 128 experts, and its prompt nearly all of them."""
    engine = {"model": "qwen3-30b-a3b", "speculative_config": "null"}
    lengths = "workload.lengths={prompt_tokens: 512, output_tokens: 16}"
    scenario = load_scenario(overrides=[*(f"engine.{key}={value}" for key, value in engine.items()), lengths])
    fluid = FluidModel.of(scenario)
    found = limits_at(scenario, fluid, {}, 0.01 * fluid.capacity_rps())
    step = fluid.step(1.0)
    (_, decodes), (share, prompts) = step.kinds
    config, memory = fluid.deployment.settings, fluid.deployment.hardware.ceilings("linear", "bf16")[1]

    def read_s(features: st.Record) -> float:
        parts = target_work(fluid.deployment.model, config, features)
        return sum(float(work.bytes) for _, _, work in parts) / memory

    assert share == pytest.approx(1 / 16, rel=0.1)
    assert read_s(prompts) > 5 * read_s(decodes)
    means = share * read_s(prompts) + (1 - share) * read_s(decodes)
    assert found.memory_share == pytest.approx(means / step.seconds, rel=0.02)


def test_an_lm_head_in_16_bits_has_their_ceiling_also_in_an_fp8_model() -> None:
    scenario = load_scenario(overrides=["engine.quantization=fp8", "engine.speculative_config=null"])
    deployment, f = deploy(scenario), st.empty_record(st.FEATURES)
    st.decode_features(deployment.cost, 64, 0, 100.0, f)
    formats = {family: dtype for family, dtype, _ in target_work(deployment.model, deployment.settings, f)}
    assert (formats["lm_head"], formats["linear"]) == ("bf16", "fp8")


def test_a_run_without_chance_still_has_the_errors_of_step_times() -> None:
    """Fixed lengths and drafts that are always or never accepted: replications do not differ."""
    scenario = load_scenario(overrides=[
        "workload.arrivals={process: closed_loop, concurrency: 224}", "workload.num_requests=448",
        "workload.lengths={prompt_tokens: 100, output_tokens: 40}", "statistics.replications=2",
    ])  # fmt: skip
    asked = with_values(scenario, {"acceptance": {"model": "per_position", "rates": [1.0, 0.0, 0.0]}})
    (point,) = compare(asked).points
    assert point.verdict is not None
    assert point.verdict.word == "too close to call"
    (exact,) = compare(with_values(asked, {"statistics.model_error": "none"})).points
    assert exact.verdict is not None
    assert exact.verdict.word == "costs"
    assert "do not differ" in " ".join(point.on.summary["notes"])
    assert point.on.summary["figures"]["mean_tpot_s"].half_width == 0.0
    error = setting_error(asked)
    tpot = point.side.predicted_figures["mean_tpot_s"]
    assert tpot.high / tpot.mean == pytest.approx(math.exp(normal_quantile(0.95) * error), rel=1e-6)


def test_ranks_share_the_work_of_experts() -> None:
    """Each of 8 ranks reads an eighth of the experts, and a pass of as many rows each costs as many FLOPs."""
    given = ["engine.model=Qwen3-30B-A3B", "engine.speculative_config=null", "engine.quantization=fp8"]
    worked = []
    for spread in ([], ["engine.data_parallel_size=8"], ["engine.data_parallel_size=8", EXPERTS]):
        scenario = load_scenario(overrides=[*given, *spread])
        deployment = deploy(scenario)
        f = st.empty_record(st.FEATURES)
        st.decode_features(deployment.cost, 64, 0, 100.0, f)
        work = [work for _, _, work in target_work(deployment.model, deployment.settings, f)]
        worked.append((sum(float(part.flops) for part in work), sum(float(part.bytes) for part in work)))
    (flops, moved), *spread_out = worked
    for other_flops, other_moved in spread_out:
        assert other_flops == pytest.approx(flops, rel=1e-6)
        assert other_moved < 0.4 * moved


def test_slo_names_its_tightest_bound() -> None:
    scenario = load_scenario(overrides=[*SMALL, "slo={ttft_ms: 1000, tpot_ms: 3.0, e2el_ms: 60000}"])
    run = simulate(scenario)
    idle = simulate(idle_scenario(scenario))
    found = slo_answer(scenario, side(scenario, run), idle)
    assert found is not None
    assert (found.met, found.feasible, found.tightest.key) == (False, False, "tpot_ms")
    assert found.sentence.startswith("SLO infeasible at any load: TPOT within 3 ms is the tightest constraint.")
    easy = load_scenario(overrides=[*SMALL, "slo={ttft_ms: 5000, tpot_ms: 500}"])
    met = slo_answer(easy, side(easy, simulate(easy)))
    assert met is not None
    assert (met.met, met.feasible) == (True, None)
    assert slo_answer(load_scenario(), side(scenario, run)) is None
    for position in ("at", "above"):
        assert slo_answer(easy, Side(run, position)) is None


def test_slo_that_a_lower_load_would_meet() -> None:
    overrides = [*SMALL, "workload.arrivals.request_rate_rps=30", "slo={tpot_ms: 5.0}"]
    scenario = load_scenario(overrides=overrides)
    found = slo_answer(scenario, side(scenario, simulate(scenario)), simulate(idle_scenario(scenario)))
    assert found is not None
    assert (found.met, found.feasible) == (False, True)
    assert found.sentence.startswith("SLO not met at this load: TPOT within 5 ms is the tightest constraint")
    assert found.tightest.met < found.tightest.attainment


@pytest.mark.parametrize(("rate", "word", "advice"), [(4, "pays", "on"), (400, "overloaded", "")])
def test_the_verdict_in_a_sentence(rate: int, word: str, advice: str) -> None:
    overrides = ["workload.num_requests=600", "statistics.replications=2", f"workload.arrivals.request_rate_rps={rate}"]
    scenario = load_scenario(overrides=overrides)
    found = judge(scenario, *simulate_together([scenario, without_speculation(scenario)]))
    sentence = found.sentence(load_words(scenario))
    assert (found.word, found.advice) == (word, advice), sentence
    assert f"at {rate} req/s" in sentence
    assert ("Recommended" in sentence) == bool(advice)


@pytest.mark.parametrize(("clients", "said"), [(1, "with 1 client"), (2, "with 2 clients")])
def test_clients_are_counted(clients: int, said: str) -> None:
    scenario = load_scenario(overrides=[f"workload.arrivals={{process: closed_loop, concurrency: {clients}}}"])
    assert load_words(scenario) == said


def test_a_costly_draft_is_advised_against() -> None:
    overrides = ["workload.num_requests=400", "statistics.replications=2", "acceptance={model: constant, alpha: 0.0}"]
    scenario = load_scenario(overrides=overrides)
    found = judge(scenario, *simulate_together([scenario, without_speculation(scenario)]))
    assert (found.word, found.advice) == ("costs", "off")
    assert "times higher" in found.sentence("at 8 req/s")


def test_pictures_hold_the_run() -> None:
    scenario = load_scenario(overrides=SMALL)
    served = serve(scenario, record_steps="first")
    first, second = served.replications
    run = measure([served.without_steps()])[0]
    assert second.steps is None
    assert run.steps is None
    latency = latency_figure({"SD on": measured_requests(run)}, {"tpot_ms": 20.0})
    kept = run.requests[run.requests["request"] >= run.summary["warmup_requests"][0]]
    ttft_ms = 1e3 * (kept["first_token_s"] - kept["arrival_s"])
    assert latency.data[0].x[60] == pytest.approx(float(np.median(ttft_ms)), rel=1e-6)
    assert latency.data[0].y[60] == 50.0
    bars = {bar.name: bar.x[0] for bar in time_figure({"SD on": run}).data}
    assert sum(bars.values()) == pytest.approx(run.summary["figures"]["mean_e2el_s"].mean, rel=1e-5)
    shown = timeline(first.requests, first.steps, run.summary["engine"]["num_gpu_blocks"] - 1)
    assert [trace.name for trace in timeline_figure(shown).data] == ["waiting", "running", "KV cache"]


def test_a_measured_run_can_be_measured_again() -> None:
    served = serve(load_scenario(overrides=SMALL))
    first, second = measure([served])[0], measure([served, served])[0]
    assert first.replications == second.replications
    assert first.requests.equals(second.requests)


def test_runs_known_alone_are_measured_together_as_if_they_were_not() -> None:
    scenario = load_scenario(overrides=("workload.num_requests=400", "statistics.replications=2"))
    pair = [serve(scenario), serve(with_values(scenario, {"workload.arrivals.request_rate_rps": 45.0}))]
    cuts = [each.warmup.requests for each in pair if each.warmup is not None]
    assert len(set(cuts)) == 2
    alone = [measure([each])[0] for each in pair]
    known, anew = measure(pair, alone), measure(pair)
    assert [run.replications for run in known] == [run.replications for run in anew]
    assert [run.summary["warmup_requests"] for run in known] == [run.summary["warmup_requests"] for run in anew]
    # One of the two had the longest cut already.
    assert [run is before for run, before in zip(known, alone, strict=True)].count(True) == 1


def test_files_to_take_away() -> None:
    assert json.loads(json_bytes({"a": math.nan, "b": (1, 2)})) == {"a": None, "b": [1, 2]}


def test_the_report_needs_no_network() -> None:
    import plotly.graph_objects as go

    figures = [go.Figure(go.Scatter(x=[1], y=[2])), go.Figure(go.Scatter(x=[1], y=[2]))]
    page = html_report("<title>", ["a & b"], {"Figures": pd.DataFrame({"x": [1.23456]})}, figures)
    assert "&lt;title&gt;" in page
    assert "a &amp; b" in page
    assert "1.235" in page
    assert page.count("plotly.js v") == 1
    head = page.split("plotly.js v")[0]
    assert "src=" not in head
    assert "http" not in head


def test_a_run_too_short_for_its_overload_says_what_its_capacity_says() -> None:
    scenario = load_scenario(overrides=[*SMALL, "engine.max_num_seqs=64", "workload.arrivals.request_rate_rps=130"])
    scenario = without_speculation(scenario, **{"workload.lengths": {"prompt_tokens": 32, "output_tokens": 64}})
    run = simulate(scenario)
    assert run.summary["stability"]["state"] == run.state == "not settled"
    placed = side(scenario, run)
    told = run.summary["stability"]
    assert placed.state == told["state"] == "overloaded"
    assert (told["unstable"], told["steady"]) == (True, False)
    assert told["largest_stable_rate_rps"] == placed.capacity_rps.low < 130  # type: ignore[union-attr]


def test_the_answer_names_the_class_that_misses_its_slo() -> None:
    classes = [
        {"name": "chat", "share": 0.5, "slo": {"ttft_ms": 60000, "attainment": 1.0}},
        {"name": "code", "share": 0.5, "slo": {"ttft_ms": 60000, "tpot_ms": 3.0, "attainment": 0.5}},
    ]
    scenario = load_scenario(overrides=[*SMALL, f"workload.classes={json.dumps(classes)}"])
    answer = compare(scenario, compare_off=False)
    told = [part for part in answer_parts(answer, answer.points[0]) if isinstance(part, str)]
    (line,) = [part for part in told if part.startswith("SLO")]
    assert line.startswith("SLO not met at this load: TPOT of code within 3 ms is the tightest constraint")
