"""The requests a simulation serves, as one column per fact.

A table knows nothing of policies or engines. It is never changed in place: every operation returns a new one.

Ragged columns (`hash_ids`, `acceptance_lengths`) are stored flat with offsets: request i owns
``values[offsets[i]:offsets[i + 1]]``. `RaggedParts` assembles one out of rows of several tables.
"""

import itertools
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftcast.errors import TraceError
from draftcast.kernels.arrays import BoolArray, FloatArray, IntArray
from draftcast.sim.compiled.random_streams import Stream, request_uniforms

MAX_TOKENS = 2**31 - 1  # columns of tokens are int32
COLUMNS = {"arrival_s": "f8", "prompt_tokens": "i4", "output_tokens": "i4", "class_id": "i2", "priority": "i4"}
OPTIONAL = ("source_lines", "system_prompt", "system_tokens", "session", "think_s")
RAGGED = (("hash_ids", "hash_offsets"), ("acceptance_lengths", "acceptance_offsets"))


@dataclass(frozen=True, eq=False)
class RequestTable:
    """n requests, sorted by arrival. Build one with `RequestTable.from_columns`.

    Acceptance is recorded by output position: a draft round started when ``p`` output tokens exist would have
    ``acceptance_lengths[acceptance_offsets[i] + p]`` of its drafts accepted (the bonus token not counted), for
    ``1 <= p < output_tokens[i]``. Position 0 exists only to keep the index plain: a prefill step drafts nothing.
    """

    arrival_s: FloatArray  # f8[n], seconds since the start, not decreasing
    prompt_tokens: NDArray[np.int32]  # i4[n], >= 1
    output_tokens: NDArray[np.int32]  # i4[n], >= 1
    class_id: NDArray[np.int16]  # i2[n], index into class_names
    priority: NDArray[np.int32]  # i4[n], smaller is served first, as in vLLM
    class_names: tuple[str, ...] = ("default",)
    hash_ids: IntArray | None = None  # i8[m], equal ids are equal prompt blocks (and equal prefixes)
    hash_offsets: IntArray | None = None  # i8[n+1]
    hash_block_tokens: int = 0  # tokens per hash id; 0 when there are none
    system_prompt: IntArray | None = None  # i8[n], equal ids are equal leading `system_tokens`, of as many
    system_tokens: NDArray[np.int32] | None = None  # i4[n], of the prompt; 0: it has no system prompt
    # i8[n], 0 <= id < n: requests of one session stand together; each prompt begins with the one before and its answer
    session: IntArray | None = None
    think_s: FloatArray | None = None  # f8[n], seconds between the answer before and the request, in a session
    acceptance_offsets: IntArray | None = None  # i8[n+1]
    acceptance_lengths: NDArray[np.uint8] | None = None  # u1[...], accepted drafts by output position
    source_file: str = ""  # where the rows come from, for error messages
    source_lines: IntArray | None = None  # i8[n], 1-based line of each row in source_file
    has_arrivals: bool = True  # False: the source had no times, arrival_s is all 0
    notes: tuple[str, ...] = ()  # what was dropped, sorted or clipped on the way, for people
    num_extra: int = 0  # requests at the end that only keep the load up while those before them are served

    @classmethod
    def from_columns(
        cls,
        prompt_tokens: ArrayLike,
        output_tokens: ArrayLike,
        arrival_s: ArrayLike | None = None,
        class_id: ArrayLike | None = None,
        priority: ArrayLike | None = None,
        **fields: Any,
    ) -> Self:
        """Cast the columns, fill the missing ones (arrival 0, class 0, priority 0) and sort by arrival (stable)."""
        zeros = np.zeros(len(np.asarray(prompt_tokens)), dtype=np.int64)
        if arrival_s is None:
            fields.setdefault("has_arrivals", False)
        columns = (arrival_s, prompt_tokens, output_tokens, class_id, priority)
        for (name, dtype), column in zip(COLUMNS.items(), columns, strict=True):
            fields[name] = np.asarray(zeros if column is None else column, dtype=dtype)
        table = cls(**fields)
        if (np.diff(table.arrival_s) < 0).any():
            table = table.take(np.argsort(table.arrival_s, kind="stable"))
        return table

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def num_counted(self) -> int:
        """Requests that figures describe; the extra ones follow them."""
        return len(self) - self.num_extra

    @property
    def span_s(self) -> float:
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0

    @property
    def mean_gap_s(self) -> float:
        """Mean seconds between two arrivals; 0 for fewer than two requests."""
        return self.span_s / (len(self) - 1) if len(self) > 1 else 0.0

    def check_integrity(self) -> None:
        """Assert every invariant of the columns: shapes, types, order and ranges."""
        n = len(self)
        for name, dtype in COLUMNS.items():
            column = getattr(self, name)
            assert column.shape == (n,), f"{name}: shape {column.shape}, expected {(n,)}"
            assert column.dtype == np.dtype(dtype), f"{name}: dtype {column.dtype}, expected {dtype}"
        assert np.isfinite(self.arrival_s).all(), "arrival_s must be finite"
        assert (self.arrival_s >= 0).all(), "arrival_s must not be negative"
        assert (np.diff(self.arrival_s) >= 0).all(), "arrival_s must not decrease"
        assert (self.prompt_tokens >= 1).all(), "prompt_tokens must be >= 1"
        assert (self.output_tokens >= 1).all(), "output_tokens must be >= 1"
        assert ((self.class_id >= 0) & (self.class_id < len(self.class_names))).all(), "class_id"
        for name, name_of_offsets in RAGGED:
            values, offsets = getattr(self, name), getattr(self, name_of_offsets)
            assert (values is None) == (offsets is None), f"{name} and {name_of_offsets} go together"
            if offsets is not None:
                assert offsets.shape == (n + 1,), f"{name_of_offsets}: shape {offsets.shape}, expected {(n + 1,)}"
                assert offsets.dtype == np.int64, f"{name_of_offsets} must be int64"
                assert (offsets[0], offsets[-1]) == (0, len(values)), f"{name_of_offsets} do not span the values"
                assert (np.diff(offsets) >= 0).all(), f"{name_of_offsets} must not decrease"
        assert (self.hash_ids is None) == (self.hash_block_tokens == 0), "hash columns"
        if self.hash_offsets is not None:
            blocks = np.diff(self.hash_offsets)
            assert (blocks <= -(-self.prompt_tokens // self.hash_block_tokens)).all(), "more hashes than blocks"
        for name in OPTIONAL:
            assert getattr(self, name) is None or getattr(self, name).shape == (n,), name
        if self.session is not None:
            starts = np.flatnonzero(np.diff(self.session, prepend=-1))
            assert len(starts) == len(np.unique(self.session)), "requests of a session stand apart"
        if self.acceptance_lengths is not None and self.acceptance_offsets is not None:
            assert self.acceptance_lengths.dtype == np.uint8, "acceptance_lengths must be uint8"
            recorded = np.diff(self.acceptance_offsets)
            assert ((recorded == 0) | (recorded >= self.output_tokens)).all(), "acceptance shorter than the output"

    @property
    def shares_prefixes(self) -> bool:
        """Whether prompts may begin alike."""
        return any(column is not None for column in (self.hash_ids, self.system_prompt, self.session))

    def prefix_ids(self, request: int) -> list[int]:
        """Ids of what the request begins with, from the first on; equal ids are equal prefixes."""
        if self.hash_ids is not None and self.hash_offsets is not None:
            start, stop = self.hash_offsets[request : request + 2]
            if stop > start:
                return self.hash_ids[start:stop].tolist()  # type: ignore[no-any-return]
        ids = []
        if self.system_prompt is not None and self.system_tokens is not None and self.system_tokens[request]:
            ids.append(-1 - 2 * int(self.system_prompt[request]))
        if self.session is not None:
            ids.append(-2 - 2 * int(self.session[request]))
        return ids

    def shared_tokens(self) -> IntArray:
        """Of each prompt, tokens of its system prompt or of what its session has said already, i8[n]."""
        shared = np.zeros(len(self), np.int64) if self.system_tokens is None else self.system_tokens.astype(np.int64)
        if self.session is not None:
            going_on = np.flatnonzero(np.diff(self.session) == 0)
            shared[going_on + 1] = self.prompt_tokens[going_on].astype(np.int64) + self.output_tokens[going_on]
        return shared

    def into_session(self) -> tuple[IntArray, FloatArray]:
        """Requests before each one in its session, i8[n], and seconds thought until it, f8[n]; 0 without sessions."""
        number = np.arange(len(self))
        if self.session is None or self.think_s is None:
            return np.zeros_like(number), np.zeros(len(self))
        starts = np.flatnonzero(np.diff(self.session, prepend=-1))
        first = starts[np.searchsorted(starts, number, side="right") - 1]
        thought_s = np.cumsum(self.think_s)
        return number - first, thought_s - thought_s[first]

    def take(self, index: ArrayLike) -> Self:
        """The requests at ``index`` (ints, may repeat), in that order; arrivals are kept and must come out sorted."""
        rows = np.asarray(index, dtype=np.int64)
        columns = {name: getattr(self, name) for name in (*COLUMNS, *OPTIONAL)}
        changed: dict[str, Any] = {name: column[rows] for name, column in columns.items() if column is not None}
        for values, offsets in RAGGED:
            if getattr(self, values) is not None:
                changed[values], changed[offsets] = take_ragged(getattr(self, values), getattr(self, offsets), rows)
        return replace(self, **changed)

    def slice(self, start: int, stop: int) -> Self:
        return self.take(np.arange(len(self))[start:stop])

    def shift_to_zero(self) -> Self:
        return replace(self, arrival_s=self.arrival_s - self.arrival_s[0]) if len(self) else self

    def clip_lengths(self, max_prompt_tokens: int | None, max_output_tokens: int | None) -> Self:
        """Cut prompts and outputs to at most so many tokens (prompts lose their tail, and its hashes)."""
        prompt = np.minimum(self.prompt_tokens, max_prompt_tokens or MAX_TOKENS).astype(np.int32)
        output = np.minimum(self.output_tokens, max_output_tokens or MAX_TOKENS).astype(np.int32)
        table = replace(self, prompt_tokens=prompt, output_tokens=output)
        if self.hash_ids is None or self.hash_offsets is None:
            return table
        blocks = -(-prompt // self.hash_block_tokens)
        ids, offsets = take_ragged(self.hash_ids, self.hash_offsets, np.arange(len(self)), blocks)
        return replace(table, hash_ids=ids, hash_offsets=offsets)

    def keep(self, mask: BoolArray) -> Self:
        return self if bool(mask.all()) else self.take(np.flatnonzero(mask))

    def sample(self, n: int, seed: int) -> Self:
        """``n`` requests drawn without replacement, in order and at their own times (so the rate falls to n/len).

        The draw belongs to the row: with one seed, a smaller sample is a subset of a larger one.
        """
        if not 1 <= n <= len(self):
            message = f"must be between 1 and the {len(self)} requests there are"
            raise TraceError(message, file=self.source_file or None, key="sample_requests", value=n)
        order = np.argsort(request_uniforms(seed, Stream.SAMPLE, len(self)), kind="stable")
        return self.take(np.sort(order[:n]))


def take_ragged(
    values: NDArray[Any], offsets: IntArray, rows: IntArray, limits: NDArray[Any] | None = None
) -> tuple[NDArray[Any], IntArray]:
    """Gather ``rows`` of a ragged column, each cut to ``limits`` values; returns (values, offsets)."""
    lengths = np.diff(offsets)[rows]
    if limits is not None:
        lengths = np.minimum(lengths, limits)
    return values[_places(offsets[rows], lengths)], offsets_of(lengths)


def offsets_of(lengths: ArrayLike) -> IntArray:
    """Where each of consecutive pieces begins, and the end, int64[n + 1]."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _places(starts: IntArray, lengths: IntArray) -> IntArray:
    """Index of every value of pieces of so many values that begin at ``starts``."""
    offsets = offsets_of(lengths)
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)


class RaggedParts:
    """Collects, for n requests, which row of which ragged column each one takes. Requests without one own nothing."""

    def __init__(self, n: int) -> None:
        self._columns: list[tuple[NDArray[Any], IntArray]] = []  # values and offsets
        self._row = np.full(n, -1)  # of each request, among the rows of all columns; -1, none, is an empty last row

    def __bool__(self) -> bool:
        return bool(self._columns)

    def add(self, requests: IntArray, rows: IntArray, values: NDArray[Any] | None, offsets: IntArray | None) -> None:
        """Requests ``requests`` (int64[m]) take rows ``rows`` (int64[m]) of a column, where there is one."""
        if values is None or offsets is None:
            return
        before = list(itertools.takewhile(lambda column: column[0] is not values, self._columns))
        if len(before) == len(self._columns):
            self._columns.append((values, offsets))
        self._row[requests] = rows + sum(len(other) - 1 for _, other in before)

    def has(self, requests: IntArray) -> bool:
        """Whether all of these requests have a row already (and there are some)."""
        return bool(len(requests)) and bool((self._row[requests] >= 0).all())

    def _offsets(self) -> IntArray:
        """Of the rows of all columns, one column's values after the other's."""
        return offsets_of(np.concatenate([*(np.diff(offsets) for _, offsets in self._columns), [0]]))

    def gather_fresh(self, limits: IntArray) -> tuple[IntArray, IntArray]:
        """Prefix hashes, each request's cut to ``limits`` (int64[n]); returns (ids, offsets).

        When a row is taken again, it belongs to the next copy of the trace, whose blocks are its own: a repeated trace
        must not hit the cache for every block.
        """
        import pandas as pd  # takes longer to load than a trace to read

        columns: list[IntArray] = []
        num_known = 0
        for values, _ in self._columns:
            distinct, dense = np.unique(values, return_inverse=True)  # ids may be any 64-bit numbers
            columns.append(num_known + dense)
            num_known += len(distinct)
        ids, offsets = take_ragged(np.concatenate(columns), self._offsets(), self._row, limits)
        copies = pd.Series(self._row).groupby(self._row).cumcount().to_numpy(np.int64)  # a row's takings before
        return np.asarray(ids + np.repeat(copies, np.diff(offsets)) * num_known, np.int64), offsets

    def gather_cyclic(self, output_tokens: IntArray) -> tuple[NDArray[np.uint8], IntArray]:
        """Recorded acceptance for positions 0 .. output_tokens, and offsets; without a record a request owns nothing.

        Where the record ends it is repeated from position 1 on.
        """
        offsets, values = self._offsets(), np.concatenate([values for values, _ in self._columns])
        lengths = np.where(self._row >= 0, output_tokens + 1, 0)
        position = _places(np.zeros_like(lengths), lengths)
        recorded = np.repeat(np.diff(offsets)[self._row] - 1, lengths)
        source = np.where(position == 0, 0, 1 + (position - 1) % recorded) + np.repeat(offsets[self._row], lengths)
        return values[source], offsets_of(lengths)
