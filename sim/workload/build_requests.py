"""From a scenario's workload to the table of requests that one run serves.

Everything is drawn per request index from streams of its own (arrivals, lengths, class), so changing one part of the
workload leaves the draws of the others as they were. Of acceptance only recordings are read here.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from draftcast.errors import CapacityError, ScenarioError, TraceError
from draftcast.frozen import MOST_SECONDS
from draftcast.kernels.arrays import FloatArray, IntArray
from draftcast.sim.compiled.random_streams import Stream, request_uniforms
from draftcast.sim.workload.arrivals import ClosedLoopArrivals, TraceArrivals
from draftcast.sim.workload.lengths import pick_weighted, trace_rows
from draftcast.sim.workload.request_table import MAX_TOKENS, RaggedParts, RequestTable
from draftcast.sim.workload.sessions import DrawnSessions, draw_sessions
from draftcast.sim.workload.traces import TraceSpec, load_trace
from draftcast.sim.workload.workload import DEFAULT_CLASS, Workload

Traces = Mapping[tuple[TraceSpec, str], RequestTable]
"""Tables by what is taken from which file, and which recorded acceptance is read with it."""
PROMPT_DRAW, OUTPUT_DRAW, ROW_DRAW = 0, 1, 2  # positions within the LENGTHS stream of a request


def build_requests(
    workload: Workload,
    seed: int,
    num_requests: int | None = None,
    max_model_len: int | None = None,
    traces: Traces | None = None,
    goes_on: bool = False,
) -> RequestTable:
    """The requests of one run, checked and sorted by arrival; in a closed loop all at 0 s: the cluster sets the times.

    Args:
        workload: what arrives; of a class's acceptance only the recording that it replays matters.
        seed: of this replication, see `random_streams.replication_seed`.
        num_requests: overrides ``workload.num_requests``.
        max_model_len: most tokens of prompt and output together; None: no limit.
        traces: of `load_traces`, to read each file once for many runs.
        goes_on: as many extra requests follow (``RequestTable.num_extra``), drawn further or, from a trace, wrapped
            round, unless those asked for are a list that ends (`is_list`). They are no longer than the longest of those
            asked for, so that whatever serves these can serve them.

    Raises ScenarioError, TraceError (a bad trace, or a line that does not fit) or CapacityError (a drawn request that
    does not fit).
    """
    traces = load_traces(workload) if traces is None else traces
    classes = workload.classes or (DEFAULT_CLASS,)
    notes = [note for table in traces.values() for note in table.notes]
    wanted = num_requests if num_requests is not None else workload.num_requests

    def arrive(n: int | None, duration_s: float | None, notes: list[str]) -> tuple[DrawnSessions | None, FloatArray]:
        if not workload.has_sessions:
            return None, _arrival_times(workload, traces, seed, n, duration_s, notes)
        assert n is not None
        drawn = draw_sessions(workload, seed, n, max_model_len)
        notes += [drawn.note] if drawn.note else []
        return drawn, drawn.arrival_s

    drawn, arrival_s = arrive(wanted, workload.duration_s, notes)
    counted = len(arrival_s)
    if counted == 0:
        raise ScenarioError("no request arrives; raise the rate or the duration", key="workload.arrivals")
    if not arrival_s[-1] <= MOST_SECONDS:
        message = f"the last of {counted} requests would arrive after {arrival_s[-1]:.3g} s; at most 1e9 s (30 years)"
        raise ScenarioError(f"{message} are simulated: raise the rate or send fewer", key="workload.arrivals")
    if goes_on and not is_list(workload, arrival_s):
        drawn, arrival_s = arrive(2 * counted, None, [])
    n = len(arrival_s)
    if drawn is not None:
        class_id, prompt, output = drawn.class_id, drawn.prompt, drawn.output
    else:
        shares = np.array([entry.share for entry in classes], dtype=np.float64)
        class_id = pick_weighted(request_uniforms(seed, Stream.CLASS, n), shares)
        prompt, output = np.ones((2, n), dtype=np.int64)
    source_files = np.full(len(classes), "", dtype=object)
    source_lines = np.full(n, -1, dtype=np.int64)
    hashes, acceptance = RaggedParts(n), RaggedParts(n)
    hash_block_tokens: set[int] = set()
    for index, entry in enumerate(classes):
        mine = np.flatnonzero(class_id == index)
        lengths, source, recording = entry.lengths or workload.lengths, workload.source_of(entry), entry.recording
        if source is not None:
            table = traces[source, entry.record]
            order = lengths.order if lengths is not None else "sequential"
            rows = trace_rows(order, request_uniforms(seed, Stream.LENGTHS, n, ROW_DRAW), len(table))[mine]
            if order == "sequential" and counted < len(table):
                notes.append(f"{table.source_file}: the first {counted} of its {len(table)} requests are served")
            prompt[mine], output[mine] = table.prompt_tokens[rows], table.output_tokens[rows]
            source_files[index] = table.source_file
            if table.source_lines is not None:
                source_lines[mine] = table.source_lines[rows]
            if table.hash_ids is not None:
                if entry.system_prompt or workload.system_prompt:
                    message = "not with a system_prompt: the file says which prompts begin alike"
                    raise TraceError(message, file=table.source_file, key="hash_ids")
                hashes.add(mine, rows, table.hash_ids, table.hash_offsets)
                hash_block_tokens.add(table.hash_block_tokens)
            if recording in (None, source):
                acceptance.add(mine, rows, table.acceptance_lengths, table.acceptance_offsets)
        elif drawn is None and lengths and lengths.prompt_tokens and lengths.output_tokens:
            prompt[mine] = lengths.prompt_tokens.tokens(request_uniforms(seed, Stream.LENGTHS, n, PROMPT_DRAW)[mine])
            output[mine] = lengths.output_tokens.tokens(request_uniforms(seed, Stream.LENGTHS, n, OUTPUT_DRAW)[mine])
        if recording is not None and not acceptance.has(mine):
            table = traces[recording, entry.record]
            if table.acceptance_lengths is None:
                raise TraceError("the trace has no recorded acceptance (specdecode_bench has)", file=recording.path)
            rows = trace_rows("sampled", request_uniforms(seed, Stream.ACCEPT_ROW, n), len(table))[mine]
            acceptance.add(mine, rows, table.acceptance_lengths, table.acceptance_offsets)
    system_u = request_uniforms(seed, Stream.SYSTEM_PROMPT, n) if drawn is None else drawn.system_u
    columns = _system_prompts(workload, class_id, system_u)
    if columns:
        prompt = np.minimum(prompt + columns["system_tokens"], MAX_TOKENS)
    if len(hash_block_tokens) > 1:
        raise TraceError(f"the traces hash prompts in blocks of different sizes: {sorted(hash_block_tokens)} tokens")

    if drawn is not None:  # to shorten a turn would change those after it
        columns |= {"session": drawn.session, "think_s": drawn.think_s}
    else:  # the extra requests, to the longest of the others; the output first
        longest = int((prompt + output)[:counted].max())
        np.minimum(prompt[counted:], longest - 1, out=prompt[counted:])
        np.minimum(output[counted:], longest - prompt[counted:], out=output[counted:])
    limit = math.inf if max_model_len is None else max_model_len
    too_long = prompt + output > limit
    if workload.max_model_len_action == "error" and too_long.any():
        i = int(np.argmax(too_long))
        shared = int(columns["system_tokens"][i]) if columns else 0
        whole = f"{prompt[i]} ({shared} of them the system prompt's)" if shared else str(prompt[i])
        message = (
            f"prompt of {whole} and output of {output[i]} tokens exceed max_model_len {limit}; "
            "raise it, or set max_model_len_action to clip or drop"
        )
        # The lengths are to blame where the request is too long also without its system prompt.
        key = "system_prompt" if prompt[i] + output[i] - shared <= limit else "lengths"
        if source_lines[i] >= 0 and key == "lengths":
            raise TraceError(message, file=source_files[class_id[i]], line=int(source_lines[i]))
        of_class = getattr(classes[class_id[i]], key) is not None
        place = f"workload.classes.{class_id[i]}" if of_class else "workload"
        raise CapacityError(message, key=f"{place}.{key} (request {i})")
    count = f"{int(too_long[:counted].sum())} of {counted} requests longer than max_model_len {limit}"
    drops = workload.max_model_len_action == "drop"
    if too_long[:counted].all() and drops:
        raise CapacityError(f"all {counted} requests are longer than that", key="engine.max_model_len", value=limit)
    if too_long.any():
        notes.append(f"{'dropped' if drops else 'clipped'} {count}")
    if workload.max_model_len_action == "clip" and max_model_len is not None:
        # The output first, as an engine does that stops at max_model_len; the prompt where no output token has room.
        np.minimum(prompt, max_model_len - 1, out=prompt)
        np.minimum(output, max_model_len - prompt, out=output)
        too_long[:] = False

    if (source_files == source_files[0]).all() and bool((source_lines >= 0).all()):
        columns |= {"source_file": source_files[0], "source_lines": source_lines}
    if hash_block_tokens:
        block_tokens = hash_block_tokens.pop()
        columns["hash_ids"], columns["hash_offsets"] = hashes.gather_fresh(-(-prompt // block_tokens))
        columns["hash_block_tokens"] = block_tokens
    if acceptance:
        columns["acceptance_lengths"], columns["acceptance_offsets"] = acceptance.gather_cyclic(output)
    table = RequestTable.from_columns(
        prompt,
        output,
        arrival_s,
        class_id,
        np.array([entry.priority for entry in classes])[class_id],
        class_names=tuple(entry.name for entry in classes),
        has_arrivals=not isinstance(workload.arrivals, ClosedLoopArrivals),
        notes=tuple(dict.fromkeys(notes)),
        **columns,
    )
    table = replace(table.keep(~too_long), num_extra=int(np.count_nonzero(~too_long[counted:])))
    table.check_integrity()
    return table


def _system_prompts(workload: Workload, class_id: IntArray, u: FloatArray) -> dict[str, Any]:
    """Which text each request begins with and its tokens, by columns of the table; classes share the workload's."""
    classes = workload.classes or (DEFAULT_CLASS,)
    if not (workload.system_prompt or any(entry.system_prompt for entry in classes)):
        return {}
    text, tokens = np.zeros(len(class_id), np.int64), np.zeros(len(class_id), np.int32)
    first_own = workload.system_prompt.variants if workload.system_prompt else 0
    for index, entry in enumerate(classes):
        mine, prompt = class_id == index, entry.system_prompt or workload.system_prompt
        if prompt is not None:
            text[mine] = (first_own if entry.system_prompt else 0) + (u[mine] * prompt.variants).astype(np.int64)
            tokens[mine] = prompt.tokens
            first_own += entry.system_prompt.variants if entry.system_prompt else 0
    return {"system_prompt": text, "system_tokens": tokens}


def is_list(workload: Workload, arrival_s: FloatArray) -> bool:
    """Whether the requests are a list that ends: a trace as it was recorded, a burst or batch (all at once), or a
    closed loop whose clients send fewer than two requests each.
    """
    arrivals = workload.arrivals
    if isinstance(arrivals, ClosedLoopArrivals):
        return len(arrival_s) < 2 * arrivals.concurrency
    if isinstance(arrivals, TraceArrivals) and arrivals.request_rate_rps is None and arrivals.time_scale == 1.0:
        return workload.num_requests is None and workload.duration_s is None
    return bool(arrival_s[-1] == arrival_s[0])


def load_traces(workload: Workload) -> dict[tuple[TraceSpec, str], RequestTable]:
    """Every trace the workload refers to, read once; pass it to `build_requests`. Raises TraceError."""
    return {(source, record): load_trace(source, record) for source, record in trace_specs(workload)}


def trace_specs(workload: Workload) -> list[tuple[TraceSpec, str]]:
    """Every trace the workload refers to, and which recorded acceptance is read with it; no file is opened."""
    classes = workload.classes or (DEFAULT_CLASS,)
    named = [(source, c.record) for c in classes for source in (workload.source_of(c), c.recording)]
    return list(dict.fromkeys((source, record) for source, record in named if source is not None))


def _arrival_times(
    workload: Workload, traces: Traces, seed: int, n: int | None, duration_s: float | None, notes: list[str]
) -> FloatArray:
    """Arrival times of the requests, f8, sorted; n of them, or all before ``duration_s``, or both limits."""
    arrivals = workload.arrivals
    if isinstance(arrivals, ClosedLoopArrivals):
        assert n is not None
        return np.zeros(n)
    if isinstance(arrivals, TraceArrivals):
        table = traces[arrivals, (workload.classes or (DEFAULT_CLASS,))[0].record]
        if not table.has_arrivals:
            message = "the trace has no arrival times; choose other arrivals (such as poisson) and empirical lengths"
            raise TraceError(message, file=table.source_file, key="workload.arrivals.process", value=arrivals.process)
        times, rate = table.arrival_s * arrivals.time_scale, arrivals.request_rate_rps
        if rate is not None:
            if table.mean_gap_s == 0:
                message = "all requests arrive at the same time, so the trace has no rate to scale"
                raise TraceError(message, file=table.source_file, key="request_rate_rps", value=rate)
            times = table.arrival_s * (1.0 / (rate * table.mean_gap_s))
        span_s = float(times[-1] - times[0])
        period_s = span_s + span_s / max(len(times) - 1, 1)  # a copy begins one mean gap after the one before it ends
        if n is None and duration_s is not None:
            if period_s == 0:
                message = "all requests arrive at the same time, so the trace cannot fill a duration"
                raise TraceError(message, file=table.source_file, key="duration_s", value=duration_s)
            enough = math.ceil(duration_s / period_s) * len(times)
            n = int(np.searchsorted(_repeated(times, period_s, enough), duration_s))
        n = len(times) if n is None else n
        if n > len(times):
            notes.append(f"{table.source_file}: {len(times)} requests repeated to make {n}")
        arrival_s = _repeated(times, period_s, n)
    elif n is not None:
        arrival_s = arrivals.draw(seed, n)
    else:
        assert duration_s is not None
        return arrivals.draw_until(seed, duration_s)
    return arrival_s if duration_s is None else arrival_s[arrival_s < duration_s]


def _repeated(times: FloatArray, period_s: float, n: int) -> FloatArray:
    """The first n of the times repeated every ``period_s``."""
    copy, row = np.divmod(np.arange(n), len(times))
    return np.asarray(times[row] + copy * period_s)
