"""From the description of a workload to the table of requests that one run serves.

Everything is drawn per request index from streams of its own (arrivals, lengths, class), so changing one part of the
description leaves the draws of the others as they were. What a class's acceptance or SLO means is not known here:
they are carried for those who do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftcast.errors import CapacityError, InputError, ScenarioError, TraceError
from draftcast.sim.compiled.random_streams import Stream, request_uniforms
from draftcast.sim.workload.arrivals import ArrivalSpec, ClosedLoop, TraceArrivals
from draftcast.sim.workload.lengths import OUTPUT_DRAW, PROMPT_DRAW, Empirical, LengthSpec, pick_weighted, trace_rows
from draftcast.sim.workload.ragged import RaggedParts
from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.spec_fields import integer, number, one_of
from draftcast.sim.workload.traces import TraceSpec, load_trace

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
MAX_SECONDS = 1e9  # of simulated time: beyond it steps of a tenth of a millisecond are lost to rounding
MAX_MODEL_LEN_ACTIONS = ("error", "clip", "drop")


@dataclass(frozen=True)
class RequestClass:
    """A kind of request and its share of all requests (shares are relative, they need not sum to 1)."""

    prompt_tokens: LengthSpec
    output_tokens: LengthSpec
    name: str = "default"
    share: float = 1.0
    priority: int = 0  # smaller is served first, as in vLLM
    acceptance: int = 0  # which of the scenario's acceptance models
    slo: tuple[tuple[str, float], ...] = ()  # ("ttft_ms", 200.0), ... as in vLLM's --goodput
    acceptance_trace: TraceSpec | None = None  # recorded acceptance for requests whose lengths come from elsewhere

    def __post_init__(self) -> None:
        number(f"classes.{self.name}.share", self.share, least=0)
        integer(f"classes.{self.name}.priority", self.priority, -(2**31))
        integer(f"classes.{self.name}.acceptance", self.acceptance, 0)


@dataclass(frozen=True)
class WorkloadSpec:
    """Arrivals and classes, and how many requests: ``num_requests``, or all before ``duration_s``, or both limits.

    With trace arrivals both may be absent (the trace once); asking for more than the trace holds repeats it (`tile`).
    """

    arrivals: ArrivalSpec
    classes: tuple[RequestClass, ...]
    num_requests: int | None = None
    duration_s: float | None = None
    trace: TraceSpec | None = None  # what trace arrivals and empirical lengths use when they name none
    max_model_len_action: str = "error"  # for requests longer than max_model_len: error, clip or drop

    def __post_init__(self) -> None:
        if not self.classes:
            raise ScenarioError("needs at least one request class", key="classes")
        names = [c.name for c in self.classes]
        for name in names:
            if names.count(name) > 1:
                raise ScenarioError("class names must differ", key="classes.name", value=name)
        if sum(c.share for c in self.classes) <= 0:
            raise ScenarioError("at least one share must be > 0", key="classes.share")
        if self.num_requests is not None:
            integer("num_requests", self.num_requests, 1)
        if self.duration_s is not None:
            number("duration_s", self.duration_s, above=0)
        one_of("max_model_len_action", self.max_model_len_action, MAX_MODEL_LEN_ACTIONS)


def build_requests(
    spec: WorkloadSpec,
    seed: int,
    num_requests: int | None = None,
    max_model_len: int | None = None,
    traces: Mapping[TraceSpec, RequestTable] | None = None,
    goes_on: bool = False,
) -> RequestTable:
    """Draw the requests of one run.

    Args:
        spec: the workload.
        seed: of this replication, see `random_streams.replication_seed`.
        num_requests: overrides ``spec.num_requests``.
        max_model_len: a request fits when prompt + output <= max_model_len; None: no limit.
        traces: already loaded traces by their spec (`load_traces`), to read each file once for many runs.
        goes_on: the load goes on behind the requests asked for, unless they are a list that ends (`is_list`): as many
            extra requests follow, drawn further or, from a trace, wrapped round (``RequestTable.num_extra``). They are
            no longer than the longest of those asked for, so that whatever serves these can serve them.
    Returns:
        A table sorted by arrival, checked. Closed loop: arrivals are all 0, the cluster sets them.
    Raises ScenarioError, TraceError (a bad trace, or a line that does not fit) or CapacityError (a drawn request that
    does not fit).
    """
    files = _Traces(spec, dict(traces or {}))
    if num_requests is not None:
        integer("num_requests", num_requests, 1)
    arrival_s = _arrivals(spec, files, seed, num_requests if num_requests is not None else spec.num_requests)
    counted = len(arrival_s)
    if counted == 0:
        raise ScenarioError("no request arrives; raise the rate or the duration", key="arrivals")
    if not arrival_s[-1] <= MAX_SECONDS:
        message = f"the last of {counted} requests would arrive after {arrival_s[-1]:.3g} s; at most 1e9 s"
        raise ScenarioError(f"{message} (30 years) are simulated: raise the rate or send fewer", key="arrivals")
    if goes_on and not is_list(spec, arrival_s):
        endless = _Traces(spec, files.loaded)  # whose notes would be on the extra requests
        arrival_s = _arrivals(replace(spec, duration_s=None), endless, seed, 2 * counted)
    n = len(arrival_s)
    shares = np.array([c.share for c in spec.classes], dtype=np.float64)
    class_id = pick_weighted(request_uniforms(seed, Stream.CLASS, n), shares) if len(shares) > 1 else np.zeros(n, int)

    lengths = {key: np.ones(n, dtype=np.int32) for key in ("prompt_tokens", "output_tokens")}
    positions = {"prompt_tokens": PROMPT_DRAW, "output_tokens": OUTPUT_DRAW}
    origin = _Origin(np.full(n, -1, dtype=np.int64), {})
    hashes, acceptance = RaggedParts(n), RaggedParts(n)
    hash_block_tokens: set[int] = set()
    for index, request_class in enumerate(spec.classes):
        mine = np.flatnonzero(class_id == index)
        for key, position in positions.items():
            length: LengthSpec = getattr(request_class, key)
            if not isinstance(length, Empirical):
                lengths[key][mine] = length.tokens(request_uniforms(seed, Stream.LENGTHS, n, position)[mine])
                continue
            table = files.of(length.trace, f"classes.{request_class.name}.{key}")
            rows = length.rows(seed, n, len(table))[mine]
            if length.order == "sequential" and n < len(table):
                files.more_notes.append(f"{table.source_file}: the first {n} of its {len(table)} requests are served")
            lengths[key][mine] = length.clip(getattr(table, key)[rows])
            if key == "prompt_tokens":
                origin.set(index, table, mine, rows)
                if table.hash_ids is not None and table.hash_offsets is not None:
                    hashes.add(mine, rows, table.hash_ids, table.hash_offsets, owner=id(table))
                    hash_block_tokens.add(table.hash_block_tokens)
            elif request_class.acceptance_trace in (None, length.trace or spec.trace):
                _add_acceptance(acceptance, table, mine, rows)
        other = request_class.acceptance_trace
        if other is not None and not acceptance.has(mine):
            table = files.of(other, f"classes.{request_class.name}.acceptance_trace")
            if table.acceptance_lengths is None:
                raise TraceError("the trace has no recorded acceptance (specdecode_bench has)", file=other.path)
            draws = request_uniforms(seed, Stream.ACCEPT_ROW, n)
            _add_acceptance(acceptance, table, mine, trace_rows("sampled", draws, len(table))[mine])
    if len(hash_block_tokens) > 1:
        raise TraceError(f"the traces hash prompts in blocks of different sizes: {sorted(hash_block_tokens)} tokens")

    _shorten_extra(lengths, counted)
    keep, notes = _fit(spec, lengths, max_model_len, origin, class_id, counted)
    columns: dict[str, Any] = {}
    if hash_block_tokens:
        block_tokens = hash_block_tokens.pop()
        limits = -(-lengths["prompt_tokens"].astype(np.int64) // block_tokens)
        columns["hash_ids"], columns["hash_offsets"] = hashes.gather_fresh(limits)
        columns["hash_block_tokens"] = block_tokens
    if acceptance:
        columns["acceptance_lengths"], columns["acceptance_offsets"] = acceptance.gather_cyclic(
            lengths["output_tokens"]
        )
    table = RequestTable.from_columns(
        lengths["prompt_tokens"],
        lengths["output_tokens"],
        arrival_s,
        class_id,
        np.array([c.priority for c in spec.classes])[class_id],
        class_names=tuple(c.name for c in spec.classes),
        has_arrivals=not isinstance(spec.arrivals, ClosedLoop),
        notes=(*files.notes(), *notes),
        **origin.columns(),
        **columns,
    )
    table = replace(table.keep(keep), num_extra=int(np.count_nonzero(keep[counted:])))
    table.check_integrity()
    return table


def is_list(spec: WorkloadSpec, arrival_s: NDArray[np.float64]) -> bool:
    """Whether the requests are a list that ends, and no sample of a load that goes on.

    A trace as it was recorded, a burst or batch (all at once), and a closed loop whose clients send fewer than two
    requests each.
    """
    arrivals = spec.arrivals
    if isinstance(arrivals, ClosedLoop):
        return len(arrival_s) < 2 * arrivals.concurrency
    if isinstance(arrivals, TraceArrivals) and arrivals.rate_rps is None and arrivals.time_scale == 1.0:
        return spec.num_requests is None and spec.duration_s is None
    return bool(arrival_s[-1] == arrival_s[0])


def trace_specs(spec: WorkloadSpec) -> list[TraceSpec]:
    """Every trace the workload refers to."""
    named = [spec.trace, getattr(spec.arrivals, "trace", None)]
    for request_class in spec.classes:
        named.append(request_class.acceptance_trace)
        for length in (request_class.prompt_tokens, request_class.output_tokens):
            named.append(getattr(length, "trace", None))
    return [trace for trace in dict.fromkeys(named) if trace is not None]


def load_traces(spec: WorkloadSpec) -> dict[TraceSpec, RequestTable]:
    """Every trace the workload refers to, read once; pass it to `build_requests`. Raises TraceError."""
    return {trace: load_trace(trace) for trace in trace_specs(spec)}


@dataclass
class _Traces:
    """The traces of one workload, loaded when first needed."""

    spec: WorkloadSpec
    loaded: dict[TraceSpec, RequestTable]
    used: dict[TraceSpec, None] = field(default_factory=dict)
    more_notes: list[str] = field(default_factory=list)

    def of(self, trace: TraceSpec | None, key: str) -> RequestTable:
        trace = trace or self.spec.trace
        if trace is None:
            raise ScenarioError("needs a trace: give one here or for the workload", key=key)
        if trace not in self.loaded:
            self.loaded[trace] = load_trace(trace)
        self.used[trace] = None
        return self.loaded[trace]

    def notes(self) -> tuple[str, ...]:
        of_traces = [note for trace in self.used for note in self.loaded[trace].notes]
        return tuple(dict.fromkeys([*of_traces, *self.more_notes]))


@dataclass
class _Origin:
    """Which trace line a request's prompt came from, for error messages; -1 where it was drawn."""

    lines: IntArray
    files: dict[int, str]  # class index -> file

    def set(self, class_index: int, table: RequestTable, requests: IntArray, rows: IntArray) -> None:
        self.files[class_index] = table.source_file
        if table.source_lines is not None:
            self.lines[requests] = table.source_lines[rows]

    def columns(self) -> dict[str, Any]:
        """The table's columns, when all requests come from one file."""
        if len(set(self.files.values())) != 1 or bool((self.lines < 0).any()):
            return {}
        return {"source_file": next(iter(self.files.values())), "source_lines": self.lines}


def _arrivals(spec: WorkloadSpec, files: _Traces, seed: int, n: int | None) -> NDArray[np.float64]:
    """Arrival times of the requests, f8, sorted."""
    arrivals = spec.arrivals
    if isinstance(arrivals, TraceArrivals):
        table = files.of(arrivals.trace, "arrivals.trace")
        if not table.has_arrivals:
            message = "the trace has no arrival times; choose other arrivals (such as poisson) and empirical lengths"
            raise TraceError(message, file=table.source_file, key="arrivals.kind", value=arrivals.kind)
        times = RequestTable.from_columns(table.prompt_tokens, table.output_tokens, table.arrival_s)
        times = times.scale_time(arrivals.time_scale)
        if arrivals.rate_rps is not None:
            times = times.scale_to_rate(arrivals.rate_rps)
        if n is None:
            n = len(times.tile_to_duration(spec.duration_s)) if spec.duration_s is not None else len(times)
        if n > len(times):
            files.more_notes.append(f"{table.source_file}: {len(times)} requests repeated to make {n}")
        arrival_s = times.tile(n).arrival_s
    elif isinstance(arrivals, ClosedLoop):
        if n is None:
            raise ScenarioError("required with closed-loop arrivals", key="num_requests")
        if spec.duration_s is not None:
            message = "cannot limit a closed loop, whose arrivals depend on the answers; give num_requests"
            raise ScenarioError(message, key="duration_s", value=spec.duration_s)
        return np.zeros(n)
    elif n is not None:
        arrival_s = arrivals.draw(seed, n)
    elif spec.duration_s is not None:
        arrival_s = arrivals.draw_until(seed, spec.duration_s)
    else:
        raise ScenarioError(f"required with {arrivals.kind} arrivals (or duration_s)", key="num_requests")
    return arrival_s if spec.duration_s is None else arrival_s[arrival_s < spec.duration_s]


def _add_acceptance(parts: RaggedParts, table: RequestTable, requests: IntArray, rows: IntArray) -> None:
    if table.acceptance_lengths is not None and table.acceptance_offsets is not None:
        parts.add(requests, rows, table.acceptance_lengths, table.acceptance_offsets, owner=id(table))


def _shorten_extra(lengths: dict[str, NDArray[np.int32]], counted: int) -> None:
    """Cut the requests from ``counted`` on to the longest before them; in place, the output first."""
    prompt, output = lengths["prompt_tokens"], lengths["output_tokens"]
    longest = int((prompt[:counted].astype(np.int64) + output[:counted]).max())
    np.minimum(prompt[counted:], longest - 1, out=prompt[counted:])
    np.minimum(output[counted:], longest - prompt[counted:], out=output[counted:])


def _fit(
    spec: WorkloadSpec,
    lengths: dict[str, NDArray[np.int32]],
    max_model_len: int | None,
    origin: _Origin,
    class_id: IntArray,
    counted: int,
) -> tuple[BoolArray, list[str]]:
    """Apply ``max_model_len_action``: returns which requests to keep and notes; clips ``lengths`` in place.

    Clipping cuts the output first, as an engine does that stops at max_model_len, and the prompt only when it leaves
    no room for one output token.
    """
    prompt, output = lengths["prompt_tokens"], lengths["output_tokens"]
    keep = np.ones(len(prompt), dtype=np.bool_)
    if max_model_len is None:
        return keep, []
    integer("max_model_len", max_model_len, 2)
    too_long = prompt.astype(np.int64) + output > max_model_len
    if not too_long.any():
        return keep, []
    count = f"{int(too_long[:counted].sum())} of {counted} requests longer than max_model_len {max_model_len}"
    if spec.max_model_len_action == "drop":
        if too_long[:counted].all():
            message = f"all {counted} requests are longer than that"
            raise CapacityError(message, key="max_model_len", value=max_model_len)
        return ~too_long, [f"dropped {count}"]
    if spec.max_model_len_action == "clip":
        np.minimum(prompt, max_model_len - 1, out=prompt)
        np.minimum(output, max_model_len - prompt, out=output)
        return keep, [f"clipped {count}"]
    raise _does_not_fit(int(np.argmax(too_long)), prompt, output, max_model_len, origin, class_id)


def _does_not_fit(
    i: int,
    prompt: NDArray[np.int32],
    output: NDArray[np.int32],
    max_model_len: int,
    origin: _Origin,
    class_id: IntArray,
) -> InputError:
    message = (
        f"prompt of {prompt[i]} and output of {output[i]} tokens exceed max_model_len {max_model_len}; "
        "raise it, or set max_model_len_action to clip or drop"
    )
    if origin.lines[i] >= 0:
        return TraceError(message, file=origin.files[int(class_id[i])], line=int(origin.lines[i]))
    return CapacityError(message, key=f"request {i}")
