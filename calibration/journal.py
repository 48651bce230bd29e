"""Journals: one JSON line per measurement, so that a killed process loses at most its last moments."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from draftcast.errors import DraftcastError, HardwareError, LiveError

FORMAT = "draftcast-calibration"
VERSION = 1


class Journal:
    """A journal open for appending.

    Lines stay in memory until `flush`, so that writing never stands between two arrivals. With a header, which says
    what is measured on what, a journal that is there is continued: its ``records`` are those after the header, a line
    torn by a kill is dropped, and other settings or another device are refused by name.

    Raises LiveError, with a header HardwareError: the disk refuses, or the file cannot be continued; it is named.
    """

    def __init__(self, path: Path, header: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.records: list[dict[str, Any]] = []
        self._kind: type[DraftcastError] = LiveError if header is None else HardwareError
        self._lines: list[str] = []
        with self._named("cannot be opened"):
            self._file = path.open("a+b")
        if header is not None:
            try:
                self._continue({"format": FORMAT, "version": VERSION, **header})
            except BaseException:
                self._file.close()
                raise

    def append(self, line: Any, *, sync: bool = False) -> None:
        """Add a line; with ``sync`` it is on disk on return."""
        self._lines.append(json.dumps(line, allow_nan=False) + "\n")
        if sync:
            self.flush()
            with self._named("cannot be written"):
                os.fsync(self._file.fileno())

    def flush(self) -> None:
        text = "".join(self._lines).encode()
        self._lines.clear()
        with self._named("cannot be written"):
            self._file.write(text)
            self._file.flush()

    def close(self) -> None:
        """Flush and close; the file is closed even when the disk refuses."""
        try:
            self.flush()
        finally:
            with self._named("cannot be written"):
                self._file.close()

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._kind(f"{what}: {error.strerror or error}", file=str(self.path)) from None

    def _continue(self, header: dict[str, Any]) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise HardwareError("another calibration is writing here", file=str(self.path)) from None
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        lines = [self._parsed(line, number) for number, line in enumerate(whole.splitlines(), 1)]
        begins = f'{{"format": "{FORMAT}"'.encode()
        if not begins.startswith(content[: len(begins)]):  # shorter where the very first line was torn
            raise HardwareError("is not the journal of a calibration", file=str(self.path), line=1)
        if lines:
            # As JSON gives it back: tuples have become lists.
            was, wanted = lines[0], json.loads(json.dumps(header))
            for key in sorted(was.keys() | wanted.keys()):
                old, new = was.get(key), wanted.get(key)
                if old != new:
                    message = f"this run has {new!r}; repeat the command that began it, or name another folder"
                    raise HardwareError(message, file=str(self.path), key=key, value=old)
        self._file.truncate(len(whole))
        self.records = lines[1:]
        if not lines:
            self.append(header, sync=True)

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        value: Any = None
        with contextlib.suppress(ValueError):
            value = json.loads(line)
        if not isinstance(value, dict):
            raise HardwareError("is not a line of a calibration's journal", file=str(self.path), line=number)
        return value
