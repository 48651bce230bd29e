"""Workloads: requests from a description; every knob changes its own columns and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftcast.errors import CapacityError, InputError, ScenarioError, TraceError
from draftcast.sim.compiled.random_streams import replication_seed
from draftcast.sim.workload.arrivals import (
    ClosedLoop,
    Deterministic,
    Gamma,
    PiecewiseRate,
    Poisson,
    RateSegment,
    TraceArrivals,
)
from draftcast.sim.workload.lengths import Empirical, Exponential, Fixed, LogNormal, Uniform
from draftcast.sim.workload.ragged import occurrence
from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.spec import RequestClass, WorkloadSpec, build_requests, load_traces
from draftcast.sim.workload.traces import TraceSpec, load_trace

CHAT = RequestClass(LogNormal(mean_tokens=200.0, cv=1.0), Exponential(100.0), name="chat", share=3.0, priority=1)
CODE = RequestClass(Uniform(500, 900), Fixed(40), name="code", share=1.0)
BASE = WorkloadSpec(Poisson(5.0), (CHAT, CODE), num_requests=2000)
COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "class_id", "priority")

MOONCAKE = """{"timestamp": 0, "input_length": 1100, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 1000, "input_length": 700, "output_length": 490, "hash_ids": [0, 3]}
{"timestamp": 3000, "input_length": 512, "output_length": 9, "hash_ids": [0]}
"""
ACCEPTANCE = """{"prompt_tokens": 3, "acc_eagle": {"acc_len": [1, 4, 2]}, "acc_ngram": {"acc_len": [3, 3, 3, 3]}}
{"prompt_tokens": 5, "acc_eagle": {"acc_len": [9, 8]}, "acc_ngram": {"acc_len": [2, 2]}}
"""


@pytest.fixture
def mooncake(tmp_path: Path) -> TraceSpec:
    (tmp_path / "mooncake.jsonl").write_text(MOONCAKE)
    return TraceSpec(str(tmp_path / "mooncake.jsonl"))


@pytest.fixture
def recorded(tmp_path: Path) -> TraceSpec:
    (tmp_path / "acceptance.jsonl").write_text(ACCEPTANCE)
    return TraceSpec(str(tmp_path / "acceptance.jsonl"))


def replay(trace: TraceSpec, **fields: Any) -> WorkloadSpec:
    return WorkloadSpec(TraceArrivals(), (RequestClass(Empirical(), Empirical()),), trace=trace, **fields)


def changed(a: RequestTable, b: RequestTable) -> set[str]:
    """Columns in which two tables of equal length differ."""
    return {name for name in COLUMNS if (getattr(a, name) != getattr(b, name)).any()}


def test_classes_have_their_shares_lengths_and_priorities() -> None:
    table = build_requests(replace(BASE, num_requests=20_000), seed=1)
    is_code = table.class_id == 1
    assert table.class_names == ("chat", "code")
    assert is_code.mean() == pytest.approx(0.25, abs=0.015)
    assert set(table.output_tokens[is_code]) == {40}
    assert table.prompt_tokens[is_code].min() >= 500
    assert table.prompt_tokens[~is_code].mean() == pytest.approx(200, rel=0.05)
    assert (table.priority == np.where(is_code, 0, 1)).all()
    assert table.rate_rps == pytest.approx(5.0, rel=0.03)
    none = build_requests(replace(BASE, classes=(CHAT, replace(CODE, share=0.0))), seed=1)
    assert (none.class_id == 0).all()


KNOBS: list[tuple[str, dict[str, Any], set[str]]] = [
    ("rate", {"arrivals": Poisson(6.0)}, {"arrival_s"}),
    ("process", {"arrivals": Deterministic(5.0)}, {"arrival_s"}),
    ("burstiness", {"arrivals": Gamma(5.0, 0.5)}, {"arrival_s"}),
    ("segments", {"arrivals": PiecewiseRate((RateSegment(9.0, 1.0),), repeat=True)}, {"arrival_s"}),
    ("closed loop", {"arrivals": ClosedLoop(4)}, {"arrival_s"}),
    ("priority", {"classes": (replace(CHAT, priority=2), CODE)}, {"priority"}),
    ("prompt", {"classes": (replace(CHAT, prompt_tokens=Fixed(9)), CODE)}, {"prompt_tokens"}),
    ("output", {"classes": (replace(CHAT, output_tokens=Exponential(101.0)), CODE)}, {"output_tokens"}),
    ("code output", {"classes": (CHAT, replace(CODE, output_tokens=Fixed(41)))}, {"output_tokens"}),
    ("share", {"classes": (replace(CHAT, share=1.0), CODE)}, set(COLUMNS[1:])),
    ("name", {"classes": (replace(CHAT, name="talk"), CODE)}, set()),
    ("acceptance", {"classes": (replace(CHAT, acceptance=1, slo=(("ttft_ms", 200.0),)), CODE)}, set()),
    ("action", {"max_model_len_action": "drop"}, set()),
]


@pytest.mark.parametrize(("knob", "fields", "expected"), KNOBS, ids=[k[0] for k in KNOBS])
def test_each_knob_changes_its_columns_and_nothing_else(knob: str, fields: dict[str, Any], expected: set[str]) -> None:
    before, after = build_requests(BASE, seed=7), build_requests(replace(BASE, **fields), seed=7)
    assert changed(before, after) == expected
    if knob == "share":  # who stays in a class keeps its lengths
        same = before.class_id == after.class_id
        assert changed(before.keep(same), after.keep(same)) == set()
    if knob == "code output":  # another class is not touched
        assert changed(before.keep(before.class_id == 0), after.keep(after.class_id == 0)) == set()


def test_seed_and_number_of_requests() -> None:
    table = build_requests(BASE, seed=7)
    assert changed(table, build_requests(BASE, seed=7)) == set()
    assert changed(table, build_requests(BASE, seed=8)) == set(COLUMNS)
    assert changed(table, build_requests(BASE, seed=replication_seed(7, 1))) == set(COLUMNS)
    assert changed(table.slice(0, 100), build_requests(BASE, seed=7, num_requests=100)) == set()


def test_duration_limits_requests() -> None:
    spec = replace(BASE, num_requests=None, duration_s=100.0)
    table = build_requests(spec, seed=7)
    assert 400 < len(table) < 600
    assert table.arrival_s[-1] < 100.0
    assert changed(table, build_requests(BASE, seed=7).slice(0, len(table))) == set()
    assert len(build_requests(spec, seed=7, num_requests=10)) == 10  # the first limit to bind
    ended = replace(spec, arrivals=PiecewiseRate((RateSegment(2.0, 50.0),)), duration_s=1.0)
    assert 30 < len(build_requests(ended, seed=7)) < 70
    with pytest.raises(ScenarioError, match="no request arrives"):
        build_requests(replace(spec, arrivals=Poisson(1e-6)), seed=7)


def test_trace_replay(mooncake: TraceSpec) -> None:
    table = build_requests(replay(mooncake), seed=1)
    source = load_trace(mooncake)
    assert changed(table, source) == set()
    assert table.hash_ids is not None
    assert source.hash_ids is not None
    assert table.hash_ids.tolist() == source.hash_ids.tolist()
    assert table.hash_block_tokens == 512
    assert table.source_file == mooncake.path
    assert table.source_lines is not None
    assert table.source_lines.tolist() == [1, 2, 3]


def test_trace_repeats_when_more_is_asked_for(mooncake: TraceSpec) -> None:
    table, tiled = build_requests(replay(mooncake), seed=1, num_requests=8), load_trace(mooncake).tile(8)
    assert changed(table, tiled) == set()
    assert table.hash_ids is not None
    assert tiled.hash_ids is not None
    assert table.hash_ids.tolist() == tiled.hash_ids.tolist()
    assert "3 requests repeated to make 8" in table.notes[-1]
    assert len(build_requests(replay(mooncake), seed=1, num_requests=2)) == 2
    assert len(build_requests(replay(mooncake, duration_s=10.0), seed=1)) == 7  # 0 1 3 | 4.5 5.5 7.5 | 9
    assert len(build_requests(replay(mooncake, duration_s=10.0), seed=1, num_requests=4)) == 4


def test_trace_rate(mooncake: TraceSpec) -> None:
    spec = replay(mooncake)
    assert build_requests(replace(spec, arrivals=TraceArrivals(time_scale=0.5)), 1).arrival_s.tolist() == [0, 0.5, 1.5]
    assert build_requests(replace(spec, arrivals=TraceArrivals(rate_rps=2.0)), 1).rate_rps == pytest.approx(2.0)
    assert build_requests(replace(spec, arrivals=TraceArrivals(rate_rps=float("inf"))), 1).span_s == 0.0


def test_empirical_lengths_come_in_pairs(mooncake: TraceSpec) -> None:
    lengths = Empirical(mooncake, "sampled")
    spec = WorkloadSpec(Poisson(2.0), (RequestClass(lengths, lengths),), num_requests=300)
    table = build_requests(spec, seed=1)
    pairs = set(zip(table.prompt_tokens.tolist(), table.output_tokens.tolist(), strict=True))
    assert pairs == {(1100, 500), (700, 490), (512, 9)}
    assert changed(table, build_requests(spec, seed=2)) == {"arrival_s", "prompt_tokens", "output_tokens"}
    bounded = Empirical(mooncake, max_tokens=600)
    cut = build_requests(replace(spec, classes=(RequestClass(bounded, Empirical(mooncake)),)), seed=1)
    assert set(cut.prompt_tokens) == {600, 512}
    assert cut.hash_offsets is not None
    assert np.diff(cut.hash_offsets)[:3].tolist() == [2, 2, 1]


def test_classes_may_mix_traces_and_distributions(mooncake: TraceSpec) -> None:
    classes = (RequestClass(Empirical(mooncake), Fixed(5), name="a"), RequestClass(Fixed(7), Fixed(5), name="b"))
    table = build_requests(WorkloadSpec(Poisson(2.0), classes, num_requests=50), seed=1)
    assert table.hash_offsets is not None
    blocks = np.diff(table.hash_offsets)
    assert (blocks[table.class_id == 1] == 0).all()
    assert (blocks[table.class_id == 0] == -(-table.prompt_tokens[table.class_id == 0] // 512)).all()
    assert table.source_lines is None


def test_a_row_taken_again_belongs_to_the_next_copy() -> None:
    assert occurrence(np.array([5, 7, 5, 5, 7])).tolist() == [0, 0, 1, 2, 1]
    assert occurrence(np.zeros(0, dtype=np.int64)).tolist() == []


def test_recorded_acceptance_follows_its_row(recorded: TraceSpec) -> None:
    spec = WorkloadSpec(Poisson(2.0), (RequestClass(Empirical(), Empirical()),), 3, trace=recorded)
    table = build_requests(spec, seed=1)
    assert table.output_tokens.tolist() == [3, 2, 3]
    assert table.acceptance_lengths is not None
    assert table.acceptance_lengths.tolist() == [0, 0, 3, 1, 0, 8, 7, 0, 0, 3, 1]
    named = replace(spec.classes[0], acceptance_trace=recorded)  # naming the same trace changes nothing
    again = build_requests(replace(spec, classes=(named,)), seed=1)
    assert again.acceptance_lengths is not None
    assert again.acceptance_lengths.tolist() == table.acceptance_lengths.tolist()
    ngram = build_requests(replace(spec, trace=replace(recorded, acceptance="acc_ngram")), seed=1)
    assert ngram.output_tokens.tolist() == [4, 2, 4]


def test_recorded_acceptance_for_other_lengths_repeats(recorded: TraceSpec) -> None:
    classes = (RequestClass(Fixed(10), Fixed(7), acceptance_trace=recorded),)
    spec = WorkloadSpec(Poisson(2.0), classes, num_requests=40)
    table = build_requests(spec, seed=1)
    assert table.acceptance_lengths is not None
    rows = {tuple(row) for row in table.acceptance_lengths.reshape(40, 8).tolist()}
    assert rows == {(0, 0, 3, 1, 0, 3, 1, 0), (0, 8, 7, 8, 7, 8, 7, 8)}
    plain = build_requests(replace(spec, classes=(replace(classes[0], acceptance_trace=None),)), seed=1)
    assert plain.acceptance_lengths is None
    assert changed(table, plain) == set()


def test_traces_are_read_once_when_given(mooncake: TraceSpec, recorded: TraceSpec) -> None:
    spec = replay(mooncake)
    spec = replace(spec, classes=(replace(spec.classes[0], acceptance_trace=recorded),))
    traces = load_traces(spec)
    assert set(traces) == {mooncake, recorded}
    Path(mooncake.path).unlink()
    Path(recorded.path).unlink()
    assert len(build_requests(spec, seed=1, traces=traces)) == 3
    with pytest.raises(TraceError, match="no such file"):
        build_requests(spec, seed=1)


def test_max_model_len_error_names_the_line_or_the_request(mooncake: TraceSpec) -> None:
    with pytest.raises(TraceError, match=r"mooncake.jsonl:1: prompt of 1100 .* max_model_len 1000; raise it, or set"):
        build_requests(replay(mooncake), seed=1, max_model_len=1000)
    with pytest.raises(TraceError, match=r"mooncake.jsonl:2: "):
        build_requests(replay(TraceSpec(mooncake.path, start_s=0.5)), seed=1, max_model_len=1189)
    assert len(build_requests(replay(mooncake), seed=1, max_model_len=1600)) == 3  # 1100 + 500 just fits
    drawn = WorkloadSpec(Poisson(1.0), (CODE,), num_requests=5)
    with pytest.raises(
        CapacityError, match=r"request 0: prompt of .* and output of 40 tokens exceed max_model_len 300"
    ):
        build_requests(drawn, seed=1, max_model_len=300)


def test_what_is_left_of_a_trace_is_said(mooncake: TraceSpec) -> None:
    assert (
        build_requests(replay(mooncake), seed=1, num_requests=2)
        .notes[-1]
        .endswith("the first 2 of its 3 requests are served")
    )
    assert not [note for note in build_requests(replay(mooncake), seed=1).notes if "are served" in note]


def test_max_model_len_clip_and_drop(mooncake: TraceSpec) -> None:
    clipped = build_requests(replay(mooncake, max_model_len_action="clip"), seed=1, max_model_len=1000)
    assert clipped.prompt_tokens.tolist() == [999, 700, 512]
    assert clipped.output_tokens.tolist() == [1, 300, 9]
    assert clipped.hash_offsets is not None
    assert clipped.hash_offsets.tolist() == [0, 2, 4, 5]
    assert "clipped 2 of 3 requests" in clipped.notes[-1]
    dropped = build_requests(replay(mooncake, max_model_len_action="drop"), seed=1, max_model_len=1500)
    assert dropped.prompt_tokens.tolist() == [700, 512]
    assert dropped.arrival_s.tolist() == [1.0, 3.0]
    assert "dropped 1 of 3 requests" in dropped.notes[-1]
    with pytest.raises(CapacityError, match="all 3 requests"):
        build_requests(replay(mooncake, max_model_len_action="drop"), seed=1, max_model_len=100)


def test_bad_input(mooncake: TraceSpec, recorded: TraceSpec) -> None:
    empirical = RequestClass(Empirical(), Empirical())
    cases: list[tuple[Any, str]] = [
        (lambda: replace(BASE, classes=()), "at least one request class"),
        (lambda: replace(BASE, classes=(CHAT, CHAT)), "classes.name = 'chat': class names must differ"),
        (lambda: replace(CHAT, share=-1.0), "classes.chat.share = -1.0"),
        (lambda: replace(BASE, classes=(replace(CHAT, share=0.0),)), "at least one share"),
        (lambda: replace(BASE, num_requests=0), "num_requests = 0: must be an integer >= 1"),
        (lambda: replace(BASE, duration_s=float("nan")), "duration_s = nan"),
        (lambda: replace(BASE, max_model_len_action="trim"), "choose one of error, clip, drop"),
        (lambda: build_requests(BASE, 1, num_requests=-3), "num_requests = -3"),
        (lambda: build_requests(BASE, 1, max_model_len=1), "max_model_len = 1"),
        (lambda: build_requests(replace(BASE, num_requests=None), 1), "num_requests: required with poisson"),
        (
            lambda: build_requests(replace(BASE, arrivals=ClosedLoop(2), duration_s=3.0), 1),
            "cannot limit a closed loop",
        ),
        (lambda: build_requests(WorkloadSpec(ClosedLoop(2), (CHAT,)), 1), "required with closed-loop"),
        (lambda: build_requests(WorkloadSpec(TraceArrivals(), (CHAT,)), 1), "arrivals.trace: needs a trace"),
        (
            lambda: build_requests(replace(BASE, classes=(empirical,)), 1),
            "classes.default.prompt_tokens: needs a trace",
        ),
        (lambda: build_requests(replay(recorded), 1), "the trace has no arrival times"),
        (
            lambda: build_requests(replace(BASE, classes=(replace(CHAT, acceptance_trace=mooncake),)), 1),
            "no recorded acceptance",
        ),
    ]
    for make, message in cases:
        with pytest.raises(InputError, match=message) as info:
            make()
        assert "\n" not in str(info.value)
