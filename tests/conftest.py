"""Fixtures of the engine's tests: a replica over a few requests, step costs that are easy numbers, a log by step.

They come as fixtures because tests are imported one by one (``--import-mode=importlib``) and cannot import each other.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import math
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import yaml
from acceptance_formulas import recording
from hypothesis import settings as hypothesis_settings
from paths import DATA
from rough_capacity import EFFORT

from draftcast.scenarios.compare import capacity
from draftcast.scenarios.sweep.cells import run_task
from draftcast.scenarios.sweep.workers import LocalWorkers
from draftcast.sim.acceptance.compile import compile_acceptance
from draftcast.sim.acceptance.model import AcceptanceModel, Trace
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.methods import Method, get_method
from draftcast.sim.engine.replica import Replica, request_rows
from draftcast.sim.output import results
from draftcast.sim.policies.base import Policy
from draftcast.sim.policies.schedule import Fixed
from draftcast.sim.state.engine import STOP_OUTPUT
from draftcast.sim.workload.request_table import RequestTable

# The same examples in every run, so that one change's gate does not fail for another's fault; look for new faults with
# `pytest --hypothesis-profile=default --hypothesis-seed=N`.
hypothesis_settings.register_profile("same examples", derandomize=True)
hypothesis_settings.load_profile("same examples")


# Files of half a minute and more begin first, so that no process is left with one when the others are done.
LONG_FILES = (
    "test_dashboard_browser.py",
    "test_packaging.py",
    "test_before.py",
    "test_live_report.py",
    "test_recommend.py",
    "test_calibrate_to.py",
    "test_sweep.py",
    "test_live_sweep.py",
    "test_dashboard_capacity.py",
    "test_shipped_profiles.py",
    "test_cutover.py",
    "test_documented_commands.py",
    "test_server.py",
    "test_sweep_cluster.py",
    "test_plan.py",
    "test_dashboard_pages.py",
    "test_notebooks.py",
    "test_calibrate_cli.py",
    "test_queueing.py",
    "test_acceptance.py",
    "test_hostile_inputs.py",
    "test_servers.py",
    "test_kernel_rejection_lossless.py",
    "test_live_run.py",
    "test_validate.py",
)


COLLECTED = pytest.StashKey[list[str]]()
gc.disable()  # until all tests are collected: looking through them again and again takes a tenth of that time


@pytest.hookimpl(tryfirst=True)  # before any are deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[COLLECTED] = [item.nodeid for item in items]
    places = {name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONG_FILES)))
    gc.freeze()  # what was imported and collected stays; the collector need not look through it
    gc.enable()


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> list[str] | None:
    """The ids of all tests that are to be run here and of those deselected by marks; None where some were left out."""
    asked = {Path(name).resolve() for name in request.config.args}
    return request.config.stash[COLLECTED] if asked == {Path(__file__).parent} else None


def as_method(method: str | Method) -> Method:
    return method if isinstance(method, Method) else get_method(method)


def easy_cost(
    *,
    step_s: float = 1.0,
    row_s: float = 0.125,
    kv_s: float = 0.0,
    host_s: float = 0.0,
    host_hides: bool = True,
    draft_s: float = 0.0,
    draft_token_s: float = 0.0,
    search_fraction: float = 0.0,
    method: str | Method = "none",
    is_async: bool = True,
) -> st.StepCost:
    """A step takes ``step_s + row_s * rows + kv_s * cached tokens``; eighths of a second are exact in binary.

    The draft adds ``draft_s`` to every step and ``draft_token_s`` per draft made; text search a fraction of the target.
    """
    params = np.zeros(1, st.PARAMS)
    params[0]["affine"] = 1
    params[0]["host_hides"] = host_hides and is_async
    params[0]["plan"] = as_method(method).plan
    params[0]["host_fixed_s"] = host_s
    params[0]["fit_target"]["fixed_s"] = step_s
    params[0]["fit_target"]["row_s"] = row_s
    params[0]["fit_target"]["kv_token_s"] = kv_s
    params[0]["fit_draft"]["fixed_s"] = draft_s
    params[0]["fit_draft"]["draft_token_s"] = draft_token_s
    params[0]["fit_search_fraction"] = search_fraction
    params[0]["fit_high_seqs"] = 1e9
    return st.cost_without_tables(params)


def table_cost(target_s: list[float], first_s: float = 0.0, pass_s: float = 0.0, host_s: float = 0.0) -> st.StepCost:
    """EAGLE: a target pass takes ``target_s[rows]``, the first draft pass ``first_s``, every later one ``pass_s``."""
    params = np.zeros(1, st.PARAMS)
    params[0]["plan"] = get_method("eagle").plan
    params[0]["tree_width"] = 1.0
    params[0]["host_hides"] = 1
    params[0]["host_fixed_s"] = host_s

    def table(seconds: Any) -> np.ndarray:
        column = np.asarray(seconds, float)
        return np.stack([column, np.zeros_like(column), np.zeros_like(column)], axis=1)

    rows = len(target_s)
    none = table(np.zeros(rows))
    first, later = table(np.full(rows, first_s)), table(np.full(rows, pass_s))
    cost = st.cost_without_tables(params, table(target_s))
    return cost._replace(logits=none, draft_first=first, draft_next=later, draft_logits=none, draft_serial=none)


class Step(NamedTuple):
    """One collected step: when it was scheduled, ran and was collected, what each request did, blocks held after it."""

    schedule_s: float
    launch_s: float
    end_s: float
    collect_s: float
    rows: dict[int, tuple[int, int, int]]  # request: scheduled tokens, drafts verified among them, drafts accepted
    next_drafts: dict[int, int]
    used_blocks: int


@dataclass
class Case:
    """Requests, and the replicas that may serve them; nothing has been sent yet."""

    table: RequestTable
    replicas: list[Replica]

    @property
    def replica(self) -> Replica:
        return self.replicas[0]

    @property
    def rows(self) -> Any:
        return self.replica.state.requests

    def send(self) -> Case:
        """Send all requests to the first replica."""
        self.replica.submit(np.arange(len(self.table), dtype=np.uint32))
        return self

    def serve(self) -> Case:
        """Send all requests to the first replica and run it, in one compiled call, until it is idle."""
        self.send().replica.advance(math.inf)
        return self

    def collected(self) -> Iterator[tuple[Any, Any]]:
        """Send all requests and run step by step: the batch and its entries, each as it was just collected."""
        self.send()
        while self.replica.advance(math.inf, stop_on_output=True) == STOP_OUTPUT:
            s = self.replica.state
            slot = int(s.engine[0]["first_batch"]) ^ 1  # collected just now, not overwritten yet
            yield s.batch[slot].copy(), s.entries[slot][: s.batch[slot]["size"]].copy()

    def log(self) -> list[Step]:
        """Send all requests and run step by step."""
        steps = []
        for batch, entries in self.collected():
            self.replica.check_integrity()
            e = self.replica.state.engine[0]
            rows = {int(x["request"]): (int(x["tokens"]), int(x["drafts"]), int(x["accepted"])) for x in entries}
            drafts = {int(x["request"]): int(x["next_drafts"]) for x in entries if x["next_drafts"]}
            used = self.replica.config.num_gpu_blocks - 1 - int(e["free_blocks"])
            times = [float(v) for v in (batch["schedule_s"], batch["launch_s"], batch["end_s"], e["host_s"])]
            steps.append(Step(*times, rows, drafts, used))
        return steps

    def requests(self, assigned: Any = 0) -> pd.DataFrame:
        """One row per request, as in a result."""
        return results.requests_frame(
            self.replicas, self.table, np.full(len(self.table), assigned, np.int32), slice(len(self.table))
        )


def build_case(
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    arrival_s: Sequence[float] | None = None,
    priority: Sequence[int] | None = None,
    hash_ids: Sequence[Sequence[int]] | None = None,
    hash_block_tokens: int = 4,
    method: str | Method = "none",
    k: int = 0,
    policy: Policy | None = None,
    accept: Sequence[Sequence[int]] | AcceptanceModel | None = None,
    confidence: float | None = None,
    seed: int = 0,
    cost: dict[str, Any] | st.StepCost | None = None,
    replicas: int = 1,
    **settings: Any,
) -> Case:
    """Replicas of one engine over the given requests.

    Args:
        accept: accepted drafts by output position, one list per request, or a model. Position 1 is the round that is
            verified when one output token exists.
        confidence: how much the draft's confidence tells, 0 to 1; None for a draft without one.
        cost: arguments of ``easy_cost``, or a step cost.
        settings: fields of ``EngineConfig``.
    """
    facts = as_method(method)
    hashes: dict[str, Any] = {}
    if hash_ids is not None:
        hashes = {
            "hash_ids": np.array([h for ids in hash_ids for h in ids], np.int64),
            "hash_offsets": np.cumsum([0, *map(len, hash_ids)]).astype(np.int64),
            "hash_block_tokens": hash_block_tokens,
        }
    table = RequestTable.from_columns(prompt, output, arrival_s, priority=priority, **hashes)
    policy = policy or Fixed()
    small: dict[str, Any] = {
        "block_size": 4,
        "num_gpu_blocks": 101,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 64,
        "enable_prefix_caching": hash_ids is not None,
        "method": facts,
        "num_speculative_tokens": k,
        "is_dynamic": policy.is_dynamic,
    }
    engine = EngineConfig(**(small | settings))
    model = accept if isinstance(accept, AcceptanceModel) else Trace(model="trace")
    recorded = {} if isinstance(accept, AcceptanceModel) else recording(accept or [[0]] * len(table))
    acceptance = compile_acceptance([model], table.class_id, seed, k, confidence=[confidence], **recorded)
    if isinstance(cost, st.StepCost):
        step_cost = cost
    else:
        step_cost = easy_cost(**{"method": method, "is_async": engine.async_scheduling, **(cost or {})})
    rows = request_rows(table)
    made = [
        Replica(
            engine,
            rows,
            table,
            policy,
            step_cost,
            acceptance,
            record_steps=True,
        )
        for _ in range(replicas)
    ]
    return Case(table, made)


@pytest.fixture(name="easy_cost")
def easy_cost_fixture() -> Any:
    """``easy_cost``: a step cost of easy numbers."""
    return easy_cost


@pytest.fixture(name="table_cost")
def table_cost_fixture() -> Any:
    """``table_cost``: a step cost whose target pass takes a given time at every number of rows."""
    return table_cost


@pytest.fixture(name="build_case")
def build_case_fixture() -> Any:
    """``build_case``: requests and replicas that are ready to serve them."""
    return build_case


def running_children(of: int | str = "self") -> dict[int, str]:
    """Processes that a process of this machine started and that still run: number and command line.

    Left out is the helper that ``multiprocessing`` starts once and keeps as long as the process lives.
    """
    found = {}
    for listed in Path(f"/proc/{of}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread ended just now
            for child in listed.read_text().split():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the child did
                    folder = Path("/proc", child)
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()  # empty at the very start
                    ended = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
                    if not ended and "multiprocessing.resource_tracker" not in command:
                        found[int(child)] = command
    return found


@pytest.fixture(scope="module", autouse=True)
def _no_process_outlives_its_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests that count processes, or that need the machine to themselves, run in this process later."""
    before = running_children()
    yield
    left = {pid: command for pid, command in running_children().items() if pid not in before}
    # What vLLM keeps in a live test's own process is vLLM's.
    assert not left or request.node.get_closest_marker("live"), f"left running: {left}"


@pytest.fixture
def children() -> Callable[..., list[int]]:
    """``children(of)``: what runs of the processes another one started; of this process, since the test began.

    Earlier tests and fixtures of wider scope may have processes of their own in this one.
    """
    before = running_children()

    def started(of: int | str = "self") -> list[int]:
        return [pid for pid in running_children(of) if pid not in before]

    return started


@pytest.fixture(name="played", scope="session")
def played_fixture() -> Any:
    """``played``: the module that plays live runs, see ``played_run.py``."""
    spec = importlib.util.spec_from_file_location("played_run", Path(__file__).with_name("played_run.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["played_run"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(name="profile", scope="session")
def profile_fixture(played: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of the step time that played servers have."""
    path = tmp_path_factory.mktemp("true") / "true.yaml"
    path.write_text(yaml.safe_dump(played.TRUE_PROFILE))
    return path


@pytest.fixture(scope="session")
def sweep_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The JSON of a report about a recorded live sweep, with the Markdown beside it."""
    from draftcast.scenarios.live.validate.sweep import validate_sweep
    from draftcast.scenarios.show.validation_sweep_report import write_sweep_report

    runs, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("report")
    with tarfile.open(DATA / "before_runs.tar.xz") as archive:
        archive.extractall(runs, filter="data")
    write_sweep_report(validate_sweep(runs, out=out), out)
    return out / "sweep-validation.json"


@pytest.fixture
def rough_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, for a test of what is done with capacities, not of their values (``rough_capacity.py``)."""
    for name, value in EFFORT.items():
        monkeypatch.setattr(capacity, name, value)


@pytest.fixture
def sweeps_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps compute their cells in this process: a worker takes seconds to start."""
    monkeypatch.setattr(LocalWorkers, "_compute", lambda workers, task: run_task(task))


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``refused(*arguments)``: the ``draftcast`` command must refuse them: exit code 2, one line and nothing else.

    Returns the line.
    """
    from draftcast.scenarios.cli.main import main

    def refused(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["draftcast", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        assert left.value.code == 2, printed.err
        assert printed.out == ""
        assert printed.err.startswith("draftcast: error: ")
        assert printed.err.count("\n") == 1, printed.err
        return printed.err

    return refused


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A session of the dashboard without a page."""
    pytest.importorskip("streamlit")
    from draftcast.dashboards.session.session import ScenarioPair, Session

    state: dict[str, Any] = {}
    monkeypatch.setattr("streamlit.session_state", state)
    state["session"] = Session(ScenarioPair.opening("default"))
    yield state["session"]
    state["session"].folder.cleanup()
