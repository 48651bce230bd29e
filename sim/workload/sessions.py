"""Sessions: requests that follow one another, each prompt being all that went before and more.

A session is drawn whole, keyed by its number, so that neither rate nor policy nor other sessions change it. When a
request of it is sent follows from the answer before, in the cluster.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from draftcast.errors import ScenarioError
from draftcast.kernels.arrays import BoolArray, FloatArray, IntArray
from draftcast.sim.compiled.random_streams import Stream, UInt64Array, request_keys, uniform_array
from draftcast.sim.workload.arrivals import DrawnArrivals, PiecewiseArrivals
from draftcast.sim.workload.lengths import Lengths, pick_weighted
from draftcast.sim.workload.request_table import MAX_TOKENS
from draftcast.sim.workload.workload import DEFAULT_CLASS, Sessions, Workload

MAX_REQUESTS = 10_000  # of one session
SAMPLE = 1024  # sessions from which the mean number of requests is taken
STREAMS = (Stream.SESSION, Stream.LENGTHS, Stream.THINK, Stream.SYSTEM_PROMPT)


@dataclass(frozen=True)
class DrawnSessions:
    """What `build_requests` makes a table of: the requests of all classes' sessions, session after session."""

    session: IntArray  # i8[m], from 0 on
    arrival_s: FloatArray  # f8[m], of the session
    class_id: IntArray  # i8[m]
    prompt: IntArray  # i8[m], without the system prompt
    output: IntArray  # i8[m]
    think_s: FloatArray  # f8[m], after the answer before; 0 of the first
    system_u: FloatArray  # f8[m], which variant of its system prompt the session has, in [0, 1)
    note: str  # how many end at max_model_len


def draw_sessions(workload: Workload, seed: int, n: int, max_model_len: int | None) -> DrawnSessions:
    """``n`` requests of sessions that begin one after another.

    Rates and shares are those of requests: sessions begin as much less often as they have more requests on average.

    Raises ScenarioError: see `draw_requests`.
    """
    classes = workload.classes or (DEFAULT_CLASS,)
    limit = MAX_TOKENS if max_model_len is None else max_model_len
    parts = []
    for entry in classes:
        lengths, system = entry.lengths or workload.lengths, entry.system_prompt or workload.system_prompt
        assert lengths is not None
        parts.append((entry.sessions or workload.sessions, lengths, limit - (system.tokens if system else 0)))
    weights = np.array([entry.share / mean_requests(*part) for entry, part in zip(classes, parts, strict=True)])
    mean = float(1.0 / weights.sum())
    count = int(np.ceil(1.1 * n / mean)) + 8
    while True:
        keys = {stream: request_keys(seed, stream, count) for stream in STREAMS}
        turns_u = uniform_array(keys[Stream.SESSION], 0)
        class_of = pick_weighted(uniform_array(request_keys(seed, Stream.CLASS, count), 0), weights)
        members = [np.flatnonzero(class_of == index) for index in range(len(classes))]
        drawn = [
            draw_requests(turns_u[mine], {s: k[mine] for s, k in keys.items()}, *part)
            for part, mine in zip(parts, members, strict=True)
        ]
        sessions, *columns, ends = zip(*drawn, strict=True)
        session = np.concatenate([mine[index] for mine, index in zip(members, sessions, strict=True)])
        if len(session) >= n:
            break
        count *= 2
    rows = np.argsort(session, kind="stable")[:n]
    session, prompt, output, think_s = (column[rows] for column in (session, *map(np.concatenate, columns)))
    last = int(session[-1])
    cut = sum(int(ended[mine <= last].sum()) for mine, ended in zip(members, ends, strict=True))
    note = f"{cut} of {last + 1} sessions end early, at max_model_len {max_model_len}" if cut else ""
    arrivals = _slower(workload.arrivals, mean)
    start_s = arrivals.draw(seed, count) if isinstance(arrivals, DrawnArrivals) else np.zeros(count)
    system_u = uniform_array(keys[Stream.SYSTEM_PROMPT], 0)[session]
    return DrawnSessions(session, start_s[session], class_of[session], prompt, output, think_s, system_u, note)


def _slower(arrivals: Any, factor: float) -> Any:
    """The arrivals at so many times less their rate; clients are as many."""
    if isinstance(arrivals, PiecewiseArrivals):
        segments = tuple(_slower(segment, factor) for segment in arrivals.segments)
        return arrivals.model_copy(update={"segments": segments})
    rate = getattr(arrivals, "request_rate_rps", None)
    return arrivals if rate is None else arrivals.model_copy(update={"request_rate_rps": rate / factor})


def draw_requests(
    turns_u: FloatArray, keys: dict[Stream, UInt64Array], sessions: Sessions | None, lengths: Lengths, most_tokens: int
) -> tuple[IntArray, IntArray, IntArray, FloatArray, BoolArray]:
    """The requests of sessions, one for each of ``turns_u`` (f8[n] in [0, 1)); ``keys`` of each by stream.

    Returns the session, prompt, output and think_s of each request, as in `DrawnSessions`, and of each session whether
    it ends at ``most_tokens``: before the request that, with its answer, exceeds it; its first request stays.

    Raises ScenarioError: more than `MAX_REQUESTS` in a session.
    """
    n = len(turns_u)
    turns = sessions.turns.tokens(turns_u).astype(np.int64) if sessions else np.ones(n, np.int64)
    of, turn = _numbered(turns)
    calls = np.ones(len(of), np.int64)
    if sessions and sessions.calls_per_turn:
        calls = sessions.calls_per_turn.tokens(uniform_array(keys[Stream.SESSION][of], 1 + turn)).astype(np.int64)
    counts = np.bincount(of, weights=calls, minlength=n).astype(np.int64)
    session, number = _numbered(counts)
    is_call = _numbered(calls)[1] > 0
    assert lengths.prompt_tokens is not None
    assert lengths.output_tokens is not None
    draws, output_draws = (uniform_array(keys[Stream.LENGTHS][session], 2 * number + place) for place in (0, 1))
    added = lengths.prompt_tokens.tokens(draws).astype(np.int64)
    output = lengths.output_tokens.tokens(output_draws).astype(np.int64)
    think_s = np.zeros(len(session))
    if sessions:
        if sessions.tool_output_tokens:
            added[is_call] = sessions.tool_output_tokens.tokens(draws[is_call])
        think_s[:] = np.where(is_call, sessions.tool_time_s, sessions.think_time_s)
        if sessions.think_time_distribution == "exponential":
            think_s *= -np.log1p(-uniform_array(keys[Stream.THINK][session], 1 + number))
        think_s[number == 0] = 0.0
    context = np.cumsum(added + output)  # All that the session has said when a request is answered.
    first = np.cumsum(counts) - counts
    context -= (context - added - output)[first][session]
    stays = (number == 0) | (context <= most_tokens)
    ends = np.bincount(session[stays], minlength=n) < counts
    return session[stays], (context - output)[stays], output[stays], think_s[stays], ends


@lru_cache(maxsize=256)
def mean_requests(sessions: Sessions | None, lengths: Lengths, most_tokens: int) -> float:
    """Of a session, as far as ``most_tokens`` let it go on; from evenly spread turns."""
    if sessions is None:
        return 1.0
    turns_u = (np.arange(SAMPLE) + 0.5) / SAMPLE
    keys = {stream: request_keys(0, stream, SAMPLE) for stream in STREAMS}
    session, *_ = draw_requests(turns_u, keys, sessions, lengths, most_tokens)
    return len(session) / SAMPLE


def _numbered(counts: IntArray) -> tuple[IntArray, IntArray]:
    """For ``counts[i]`` things of each i: whose each is, and the how-manieth of its owner's, from 0 on.

    Raises ScenarioError: more than `MAX_REQUESTS` of one i.
    """
    if (count := int(counts.max(initial=1))) > MAX_REQUESTS:
        raise ScenarioError(f"a session would have {count} requests; at most {MAX_REQUESTS}", key="workload.sessions")
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
