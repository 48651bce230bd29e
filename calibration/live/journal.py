"""What the load client saw, line by line (`draftcast.calibration.journal`), and the tables of a run made of it.

A line is a JSON list. ``["r", request_id, class, due_s, prompt_tokens, output_tokens_wanted]`` a request is known;
``["s", request_id, time_s]`` it was sent; ``["c", request_id, time_s, tokens]`` a chunk of its answer came;
``["f", request_id, time_s, wrong_tokens]`` its answer is whole, since then; ``["e", request_id, time_s, message]`` it
failed. Times are seconds since the run's start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, Strict, TypeAdapter, ValidationError

from draftcast.errors import InputError
from draftcast.files import read_bytes

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
_LINE: TypeAdapter[Sequence[Any]] = TypeAdapter(
    tuple[Literal["r"], _Count, str, _Time, _Count, _Count]
    | tuple[Literal["s"], _Count, _Time]
    | tuple[Literal["c", "f"], _Count, _Time, _Count]
    | tuple[Literal["e"], _Count, _Time, str]
)


def read_journal(path: Path) -> list[Sequence[Any]]:
    """The lines of a journal; a last one torn by a kill is dropped.

    Raises:
        InputError: unreadable, or a line that is none of a journal (file and line are named).
    """
    lines = []
    known: set[int] = set()
    for number, line in enumerate(read_bytes(path).split(b"\n")[:-1], start=1):
        try:
            value = _LINE.validate_json(line)
        except ValidationError:
            raise InputError("is not a line of a live run's journal", file=str(path), line=number) from None
        kind, request = value[:2]
        if (kind == "r") == (request in known):
            message = "the same request twice" if kind == "r" else "no such request before"
            raise InputError(message, file=str(path), line=number, key="request_id", value=request)
        known.add(request)
        lines.append(value)
    return lines


def tables(lines: Iterable[Sequence[Any]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables ``requests`` and ``chunks`` (see `run_directory`), ordered by request and by time."""
    import pandas as pd

    by_kind: dict[str, list[Sequence[Any]]] = {kind: [] for kind in "rscfe"}
    for kind, *values in lines:
        by_kind[kind].append(values)
    chunks = pd.DataFrame(by_kind["c"], columns=list(CHUNKS_DTYPES)).astype(CHUNKS_DTYPES)
    pieces = chunks.groupby("request_id")
    known = ["request_id", "class", "due_s", "prompt_tokens", "output_tokens_wanted"]
    requests = pd.DataFrame(by_kind["r"], columns=known).set_index("request_id", drop=False).sort_index()
    requests["sent_s"] = pd.Series({request: at for request, at in by_kind["s"]}, dtype="float64")
    requests["first_token_s"] = pieces["time_s"].first()
    requests["output_tokens"] = pieces["tokens"].sum().reindex(requests.index, fill_value=0)
    requests["finish_s"] = pd.Series({request: at for request, at, _ in by_kind["f"]}, dtype="float64")
    for name, kind, absent in (("wrong_tokens", "f", -1), ("error", "e", "")):
        last = {request: value for request, _, value in by_kind[kind]}
        requests[name] = [last.get(request, absent) for request in requests.index]
    ordered = chunks.sort_values("time_s", kind="stable", ignore_index=True)
    return requests.reset_index(drop=True)[list(REQUESTS_DTYPES)].astype(REQUESTS_DTYPES), ordered
