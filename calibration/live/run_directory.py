"""A live run on disk.

``manifest.json``       what ran, on what, and whether it is complete (`MANIFEST_KEYS`)
``requests.parquet``    a row per request: request_id, class, due_s, sent_s, first_token_s, finish_s (seconds since the
                        start, NaN if never), prompt_tokens, output_tokens_wanted, output_tokens, error ("" if none),
                        wrong_tokens (-1: not checked)
``chunks.parquet``      a row per piece of a streamed answer: request_id, time_s, tokens
``server.log``          what the server printed, raw; absent where somebody else started it and gave no log
``core_speed.csv``      how fast this host's cores were meanwhile (`draftcast.calibration.live.core_speed`), where the
                        server computes on them
``metrics_before.txt``, ``metrics_after.txt``  the server's Prometheus text around the load; absent where it has none

While a run goes on there is ``journal.jsonl`` in place of the two tables and the manifest says ``complete: false``: a
run that is killed at any moment is a readable, incomplete run. Knows nothing of what the figures mean.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftcast.calibration.live.journal import CHUNKS_DTYPES, REQUESTS_DTYPES, read_journal, tables
from draftcast.errors import InputError, LiveError

if TYPE_CHECKING:
    import pandas as pd

KIND, SCHEMA_VERSION = "live", 1
MANIFEST, REQUESTS, CHUNKS, JOURNAL = "manifest.json", "requests.parquet", "chunks.parquet", "journal.jsonl"
SERVER_LOG, METRICS_BEFORE, METRICS_AFTER = "server.log", "metrics_before.txt", "metrics_after.txt"
# Every manifest has these; what a run does not know is null (numbers, objects), "" (texts) or {} (mappings).
MANIFEST_KEYS: dict[str, Any] = {
    "schema_version": SCHEMA_VERSION,
    "kind": KIND,
    "complete": False,
    "incomplete_reason": "",  # one line; "" for a complete run
    "name": "",
    "created_at": "",  # ISO 8601, UTC
    "scenario": {},  # as loaded, every default written out
    "seed": 0,
    "speculative_config": None,  # as given to the server
    # command (list of strings, [] where somebody else started it), url, version, log (whether server.log is there),
    # config: num_gpu_blocks, block_size, max_num_batched_tokens, max_num_seqs, max_model_len, async_scheduling,
    # enable_prefix_caching, enforce_eager, ...; null where the server does not tell
    "server": {},
    "client": {},  # lateness_p50_s, lateness_p99_s, lateness_max_s: due to sent
    "machine": {},  # processor, cores, memory_bytes, system, python
    # as `draftcast.calibration.measure.noise.noise_summary`, and others_cores: cores that neither our server nor the
    # client but other processes used while the load ran, on average; null where that is not known
    "noise": {},
    # cores the server computes on, where core_speed.csv tells how fast they were; [] where that is not known
    "server_cores": [],
    "known_continuation": None,  # checked_tokens, wrong_tokens
    "start_unix_s": None,  # Unix time of second 0
    "acceptance": None,  # num_drafts, num_draft_tokens, num_accepted_tokens, per_position: counts over the run
}


@dataclass(frozen=True)
class LiveRun:
    """A recorded run; ``folder`` is where it lies."""

    folder: Path
    manifest: dict[str, Any]
    requests: pd.DataFrame
    chunks: pd.DataFrame

    @property
    def complete(self) -> bool:
        """Whether the run came to its end with every request answered or its failure recorded."""
        return bool(self.manifest["complete"])

    @property
    def server_log(self) -> Path | None:
        """The server's log, None where there is none."""
        return self._file(SERVER_LOG)

    @property
    def metrics_before(self) -> Path | None:
        """Prometheus text from just before the load, None where there is none."""
        return self._file(METRICS_BEFORE)

    @property
    def metrics_after(self) -> Path | None:
        """Prometheus text from just after the load, None where there is none."""
        return self._file(METRICS_AFTER)

    def _file(self, name: str) -> Path | None:
        return self.folder / name if (self.folder / name).is_file() else None

    @classmethod
    def read(cls, folder: str | Path) -> LiveRun:
        """The run in ``folder``, complete or not.

        Raises:
            InputError: no live run, a newer schema, or a part that is missing or damaged; the file is named.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        if (folder / REQUESTS).is_file() and (folder / CHUNKS).is_file():
            return cls(
                folder, manifest, _table(folder / REQUESTS, REQUESTS_DTYPES), _table(folder / CHUNKS, CHUNKS_DTYPES)
            )
        if not (folder / JOURNAL).is_file():
            raise InputError(f"neither {REQUESTS} and {CHUNKS} nor {JOURNAL} in it", file=str(folder))
        return cls(folder, manifest, *tables(read_journal(folder / JOURNAL)))


@dataclass
class LiveRunWriter:
    """A run that is being recorded into ``folder``.

    The manifest is on disk from the start, marked incomplete, and is written anew by every `update`.
    """

    folder: Path
    manifest: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def create(cls, folder: str | Path, **manifest: Any) -> LiveRunWriter:
        """Begin a run in a folder that does not exist or is empty; ``manifest`` holds keys of `MANIFEST_KEYS`.

        Raises:
            InputError: the folder has something in it, is a file, or cannot be made.
            LiveError: the disk refuses.
        """
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise InputError(
                    "is not empty; a live run is never written over, name another folder", file=str(folder)
                )
        except OSError as error:
            raise InputError(f"cannot be made: {error.strerror}", file=str(folder)) from None
        writer = cls(folder, {})
        now = datetime.now(UTC).isoformat(timespec="seconds")
        writer.update(**{**MANIFEST_KEYS, "created_at": now, "incomplete_reason": "the run did not end", **manifest})
        (folder / JOURNAL).touch()
        return writer

    def update(self, **manifest: Any) -> None:
        """Set manifest keys, on disk on return; an older manifest stays whole when the disk refuses.

        Raises:
            LiveError: the disk refuses.
        """
        if unknown := manifest.keys() - MANIFEST_KEYS.keys():
            raise KeyError(f"not keys of a live run's manifest: {', '.join(sorted(unknown))}")
        self.manifest = {**self.manifest, **manifest}
        self._replace(MANIFEST, json.dumps(_plain(self.manifest), indent=1, allow_nan=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """A text file of the run: `METRICS_BEFORE`, `METRICS_AFTER`.

        Raises:
            LiveError: the disk refuses.
        """
        self._replace(name, text)

    def finish(self, incomplete_reason: str = "") -> LiveRun:
        """End the run: the journal becomes the tables, and without a reason against it the run is complete.

        Raises:
            LiveError: the disk refuses; what is on disk then is still readable and marked incomplete.
        """
        self.write_tables(*tables(read_journal(self.folder / JOURNAL)))
        self.update(complete=not incomplete_reason, incomplete_reason=incomplete_reason)
        with contextlib.suppress(OSError):
            (self.folder / JOURNAL).unlink()
        return LiveRun.read(self.folder)

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """What ends the run before its load began is the reason in its manifest, and raised all the same."""
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(LiveError):
                self.finish(why(error))
            raise

    def write_tables(self, requests: pd.DataFrame, chunks: pd.DataFrame) -> None:
        """``requests.parquet`` and ``chunks.parquet``, columns as in the module's text.

        Raises:
            LiveError: the disk refuses.
        """
        for name, frame, dtypes in ((REQUESTS, requests, REQUESTS_DTYPES), (CHUNKS, chunks, CHUNKS_DTYPES)):
            part = self.folder / f".{name}.part"
            try:
                frame[list(dtypes)].astype(dtypes).to_parquet(part, index=False)
                part.replace(self.folder / name)
            except OSError as error:
                part.unlink(missing_ok=True)
                raise LiveError(f"{self.folder / name}: cannot be written: {error.strerror or error}") from None

    def _replace(self, name: str, text: str) -> None:
        part = self.folder / f".{name}.part"
        try:
            with part.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.folder / name)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise LiveError(f"{self.folder / name}: cannot be written: {error.strerror or error}") from None


def why(error: BaseException) -> str:
    """An exception as an ``incomplete_reason``: its first line."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error).partition("\n")[0] or type(error).__name__


def is_live_run(folder: str | Path) -> bool:
    """Whether there is a live run, complete or not."""
    try:
        return bool(json.loads((Path(folder) / MANIFEST).read_text("utf-8")).get("kind") == KIND)
    except (OSError, ValueError, AttributeError):
        return False


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of the live run in ``folder``; every key of `MANIFEST_KEYS` is in it.

    Raises:
        InputError: no live run, or of another schema.
    """
    path = Path(folder) / MANIFEST
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"no live run: {error.strerror}", file=str(path)) from None
    except ValueError as error:
        raise InputError(f"damaged: {error}", file=str(path)) from None
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise InputError(f"not the manifest of a live run (kind: {KIND})", file=str(path))
    if data.get("schema_version") != SCHEMA_VERSION:
        message = f"written by another version; this one reads {SCHEMA_VERSION}"
        raise InputError(message, file=str(path), key="schema_version", value=data.get("schema_version"))
    return {**MANIFEST_KEYS, **data}


def _table(path: Path, dtypes: Mapping[str, str]) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_parquet(path, columns=list(dtypes)).astype(dtypes)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"damaged: {error}", file=str(path)) from None


def _plain(value: Any) -> Any:
    """As JSON can hold it: numpy's numbers as numbers, NaN as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
