"""The data set of sweeps: Parquet files of finished cells, one row a replication, found by content address.

A folder holds ``manifest.json`` and ``results/*.parquet``. A file appears whole or not at all and is never changed,
only merged with others when a sweep ends; what a killed sweep finished is there, and several sweeps may write at once.
The same cell twice (two sweeps at once, a kill while files are merged) is read once. Knows nothing of grids;
``sweep_cells.py`` says what a row holds.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftcast.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST, RESULTS = "manifest.json", "results"
FORMAT, FORMAT_VERSION = "draftcast-sweep", 1
KEY, REPLICATION = "key", "replication"
_TRIES = 5


class ResultStore:
    """Rows of finished cells on disk.

    Raises:
        InputError: the folder holds something else, was written by another version, or cannot be written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        manifest = self.folder / MANIFEST
        try:
            if self.folder.exists() and not self.folder.is_dir():
                raise InputError("exists and is not a directory", file=str(folder))
            if not manifest.is_file():
                if self.folder.is_dir() and any(self.folder.iterdir()):
                    raise InputError("is not empty and no data set of a sweep; name another one", file=str(folder))
                (self.folder / RESULTS).mkdir(parents=True, exist_ok=True)
                text = json.dumps({"format": FORMAT, "format_version": FORMAT_VERSION}) + "\n"
                _write(manifest, lambda path: path.write_text(text, "utf-8"))
            found = json.loads(manifest.read_text("utf-8"))
        except OSError as error:
            raise InputError(f"cannot be used: {error.strerror or error}", file=str(folder)) from None
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise InputError("is no data set of a sweep; name another one", file=str(folder))
        if found.get("format_version") != FORMAT_VERSION:
            raise InputError(
                f"written by another version; this one reads {FORMAT_VERSION}",
                file=str(manifest),
                key="format_version",
                value=found.get("format_version"),
            )

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows as one new file; when this returns they survive a kill and a power cut.

        Raises:
            InputError: the disk refused; nothing of the rows is there then.
        """
        self._append(_table(rows))

    def rows(self, keys: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        """The rows of those of ``keys`` that are there, in order of replication; null columns are left out.

        Raises:
            InputError: a damaged file.
        """
        wanted = set(keys)
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for table in self._tables():
            import pyarrow.compute as pc

            for row in table.filter(pc.is_in(table[KEY], _array(wanted))).to_pylist():
                found.setdefault(row[KEY], {})[row[REPLICATION]] = {k: v for k, v in row.items() if v is not None}
        return {key: [row for _, row in sorted(by.items())] for key, by in found.items()}

    def table(self) -> pa.Table:
        """Everything, each cell once, in order of key and replication."""
        import pyarrow as pa

        tables = self._tables()
        if not tables:
            return pa.table({KEY: pa.array([], pa.string()), REPLICATION: pa.array([], pa.int64())})
        merged = pa.concat_tables(tables, promote_options="default")
        merged = merged.sort_by([(KEY, "ascending"), (REPLICATION, "ascending")])
        keys, numbers = merged[KEY].to_pylist(), merged[REPLICATION].to_pylist()
        first = [i for i in range(len(keys)) if i == 0 or (keys[i], numbers[i]) != (keys[i - 1], numbers[i - 1])]
        return merged.take(first)

    def compact(self) -> None:
        """Merge all files into one, in which every row has every column; a kill in between leaves rows twice."""
        files = self._files()
        if len(files) < 2:
            return
        self._append(self.table())
        for path in files:
            path.unlink(missing_ok=True)

    def _append(self, table: pa.Table) -> None:
        import pyarrow.parquet as pq

        target = self.folder / RESULTS / f"{uuid.uuid4().hex}.parquet"
        try:
            _write(target, lambda path: pq.write_table(table, path, compression="zstd"))
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror or error}", file=str(target)) from None

    def _files(self) -> list[Path]:
        return sorted((self.folder / RESULTS).glob("*.parquet"))

    def _tables(self) -> list[pa.Table]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        for _ in range(_TRIES):
            tables = []
            try:
                for path in self._files():
                    tables.append(pq.read_table(path))
            except FileNotFoundError:  # another sweep has just merged it into a new one
                continue
            except (OSError, pa.ArrowException) as error:
                raise InputError(f"damaged: {error}", file=str(path)) from None
            return tables
        raise InputError("changes faster than it can be read; another sweep is merging it", file=str(self.folder))


def _write(target: Path, write: Any) -> None:
    """``write(path)`` beside ``target``, then put in its place; on disk when this returns."""
    fresh = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        write(fresh)
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        fresh.replace(target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)


def _array(keys: Iterable[str]) -> Any:
    import pyarrow as pa

    return pa.array(list(keys), pa.string())


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Columns in order of first appearance; numbers other than counters are float64 in every file alike."""
    import pyarrow as pa

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        kinds = {type(value) for value in values if value is not None}
        kind = pa.float64()
        if kinds == {str}:
            kind = pa.string()
        elif kinds == {bool}:
            kind = pa.bool_()
        elif name == REPLICATION:
            kind = pa.int64()
        columns[name] = pa.array(values, kind)
    return pa.table(columns)
