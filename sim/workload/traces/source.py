"""What all trace readers share: getting the text, naming the place of an error, making the table.

The first bad value raises `TraceError` with file, 1-based line, field, value and what is allowed. Rows that are sound
but cannot be served (an empty prompt or no output: failed requests) are dropped and counted in the table's ``notes``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftcast.errors import TraceError
from draftcast.files import json_lines, read_text
from draftcast.kernels.arrays import FloatArray, IntArray
from draftcast.sim.workload.request_table import MAX_TOKENS, RequestTable

TOKENS_ALLOWED = f"must be an integer from 0 to {MAX_TOKENS} (rows with 0 are dropped)"
TIME_ALLOWED = "must be a finite number >= 0"
_SPACE = re.compile(r"[ \t\r\n]*")
Row = tuple[int, int, int, float]  # Of one request: line, prompt tokens, output tokens, arrival in seconds.
_ABSENT = object()


@dataclass(frozen=True)
class TraceText:
    file: str
    text: str = field(repr=False)

    @classmethod
    def from_file(cls, path: str | Path) -> TraceText:
        """Read ``path``. Raises TraceError when it cannot be read, is not UTF-8, or holds nothing."""
        text = read_text(path, TraceError)
        if not text or text.isspace():
            raise TraceError("the trace is empty", file=str(path))
        return cls(str(path), text)

    def error(self, message: str, line: int | None, key: str | None = None, **value: object) -> TraceError:
        """A TraceError at this file; pass ``value=`` to show the offending value."""
        return TraceError(message, file=self.file, line=line, key=key, **value)

    def json_lines(self) -> Iterator[Entry]:
        """The object of each non-blank line; a line that is no JSON object raises."""
        for line, values in json_lines(self.text, self.file, TraceError):
            yield Entry(self, line, "", values)

    def json_entries(self) -> Iterator[Entry]:
        """Each element of a JSON array of objects, or each object in sequence, called ``[0]``, ``[1]``, ..."""
        decoder, text, end = json.JSONDecoder(), self.text, len(self.text)
        line, counted, number = 1, 0, 0

        def skip(position: int) -> int:
            return _SPACE.match(text, position).end()  # type: ignore[union-attr]

        def cut_at(position: int, message: str) -> TraceError:
            return self.error(message, 1 + text.count("\n", 0, position))

        position = skip(0)
        is_array = text[position] == "["
        if is_array:
            position = skip(position + 1)
        while position < end and text[position] != "]":
            place = f"[{number}]"
            line, counted = line + text.count("\n", counted, position), position
            try:
                entry, position = decoder.raw_decode(text, position)
            except json.JSONDecodeError as error:
                message = f"not complete JSON ({error.msg} at column {error.colno}); is the file truncated?"
                raise self.error(message, error.lineno, place) from None
            except RecursionError:
                raise self.error("JSON nested too deeply", line, place) from None
            except ValueError:
                raise self.error("an integer of thousands of digits", line, place) from None
            if not isinstance(entry, dict):
                raise self.error("each entry must be a JSON object", line, place, value=entry)
            yield Entry(self, line, place, entry)
            number += 1
            position = skip(position)
            if is_array and text.startswith(",", position):
                position = skip(position + 1)
            elif is_array and not text.startswith("]", position):
                raise cut_at(position, "the JSON array does not go on with ',' or ']'; is the file truncated?")
        if is_array and position >= end:
            raise cut_at(position, "the JSON array is not closed; is the file truncated?")
        if is_array and (after := skip(position + 1)) < end:
            raise cut_at(after, "text after the end of the JSON array")


@dataclass(frozen=True)
class Entry:
    """A JSON object of a trace and where it stands; what is taken from it is checked, or TraceError names the place."""

    trace: TraceText
    line: int  # 1-based
    place: str  # in the line or file, such as ``[0].messages[1]``; "" for a line's own object
    values: dict[str, Any] = field(repr=False)

    def error(self, message: str, key: str = "", **value: object) -> TraceError:
        return self.trace.error(message, self.line, ".".join(filter(None, (self.place, key))) or None, **value)

    def member(self, key: str) -> Any:
        if key not in self.values:
            raise self.error(f"missing field (found: {short_list(self.values)})", key)
        return self.values[key]

    def tokens(self, key: str, value: Any = _ABSENT) -> int:
        """A token count, the member's or ``value``. Floats with an integer value pass (pandas writes 12 as 12.0)."""
        value = self.member(key) if value is _ABSENT else value
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS
        if is_number and float(value).is_integer():
            return int(value)
        raise self.error(TOKENS_ALLOWED, key, value=value)

    def seconds(self, key: str, value: object = _ABSENT) -> float:
        """A time that is finite and not negative, the member's or ``value``."""
        value = self.member(key) if value is _ABSENT else value
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max:
            return float(value)
        raise self.error(TIME_ALLOWED, key, value=value)

    def items(self, key: str, allowed: str) -> list[Any]:
        """The list under a key."""
        value = self.member(key)
        if not isinstance(value, list):
            raise self.error(allowed, key)
        return value

    def inner(self, key: str, allowed: str, value: object = _ABSENT) -> Entry:
        """The object under a key, or ``value`` as what stands there."""
        value = self.member(key) if value is _ABSENT else value
        if not isinstance(value, dict):
            raise self.error(allowed, key)
        return Entry(self.trace, self.line, ".".join(filter(None, (self.place, key))), value)

    def objects(self, key: str, what: str) -> Iterator[Entry]:
        """The objects of a list; ``what`` they are, in the plural."""
        for i, value in enumerate(self.items(key, f"must be a list of {what}")):
            yield self.inner(f"{key}[{i}]", "must be a JSON object", value)


def table_of_rows(trace: TraceText, rows: Sequence[Row], *, timed: bool = True, **fields: Any) -> RequestTable:
    """`make_table` of one request after the other; ``timed``: whether their arrivals mean anything."""
    lines, prompt, output, arrival_s = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    return make_table(trace, prompt, output, arrival_s if timed else None, lines.astype(np.int64), **fields)


def make_table(
    trace: TraceText,
    prompt_tokens: NDArray[Any],
    output_tokens: NDArray[Any],
    arrival_s: FloatArray | None,
    lines: IntArray,
    **fields: Any,
) -> RequestTable:
    """Columns as read, all values checked, to a table: without what cannot be served, sorted by arrival, from 0 s on.

    Times out of order are common at the seams of collected logs, so they are sorted (stable), not refused.
    """
    if len(prompt_tokens) == 0:
        raise trace.error("the trace holds no request", None)
    table = RequestTable.from_columns(prompt_tokens, output_tokens, arrival_s, source_lines=lines, **fields)
    notes = []
    served = (table.prompt_tokens > 0) & (table.output_tokens > 0)
    if not served.all():
        dropped, failed = int((~served).sum()), int((table.output_tokens == 0).sum())
        counts = f"({failed} without output, {dropped - failed} without prompt)"
        notes.append(f"{trace.file}: dropped {dropped} of {len(table)} requests with no tokens {counts}")
        table = table.keep(served)
    if len(table) == 0:
        raise trace.error("the trace holds no request with a prompt and an output", None)
    served_as_read = (prompt_tokens > 0) & (output_tokens > 0)
    if arrival_s is not None and (np.diff(arrival_s[served_as_read]) < 0).any():
        notes.append(f"{trace.file}: timestamps were out of order; sorted")
    table = replace(table.shift_to_zero(), source_file=trace.file, notes=tuple(notes))
    table.check_integrity()
    return table


def short_list(names: Iterable[str]) -> str:
    text = ", ".join(names)
    return (text if len(text) <= 200 else text[:197] + "...") or "nothing"
