"""``tests/schedule_trace.py``: vLLM's own scheduler recorded, line by line, and bad input."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from typing import Any

import pytest
import schedule_trace
from paths import DATA, TESTS

VERSIONS = ("0.32", "0.33")
RECORDED = [json.loads(gzip.decompress((DATA / f"schedule_traces_{name}.json.gz").read_bytes())) for name in VERSIONS]
TRACES = [trace for recorded in RECORDED for trace in recorded["traces"]]
SMALL: dict[str, Any] = {
    "block_size": 4,
    "num_blocks": 6,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 16,
    "max_model_len": 64,
    "method": "ngram",
    "k": 2,
    "requests": [{"arrival_step": 0, "prompt": 6, "output": 4, "accept": [0, 2]}],
}


def run_main(monkeypatch: pytest.MonkeyPatch, text: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return schedule_trace.main()


@pytest.mark.parametrize("number", range(len(TRACES)))
def test_schedules_what_vllm_schedules(number: int) -> None:
    workload, lines = TRACES[number]["workload"], TRACES[number]["lines"]
    for ours, theirs in zip(schedule_trace.trace(workload), lines, strict=True):
        assert ours == theirs


def test_the_record_is_wide_enough() -> None:
    workloads = [t["workload"] for t in TRACES]
    assert [recorded["vllm"] for recorded in RECORDED] == ["0.32.0", "0.33.0"]
    assert min(recorded["date"] for recorded in RECORDED) >= "2026-11-21"
    assert len(workloads) >= 200
    methods = {w["method"] for w in workloads}
    assert methods >= {"none", "ngram", "draft_model", "eagle", "eagle3", "mtp", "p_eagle", "pard", "dflash", "dspark"}
    assert methods >= {"medusa", "suffix", "ngram_gpu"}
    assert {w["k"] for w in workloads} == set(range(8))
    for key in ("policy", "schedule", "long_prefill_token_threshold", "watermark", "async", "prefix_caching"):
        assert sum(key in w for w in workloads) >= 5, key
        assert sum(key not in w for w in workloads) >= 5, key
    for key in ("max_num_scheduled_tokens", "enable_chunked_prefill"):
        assert any(key in w for w in workloads), key
    # A request that holds fewer computed tokens than before was preempted: it is scheduled more than it ever needs.
    recomputed = [
        i
        for i, t in enumerate(TRACES)
        for r, request in enumerate(t["workload"]["requests"])
        if "prefix_caching" not in t["workload"]
        and sum(line["tokens"].get(str(r), 0) - line["drafts"].get(str(r), 0) for line in t["lines"])
        > request["prompt"] + request["output"] + 1
    ]
    assert len(set(recomputed)) >= 5, "few preemptions"
    assert any(set(line["drafts"].values()) - {t["workload"]["k"]} for t in TRACES for line in t["lines"]), (
        "no trimming"
    )


def test_lines_by_hand(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # 5 usable blocks of 4. 6 tokens: 2 blocks. Then 1 + 2 rows up to slot 9: 3 blocks. Both drafts are rejected, so the
    # next step starts at 7 computed tokens and ends at slot 10; both are accepted, and with 5 tokens the request ends.
    assert run_main(monkeypatch, json.dumps(SMALL)) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(x["tokens"], x["drafts"], x["running"], x["waiting"], x["free_blocks"]) for x in lines] == [
        ({"0": 6}, {}, 1, 0, 3),
        ({"0": 3}, {"0": 2}, 1, 0, 2),
        ({"0": 3}, {"0": 2}, 1, 0, 2),
    ]
    assert [x["step"] for x in lines] == [0, 1, 2]


def test_options_change_the_trace() -> None:
    busy = {
        **SMALL,
        "requests": [{"arrival_step": 0, "prompt": 9, "output": 6, "accept": [1, 2]} for _ in range(3)],
        "num_blocks": 9,
    }
    base = list(schedule_trace.trace(busy))
    for change in (
        {"block_size": 8},
        {"num_blocks": 40},
        {"max_num_seqs": 1},
        {"max_num_batched_tokens": 8},
        {"max_model_len": 12},
        {"method": "none"},
        {"method": "draft_model"},
        {"k": 3},
        {"schedule": [[1, 1, 2], [2, 4, 0]]},
        {"watermark": 0.4},
        {"long_prefill_token_threshold": 4},
        {"max_num_scheduled_tokens": 7},
        {"enable_chunked_prefill": False},
        {"async": True},
        {"prefix_caching": True, "requests": [{**r, "hash_ids": [1, 2]} for r in busy["requests"]]},
        {"policy": "priority", "requests": [{**r, "priority": -i} for i, r in enumerate(busy["requests"])]},
    ):
        assert list(schedule_trace.trace({**busy, **change})) != base, change


def test_no_requests_no_lines() -> None:
    assert list(schedule_trace.trace({**SMALL, "requests": []})) == []


REQUEST = SMALL["requests"][0]
BAD = [
    ("", "Expecting value"),
    ("{", "Expecting property name"),
    ("[]", "workload = []: must be a JSON object"),
    ({"block_size": 4}, "num_blocks: missing; required are block_size, num_blocks"),
    ({**SMALL, "num_blocks": "many"}, "num_blocks = 'many': must be a whole number of at least 1"),
    ({**SMALL, "block_size": 0}, "block_size = 0: must be a whole number of at least 1"),
    ({**SMALL, "k": -1}, "k = -1: must be a whole number of at least 0"),
    ({**SMALL, "method": "telepathy"}, "method = 'telepathy': must be one of none, draft_model"),
    ({**SMALL, "policy": "lifo"}, "policy = 'lifo': must be fcfs or priority"),
    ({**SMALL, "schedule": [[2, 3, 1]]}, "the first range must start at batch size 1"),
    ({**SMALL, "requests": {}}, "requests = {}: must be a list of requests"),
    ({**SMALL, "requests": [7]}, "requests[0] = 7: must be a JSON object"),
    ({**SMALL, "requests": [{"prompt": 3, "output": 1}]}, "requests[0].arrival_step: missing; required are"),
    ({**SMALL, "requests": [REQUEST, {**REQUEST, "output": 0}]}, "requests[1].output = 0: must be a whole number"),
    ({**SMALL, "requests": [{**REQUEST, "accept": []}]}, "requests[0].accept = []: must be a list of at least one"),
    ({**SMALL, "requests": [{**REQUEST, "prompt": 40}]}, "requests[0]: can never be scheduled"),
]


@pytest.mark.parametrize(("workload", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_bad_input_is_one_line_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], workload: Any, message: str
) -> None:
    assert run_main(monkeypatch, workload if isinstance(workload, str) else json.dumps(workload)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


def test_from_the_shell() -> None:
    command = [sys.executable, str(TESTS / "schedule_trace.py")]
    good = subprocess.run(command, input=json.dumps(SMALL), capture_output=True, text=True, check=False)
    assert (good.returncode, len(good.stdout.splitlines()), good.stderr) == (0, 3, "")
    bad = subprocess.run(command, input=b"\xff\xfe", capture_output=True, check=False)
    assert (bad.returncode, bad.stdout, bad.stderr.count(b"\n")) == (2, b"", 1)


def test_sessions_and_system_prompts_of_the_record_are_hit() -> None:
    """Without what they share, a third of the recorded workloads of sessions would be scheduled in another way."""
    shared = [t for t in TRACES if any("session" in r for r in t["workload"]["requests"])]
    for key in ("session", "system_prompt"):
        changed = 0
        for t in shared:
            bare = [{name: value for name, value in r.items() if name != key} for r in t["workload"]["requests"]]
            changed += list(schedule_trace.trace({**t["workload"], "requests": bare})) != t["lines"]
        assert changed > len(shared) / 3, key
