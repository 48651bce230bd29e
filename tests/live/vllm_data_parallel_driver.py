"""Drive vLLM's own data-parallel parts, coordinator, router and busy loops, in virtual time, without a model."""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import msgspec
from vllm.config import ParallelConfig
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequestType
from vllm.v1.engine import coordinator as module
from vllm.v1.engine.core import DPEngineCoreProc
from vllm.v1.engine.core_client import DPLBAsyncMPClient
from vllm.v1.metrics.stats import SchedulerStats


class _End(Exception):
    """The script is over."""


class _Socket:
    """A socket of the coordinator: what it sends is kept, what it receives is handed in."""

    def __init__(self, receive: Any, send: Any) -> None:
        self.recv, self.send = receive, send

    def __enter__(self) -> _Socket:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def send_multipart(self, parts: Any) -> None:
        """Messages to engines, which nobody listens to here."""


def publications(messages: list[dict[str, Any]], ranks: int, *, lockstep: bool, end_ms: float) -> list[Any]:
    """(milliseconds, counts) of each publication; messages hold ms, rank, counts, wave and step."""
    now_ms, left, published = 0.0, list(messages), []

    def poll(timeout: float) -> list[Any]:
        nonlocal now_ms
        if left and left[0]["ms"] < now_ms + timeout:
            now_ms = max(now_ms, left[0]["ms"])
            return [(back, 1)]
        now_ms += timeout
        if now_ms > end_ms:
            raise _End
        return []

    def receive() -> bytes:
        message = left.pop(0)
        waiting, running, usage = message["counts"]
        stats = SchedulerStats(running, waiting, kv_cache_usage=usage)
        stats.step_counter, stats.current_wave = message["step"], message["wave"]
        outputs = EngineCoreOutputs(scheduler_stats=stats)
        outputs.engine_index = message["rank"]
        return msgspec.msgpack.encode(outputs)

    def send(data: bytes) -> None:
        counts, *_ = msgspec.msgpack.decode(data)
        published.append((now_ms, counts))

    back = _Socket(receive, None)
    sockets = iter([_Socket(None, send), back, _Socket(lambda: b"\x01", lambda data: None)])
    process = module.DPCoordinatorProc.__new__(module.DPCoordinatorProc)
    process.ctx = None
    process.engines = [module.EngineState() for _ in range(ranks)]
    process.stats_update_interval_ms, process.enable_wave_coordination = 100, lockstep
    poller = SimpleNamespace(register=lambda *_: None, poll=poll)
    clock = SimpleNamespace(time=lambda: (now_ms + 1e-6) / 1000)  # the product with 1000 must not fall below
    with (
        patch.object(module, "make_zmq_socket", lambda **_: next(sockets)),
        patch.object(module.zmq, "Poller", lambda: poller),
        patch.object(module, "time", clock),
    ):
        try:
            process.process_input_socket("", "", "")
        except _End:
            return published
    raise AssertionError


def chosen(events: list[Any], ranks: int, server: int, servers: int) -> list[int]:
    """Ranks that vLLM's router takes; events are ("route", id), ("finish", id) or ("known", counts)."""
    client = DPLBAsyncMPClient.__new__(DPLBAsyncMPClient)
    client.client_count, client.client_index = servers, server
    client.reqs_in_flight, client.engine_inflight = {}, Counter()
    client.core_engines = [bytes([rank]) for rank in range(ranks)]
    client.lb_engines = [[0, 0, 0.0] for _ in range(ranks)]
    client.eng_start_index = ranks * server // servers
    client.resources = SimpleNamespace(engine_manager=None)
    found = []
    for kind, what in events:
        if kind == "known":
            client.lb_engines = [list(each) for each in what]
        elif kind == "finish":
            client.engine_inflight[client.reqs_in_flight.pop(what)] -= 1
        else:
            request = SimpleNamespace(request_id=what, data_parallel_rank=None, pooling_params=None)
            found.append(client.get_core_engine_for_request(request)[0])
    return found


class _Scheduler:
    """Requests that each take a number of steps."""

    pause_state = PauseState.UNPAUSED

    def __init__(self) -> None:
        self.left: list[int] = []

    def has_requests(self) -> bool:
        return bool(self.left)

    has_unfinished_requests = has_requests

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.left), 0

    def get_kv_cache_usage(self) -> float:
        return 0.0


def busy_loops(requests: list[tuple[int, int, int]], ranks: int) -> list[list[Any]]:
    """(what, wave, step) of each rank's passes; requests are (arrival, rank, steps), a pass takes 1 of time.

    The host of a batch waits for its output, that of a dummy batch for the device to begin it.
    """
    forward, agreed = threading.Barrier(ranks), threading.Barrier(ranks)
    now, device = [0] * ranks, [0] * ranks
    unfinished = [False] * ranks
    log: list[list[Any]] = [[] for _ in range(ranks)]

    def run(rank: int) -> None:
        arrivals = [(at, steps) for at, to, steps in requests if to == rank]
        scheduler = _Scheduler()
        core = DPEngineCoreProc.__new__(DPEngineCoreProc)
        vars(core).update(
            scheduler=scheduler, dp_rank=rank, engine_index=rank, dp_group=None, has_coordinator=True,
            dp_sync_interval=16, engines_running=False, step_counter=0, current_wave=0, pending_pause=False,
            ignore_start_dp_wave=False,
            prefill_schedule_interval=1, publish_dp_lb_stats=False, eep_scaling_state=None, batch_queue=None,
            output_queue=SimpleNamespace(put_nowait=lambda _: None),
            model_executor=SimpleNamespace(is_sleeping=False),
            capture_iteration_details=lambda _: nullcontext(),
            _handle_shutdown=lambda: True,
        )  # fmt: skip

        def take() -> None:
            if not core.has_work():  # the whole group has paused: on to the next arrival of any rank
                later = [at for at, *_ in requests if at >= now[rank]]
                if not later:
                    raise SystemExit
                now[rank] = max(now[rank], min(later))
                if not any(at <= now[rank] for at, _ in arrivals):
                    core._handle_client_request(EngineCoreRequestType.START_DP_WAVE, (core.current_wave, None))
            while arrivals and arrivals[0][0] <= now[rank]:
                scheduler.left.append(arrivals.pop(0)[1])

        def one_pass(what: str) -> None:
            log[rank].append((what, core.current_wave, core.step_counter))
            forward.wait()
            start = max(*now, device[rank])
            forward.wait()
            device[rank] = start + 1
            now[rank] = start + (what == "batch")

        def step() -> bool:
            if not scheduler.left:
                return False
            one_pass("batch")
            scheduler.left = [each - 1 for each in scheduler.left if each > 1]
            return True

        core._process_input_queue, core._process_engine_step = take, step
        core.execute_dummy_batch = lambda: one_pass("dummy")
        try:
            core.run_busy_loop()
        except SystemExit:
            return

    def sync(group: Any, *, has_unfinished: bool, pending_pause: bool) -> tuple[bool, bool]:
        unfinished[int(threading.current_thread().name)] = has_unfinished
        agreed.wait()
        answer, latest = any(unfinished), max(now)
        agreed.wait()
        now[int(threading.current_thread().name)] = latest
        return answer, False

    with patch.object(ParallelConfig, "sync_dp_state", staticmethod(sync)):
        threads = [threading.Thread(target=run, args=(rank,), name=str(rank), daemon=True) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "vLLM's busy loops wait for each other"
    return log
