"""Metrics on runs small enough to compute by hand, and their agreement with numpy and vLLM's keys."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from request_checks import check_requests, littles_law

from draftcast.errors import InputError
from draftcast.sim.compiled.itl_histogram import (
    ITL_BIN_OFFSET,
    ITL_BINS,
    histogram_mean_std,
    histogram_quantile,
    itl_bin,
    itl_bin_edges,
    itl_histogram,
    segment_of,
    segment_start,
)
from draftcast.sim.output.metrics import LATENCIES, PERCENTILES, compute_metrics, do_not_differ, summarise
from draftcast.sim.output.results import TIME_COLUMNS
from draftcast.sim.output.vllm_result import vllm_result
from draftcast.sim.workload.workload import Slo

# What vLLM 0.32's vllm/benchmarks/serve.py writes: the traffic header, the result, and what --save-detailed keeps.
VLLM_HEADER = {
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate",
    "burstiness", "max_concurrency",
}  # fmt: skip
VLLM_RESULT = {
    "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
    "request_goodput", "output_throughput", "total_token_throughput", "latencies", "queue_times",
    "max_output_tokens_per_s", "max_concurrent_requests", "rtfx",
}  # fmt: skip
VLLM_DETAILED = {"input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors"}
VLLM_SPEC_DECODE = {
    "spec_decode_acceptance_rate", "spec_decode_acceptance_length", "spec_decode_num_drafts",
    "spec_decode_draft_tokens", "spec_decode_accepted_tokens", "spec_decode_per_position_acceptance_rates",
}  # fmt: skip
VLLM_LATENCIES = {
    f"{stat}_{name}_ms"
    for name in ("ttft", "tpot", "itl", "e2el")
    for stat in ("mean", "median", "std", "p50", "p90", "p95", "p99")
}


def table(columns: Mapping[str, Any]) -> pd.DataFrame:
    """A request table with defaults; queue and verify time fill the E2E time."""
    n = len(columns["arrival_s"])
    zero = np.zeros(n, dtype=np.int64)
    frame = pd.DataFrame(
        {
            "request": np.arange(n), "class": ["chat"] * n, "replica": zero, "priority": zero,
            "prompt_tokens": zero + 10, "output_tokens": zero + 1, "cached_tokens": zero, "preemptions": zero,
            "num_drafts": zero, "num_draft_tokens": zero, "num_accepted_tokens": zero,
            **{name: np.zeros(n) for name in TIME_COLUMNS},
        }
    )  # fmt: skip
    for name, values in columns.items():
        frame[name] = np.asarray(values)
    if "first_scheduled_s" not in columns:
        frame["first_scheduled_s"] = frame["arrival_s"]
    frame["time_queue_s"] = frame["first_scheduled_s"] - frame["arrival_s"]
    frame["time_verify_s"] = frame["finish_s"] - frame["first_scheduled_s"]
    return frame


def hand() -> pd.DataFrame:
    """Three requests: 5 tokens, 1 token, 3 tokens; times in sixteenths so that every figure is exact."""
    return table(
        {
            "arrival_s": [0.0, 1.0, 2.0],
            "first_scheduled_s": [0.0, 1.25, 2.5],
            "first_token_s": [0.5, 1.5, 3.0],
            "finish_s": [2.5, 1.5, 4.0],
            "prompt_tokens": [100, 50, 10],
            "output_tokens": [5, 1, 3],
            "class": ["chat", "code", "chat"],
            "cached_tokens": [16, 0, 0],
            "preemptions": [0, 0, 2],
            "num_drafts": [2, 0, 1],
            "num_draft_tokens": [6, 0, 2],
            "num_accepted_tokens": [2, 0, 1],
        }
    )


def queue(rho: float, n: int = 2000, seed: int = 0) -> pd.DataFrame:
    """An M/D/1 queue as a request table: unit service, the first token at a tenth of it, 10 tokens."""
    arrival = np.cumsum(np.random.default_rng(seed).exponential(1 / rho, n))
    before = np.arange(n, dtype=np.float64)
    start = np.maximum.accumulate(arrival - before) + before
    first = {"arrival_s": arrival, "first_scheduled_s": start, "first_token_s": start + 0.1, "finish_s": start + 1.0}
    return table({**first, "output_tokens": np.full(n, 10)})


def test_latencies_by_hand() -> None:
    m = compute_metrics(hand())
    # TTFT 0.5, 0.5, 1.0; E2E 2.5, 0.5, 2.0; TPOT 2.0 / 4 and 1.0 / 2, none for the one-token output.
    assert m["mean_ttft_s"] == pytest.approx(2 / 3)
    assert m["std_ttft_s"] == pytest.approx(np.std([0.5, 0.5, 1.0]))
    assert (m["median_ttft_s"], m["p50_ttft_s"], m["p90_ttft_s"], m["p99_ttft_s"]) == pytest.approx(
        (0.5, 0.5, 0.9, 0.99)
    )
    assert (m["mean_tpot_s"], m["std_tpot_s"], m["p95_tpot_s"]) == (0.5, 0.0, 0.5)
    assert (m["mean_e2el_s"], m["median_e2el_s"]) == (5 / 3, 2.0)
    assert (m["mean_queue_time_s"], m["median_queue_time_s"]) == (0.25, 0.25)
    assert "mean_itl_s" not in m.values


def test_throughput_by_hand() -> None:
    m = compute_metrics(hand(), replicas=2)
    # 3 requests, 160 prompt and 9 output tokens from 0 to 4 s.
    assert (m["duration_s"], m["completed"], m["failed"], m["num_requests"]) == (4.0, 3, 0, 3)
    assert (m["request_throughput"], m["output_throughput"], m["total_token_throughput"]) == (0.75, 2.25, 42.25)
    assert m["output_throughput_per_replica"] == 1.125
    assert math.isnan(m["request_goodput"])
    assert math.isnan(m["slo_attainment"])


def steady(clients: int = 4, turns: int = 20) -> pd.DataFrame:
    """Clients, a second apart, that each send requests of 8 s and 9 tokens one after the other."""
    n = clients * turns
    order = np.arange(n)
    arrival = 8.0 * (order // clients) + order % clients
    times = {"arrival_s": arrival, "first_token_s": arrival, "finish_s": arrival + 8.0}
    return table({**times, "output_tokens": np.full(n, 9)})


def test_a_steady_run_is_measured_between_the_cut_and_the_last_arrival() -> None:
    whole, window = compute_metrics(steady()), compute_metrics(steady(), warmup=8)
    assert (whole["num_requests"], window["num_requests"]) == (80, 72)
    # From 16 s, when request 8 is sent, to 155 s, when request 79 is sent; the last answer comes at 163 s.
    assert (whole["duration_s"], window["duration_s"]) == (163.0, 139.0)
    # Four clients with a token a second each, and a first one that comes at once: 9 tokens in 8 s.
    assert window["output_throughput"] == pytest.approx(4 * 9 / 8, rel=0.01)
    assert whole["output_throughput"] < window["output_throughput"]
    # Requests 4 to 7 were in flight at 16 s (4 ends just then), the last four still are at 155 s.
    assert window["completed"] == 3 + 68
    assert compute_metrics(steady(), warmup=5)["num_requests"] == 72  # rounded up to a twentieth


def test_a_cut_leaves_gaps_and_drafts_of_the_first_requests_out() -> None:
    frame = steady()
    frame.loc[:3, "finish_s"] = frame.loc[:3, "arrival_s"] + 4.0  # alone they are quick
    gaps = np.zeros((20, ITL_BINS), dtype=np.int64)
    gaps[1:, itl_bin(1.0)] = 32
    gaps[0, itl_bin(0.5)] = 32
    drafts = np.zeros((20, 2), dtype=np.int64)
    drafts[:, 0], drafts[0, 1] = 4, 4
    frame["num_drafts"] = 1
    short = compute_metrics(frame, gaps, warmup=4, accepted_per_position=drafts)
    whole = compute_metrics(frame, gaps, accepted_per_position=drafts)
    assert (short["mean_e2el_s"], short["mean_tpot_s"], short["mean_itl_s"]) == (8.0, 1.0, 1.0)
    assert whole["mean_e2el_s"] < 8.0
    assert whole["mean_itl_s"] < 1.0
    rates = [[m[f"acceptance_rate_position_{j}"] for j in range(2)] for m in (short, whole)]
    assert rates == [[1.0, 0.0], [1.0, 0.05]]


IN_FIRST_SEGMENT = np.pad([[2, 1, 0]], ((0, 19), (0, 0)))


def test_acceptance_by_hand() -> None:
    m = compute_metrics(hand(), accepted_per_position=IN_FIRST_SEGMENT)
    assert (m["num_drafts"], m["num_draft_tokens"], m["num_accepted_tokens"]) == (3, 8, 3)
    assert m["mean_acceptance_length"] == 2.0  # 1 + 3 / 3
    assert m["acceptance_rate"] == 0.375
    assert [m[f"acceptance_rate_position_{j}"] for j in range(3)] == [2 / 3, 1 / 3, 0.0]
    assert m["preemptions"] == 2
    assert m["prefix_cache_hit_rate"] == 0.1
    nothing = compute_metrics(table({"arrival_s": [0.0], "first_token_s": [1.0], "finish_s": [1.0]}))
    assert math.isnan(nothing["mean_acceptance_length"])
    assert math.isnan(nothing["acceptance_rate"])


def test_time_breakdown_sums_to_e2e() -> None:
    frame = hand()
    m = compute_metrics(frame)
    assert sum(m[f"mean_{name}"] for name in TIME_COLUMNS) == pytest.approx(m["mean_e2el_s"])
    assert sum(m[f"share_{name.removesuffix('_s')}"] for name in TIME_COLUMNS) == pytest.approx(1.0)
    assert m["mean_time_queue_s"] == 0.25
    check_requests(frame)
    frame.loc[1, "time_host_s"] = 0.1
    with pytest.raises(AssertionError, match="request 1: the time columns"):
        check_requests(frame)


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [("first_token_s", 9.0, "out of order"), ("num_accepted_tokens", 99, "more drafts accepted")],
)
def test_check_requests(column: str, value: float, what: str) -> None:
    frame = hand()
    frame.loc[2, column] = value
    with pytest.raises(AssertionError, match=f"request 2: .*{what}"):
        check_requests(frame)


def test_slo_goodput_by_hand() -> None:
    # TTFT <= 600 ms: requests 0 and 1. TPOT: the one-token output counts as 0. E2E <= 2 s: requests 1 and 2.
    def good(slo: Slo | Mapping[str, Slo]) -> tuple[float, float]:
        m = compute_metrics(hand(), slo=slo)
        return m["request_goodput"] * 4, m["slo_attainment"]

    assert good(Slo(e2el_ms=1e6)) == (3, 1)
    assert good(Slo(ttft_ms=600)) == (2, pytest.approx(2 / 3))
    assert good(Slo(ttft_ms=500)) == (2, pytest.approx(2 / 3))  # the bound itself is met
    assert good(Slo(tpot_ms=100)) == (1, pytest.approx(1 / 3))
    assert good(Slo(e2el_ms=2000)) == (2, pytest.approx(2 / 3))
    assert good(Slo(ttft_ms=600, e2el_ms=2000)) == (1, pytest.approx(1 / 3))
    assert good({"chat": Slo(ttft_ms=600)}) == (2, pytest.approx(2 / 3))
    assert good({"code": Slo(ttft_ms=1), "absent": Slo(ttft_ms=1)}) == (2, pytest.approx(2 / 3))


def test_classes_apart() -> None:
    by_class = compute_metrics(hand(), slo={"chat": Slo(ttft_ms=600)}).by_class
    assert list(by_class) == ["chat", "code"]
    assert by_class["chat"]["num_requests"] == 2
    assert by_class["chat"]["mean_ttft_s"] == 0.75
    assert (by_class["chat"]["slo_attainment"], by_class["code"]["slo_attainment"]) == (0.5, 1.0)
    assert math.isnan(by_class["code"]["mean_tpot_s"])


def test_unfinished_requests() -> None:
    frame = hand()
    frame.loc[2, ["first_token_s", "finish_s"]] = math.nan
    m = compute_metrics(frame, slo=Slo(ttft_ms=1e6))
    assert (m["completed"], m["failed"], m["mean_ttft_s"]) == (2, 1, 0.5)
    assert m["slo_attainment"] == pytest.approx(2 / 3)
    frame["finish_s"] = math.nan
    nothing = compute_metrics(frame)
    assert (nothing["completed"], nothing["request_throughput"]) == (0, 0)
    assert math.isnan(nothing["mean_ttft_s"])


def test_row_order_does_not_matter() -> None:
    frame = queue(0.8)
    shuffled = frame.sample(frac=1.0, random_state=1)
    assert compute_metrics(shuffled).values == pytest.approx(compute_metrics(frame).values, nan_ok=True)


def test_warmup_cut_by_hand() -> None:
    # 40 requests a second apart, each 2 s long with the first token at once and 5 tokens; the first 4 are slower.
    arrival = np.arange(40.0)
    finish = arrival + np.where(arrival < 4, 4.0, 2.0)
    frame = table({"arrival_s": arrival, "first_token_s": arrival, "finish_s": finish, "output_tokens": np.full(40, 5)})
    gaps = itl_histogram(np.repeat((finish - arrival) / 4, 4), np.repeat(np.arange(40), 4), 40)
    m = compute_metrics(frame, gaps, warmup=3)
    assert m.warmup_requests == 4  # 3 rounded up to a twentieth
    assert (m["num_requests"], m["mean_e2el_s"], m["std_e2el_s"], m["mean_itl_s"]) == (36, 2.0, 0.0, 0.5)
    assert m["p99_itl_s"] == pytest.approx(0.5, rel=0.004)
    # After 4 s, to 39 s: requests 0..3 end at 4, 5, 6, 7, with 0, 1, 2, 3 of their 4 later tokens still to come;
    # requests 38 and 39 end at 40 and 41, with 2 and 4 of theirs to come.
    assert (m["duration_s"], m["completed"]) == (35.0, 37)
    assert m["total_output_tokens"] == 36 * 5 + (0 + 1 + 2 + 3) - (2 + 4)
    assert m["total_input_tokens"] == 360
    assert compute_metrics(frame, gaps)["mean_e2el_s"] == 2.2
    assert compute_metrics(frame, gaps, warmup=0).warmup_requests == 0


@pytest.mark.parametrize("warmup", [-1, 1901])
def test_bad_warmup(warmup: int) -> None:
    with pytest.raises(InputError, match=r"warmup = .*at most 1,900"):
        compute_metrics(queue(0.5), warmup=warmup)


@pytest.mark.parametrize("n", [1, 3, 19, 20, 21, 1999, 2000])
def test_segments(n: int) -> None:
    segments = segment_of(np.arange(n), n)
    assert segments.tolist() == [i * 20 // n for i in range(n)]
    for s in range(20):
        assert segment_start(s, n) == int(np.searchsorted(segments, s))


def test_a_run_that_did_not_settle_offers_no_percentiles() -> None:
    frame = queue(1.2)
    counts = itl_histogram(np.full(2000, 0.1), np.arange(2000), 2000)
    m = compute_metrics(frame, counts, warmup=0, percentiles=False)
    held = {f"{stat}_{name}_s" for name in LATENCIES for stat in ("median", *(f"p{p}" for p in PERCENTILES))}
    assert not held & set(m.values)
    assert "mean_ttft_s" in m.values
    result = vllm_result(m.values, frame)
    assert result["p99_ttft_ms"] is None
    assert result["median_itl_ms"] is None
    shown = compute_metrics(frame, counts)
    assert held <= set(shown.values)


def test_summarise() -> None:
    runs = [compute_metrics(queue(0.8, seed=s)).values for s in range(4)]
    summary = summarise(runs)
    assert summary["mean_e2el_s"].n == 4
    assert summary["mean_e2el_s"].mean == pytest.approx(np.mean([r["mean_e2el_s"] for r in runs]))
    # M/D/1: waiting rho / (2 (1 - rho)) = 2, and the unit service.
    assert summary["mean_e2el_s"].contains(3.0)
    assert summary["request_goodput"].n == 0  # no SLO: undefined everywhere
    overloaded = compute_metrics(queue(1.2), percentiles=False).values
    assert "p99_ttft_s" not in summarise([*runs, overloaded])
    assert "p99_ttft_s" not in summarise([overloaded, *runs])


def test_littles_law() -> None:
    frame = queue(0.9)
    law = littles_law(frame)
    assert law.relative_gap < 1e-12
    assert law.mean_time_s == pytest.approx((frame["finish_s"] - frame["arrival_s"]).mean())
    # Steps of 0.5 s over the hand case, each begun before the last one ended: in the system after each end are
    # 1, 2, 1, 2, 1, 1, 1, 0 requests, 4.5 request-seconds in 4 s (the first step, with another 0.5, is not counted).
    steps = pd.DataFrame({"replica": 0, "start_s": 0.5 * np.arange(8) - 0.25, "duration_s": 0.75})
    steps["running"] = [1, 1, 1, 1, 1, 1, 1, 0]
    steps["waiting"] = [0, 1, 0, 1, 0, 0, 0, 0]
    assert littles_law(hand(), steps).in_system == pytest.approx(4.5 / 4)


def test_replications_that_do_not_differ_are_one() -> None:
    row = {"mean_ttft_s": 0.5, "acceptance_rate": math.nan}
    assert do_not_differ([row, dict(row)])
    assert not do_not_differ([row, {**row, "mean_ttft_s": 0.6}])
    assert not do_not_differ([row])
    same = summarise([row] * 5)["mean_ttft_s"]
    assert (same.mean, same.half_width) == (0.5, 0.0)  # nothing was drawn, so chance does nothing
    assert math.isnan(summarise([row])["mean_ttft_s"].half_width)
    rounded = {"mean_ttft_s": 54.47067165572686}  # the mean of three of these is another number
    assert summarise([rounded] * 3)["mean_ttft_s"].half_width == 0.0


def test_histogram_bins() -> None:
    edges = itl_bin_edges()
    assert edges.shape == (ITL_BINS + 1,)
    assert (edges[0], edges[256], edges[-1]) == (2.0**-20, 2.0**-19, 2.0**12)
    assert ITL_BIN_OFFSET == 1003 * 256
    assert (itl_bin(edges[:-1]) == np.arange(ITL_BINS)).all()
    assert (itl_bin(np.nextafter(edges[1:], 0)) == np.arange(ITL_BINS)).all()
    assert itl_bin([0.0, 1e-9, 1e9]).tolist() == [0, 0, ITL_BINS - 1]
    assert float((edges[1:] / edges[:-1] - 1).max()) <= 1 / 256


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [1, 2, 7, 5000])
def test_histogram_error_bound(seed: int, size: int) -> None:
    gaps = np.random.default_rng(seed).lognormal(-4, 1.5, size)
    counts = itl_histogram(gaps, np.zeros(size, dtype=np.int64), 1)
    q = np.linspace(0, 1, 101)
    assert histogram_quantile(counts[0], q) == pytest.approx(np.quantile(gaps, q), rel=0.004)
    mean, std = histogram_mean_std(counts[0])
    assert mean == pytest.approx(gaps.mean(), rel=0.002)
    assert std == pytest.approx(gaps.std(), rel=0.01, abs=0.002 * mean)


def test_empty_histogram() -> None:
    empty = np.zeros(ITL_BINS, dtype=np.int64)
    assert np.isnan(histogram_quantile(empty, [0.5])).all()
    assert all(math.isnan(v) for v in histogram_mean_std(empty))


def test_vllm_keys() -> None:
    frame = hand()
    m = compute_metrics(frame, itl_histogram([0.5], [0], 3))
    without_drafts = VLLM_HEADER | VLLM_RESULT | VLLM_DETAILED | VLLM_LATENCIES
    assert set(vllm_result(m.values, frame)) == without_drafts | VLLM_SPEC_DECODE
    off = queue(0.5)
    assert set(vllm_result(compute_metrics(off).values, off)) == without_drafts


@pytest.mark.live
def test_vllm_keys_are_what_vllm_writes() -> None:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    writer = (Path(spec.origin).parent / "benchmarks" / "serve.py").read_text(encoding="utf-8")
    result = writer[writer.index("if isinstance(metrics, BenchmarkMetrics):\n        result = {") :]
    in_result = set(re.findall(r'^            "(\w+)":', result[: result.index("}")], re.MULTILINE))
    assert in_result == VLLM_RESULT | VLLM_DETAILED
    header = set(re.findall(r'^    result_json\["(\w+)"\] =', writer, re.MULTILINE))
    assert header == VLLM_HEADER
    assert set(re.findall(r'result\["(spec_decode_\w+)"\]', writer)) == VLLM_SPEC_DECODE
    assert {'result[f"mean_{metric_attribute_name}_ms"]', 'result[f"p{p_word}_{metric_attribute_name}_ms"]'} <= set(
        re.findall(r"result\[f.*?\]", writer)
    )


def test_vllm_values_by_hand() -> None:
    frame = hand()
    m = compute_metrics(frame, slo=Slo(ttft_ms=600), accepted_per_position=IN_FIRST_SEGMENT)
    result = vllm_result(m.values, frame, model_id="m", request_rate=2.0, max_concurrency=8)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert (result["request_rate"], result["max_concurrency"], result["tokenizer_id"]) == (2.0, 8, "m")
    assert (result["completed"], result["total_input_tokens"], result["total_output_tokens"]) == (3, 160, 9)
    assert result["request_goodput"] == 0.5
    assert result["mean_ttft_ms"] == pytest.approx(2000 / 3)
    assert result["spec_decode_acceptance_rate"] == 37.5  # percent
    assert result["spec_decode_acceptance_length"] == 2.0
    assert result["spec_decode_per_position_acceptance_rates"] == [2 / 3, 1 / 3, 0.0]
    assert result["output_lens"] == [5, 1, 3]
    assert result["ttfts"] == [0.5, 0.5, 1.0]
    assert result["latencies"] == [2.5, 0.5, 2.0]
    # Request 0 is active in seconds 0 to 2, request 1 in second 1, request 2 in 2 to 4.
    assert result["max_concurrent_requests"] == 2
    # Tokens per second from 0: 1 + 1, 2 + 1, 1, 1 + 2 (request 0 emits 2 a second from 0.5, request 2 from 3).
    assert result["max_output_tokens_per_s"] == pytest.approx(3.0)
    assert vllm_result(compute_metrics(frame).values, frame)["request_goodput"] is None
    assert vllm_result(compute_metrics(frame).values, frame)["request_rate"] == "inf"
