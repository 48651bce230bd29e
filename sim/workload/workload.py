"""What arrives, as a scenario says it: arrivals or a trace, token counts, request classes and their objectives."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field

from draftcast.frozen import Count, Duration, Faults, Frozen, NonEmpty, Positive, Probability, Seconds, wrong
from draftcast.sim.acceptance import Acceptance
from draftcast.sim.acceptance.model import Trace
from draftcast.sim.workload.arrivals import MAX_REQUESTS, Arrivals, ClosedLoopArrivals, TraceArrivals
from draftcast.sim.workload.lengths import Lengths, TokenCounts
from draftcast.sim.workload.traces import RECORD, TraceSpec

_IN_TRACE = {"lengths": "lengths", "system_prompt": "prompts", "sessions": "prompts"}
Attainment = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class SloBounds(Frozen):
    """Objectives with the names and units of ``vllm bench serve --goodput``; None: no such objective."""

    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None
    e2el_ms: Positive | None = None

    def faults(self) -> Faults:
        if self.ttft_ms is None and self.tpot_ms is None and self.e2el_ms is None:
            yield wrong("ttft_ms", None, "give at least one of ttft_ms, tpot_ms, e2el_ms")


class Slo(SloBounds):
    """A request is good when it meets every given bound; the run meets its SLO when ``attainment`` of requests are."""

    attainment: Attainment = 0.99


class ClassSlo(SloBounds):
    """The bounds of a class, in place of the scenario's."""

    attainment: Attainment | None = None
    """null: the scenario's."""


class SystemPrompt(Frozen):
    """Tokens that prompts share at their beginning, before those of ``lengths``."""

    tokens: Count
    # How many texts of that length there are; each request (or session) has one of them, drawn evenly.
    variants: Annotated[int, Field(ge=1, le=2**20)] = 1


class Sessions(Frozen):
    """Conversations of users, or loops of agents, instead of single requests.

    A turn's prompt is the system prompt, all prompts and answers before it, and ``lengths.prompt_tokens`` of the user.
    An agent calls the model several times a turn: between two calls a tool works and adds its output.
    """

    turns: TokenCounts  # of the user, in a session
    think_time_s: Seconds  # mean, from an answer to the user's next turn
    calls_per_turn: TokenCounts | None = None  # None: one, without a tool
    tool_output_tokens: TokenCounts | None = None  # of a tool between two calls
    tool_time_s: Seconds = 0.0  # mean, of a tool
    think_time_distribution: Literal["exponential", "constant"] = "exponential"  # Of both times.

    def faults(self) -> Faults:
        if (self.calls_per_turn is None) != (self.tool_output_tokens is None):
            missing = "calls_per_turn" if self.calls_per_turn is None else "tool_output_tokens"
            yield wrong(missing, None, "calls_per_turn and tool_output_tokens go together")
        if self.calls_per_turn is None and self.tool_time_s:
            yield wrong("tool_time_s", self.tool_time_s, "has no effect without calls_per_turn")


class RequestClass(Frozen):
    """A share of the requests with its own lengths, acceptance, SLO or priority; None takes the scenario's."""

    name: NonEmpty
    share: Probability
    lengths: Lengths | None = None
    system_prompt: SystemPrompt | None = None
    sessions: Sessions | None = None
    speculation: bool = True  # False: the engine makes no drafts for requests of this class.
    acceptance: Acceptance | None = None
    slo: ClassSlo | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0

    @property
    def record(self) -> str:
        """Which recorded acceptance is read along with the requests of a ``specdecode_bench`` file."""
        return self.acceptance.record if isinstance(self.acceptance, Trace) else RECORD

    @property
    def recording(self) -> TraceSpec | None:
        """The file of a recorded acceptance that has its own; None where it comes with the requests."""
        path = self.acceptance.path if isinstance(self.acceptance, Trace) else None
        return TraceSpec(path=path) if path is not None else None


DEFAULT_CLASS = RequestClass(name="default", share=1.0)


class Workload(Frozen):
    """Arrivals, lengths and classes of one run."""

    arrivals: Arrivals
    """poisson, gamma, deterministic, piecewise, closed_loop (concurrency) or trace (path)."""
    num_requests: Annotated[int, Field(ge=1, le=MAX_REQUESTS)] | None = None
    """Number of requests; with duration_s all that arrive before it, or both limits; neither: a trace once."""
    duration_s: Duration | None = None
    lengths: Lengths | None = None
    """Tokens of prompts and outputs: a number or a distribution each, or the path of a trace."""
    system_prompt: SystemPrompt | None = None
    sessions: Sessions | None = None
    classes: Annotated[tuple[RequestClass, ...], Field(strict=False)] = ()
    """Shares of the requests with lengths, acceptance, SLO or priority of their own."""
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 1.0
    """Sampling temperature of all requests; 0: greedy, which verifies drafts in less time."""
    max_model_len_action: Literal["error", "clip", "drop"] = "error"
    """What to do with a request whose prompt and output exceed max_model_len."""

    def source_of(self, entry: RequestClass) -> TraceSpec | None:
        """The file that the requests of a class come from; None where their lengths are drawn."""
        if isinstance(self.arrivals, TraceArrivals):
            return self.arrivals
        lengths = entry.lengths or self.lengths
        if lengths is None or lengths.path is None:
            return None
        return TraceSpec(path=lengths.path, format=lengths.format)

    @property
    def _places(self) -> tuple[Self | RequestClass, ...]:
        """Where lengths, system prompts and sessions may be said."""
        return (self, *self.classes)

    @property
    def shares_prefixes(self) -> bool:
        """Whether prompts may begin alike, those of files aside."""
        return self.has_sessions or any(entry.system_prompt is not None for entry in self._places)

    @property
    def has_sessions(self) -> bool:
        """Whether any requests are turns of sessions."""
        return any(entry.sessions is not None for entry in self._places)

    def faults(self) -> Faults:
        from_trace = isinstance(self.arrivals, TraceArrivals)
        closed = isinstance(self.arrivals, ClosedLoopArrivals)
        if closed and self.duration_s is not None:
            yield wrong("duration_s", self.duration_s, "not with closed_loop arrivals; give num_requests")
        if not from_trace and self.num_requests is None and (closed or self.duration_s is None):
            yield wrong("num_requests", None, f"required with {self.arrivals.process} arrivals")
        for index, entry in enumerate(self._places):
            place = f"classes.{index - 1}." if index else ""
            for key, what in _IN_TRACE.items():
                if from_trace and getattr(entry, key) is not None:
                    yield wrong(place + key, "given", f"not together with a trace: the trace has the {what}")
            if self.has_sessions and entry.lengths is not None and entry.lengths.path is not None:
                message = "not with sessions: give distributions of a turn's tokens"
                yield wrong(f"{place}lengths.path", entry.lengths.path, message)
        if self.has_sessions and self.duration_s is not None:
            message = "not with sessions, whose requests wait for answers; give num_requests"
            yield wrong("duration_s", self.duration_s, message)
        lengths_everywhere = self.classes and all(entry.lengths is not None for entry in self.classes)
        if not from_trace and self.lengths is None and not lengths_everywhere:
            yield wrong("lengths", None, "required: prompt_tokens and output_tokens (or lengths in every class)")
        names = [entry.name for entry in self.classes]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield wrong(f"classes.{index}.name", name, "class names must differ")
        total = math.fsum(entry.share for entry in self.classes)
        if self.classes and abs(total - 1) > 1e-6:
            yield wrong("classes", total, "the classes' shares must sum to 1")
