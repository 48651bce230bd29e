"""Waiting requests: a binary heap ordered as vLLM's queues are (``v1/core/sched/request_queue.py``).

First come, first served: a request's key counts up when it is appended and down when it is put back to the
front, so one heap serves both policies and a passed-over request returns to where it was. Priority: the key is
the request's priority, ties go to the earlier arrival, then to the lower index.
"""

from numba import njit

from draftcast.sim.state.engine import Array, EngineState


@njit(cache=True, forceinline=True)
def _before(requests: Array, a: int, b: int) -> bool:
    x = requests[a]
    y = requests[b]
    if x.queue_key != y.queue_key:
        return bool(x.queue_key < y.queue_key)
    if x.arrival_s != y.arrival_s:
        return bool(x.arrival_s < y.arrival_s)
    return a < b


@njit(cache=True)
def _sift_up(s: EngineState, hole: int) -> None:
    queue = s.queue
    item = queue[hole]
    while hole > 0:
        parent = (hole - 1) >> 1
        if not _before(s.requests, item, queue[parent]):
            break
        queue[hole] = queue[parent]
        hole = parent
    queue[hole] = item


@njit(cache=True)
def _sift_down(s: EngineState, hole: int) -> None:
    queue = s.queue
    size = s.engine[0].num_waiting
    item = queue[hole]
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and _before(s.requests, queue[child + 1], queue[child]):
            child += 1
        if not _before(s.requests, queue[child], item):
            break
        queue[hole] = queue[child]
        hole = child
    queue[hole] = item


@njit(cache=True)
def push(s: EngineState, i: int) -> None:
    """Insert request ``i`` by its ``queue_key``."""
    e = s.engine[0]
    s.queue[e.num_waiting] = i
    e.num_waiting += 1
    _sift_up(s, e.num_waiting - 1)


@njit(cache=True)
def _enqueue(s: EngineState, i: int, key: int) -> None:
    r = s.requests[i]
    r.queue_key = r.priority if s.config[0].priority else key
    push(s, i)


@njit(cache=True)
def append(s: EngineState, i: int) -> None:
    """Append request ``i`` (priority policy: insert it by priority)."""
    s.engine[0].queue_back += 1
    _enqueue(s, i, s.engine[0].queue_back)


@njit(cache=True)
def prepend(s: EngineState, i: int) -> None:
    """Put request ``i`` before all others (priority policy: insert it by priority)."""
    s.engine[0].queue_front -= 1
    _enqueue(s, i, s.engine[0].queue_front)


@njit(cache=True)
def pop(s: EngineState) -> int:
    """Remove and return the first request."""
    first = int(s.queue[0])
    remove(s, first)
    return first


@njit(cache=True)
def remove(s: EngineState, i: int) -> None:
    """Remove request ``i`` from wherever it stands; it must be waiting. O(waiting) unless it is the first."""
    e = s.engine[0]
    at = 0
    while s.queue[at] != i:
        at += 1
    e.num_waiting -= 1
    if at < e.num_waiting:
        s.queue[at] = s.queue[e.num_waiting]
        _sift_down(s, at)
        _sift_up(s, at)
