"""A calibration's journal: what was measured so far, one JSON line each, on disk before the next measurement starts.

The first line says what is being measured and on what. A run that finds a journal goes on with it, and only with it:
other settings or another device are refused by name. A line torn by a kill is dropped, anything else that is not a
line of a journal is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from draftcast.errors import HardwareError

FORMAT = "draftcast-calibration"
VERSION = 1


class Journal:
    """An open journal; a context manager.

    Attributes:
        path: the file.
        records: every line but the first, in order; `append` adds to it.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Open the journal at ``path``, or start one; ``header`` is what this run would measure.

        Raises:
            HardwareError: not a journal, a broken line, a header that differs (the key is named), or a journal that
                another process is writing.
        """
        self.path = path
        self.records: list[dict[str, Any]] = []
        self._file: BinaryIO = self._opened()
        try:
            self._read({"format": FORMAT, "version": VERSION, **header})
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line; on return it is on disk."""
        self._write(record)
        self.records.append(dict(record))

    def _opened(self) -> BinaryIO:
        try:
            file = self.path.open("a+b")
        except OSError as error:
            raise HardwareError(f"cannot be opened: {error.strerror}", file=str(self.path)) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise HardwareError("another calibration is writing here", file=str(self.path)) from None
        return file

    def _read(self, header: dict[str, Any]) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            start = json.dumps({"format": FORMAT}).encode().removesuffix(b"}")
            if not whole and not start.startswith(content[: len(start)]):
                raise HardwareError("is not the journal of a calibration", file=str(self.path), line=1)
            self._file.truncate(len(whole))
        lines = whole.splitlines()
        if not lines:
            self._write(header)
            return
        self._check(self._parsed(lines[0], 1), header)
        self.records = [self._parsed(line, number) for number, line in enumerate(lines[1:], 2)]

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        value: Any = None
        with contextlib.suppress(ValueError):
            value = json.loads(line)
        if not isinstance(value, dict):
            raise HardwareError("is not a line of a calibration's journal", file=str(self.path), line=number)
        return value

    def _check(self, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        if found.get("format") != FORMAT:
            raise HardwareError("is not the journal of a calibration", file=str(self.path), line=1)
        # As JSON gives it back: tuples have become lists.
        wanted = json.loads(json.dumps(wanted))
        for key in sorted(found.keys() | wanted.keys()):
            if found.get(key) != wanted.get(key):
                message = f"this run has {wanted.get(key)!r}; repeat the command that began it, or name another folder"
                raise HardwareError(message, file=str(self.path), key=key, value=found.get(key))

    def _write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
