"""The simulated scheduler against vLLM's own classes, line by line, over random workloads (``workloads.py``).

In-process, because loading vLLM takes longer than hundreds of workloads; the next vLLM's, of which ``make live-env``
fetches the Python alone, in one process of its own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import schedule_trace
from paths import shared_data

pytestmark = pytest.mark.live

HERE = Path(__file__).parent
REFERENCE = shared_data("reference/vllm_schedule.py")
# What the reference script does not take.
NOT_IN_REFERENCE = ("max_num_scheduled_tokens", "enable_chunked_prefill")
AT_ONCE = 40
NEXT_VLLM = Path(sys.prefix) / "vllm-0.33"


def load(name: str) -> ModuleType:
    """A module that lies beside this file; tests are not on the import path."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


workloads = load("workloads")


@pytest.fixture(scope="module")
def drive() -> Callable[[dict[str, Any]], Iterator[dict[str, Any]]]:
    """vLLM's scheduler as a generator of records."""
    pytest.importorskip("vllm", reason="make live-env")
    return load("vllm_scheduler_driver").drive  # type: ignore[no-any-return]


def compare(number: int, workload: dict[str, Any], theirs: list[Any], ours: Iterable[Any]) -> None:
    """Assert equality; a failure names the first line that differs and the workload. ``ours`` may be endless."""
    for step, (a, b) in enumerate(itertools.zip_longest(itertools.islice(ours, len(theirs) + 1), theirs)):
        assert a == b, f"workload {number}, call {step}: {json.dumps(workload)}\n  draftcast {a}\n  vLLM      {b}"


@pytest.mark.parametrize(
    ("start", "options"),
    [
        *((start, {}) for start in range(0, 160, AT_ONCE)),
        *((start, {"methods": workloads.EVERY_METHOD}) for start in range(2000, 2080, AT_ONCE)),
        *((3000 + AT_ONCE * n, {"methods": workloads.EVERY_METHOD, "linear_groups": n}) for n in range(1, 4)),
        *((4000 + AT_ONCE * n, {"methods": workloads.EVERY_METHOD, "stages": n}) for n in range(2, 5)),
        *(
            (5000 + AT_ONCE * n, {"methods": workloads.EVERY_METHOD, "window_kind": kind})
            for kind in ("sliding", "chunked")
            for n in range(2)
        ),
        *((start, {"methods": workloads.EVERY_METHOD, "prefix_caching": True}) for start in range(1000, 1120, AT_ONCE)),
        *((start, {"methods": workloads.EVERY_METHOD, "sessions": True}) for start in range(6000, 6160, AT_ONCE)),
    ],
)
def test_schedules_what_vllm_schedules(drive: Any, start: int, options: dict[str, Any]) -> None:
    lines = 0
    preempted = False
    for number in range(start, start + AT_ONCE):
        workload = workloads.random_workload(number, **options)
        theirs = list(drive(workload))
        compare(number, workload, theirs, schedule_trace.trace(workload))
        lines += len(theirs)
        preempted |= any(
            b["running"] < a["running"] and b["waiting"] > a["waiting"] for a, b in itertools.pairwise(theirs)
        )
    assert lines > 40 * AT_ONCE, "the workloads are too small to say anything"
    assert preempted, "no workload preempts: blocks are never scarce"


def test_schedules_what_the_next_vllm_schedules() -> None:
    pytest.importorskip("vllm", reason="make live-env")
    every: dict[str, Any] = {"methods": workloads.NEXT_METHODS}
    kinds = [{}, every, *({**every, "window_kind": kind} for kind in ("sliding", "chunked"))]
    kinds += [{**every, "linear_groups": 2}, {**every, "stages": 2}]
    kinds += [{**every, "prefix_caching": True}, {**every, "sessions": True}] * 3
    asked = [
        workloads.random_workload(1000 * index + number, version=workloads.NEXT, **kind)
        for index, kind in enumerate(kinds)
        for number in range(AT_ONCE)
    ]
    done = subprocess.run(
        [sys.executable, HERE / "vllm_scheduler_driver.py"],
        input="\n".join(map(json.dumps, asked)),
        env=os.environ | {"PYTHONPATH": str(NEXT_VLLM)},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    version, *traces = done.stdout.splitlines()
    assert version == workloads.NEXT, "another vLLM was driven"
    for number, (workload, theirs) in enumerate(zip(asked, map(json.loads, traces), strict=True)):
        compare(number, workload, theirs, schedule_trace.trace(workload))


@pytest.fixture(scope="module")
def printed_by_reference() -> Callable[[dict[str, Any]], list[str]]:
    """What the reference script prints for a workload; it runs its ``main`` when loaded, and again when called."""
    pytest.importorskip("vllm", reason="make live-env")
    if not REFERENCE.exists():
        pytest.skip(f"{REFERENCE} is not there")
    main: Callable[[], None] | None = None

    def run(workload: dict[str, Any]) -> list[str]:
        nonlocal main
        out, stdin = io.StringIO(), sys.stdin
        sys.stdin = io.StringIO(json.dumps(workload))
        try:
            with contextlib.redirect_stdout(out):
                if main is None:
                    main = runpy.run_path(str(REFERENCE))["main"]
                else:
                    main()
        finally:
            sys.stdin = stdin
        return out.getvalue().splitlines()

    return run


@pytest.mark.parametrize("start", range(3000, 3200, AT_ONCE))
def test_prints_what_the_reference_prints(printed_by_reference: Any, monkeypatch: Any, capsys: Any, start: int) -> None:
    for number in range(start, start + AT_ONCE):
        workload = workloads.random_workload(number)
        for key in NOT_IN_REFERENCE:
            workload.pop(key, None)
        theirs = printed_by_reference(workload)
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(workload)))
        assert schedule_trace.main() == 0
        compare(number, workload, theirs, capsys.readouterr().out.splitlines())
