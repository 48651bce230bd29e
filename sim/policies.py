"""Draft-length policies: how many drafts a step makes, given what the engine sees.

A policy returns a decision, the engine applies it. Built-in policies compile to parameters of the rules in
``draftcast.sim.engine.decide``; a Python policy is a class with a ``decide`` method, called once a step:

    class HalfWhenBusy(Policy):
        def decide(self, batch):
            return batch.k // 2 if batch.num_seqs > 32 else batch.k

It may remember what it likes in ``self``: every replica of every replication runs a copy of its own.

Anything but ``fixed`` makes the draft length dynamic, so one-token admissions are not padded (vLLM's rule for
``num_speculative_tokens_per_batch_size``), and everything that a method reserves (input slots, lookahead blocks,
the draft's memory) stays reserved for ``num_speculative_tokens``: off by policy is not free.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from draftcast.errors import ScenarioError
from draftcast.sim.engine import decide as rules
from draftcast.sim.engine.replica import Decide
from draftcast.sim.engine.state import Engine, PolicyArrays
from draftcast.sim.step_time import decode_step_seconds


def _arrays(kind: int, table: Any = (0,), params: Any = (), state: Any = ()) -> PolicyArrays:
    return PolicyArrays(
        kind=np.array([kind], np.int64),
        params=np.array(params, np.float64),
        table=np.array(table, np.int64),
        state=np.array(state, np.float64),
    )


@dataclass(frozen=True)
class Batch:
    """What a Python policy sees of the step being scheduled; arrays have one entry per scheduled request.

    ``outputs`` and ``acceptance`` are as of the last output that is in: under asynchronous scheduling the step in
    flight is not known yet.
    """

    k: int  # num_speculative_tokens, the most a request may draft
    request: NDArray[np.uint32]  # row in the request table
    outputs: NDArray[np.int32]  # output tokens delivered
    context: NDArray[np.int32]  # tokens in the KV cache after this step
    drafts: NDArray[np.int32]  # drafts verified in this step
    is_prefill: NDArray[np.bool_]  # a chunk that is not the prompt's last: drafts nothing
    acceptance: NDArray[np.float64]  # accepted / drafted of the request so far, NaN before its first round
    waiting: int  # requests in the queue
    kv_usage: float  # share of KV blocks in use
    now_s: float
    _engine: Engine

    @property
    def num_seqs(self) -> int:
        """Requests scheduled."""
        return int(self.request.size)

    def step_seconds(self, k: int, num_seqs: int | None = None, mean_context: float | None = None) -> float:
        """Forecast duration of a decode step in which each of ``num_seqs`` requests verifies and makes k drafts."""
        seqs = self.num_seqs if num_seqs is None else num_seqs
        context = float(self.context.mean()) if mean_context is None else mean_context
        return float(decode_step_seconds(self._engine.cost, seqs, k, context))


class Policy:
    """Base of all policies. Subclass it, override ``decide``, and name it by import path in a scenario."""

    name: ClassVar[str] = ""
    is_dynamic: ClassVar[bool] = True

    def compile(self, k: int, max_num_seqs: int) -> PolicyArrays:
        """The arrays of the compiled rule. ``k`` is num_speculative_tokens."""
        return _arrays(rules.KIND_PYTHON)

    def fresh(self) -> Policy:
        """A policy of the same parameters that has seen nothing yet; every replica of every replication gets its own.

        A deep copy of this one, which itself never decides. Override it for a policy that holds what must be shared.
        """
        try:
            return copy.deepcopy(self)
        except TypeError as error:
            raise ScenarioError(
                f"cannot be copied for each replica ({error}); let it override fresh()",
                key="policy.name",
                value=type(self).__name__,
            ) from None

    def decide(self, batch: Batch) -> int | Sequence[int] | NDArray[np.integer[Any]]:
        """Drafts to make in this step: one number for all requests, or one each. Values are cut to 0..k."""
        raise NotImplementedError(f"{type(self).__name__} does not override decide()")


@dataclass(frozen=True)
class Off(Policy):
    """Never draft, with everything loaded and reserved: what SD "off" by policy (k = 0) still costs."""

    name: ClassVar[str] = "off"

    def compile(self, k: int, max_num_seqs: int) -> PolicyArrays:
        return _arrays(rules.KIND_FIXED, table=[0])


@dataclass(frozen=True)
class Fixed(Policy):
    """Always draft ``num_speculative_tokens``, as vLLM does without a schedule."""

    name: ClassVar[str] = "fixed"
    is_dynamic: ClassVar[bool] = False

    def compile(self, k: int, max_num_seqs: int) -> PolicyArrays:
        return _arrays(rules.KIND_FIXED, table=[k])


@dataclass(frozen=True)
class BatchSchedule(Policy):
    """Drafts by batch size: vLLM's ``num_speculative_tokens_per_batch_size``.

    ``schedule`` holds inclusive ranges ``(first, last, k)``, the first starting at 1. A gap and everything past the
    last range keep the k of the range before; no k exceeds num_speculative_tokens
    (vLLM 0.32 ``v1/spec_decode/dynamic/utils.py``).
    """

    schedule: Sequence[Sequence[int]]
    name: ClassVar[str] = "batch_schedule"

    def __post_init__(self) -> None:
        self.lookup(1, 1)

    def lookup(self, k: int, max_num_seqs: int) -> NDArray[np.int64]:
        """Drafts by number of scheduled requests, shape [max_num_seqs + 1]; entry 0 is never used.

        Raises:
            ScenarioError: ranges overlap, leave out batch size 1, or are not (first, last, k).
        """
        try:
            ranges = sorted((int(first), int(last), int(drafts)) for first, last, drafts in self.schedule)
        except (TypeError, ValueError):
            raise ScenarioError(
                "must be a list of ranges [first, last, k]",
                key="num_speculative_tokens_per_batch_size",
                value=self.schedule,
            ) from None
        previous = 0
        table = np.zeros(max_num_seqs + 1, np.int64)
        for entry in ranges:
            if entry[0] <= previous or entry[1] < entry[0] or entry[2] < 0:
                raise ScenarioError(
                    "must be inclusive ranges [first, last, k] that do not overlap, with k >= 0",
                    key="num_speculative_tokens_per_batch_size",
                    value=list(entry),
                )
            previous = entry[1]
            table[entry[0] :] = min(k, entry[2])
        if not ranges or ranges[0][0] != 1:
            raise ScenarioError(
                "the first range must start at batch size 1",
                key="num_speculative_tokens_per_batch_size",
                value=[list(entry) for entry in self.schedule],
            )
        return table

    def compile(self, k: int, max_num_seqs: int) -> PolicyArrays:
        return _arrays(rules.KIND_TABLE, table=self.lookup(k, max_num_seqs))


@dataclass(frozen=True)
class Goodput(Policy):
    """SmartSpec: the k with the most expected tokens per second (arXiv 2406.14066, section 4).

    Expected tokens of a round are 1 + alpha + ... + alpha^k with one moving-average alpha for the replica; the
    seconds come from the step cost at the batch's size and mean context.

    Args:
        weight: weight of a new step in the moving average, in (0, 1].
        initial_acceptance: alpha before the first round, in [0, 1].
        probe_interval_steps: after so many steps in a row without drafts, one step drafts one token so that alpha
            can recover; 0 never probes.
    """

    weight: float = 0.1
    initial_acceptance: float = 0.7
    probe_interval_steps: int = 64
    name: ClassVar[str] = "goodput"

    def __post_init__(self) -> None:
        _check_unit(self, "weight", above_zero=True)
        _check_unit(self, "initial_acceptance")
        _check_count(self, "probe_interval_steps", 0)

    def compile(self, k: int, max_num_seqs: int) -> PolicyArrays:
        return _arrays(
            rules.KIND_GOODPUT,
            params=[self.weight, self.probe_interval_steps],
            state=[self.initial_acceptance, 0.0],
        )


@dataclass(frozen=True)
class Tier:
    """Candidate draft lengths from a batch size on; hysteresis shifts the thresholds to a shorter or longer one."""

    batch_size: int
    steps: Sequence[int]
    up_hysteresis: float = 0.0
    down_hysteresis: float = 0.0


SGLANG_TIERS = (
    Tier(1, (1, 3, 5, 7), 0.0, -0.25),
    Tier(8, (0, 1, 3)),
    Tier(32, (0, 1)),
    Tier(64, (0,)),
)
"""SGLang's defaults, ``python/sglang/srt/speculative/adaptive_spec_params.py``, 2026."""


@dataclass(frozen=True)
class EmaTiers(Policy):
    """SGLang's adaptive speculation: candidate lengths by batch size, walked by a moving accepted length.

    Every tier keeps the moving average of accepted drafts per round. Every ``update_interval`` outputs, past
    ``warmup_batches``, it steps down while the average is at most half a token below the next shorter candidate
    (plus hysteresis), else up while it is above the current candidate less half a token. From a candidate 0 it
    probes the next. Candidates above num_speculative_tokens are left out.
    """

    tiers: Sequence[Tier] = SGLANG_TIERS
    ema_alpha: float = 0.2
    update_interval: int = 5
    warmup_batches: int = 10
    name: ClassVar[str] = "ema_tiers"

    def __post_init__(self) -> None:
        tiers = tuple(t if isinstance(t, Tier) else Tier(**t) for t in self.tiers)
        object.__setattr__(self, "tiers", tiers)
        _check_unit(self, "ema_alpha", above_zero=True)
        _check_count(self, "update_interval", 1)
        _check_count(self, "warmup_batches", 0)
        sizes = [t.batch_size for t in tiers]
        if not tiers or sizes != sorted(set(sizes)):
            raise ScenarioError("batch sizes must rise from tier to tier", key="policy.tiers", value=sizes)
        for t in tiers:
            if not t.steps or len(t.steps) > rules.MAX_TIER_STEPS or min(t.steps) < 0:
                raise ScenarioError(
                    f"needs 1 to {rules.MAX_TIER_STEPS} draft lengths, none negative",
                    key="policy.tiers.steps",
                    value=list(t.steps),
                )

    def compile(self, k: int, max_num_seqs: int) -> PolicyArrays:
        params = [self.ema_alpha, self.update_interval, self.warmup_batches, len(self.tiers)]
        state: list[float] = []
        for tier in self.tiers:
            steps = sorted({s for s in tier.steps if s <= k}) or [0]
            row = [0.0] * rules.TIER_ROW
            row[: rules.TIER_STEP_0] = [tier.batch_size, tier.down_hysteresis, tier.up_hysteresis, len(steps)]
            row[rules.TIER_STEP_0 : rules.TIER_STEP_0 + len(steps)] = steps
            params += row
            start = steps.index(k) if k in steps else len(steps) // 2
            state += [start, steps[start] - 1.0, 0.0]
        return _arrays(rules.KIND_EMA_TIERS, params=params, state=state)


@dataclass(frozen=True)
class Oracle(Policy):
    """Knows which drafts of every request will be accepted, and takes the most tokens per second of the next step.

    Rule: let the requests that will decode next verify d_i drafts each. Their step yields ``sum(1 + min(d_i, a_i))``
    tokens, a_i being what would be accepted (and is still wanted before the request ends), and takes the draft passes
    for max(d_i), the target pass over ``sum(1 + d_i)`` rows with its CUDA-graph padding, sampler and host. Every number
    of passes 0..k and every number of rows is weighed, more drafts than will be accepted too: measured kernels are
    faster at some larger row counts. Ties go to fewer drafts.

    What it bounds: tokens per second of that one step, over all choices of drafts, as long as step time depends on
    which request gets a draft only through the counts (contexts enter by their sum; prefill that joins the step is not
    foreseen; where rows are given up or added to reach a CUDA-graph size, attention is taken to change little with
    them). It is not a bound on a whole run: the best next step may leave worse ones behind, so another policy can come
    out ahead over many steps, in practice by little.
    """

    name: ClassVar[str] = "oracle"

    def compile(self, k: int, max_num_seqs: int) -> PolicyArrays:
        return _arrays(rules.KIND_ORACLE, state=np.zeros(k + 1))


POLICIES: dict[str, type[Policy]] = {p.name: p for p in (Off, Fixed, BatchSchedule, Goodput, EmaTiers, Oracle)}


def _check_unit(policy: Policy, field: str, above_zero: bool = False) -> None:
    value = getattr(policy, field)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0.0 <= value <= 1.0 or (above_zero and value == 0.0):
        allowed = "must be above 0 and at most 1" if above_zero else "must be in 0..1"
        raise ScenarioError(allowed, key=f"policy.{field}", value=value)


def _check_count(policy: Policy, field: str, least: int) -> None:
    value = getattr(policy, field)
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ScenarioError(f"must be a whole number of at least {least}", key=f"policy.{field}", value=value)


def load_policy(name: str, **parameters: Any) -> Policy:
    """A policy by registered name, or by import path ``package.module:Class`` or ``path/to/file.py:Class``.

    Raises:
        ScenarioError: unknown name, module, class or parameter; the message lists what is allowed.
    """
    if ":" in name:
        kind = _import_policy(name)
    elif name in POLICIES:
        kind = POLICIES[name]
    else:
        known = ", ".join(sorted(POLICIES))
        raise ScenarioError(
            f"unknown; known are {known}, or an import path module:Class", key="policy.name", value=name
        )
    try:
        return kind(**parameters)
    except TypeError as error:
        known = ", ".join(f.name for f in fields(kind)) if is_dataclass(kind) else "see its class"
        raise ScenarioError(f"{error}; parameters are: {known or 'none'}", key="policy", value=name) from error


def _import_policy(path: str) -> type[Policy]:
    module_name, _, class_name = path.rpartition(":")
    try:
        if module_name.endswith(".py"):
            spec = importlib.util.spec_from_file_location(f"draftcast_policy_{Path(module_name).stem}", module_name)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(module_name)
    except (ImportError, OSError, SyntaxError) as error:
        raise ScenarioError(f"cannot be imported: {error}", key="policy.name", value=path) from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type) or not issubclass(found, Policy):
        raise ScenarioError(f"{class_name!r} is not a draftcast.sim.Policy in it", key="policy.name", value=path)
    return found


def python_hook(policy: Policy) -> Decide | None:
    """The engine's hook of a Python policy; None for a compiled one."""
    if type(policy).decide is Policy.decide:
        return None

    def hook(s: Engine, slot: int) -> None:
        e = s.engine[0]
        c = s.config[0]
        entries = s.entries[slot][: s.batch[slot]["size"]]
        rows = s.requests[entries["request"]]
        with np.errstate(invalid="ignore"):
            acceptance = rows["accepted"] / np.where(rows["draft_tokens"] > 0, rows["draft_tokens"], np.nan)
        k = int(c["k"])
        decision = policy.decide(
            Batch(
                k=k,
                request=entries["request"].copy(),
                outputs=rows["tokens"] - rows["prompt"],
                context=entries["computed"] + entries["tokens"],
                drafts=entries["drafts"].copy(),
                is_prefill=entries["is_chunk"].astype(np.bool_),
                acceptance=acceptance,
                waiting=int(e["num_waiting"]),
                kv_usage=1.0 - float(e["free_blocks"]) / max(int(c["num_blocks"]) - 1, 1),
                now_s=float(e["host_s"]),
                _engine=s,
            )
        )
        drafts = np.asarray(decision)
        if drafts.dtype.kind not in "iu" or drafts.shape not in ((), entries.shape):
            raise ScenarioError(
                f"must return a whole number, or one for each of the {entries.size} scheduled requests",
                key=f"{type(policy).__name__}.decide",
                value=decision,
            )
        entries["next_drafts"] = np.where(entries["is_chunk"] != 0, 0, np.clip(drafts, 0, k))

    return hook


__all__ = [
    "POLICIES",
    "SGLANG_TIERS",
    "Batch",
    "BatchSchedule",
    "EmaTiers",
    "Fixed",
    "Goodput",
    "Off",
    "Oracle",
    "Policy",
    "Tier",
    "load_policy",
    "python_hook",
]
