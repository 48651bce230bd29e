"""A live run on disk.

``manifest.json``       what ran, on what, and whether it is complete (`RunManifest`)
``requests.parquet``, ``chunks.parquet``  a row per request and per piece of an answer; columns: ``tables.yaml``
``server.log``          what the server printed, raw; absent where somebody else started it and gave no log
``metrics_before.txt``, ``metrics_after.txt``  the server's Prometheus text around the load; absent where it has none

While a run goes on there is ``journal.jsonl`` in place of the two tables and the manifest says ``complete: false``: a
run that is killed at any moment is a readable, incomplete run. Keys and files of other versions are left alone.

A line of the journal is a JSON list. ``["r", request_id, class, due_s, prompt_tokens, output_tokens_wanted]`` a request
is known; ``["s", request_id, time_s]`` it was sent; ``["c", request_id, time_s, tokens]`` a chunk of its answer came;
``["f", request_id, time_s, wrong_tokens]`` its answer is whole, since then; ``["e", request_id, time_s, message]`` it
failed. Times are seconds since the run's start.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, Strict, TypeAdapter, ValidationError

from draftcast.errors import InputError, LiveError
from draftcast.files import made, plain, read_bytes, read_frame, read_json, write_text, written
from draftcast.yaml_text import yaml_beside

KIND, SCHEMA_VERSION = "live", 1
_MOST = 1e9  # seconds of a run, tokens of a request: more is no measurement
MANIFEST, REQUESTS, CHUNKS, JOURNAL = "manifest.json", "requests.parquet", "chunks.parquet", "journal.jsonl"
SERVER_LOG, METRICS_BEFORE, METRICS_AFTER = "server.log", "metrics_before.txt", "metrics_after.txt"
TABLES: dict[str, dict[str, str]] = yaml_beside(__file__, "tables.yaml")
REQUESTS_DTYPES, CHUNKS_DTYPES = TABLES[REQUESTS], TABLES[CHUNKS]

_Time = Annotated[float, Strict(), Field(gt=-(2**53), lt=2**53)]  # finite, and of no more digits than 64 bits hold
_Count = Annotated[int, Strict(), Field(gt=-(2**53), lt=2**53)]
_LINE: TypeAdapter[Sequence[Any]] = TypeAdapter(
    tuple[Literal["r"], _Count, str, _Time, _Count, _Count]
    | tuple[Literal["s"], _Count, _Time]
    | tuple[Literal["c", "f"], _Count, _Time, _Count]
    | tuple[Literal["e"], _Count, _Time, str]
)


def read_journal(path: Path) -> list[Sequence[Any]]:
    """Its lines but a last one torn by a kill. Raises InputError: unreadable, or no line of a journal (it is named)."""
    lines = []
    request_ids: set[int] = set()
    for number, line in enumerate(read_bytes(path).split(b"\n")[:-1], start=1):
        try:
            value = _LINE.validate_json(line)
        except ValidationError:
            raise InputError("is not a line of a live run's journal", file=str(path), line=number) from None
        kind, request = value[:2]
        if (kind == "r") == (request in request_ids):
            message = "the same request twice" if kind == "r" else "no such request before"
            raise InputError(message, file=str(path), line=number, key="request_id", value=request)
        request_ids.add(request)
        lines.append(value)
    return lines


def tables(lines: Iterable[Sequence[Any]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables ``requests`` and ``chunks`` (see `run_directory`), ordered by request and by time."""
    by_kind: dict[str, list[Sequence[Any]]] = {kind: [] for kind in "rscfe"}
    for kind, *values in lines:
        by_kind[kind].append(values)
    chunks = pd.DataFrame(by_kind["c"], columns=list(CHUNKS_DTYPES)).astype(CHUNKS_DTYPES)
    pieces = chunks.groupby("request_id")
    columns = ["request_id", "class", "due_s", "prompt_tokens", "output_tokens_wanted"]
    requests = pd.DataFrame(by_kind["r"], columns=columns).set_index("request_id", drop=False).sort_index()
    requests["sent_s"] = pd.Series({request: at for request, at in by_kind["s"]}, dtype="float64")
    requests["first_token_s"] = pieces["time_s"].first()
    requests["output_tokens"] = pieces["tokens"].sum().reindex(requests.index, fill_value=0)
    requests["finish_s"] = pd.Series({request: at for request, at, _ in by_kind["f"]}, dtype="float64")
    for name, kind, absent in (("wrong_tokens", "f", -1), ("error", "e", "")):
        last = {request: value for request, _, value in by_kind[kind]}
        requests[name] = [last.get(request, absent) for request in requests.index]
    ordered = chunks.sort_values("time_s", kind="stable", ignore_index=True)
    return requests.reset_index(drop=True)[list(REQUESTS_DTYPES)].astype(REQUESTS_DTYPES), ordered


Count = Annotated[int, Field(ge=0, lt=2**53)]
Objects = dict[str, Any]


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Counts(_Part):
    num_drafts: Count
    num_draft_tokens: Count
    num_accepted_tokens: Count
    per_position: list[Count]


class _Checked(_Part):
    checked_tokens: Count
    wrong_tokens: Count


class RunManifest(_Part):
    """Keys of every manifest; what a run does not know is null (numbers, objects), "" (texts) or {} (mappings)."""

    schema_version: int = SCHEMA_VERSION
    kind: str = KIND
    complete: bool = False
    incomplete_reason: str = ""  # one line; "" for a complete run
    name: str = ""
    created_at: str = ""  # ISO 8601, UTC
    scenario: Objects = Field(default_factory=dict)  # as loaded, every default written out
    seed: Any = 0
    speculative_config: Objects | None = None  # as given to the server
    # command (list of strings, [] where somebody else started it), url, version, log (whether server.log is there),
    # model (as an imported result names it), config: num_gpu_blocks, block_size, ...; null where it does not tell.
    server: Objects = Field(default_factory=dict)
    client: Objects = Field(default_factory=dict)  # lateness_p50_s, lateness_p99_s, lateness_max_s: due to sent
    machine: Objects = Field(default_factory=dict)  # processor, cores, memory_bytes, system, python
    # others_cores: cores that neither our server nor the client but other processes used while the load ran, on
    # average; null where that is not known. Of an earlier version also readings of the host's speed, which are unused.
    noise: Objects = Field(default_factory=dict)
    known_continuation: _Checked | None = None
    start_unix_s: _Time | None = None  # Unix time of second 0
    acceptance: _Counts | None = None  # counts over the run


MANIFEST_KEYS: dict[str, Any] = RunManifest().model_dump()


@dataclass(frozen=True)
class LiveRun:
    folder: Path  # where it lies
    manifest: dict[str, Any]
    requests: pd.DataFrame
    chunks: pd.DataFrame

    @property
    def complete(self) -> bool:
        """Whether the run came to its end with every request answered or its failure recorded."""
        return bool(self.manifest["complete"])

    @property
    def server_log(self) -> Path | None:
        file = self.folder / SERVER_LOG
        return file if file.is_file() else None

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """The run in ``folder``, complete or not.

        Raises InputError: no live run, a newer schema, or a part that is missing or damaged; the file is named.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        if all((folder / name).is_file() for name in TABLES):
            requests, chunks = (_table(folder / name, dtypes) for name, dtypes in TABLES.items())
        elif (folder / JOURNAL).is_file():
            requests, chunks = tables(read_journal(folder / JOURNAL))
        else:
            raise InputError(f"neither {REQUESTS} and {CHUNKS} nor {JOURNAL} in it", file=str(folder))
        _check_tables(folder, requests, chunks)
        return cls(folder, manifest, requests, chunks)


@dataclass
class LiveRunWriter:
    """A run that is being recorded into ``folder``: its manifest is on disk from the start, marked incomplete.

    Every method raises LiveError when the disk refuses; what is on disk then is still readable and marked incomplete.
    """

    folder: Path
    manifest: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def create(cls, folder: str | Path, **manifest: Any) -> Self:
        """Begin a run in a folder that does not exist or is empty; ``manifest`` holds keys of `MANIFEST_KEYS`.

        Raises InputError: the folder has something in it, is a file, or cannot be made.
        """
        folder = made(Path(folder))
        if any(folder.iterdir()):
            raise InputError("is not empty; a live run is never written over, name another folder", file=str(folder))
        writer = cls(folder)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        writer.update(**{**MANIFEST_KEYS, "created_at": now, "incomplete_reason": "the run did not end", **manifest})
        (folder / JOURNAL).touch()
        return writer

    def update(self, **manifest: Any) -> None:
        """Set manifest keys, on disk on return; an older manifest stays whole when the disk refuses."""
        if unknown := manifest.keys() - MANIFEST_KEYS.keys():
            raise KeyError(f"not keys of a live run's manifest: {', '.join(sorted(unknown))}")
        self.manifest = {**self.manifest, **manifest}
        self.write_text(MANIFEST, json.dumps(plain(self.manifest), indent=1, allow_nan=False) + "\n")

    def write_text(self, name: str, text: str) -> Path:
        """A text file of the run; returns where it lies."""
        write_text(self.folder / name, text, LiveError)
        return self.folder / name

    def finish(self, incomplete_reason: str = "", frames: tuple[pd.DataFrame, pd.DataFrame] | None = None) -> LiveRun:
        """End the run: without a reason against it, it is complete.

        ``frames``: the tables ``requests`` and ``chunks``, as of `tables`; None: those of the journal.
        """
        frames = frames or tables(read_journal(self.folder / JOURNAL))
        for (name, dtypes), frame in zip(TABLES.items(), frames, strict=True):
            with written(self.folder / name, LiveError) as partial:
                frame[list(dtypes)].astype(dtypes).to_parquet(partial, index=False)
        self.update(complete=not incomplete_reason, incomplete_reason=incomplete_reason)
        with contextlib.suppress(OSError):
            (self.folder / JOURNAL).unlink()
        return LiveRun.read(self.folder)

    @contextlib.contextmanager
    def noting(self, finish: Callable[[str], object] | None = None) -> Iterator[None]:
        """What ends the run is the reason that ``finish`` (None: `finish`) gets, in a line, and raised all the same."""
        try:
            yield
        except BaseException as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            with contextlib.suppress(LiveError):
                (finish or self.finish)("interrupted" if isinstance(error, KeyboardInterrupt) else reason)
            raise


def is_live_run(folder: str | Path) -> bool:
    try:
        return bool(read_json(Path(folder) / MANIFEST).get("kind") == KIND)
    except InputError:
        return False


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The run's manifest, with every key of `MANIFEST_KEYS`. Raises InputError: no live run, or of another schema."""
    path = Path(folder) / MANIFEST
    data = read_json(path)
    if data.get("kind") != KIND:
        raise InputError(f"not the manifest of a live run (kind: {KIND})", file=str(path))
    if data.get("schema_version") != SCHEMA_VERSION:
        message = f"written by another version; this one reads {SCHEMA_VERSION}"
        raise InputError(message, file=str(path), key="schema_version", value=data.get("schema_version"))
    data = {**MANIFEST_KEYS, **data}
    try:
        RunManifest.model_validate(data)
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        raise InputError("damaged: not what a live run writes", file=str(path), key=key, value=data[key]) from None
    return data


def _check_tables(folder: Path, requests: pd.DataFrame, chunks: pd.DataFrame) -> None:
    """Refuse what no client can have seen: the same request twice, negative times, unknown pieces."""

    def check(name: str, bad: "pd.Series[bool]", message: str) -> None:
        if bad.any():
            value = (requests if name == REQUESTS else chunks).loc[bad, str(bad.name)].tolist()[0]
            raise InputError(message, file=str(folder / name), key=str(bad.name), value=value)

    check(REQUESTS, requests["request_id"].duplicated(), "the same request twice")
    times = ["due_s", "sent_s", "first_token_s", "finish_s", "prompt_tokens", "output_tokens"]
    for name, frame in ((REQUESTS, requests[times]), (CHUNKS, chunks[["time_s", "tokens"]])):
        for column in frame:
            # NaN is no comparison's: a time that never came.
            check(name, (frame[column] < 0) | (frame[column] > _MOST), f"must be from 0 to {_MOST:g}")
    check(CHUNKS, chunks["time_s"].isna(), "must be a time")
    check(CHUNKS, ~chunks["request_id"].isin(requests["request_id"]), f"no such request in {REQUESTS}")


def _table(path: Path, dtypes: Mapping[str, str]) -> pd.DataFrame:
    frame: pd.DataFrame = read_frame(path, list(dtypes))
    try:
        return frame.astype(dtypes)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"damaged: {error}", file=str(path)) from None
