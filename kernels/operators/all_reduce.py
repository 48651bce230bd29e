"""All-reduce: every rank ends with the sum over the ranks. gloo over 127.0.0.1 on the CPU, NCCL between GPUs.

Inputs: ``messages`` [ranks, elements], one row a rank. Output: ``sum`` [elements], this process being rank 0. The other
ranks are processes of this machine that are kept for the next launch. torch reduces in place, so a launch first copies
the message into the output; that copy is part of its time (engines that reduce out of place do the same).
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from draftcast.errors import HardwareError
from draftcast.kernels.extras import torch
from draftcast.kernels.model.dtypes import activation_bytes
from draftcast.kernels.operators.cost import Work, as_array
from draftcast.kernels.operators.registry import Draw, Implementation, Launch, Operator, Shape, Tensors

TIMEOUT_S = 300  # Longest wait of this process for the others, their start included.
IDLE_S = 7 * 86400  # Longest wait of the others for this one, which may be doing something else.
AHEAD = 8  # Launches another rank may have queued on its GPU, so that this one never waits for its host.
RUNNING = 2**62


def all_reduce_work(message_bytes: ArrayLike, ranks: ArrayLike) -> Work:
    """A message of ``message_bytes`` on each of ``ranks``; the bytes are those a rank sends over the links.

    Ring all-reduce: ``2 (ranks-1)/ranks`` times the message (Patarasuk and Yuan, JPDC 69(2), 2009); 0 for one rank.
    """
    moved = as_array(message_bytes) * (2.0 * (as_array(ranks) - 1) / as_array(ranks))
    return Work(np.zeros_like(moved), moved)


def _draw_inputs(shape: Shape, draw: Draw) -> dict[str, Any]:
    """Normal messages. Raises HardwareError: message_bytes holds no whole number of elements, or none."""
    size, message = int(activation_bytes(draw.dtype)), shape["message_bytes"]
    elements, rest = divmod(message, size)
    if rest or not elements:
        raise HardwareError(f"must be a positive multiple of {size}", key="all_reduce: message_bytes", value=message)
    return {"messages": draw.normal(shape["ranks"], elements)}


def _supports(shape: Shape, dtype: str, kv_dtype: str, device: str) -> str:
    if shape["ranks"] < 2:
        return "an all-reduce needs two ranks"
    count, what = (torch.cuda.device_count(), "GPUs") if device == "cuda" else (os.cpu_count() or 1, "cores")
    return f"{shape['ranks']} ranks need as many {what}; there are {count}" if shape["ranks"] > count else ""


class RankGroup:
    """``ranks`` processes that reduce the same messages again and again; this process is rank 0.

    The others reduce in a loop as soon as they have messages, so a launch tells them nothing; before they get other
    messages the loop is ended at a launch all agree on.
    """

    def __init__(self, ranks: int, device: str) -> None:
        store = torch.distributed.TCPStore("127.0.0.1", 0, ranks, is_master=True, wait_for_workers=False)
        context = multiprocessing.get_context("spawn")
        self._until = context.RawValue("q", 0)
        self._pipes, self._processes = [], []
        for rank in range(1, ranks):
            ours, theirs = context.Pipe()
            arguments = (rank, ranks, device, store.port, theirs, self._until)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        try:
            for rank, pipe in enumerate(self._pipes, 1):
                try:
                    pipe.recv()  # is up; one that ended instead has closed its end
                except EOFError:
                    raise RuntimeError(f"rank {rank} of the all-reduce ended as it started") from None
            self._group = _process_group(store, 0, ranks, device, TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        self._messages: torch.Tensor | None = None
        self._launched = 0

    @property
    def is_alive(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def load(self, messages: torch.Tensor) -> torch.Tensor:
        """Give every rank its row; returns what `launch` wants to see, the same for equal messages."""
        loaded = self._messages
        if loaded is not None and loaded.dtype == messages.dtype and torch.equal(loaded, messages):
            return loaded
        if loaded is not None:
            self._stop(loaded)
        self._messages, self._launched, self._until.value = messages.clone(), 0, RUNNING
        rows = self._messages.view(torch.uint8).cpu().numpy()
        for row, pipe in zip(rows[1:], self._pipes, strict=True):
            pipe.send((messages.dtype, row.tobytes()))
        return self._messages

    def launch(self, messages: torch.Tensor, out: torch.Tensor) -> None:
        """``out`` = the sum of ``messages``, as `load` returned them.

        Raises RuntimeError: other messages were loaded since, or a rank is gone.
        """
        if self._messages is None or messages is not self._messages:
            raise RuntimeError("another all-reduce was prepared since this one")
        out.copy_(messages[0])
        self._group.allreduce([out]).wait()
        self._launched += 1

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join()
        for pipe in self._pipes:
            pipe.close()

    def _stop(self, messages: torch.Tensor) -> None:
        self._until.value = self._launched + 2 * AHEAD  # Beyond what any of the others can have begun.
        out = torch.empty_like(messages[0])
        while self._launched < self._until.value:
            self.launch(messages, out)
        if out.is_cuda:
            torch.cuda.synchronize()
        for pipe in self._pipes:
            pipe.recv()  # has left its loop


_RANK_GROUPS: dict[tuple[int, str], RankGroup] = {}


def rank_group(ranks: int, device: str) -> RankGroup:
    """The processes for ``ranks`` on "cpu" or "cuda", started if there are none."""
    running = _RANK_GROUPS.get((ranks, device))
    if running is None or not running.is_alive:
        if running is not None:
            running.close()
        running = _RANK_GROUPS[ranks, device] = RankGroup(ranks, device)
    return running


def close_teams() -> None:
    """End all processes; a later launch needs a new ``prepare``."""
    while _RANK_GROUPS:
        _RANK_GROUPS.popitem()[1].close()


def _serve(rank: int, ranks: int, device: str, port: int, pipe: Any, until: Any) -> None:
    """A rank other than 0: reduces the message it was given until told where to stop, then waits for the next."""
    pipe.send(None)
    # One core a rank, as an engine's rank has on a CPU that is shared by several.
    torch.set_num_threads(1)
    place = f"cuda:{rank}" if device == "cuda" else "cpu"
    store = torch.distributed.TCPStore("127.0.0.1", port, ranks, is_master=False)
    group = _process_group(store, rank, ranks, device, IDLE_S)
    flying: deque[Any] = deque()
    while True:
        try:
            dtype, data = pipe.recv()
        except EOFError:
            return
        message = torch.frombuffer(bytearray(data), dtype=dtype).to(place)
        buffer = torch.empty_like(message)
        done = 0
        while done < until.value:
            buffer.copy_(message)
            group.allreduce([buffer]).wait()
            done += 1
            if device == "cuda":
                flying.append(torch.cuda.current_stream().record_event())
                if len(flying) > AHEAD:
                    flying.popleft().synchronize()
        pipe.send(None)


def _process_group(store: Any, rank: int, ranks: int, device: str, timeout_s: float) -> Any:
    """A group of its own: torch's default group belongs to whoever else uses this process."""
    dist = torch.distributed
    if device == "cuda":
        torch.cuda.set_device(rank)
        backend, options = dist.ProcessGroupNCCL, dist.ProcessGroupNCCL.Options()
    else:
        backend, options = dist.ProcessGroupGloo, dist.ProcessGroupGloo._Options()
        options._devices = [backend.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=timeout_s)
    return backend(store, rank, ranks, options)


def _prepare(inputs: Tensors, outputs: Tensors) -> Launch:
    """Launches of the messages loaded last work, those of earlier ones raise; equal messages count as the same."""
    messages, out = inputs["messages"], outputs["sum"]
    ours = rank_group(len(messages), messages.device.type)
    loaded = ours.load(messages)
    return lambda: ours.launch(loaded, out)


ALL_REDUCE = Operator(
    name="all_reduce",
    work=lambda shape, dtype, kv_dtype: all_reduce_work(shape["message_bytes"], shape["ranks"]),
    draw_inputs=_draw_inputs,
    make_outputs=lambda inputs: {"sum": inputs["messages"].new_empty(inputs["messages"].shape[1])},
    reference=lambda inputs: {"sum": inputs["messages"].double().sum(0)},
    implementations={"torch": Implementation(_supports, _prepare)},
    close=close_teams,
)
