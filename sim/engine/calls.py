"""The engine's steps one at a time, for callers in Python; compiled code passes references and calls them directly."""

from __future__ import annotations

from numba import njit

from draftcast.sim.compiled.borrowed import reference
from draftcast.sim.engine import blocks, queue, schedule, step
from draftcast.sim.policies.registry import decide
from draftcast.sim.state.engine import Engine


@njit(cache=True)
def reset(engine: Engine) -> None:
    """All blocks free; the engine is ready for requests."""
    blocks.reset_blocks(reference(engine))


@njit(cache=True)
def enqueue(engine: Engine, request: int) -> None:
    """Put a request at the end of the waiting queue."""
    queue.append(reference(engine), request)


@njit(cache=True)
def schedule_batch(engine: Engine) -> int:
    """Fill the next free batch; the number of requests scheduled."""
    return schedule.schedule(reference(engine))


@njit(cache=True)
def decide_drafts(engine: Engine, slot: int) -> None:
    """Let the compiled policy fill ``next_drafts`` of the batch."""
    decide(engine.config[0].policy, reference(engine), slot)


@njit(cache=True)
def commit(engine: Engine, slot: int) -> None:
    """Count the scheduled tokens as computed and the batch as in flight, without timing it."""
    ref = reference(engine)
    for j in range(engine.batch[slot].size):
        schedule.advance_computed(ref, slot, j)
    engine.engine[0].in_flight += 1


@njit(cache=True)
def keep_empty(engine: Engine, slot: int) -> None:
    """Hold the place of a batch that nothing could be scheduled for."""
    step.keep_empty(reference(engine), slot)


@njit(cache=True)
def collect_output(engine: Engine) -> int:
    """Take the oldest output; how many requests ended."""
    return step.collect(reference(engine))


@njit(cache=True)
def abort(engine: Engine, request: int) -> None:
    """End a request that waits or runs."""
    step.abort(reference(engine), request)
