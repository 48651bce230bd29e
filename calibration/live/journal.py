"""What the load client saw, line by line while it happens: a killed run keeps everything up to its last moments.

A line is a JSON list. ``["r", request_id, class, due_s, prompt_tokens, output_tokens_wanted]`` a request is known;
``["s", request_id, time_s]`` it was sent; ``["c", request_id, time_s, tokens]`` a chunk of its answer came;
``["f", request_id, time_s, wrong_tokens]`` its answer is whole, since then; ``["e", request_id, time_s, message]`` it
failed. Times are seconds since the run's start. `tables` makes the run directory's tables of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, Strict, TypeAdapter, ValidationError

from draftcast.errors import InputError, LiveError
from draftcast.files import parse_json, read_bytes

if TYPE_CHECKING:
    import pandas as pd

REQUESTS_DTYPES = {
    "request_id": "int64",
    "class": "str",
    "due_s": "float64",
    "sent_s": "float64",
    "first_token_s": "float64",
    "finish_s": "float64",
    "prompt_tokens": "int64",
    "output_tokens_wanted": "int64",
    "output_tokens": "int64",
    "error": "str",
    "wrong_tokens": "int64",
}
CHUNKS_DTYPES = {"request_id": "int64", "time_s": "float64", "tokens": "int64"}


# Finite, and of no more digits than 64 bits hold.
_Time = Annotated[float, Strict(), Field(gt=-(2**53), lt=2**53)]
_Count = Annotated[int, Strict(), Field(gt=-(2**53), lt=2**53)]
_LINE: TypeAdapter[Any] = TypeAdapter(
    tuple[Literal["r"], _Count, str, _Time, _Count, _Count]
    | tuple[Literal["s"], _Count, _Time]
    | tuple[Literal["c"], _Count, _Time, _Count]
    | tuple[Literal["f"], _Count, _Time, _Count]
    | tuple[Literal["e"], _Count, _Time, str]
)


class Journal:
    """The open file; lines are kept in memory until `flush`, so that writing never stands between two arrivals.

    Raises:
        LiveError: from `flush`, when the disk refuses (full, no permission); the file is named.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: list[str] = []
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise _refused(path, error) from None

    def append(self, *line: Any) -> None:
        """Add one line."""
        self._lines.append(json.dumps(line))

    def flush(self) -> None:
        """Hand all lines to the operating system."""
        text = "".join(f"{line}\n" for line in self._lines)
        self._lines.clear()
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            raise _refused(self.path, error) from None

    def close(self) -> None:
        """Flush and close; the file is closed even when the disk refuses."""
        try:
            self.flush()
        finally:
            try:
                self._file.close()
            except OSError as error:
                raise _refused(self.path, error) from None


def read_journal(path: Path) -> list[list[Any]]:
    """The lines of a journal; a last one torn by a kill is dropped.

    Raises:
        InputError: unreadable, or a line that is none of a journal (file and line are named).
    """
    lines = read_bytes(path).split(b"\n")
    found = []
    known: set[int] = set()
    for number, line in enumerate(lines[:-1], start=1):
        value = parse_json(line, str(path), line=number)
        try:
            _LINE.validate_python(value)
        except ValidationError:
            raise InputError("is not a line of a live run's journal", file=str(path), line=number) from None
        if value[0] == "r" and value[1] in known:
            raise InputError("the same request twice", file=str(path), line=number, key="request_id", value=value[1])
        if value[0] != "r" and value[1] not in known:
            raise InputError("no such request before", file=str(path), line=number, key="request_id", value=value[1])
        known.add(value[1])
        found.append(value)
    return found


def tables(lines: Iterable[list[Any]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables ``requests`` and ``chunks`` (see `run_directory`), ordered by request and by time."""
    import pandas as pd

    requests: dict[int, dict[str, Any]] = {}
    chunks: list[tuple[int, float, int]] = []
    for kind, request_id, *rest in lines:
        if kind == "r":
            requests[request_id] = {
                "request_id": request_id,
                **dict(zip(("class", "due_s", "prompt_tokens", "output_tokens_wanted"), rest, strict=True)),
                **dict.fromkeys(("sent_s", "first_token_s", "finish_s"), math.nan),
                **{"output_tokens": 0, "error": "", "wrong_tokens": -1},
            }
            continue
        row = requests[request_id]
        if kind == "s":
            row["sent_s"] = rest[0]
        elif kind == "c":
            if not row["output_tokens"]:
                row["first_token_s"] = rest[0]
            row["output_tokens"] += rest[1]
            chunks.append((request_id, *rest))
        elif kind == "f":
            row["finish_s"], row["wrong_tokens"] = rest
        else:
            row["error"] = rest[1]
    frame = pd.DataFrame([requests[key] for key in sorted(requests)], columns=list(REQUESTS_DTYPES))
    pieces = pd.DataFrame(chunks, columns=list(CHUNKS_DTYPES)).sort_values("time_s", kind="stable", ignore_index=True)
    return frame.astype(REQUESTS_DTYPES), pieces.astype(CHUNKS_DTYPES)


def _refused(path: Path, error: OSError) -> LiveError:
    return LiveError(f"{path}: cannot be written: {error.strerror or error}")
