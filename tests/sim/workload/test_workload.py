"""Workloads: requests from a description; every knob changes its own columns and nothing else."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from draftcast.errors import CapacityError, ScenarioError, TraceError
from draftcast.sim.compiled.random_streams import replication_seed
from draftcast.sim.workload.build_requests import build_requests, load_traces
from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.traces import TraceSpec, load_trace
from draftcast.sim.workload.workload import Workload

CHAT: dict[str, Any] = {
    "name": "chat",
    "share": 0.75,
    "priority": 1,
    "lengths": {
        "prompt_tokens": {"distribution": "lognormal", "mean": 200.0, "std": 200.0},
        "output_tokens": {"distribution": "exponential", "mean": 100.0},
    },
}
CODE: dict[str, Any] = {
    "name": "code",
    "share": 0.25,
    "lengths": {"prompt_tokens": {"distribution": "uniform", "low": 500, "high": 900}, "output_tokens": 40},
}
POISSON = {"process": "poisson", "request_rate_rps": 5.0}
BASE: dict[str, Any] = {"arrivals": POISSON, "classes": [CHAT, CODE], "num_requests": 2000}
COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "class_id", "priority")

MOONCAKE = """{"timestamp": 0, "input_length": 1100, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 1000, "input_length": 700, "output_length": 490, "hash_ids": [0, 3]}
{"timestamp": 3000, "input_length": 512, "output_length": 9, "hash_ids": [0]}
"""
ACCEPTANCE = """{"prompt_tokens": 3, "acc_eagle": {"acc_len": [1, 4, 2]}, "acc_ngram": {"acc_len": [3, 3, 3, 3]}}
{"prompt_tokens": 5, "acc_eagle": {"acc_len": [9, 8]}, "acc_ngram": {"acc_len": [2, 2]}}
"""


def build(data: dict[str, Any], seed: int = 7, **arguments: Any) -> RequestTable:
    """The requests of a workload as a scenario file says it."""
    return build_requests(Workload.model_validate(data), seed, **arguments)


def with_lengths(entry: dict[str, Any], **lengths: Any) -> dict[str, Any]:
    return entry | {"lengths": entry["lengths"] | lengths}


@pytest.fixture
def mooncake(tmp_path: Path) -> str:
    (tmp_path / "mooncake.jsonl").write_text(MOONCAKE)
    return str(tmp_path / "mooncake.jsonl")


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    (tmp_path / "acceptance.jsonl").write_text(ACCEPTANCE)
    return str(tmp_path / "acceptance.jsonl")


def replay(path: str, arrivals: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"arrivals": {"process": "trace", "path": path, **(arrivals or {})}, **fields}


def changed(a: RequestTable, b: RequestTable) -> set[str]:
    """Columns in which two tables of equal length differ."""
    return {name for name in COLUMNS if (getattr(a, name) != getattr(b, name)).any()}


def test_classes_have_their_shares_lengths_and_priorities() -> None:
    table = build(BASE | {"num_requests": 20_000}, 1)
    is_code = table.class_id == 1
    assert table.class_names == ("chat", "code")
    assert is_code.mean() == pytest.approx(0.25, abs=0.015)
    assert set(table.output_tokens[is_code]) == {40}
    assert table.prompt_tokens[is_code].min() >= 500
    assert table.prompt_tokens[~is_code].mean() == pytest.approx(200, rel=0.05)
    assert (table.priority == np.where(is_code, 0, 1)).all()
    assert table.mean_gap_s == pytest.approx(0.2, rel=0.03)
    none = build(BASE | {"classes": [CHAT | {"share": 1.0}, CODE | {"share": 0.0}]}, 1)
    assert (none.class_id == 0).all()


KNOBS: list[tuple[str, dict[str, Any], set[str]]] = [
    ("rate", {"arrivals": POISSON | {"request_rate_rps": 6.0}}, {"arrival_s"}),
    ("process", {"arrivals": POISSON | {"process": "deterministic"}}, {"arrival_s"}),
    ("burstiness", {"arrivals": {"process": "gamma", "request_rate_rps": 5.0, "burstiness": 0.5}}, {"arrival_s"}),
    (
        "segments",
        {"arrivals": {"process": "piecewise", "segments": [{"duration_s": 9.0, "request_rate_rps": 1.0}]}},
        {"arrival_s"},
    ),
    ("closed loop", {"arrivals": {"process": "closed_loop", "concurrency": 4}}, {"arrival_s"}),
    ("priority", {"classes": [CHAT | {"priority": 2}, CODE]}, {"priority"}),
    ("prompt", {"classes": [with_lengths(CHAT, prompt_tokens=9), CODE]}, {"prompt_tokens"}),
    (
        "output",
        {"classes": [with_lengths(CHAT, output_tokens={"distribution": "exponential", "mean": 101.0}), CODE]},
        {"output_tokens"},
    ),
    ("code output", {"classes": [CHAT, with_lengths(CODE, output_tokens=41)]}, {"output_tokens"}),
    ("share", {"classes": [CHAT | {"share": 0.5}, CODE | {"share": 0.5}]}, set(COLUMNS[1:])),
    ("name", {"classes": [CHAT | {"name": "talk"}, CODE]}, set()),
    ("acceptance", {"classes": [CHAT | {"acceptance": {"model": "constant", "alpha": 0.5}}, CODE]}, set()),
    ("action", {"max_model_len_action": "drop"}, set()),
]


@pytest.mark.parametrize(("knob", "fields", "expected"), KNOBS, ids=[k[0] for k in KNOBS])
def test_each_knob_changes_its_columns_and_nothing_else(knob: str, fields: dict[str, Any], expected: set[str]) -> None:
    before, after = build(BASE), build(BASE | fields)
    assert changed(before, after) == expected
    if knob == "share":  # who stays in a class keeps its lengths
        same = before.class_id == after.class_id
        assert changed(before.keep(same), after.keep(same)) == set()
    if knob == "code output":  # another class is not touched
        assert changed(before.keep(before.class_id == 0), after.keep(after.class_id == 0)) == set()


def test_a_class_begins_with_its_own_system_prompt_or_the_workload_s() -> None:
    # The workload's three texts come first, then those of each class that has its own.
    classes = [
        {"name": "shared", "share": 0.4},
        {"name": "own", "share": 0.3, "system_prompt": {"tokens": 30, "variants": 2}},
        {"name": "other", "share": 0.3, "system_prompt": {"tokens": 9}},
    ]
    shared = {"system_prompt": {"tokens": 50, "variants": 3}, "lengths": CODE["lengths"]}
    table = build({"arrivals": POISSON, "num_requests": 200, "classes": classes, **shared})
    assert table.system_prompt is not None
    assert table.system_tokens is not None
    begins = set(zip(table.class_id, table.system_prompt, table.system_tokens, strict=True))
    assert begins == {(0, 0, 50), (0, 1, 50), (0, 2, 50), (1, 3, 30), (1, 4, 30), (2, 5, 9)}


def test_seed_and_number_of_requests() -> None:
    table = build(BASE)
    assert changed(table, build(BASE)) == set()
    assert changed(table, build(BASE, 8)) == set(COLUMNS)
    assert changed(table, build(BASE, replication_seed(7, 1))) == set(COLUMNS)
    assert changed(table.slice(0, 100), build(BASE, num_requests=100)) == set()


def test_duration_limits_requests() -> None:
    limited = BASE | {"num_requests": None, "duration_s": 100.0}
    table = build(limited)
    assert 400 < len(table) < 600
    assert table.arrival_s[-1] < 100.0
    assert changed(table, build(BASE).slice(0, len(table))) == set()
    assert len(build(limited, num_requests=10)) == 10  # the first limit to bind
    with pytest.raises(ScenarioError, match=r"workload\.arrivals: no request arrives"):
        build(limited | {"arrivals": POISSON | {"request_rate_rps": 1e-6}})


def test_trace_replay(mooncake: str) -> None:
    table, source = build(replay(mooncake)), load_trace(TraceSpec(path=mooncake))
    assert changed(table, source) == set()
    assert table.hash_ids is not None
    assert source.hash_ids is not None
    assert table.hash_ids.tolist() == source.hash_ids.tolist()
    assert table.hash_block_tokens == 512
    assert table.source_file == mooncake
    assert table.source_lines is not None
    assert table.source_lines.tolist() == [1, 2, 3]


def test_trace_repeats_when_more_is_asked_for(mooncake: str) -> None:
    table = build(replay(mooncake), num_requests=8)
    assert table.arrival_s.tolist() == [0, 1, 3, 4.5, 5.5, 7.5, 9, 10]  # a copy every 3 s + the mean gap of 1.5 s
    assert table.prompt_tokens.tolist() == [1100, 700, 512, 1100, 700, 512, 1100, 700]
    assert table.hash_ids is not None
    # The same pattern in every copy, and nothing shared between them.
    assert table.hash_ids.tolist() == [0, 1, 2, 0, 3, 0, 4, 5, 6, 4, 7, 4, 8, 9, 10, 8, 11]
    assert "3 requests repeated to make 8" in table.notes[-1]
    assert len(build(replay(mooncake), num_requests=2)) == 2
    assert len(build(replay(mooncake, duration_s=10.0))) == 7
    assert len(build(replay(mooncake, duration_s=10.0), num_requests=4)) == 4


def test_trace_rate(mooncake: str, tmp_path: Path) -> None:
    assert build(replay(mooncake, {"time_scale": 0.5})).arrival_s.tolist() == [0, 0.5, 1.5]
    assert build(replay(mooncake, {"request_rate_rps": 2.0})).mean_gap_s == pytest.approx(0.5)
    (tmp_path / "burst").write_text('{"timestamp": 0, "input_length": 1, "output_length": 1}\n' * 2)
    with pytest.raises(TraceError, match="no rate to scale"):
        build(replay(str(tmp_path / "burst"), {"request_rate_rps": 2.0}))
    with pytest.raises(TraceError, match="cannot fill a duration"):
        build(replay(str(tmp_path / "burst"), duration_s=2.0))


def from_file(path: str, **lengths: Any) -> dict[str, Any]:
    return {"arrivals": POISSON, "num_requests": 300, "lengths": {"path": path, **lengths}}


def test_empirical_lengths_come_in_pairs(mooncake: str) -> None:
    sampled = from_file(mooncake, order="sampled")
    table = build(sampled, 1)
    pairs = set(zip(table.prompt_tokens.tolist(), table.output_tokens.tolist(), strict=True))
    assert pairs == {(1100, 500), (700, 490), (512, 9)}
    assert changed(table, build(sampled, 2)) == {"arrival_s", "prompt_tokens", "output_tokens"}


def test_classes_may_mix_traces_and_distributions(mooncake: str) -> None:
    drawn = {"name": "b", "share": 0.5, "lengths": {"prompt_tokens": 7, "output_tokens": 5}}
    classes = [{"name": "a", "share": 0.5, "lengths": {"path": mooncake}}, drawn]
    table = build({"arrivals": POISSON, "classes": classes, "num_requests": 50})
    assert table.hash_offsets is not None
    blocks = np.diff(table.hash_offsets)
    assert (blocks[table.class_id == 1] == 0).all()
    assert (blocks[table.class_id == 0] == -(-table.prompt_tokens[table.class_id == 0] // 512)).all()
    assert table.source_lines is None


def one_class(acceptance: dict[str, Any], **lengths: Any) -> dict[str, Any]:
    entry = {"name": "one", "share": 1.0, "acceptance": {"model": "trace", **acceptance}, "lengths": lengths}
    return {"arrivals": POISSON, "num_requests": 3, "classes": [entry]}


def test_recorded_acceptance_follows_its_row(recorded: str) -> None:
    table = build(one_class({}, path=recorded))
    assert table.output_tokens.tolist() == [3, 2, 3]
    assert table.acceptance_lengths is not None
    assert table.acceptance_lengths.tolist() == [0, 0, 3, 1, 0, 8, 7, 0, 0, 3, 1]
    again = build(one_class({"path": recorded}, path=recorded))  # naming the same file changes nothing
    assert again.acceptance_lengths is not None
    assert again.acceptance_lengths.tolist() == table.acceptance_lengths.tolist()
    ngram = build(one_class({"record": "acc_ngram"}, path=recorded))
    assert ngram.output_tokens.tolist() == [4, 2, 4]


def test_recorded_acceptance_for_other_lengths_repeats(recorded: str) -> None:
    lengths = {"prompt_tokens": 10, "output_tokens": 7}
    drawn = one_class({"path": recorded}, **lengths) | {"num_requests": 40}
    table = build(drawn)
    assert table.acceptance_lengths is not None
    rows = {tuple(row) for row in table.acceptance_lengths.reshape(40, 8).tolist()}
    assert rows == {(0, 0, 3, 1, 0, 3, 1, 0), (0, 8, 7, 8, 7, 8, 7, 8)}
    plain = build(one_class({}, **lengths) | {"num_requests": 40})
    assert plain.acceptance_lengths is None
    assert changed(table, plain) == set()


def test_traces_are_read_once_when_given(mooncake: str, recorded: str) -> None:
    entry = {"name": "one", "share": 1.0, "acceptance": {"model": "trace", "path": recorded}}
    data = replay(mooncake, classes=[entry])
    traces = load_traces(Workload.model_validate(data))
    assert {source.path for source, _ in traces} == {mooncake, recorded}
    Path(mooncake).unlink()
    Path(recorded).unlink()
    assert len(build(data, traces=traces)) == 3
    with pytest.raises(TraceError, match="no such file"):
        build(data)


def test_max_model_len_error_names_the_line_or_the_request(mooncake: str) -> None:
    with pytest.raises(TraceError, match=r"mooncake.jsonl:1: prompt of 1100 .* max_model_len 1000; raise it, or set"):
        build(replay(mooncake), max_model_len=1000)
    with pytest.raises(TraceError, match=r"mooncake.jsonl:2: "):
        build(replay(mooncake, {"start_s": 0.5}), max_model_len=1189)
    assert len(build(replay(mooncake), max_model_len=1600)) == 3  # 1100 + 500 just fits
    drawn = {"arrivals": POISSON, "lengths": CODE["lengths"], "num_requests": 5}
    with pytest.raises(
        CapacityError,
        match=r"workload.lengths \(request 0\): prompt of .* and output of 40 tokens exceed max_model_len 300",
    ):
        build(drawn, max_model_len=300)


def test_a_request_that_only_its_system_prompt_makes_too_long_names_that(mooncake: str) -> None:
    lengths = {"prompt_tokens": 10, "output_tokens": 40}
    drawn = {"arrivals": POISSON, "lengths": lengths, "num_requests": 5, "system_prompt": {"tokens": 251}}
    said = (
        r"prompt of 261 \(251 of them the system prompt's\) and output of 40 tokens exceed max_model_len 300; raise it"
    )
    with pytest.raises(CapacityError, match=rf"^workload\.system_prompt \(request 0\): {said}"):
        build(drawn, max_model_len=300)
    with pytest.raises(CapacityError, match=r"^workload\.lengths \(request 0\): prompt of 261 \(251 of them"):
        build(drawn, max_model_len=45)
    own = [{"name": "chat", "share": 0.0}, {"name": "code", "share": 1.0, "system_prompt": {"tokens": 252}}]
    with pytest.raises(CapacityError, match=r"^workload\.classes\.1\.system_prompt \(request 0\): prompt of 262"):
        build(drawn | {"classes": own}, max_model_len=300)
    own[1] |= {"lengths": {"prompt_tokens": 600, "output_tokens": 40}}
    with pytest.raises(CapacityError, match=r"^workload\.classes\.1\.lengths \(request 0\): prompt of 852"):
        build(drawn | {"classes": own}, max_model_len=300)


def test_what_is_left_of_a_trace_is_said(mooncake: str) -> None:
    assert build(replay(mooncake), num_requests=2).notes[-1].endswith("the first 2 of its 3 requests are served")
    assert build(replay(mooncake)).notes == ()  # all of it, and nothing twice
    # Of a load that goes on the requests asked for count, not those behind them.
    notes = build(replay(mooncake) | {"num_requests": 2}, goes_on=True).notes
    assert [note.rpartition(": ")[2] for note in notes] == ["the first 2 of its 3 requests are served"]


def test_max_model_len_clip_and_drop(mooncake: str) -> None:
    clipped = build(replay(mooncake, max_model_len_action="clip"), max_model_len=1000)
    assert clipped.prompt_tokens.tolist() == [999, 700, 512]
    assert clipped.output_tokens.tolist() == [1, 300, 9]
    assert clipped.hash_offsets is not None
    assert clipped.hash_offsets.tolist() == [0, 2, 4, 5]
    assert "clipped 2 of 3 requests" in clipped.notes[-1]
    dropped = build(replay(mooncake, max_model_len_action="drop"), max_model_len=1500)
    assert dropped.prompt_tokens.tolist() == [700, 512]
    assert dropped.arrival_s.tolist() == [1.0, 3.0]
    assert "dropped 1 of 3 requests" in dropped.notes[-1]
    with pytest.raises(CapacityError, match=r"engine\.max_model_len = 100: all 3 requests"):
        build(replay(mooncake, max_model_len_action="drop"), max_model_len=100)


def test_recordings_without_what_is_asked_of_them_are_refused(mooncake: str, recorded: str) -> None:
    with pytest.raises(TraceError, match="the trace has no arrival times"):
        build(replay(recorded))
    with pytest.raises(TraceError, match="no recorded acceptance"):
        build(one_class({"path": mooncake}, prompt_tokens=10, output_tokens=7))


def arrivals(process: str, **fields: Any) -> dict[str, Any]:
    return {"arrivals": {"process": process, **fields}}


def prompts(distribution: str, **fields: Any) -> dict[str, Any]:
    counts = {"distribution": distribution, **fields}
    return {"classes": [], "lengths": {"prompt_tokens": counts, "output_tokens": 1}}


SEGMENT = {"duration_s": 1.0, "request_rate_rps": 0.0}
BAD: list[tuple[dict[str, Any], str]] = [
    (arrivals("poisson", request_rate_rps=-1.0), "greater than 0"),
    (arrivals("poisson", request_rate_rps=math.inf), "finite"),
    (arrivals("poisson", request_rate_rps="8"), "valid number"),
    (arrivals("poisson", request_rate_rps=True), "valid number"),
    (arrivals("poisson"), "Field required"),
    (arrivals("poisson", rate=1.0), "unknown key; did you mean request_rate_rps"),
    (arrivals("gamma", request_rate_rps=1.0, burstiness=0.0), "burstiness"),
    (arrivals("piecewise", segments=[]), "at least 1 item"),
    (arrivals("piecewise", segments=[SEGMENT]), "at least one segment needs a request_rate_rps above 0"),
    (arrivals("piecewise", segments=[SEGMENT | {"request_rate_rps": -2.0}]), "greater than or equal to 0"),
    (arrivals("piecewise", segments=[SEGMENT | {"duration_s": 9e8, "request_rate_rps": 1}] * 2), "at most 1e"),
    (arrivals("trace", path="x", time_scale=2.0, request_rate_rps=3.0), "not both"),
    (arrivals("trace", path="x", time_scale=0.0), "greater than 0"),
    (arrivals("trace", path="x", start_s=2.0, stop_s=1.0), "must be above start_s = 2.0"),
    (arrivals("closed_loop", concurrency=0), "greater than or equal to 1"),
    (arrivals("weibull"), "does not match any of the expected tags: 'poisson', 'gamma', 'deterministic'"),
    (prompts("constant", value=0), "greater than or equal to 1"),
    (prompts("constant", value=2.5), "valid integer"),
    (prompts("exponential", mean=5, min=4, max=3), "must be at least min = 4"),
    (prompts("exponential", mean=0.0), "mean"),
    (prompts("exponential", mean=math.nan), "finite"),
    (prompts("uniform", low=5, high=4), "must be at least low = 5"),
    (prompts("gamma", mean=5.0, std=0.0), "std"),
    (prompts("geometric", mean=0.5), "greater than or equal to 1"),
    (prompts("empirical", values=[]), "at least 1 item"),
    (prompts("empirical", values=[1, 2], weights=[1.0]), "needs one weight for each of the 2 values"),
    (prompts("empirical", values=[1, 2], weights=[0.0, 0.0]), "at least one weight must be above 0"),
    (prompts("pareto"), "expected tags: 'constant', 'uniform', 'lognormal'"),
    ({"num_requests": None}, "required with poisson arrivals"),
    ({"num_requests": 0}, "greater than or equal to 1"),
    (arrivals("closed_loop", concurrency=2) | {"duration_s": 3.0}, "not with closed_loop arrivals"),
    ({"classes": [CHAT, CHAT]}, "class names must differ"),
    ({"classes": [CHAT]}, "shares must sum to 1"),
    ({"classes": []}, "required: prompt_tokens and output_tokens"),
    ({"max_model_len_action": "trim"}, "'error', 'clip' or 'drop'"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        Workload.model_validate(BASE | change)
