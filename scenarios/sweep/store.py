"""The data set of sweeps: Parquet files of finished cells, one row a replication, found by content address.

A folder holds ``manifest.json`` and ``results/*.parquet``. A file appears whole or not at all and is never changed,
only merged with others when a sweep ends; what a killed sweep finished is there, and several sweeps may write at once.
The same cell twice (two sweeps at once, a kill while files are merged) is read once. Knows nothing of grids;
``cells.py`` says what a row holds.
"""

import itertools
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from draftcast.errors import InputError
from draftcast.files import is_partial, read_json, read_parquet, write_text, written

MANIFEST, RESULTS = "manifest.json", "results"
FORMAT, FORMAT_VERSION = "draftcast-sweep", 1
KEY, REPLICATION = "key", "replication"
_TRIES = 5


class ResultStore:
    """Rows of finished cells on disk.

    Raises InputError: the folder holds something else, was written by another version, or cannot be written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        manifest = self.folder / MANIFEST
        try:
            if self.folder.exists() and not self.folder.is_dir():
                raise InputError("exists and is not a directory", file=str(folder))
            if not manifest.is_file():
                # Another sweep's manifest may come meanwhile: it is written before any result.
                if self.folder.is_dir() and not _is_fresh(self.folder) and not manifest.is_file():
                    raise InputError("is not empty and no data set of a sweep; name another one", file=str(folder))
                (self.folder / RESULTS).mkdir(parents=True, exist_ok=True)
                text = json.dumps({"format": FORMAT, "format_version": FORMAT_VERSION}) + "\n"
                write_text(manifest, text)
        except OSError as error:
            raise InputError(f"cannot be used: {error.strerror or error}", file=str(folder)) from None
        said = read_json(manifest)
        if said.get("format") != FORMAT:
            raise InputError("is no data set of a sweep; name another one", file=str(folder))
        if (version := said.get("format_version")) != FORMAT_VERSION:
            message = f"written by another version; this one reads {FORMAT_VERSION}"
            raise InputError(message, file=str(manifest), key="format_version", value=version)

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows as one new file; when this returns they survive a kill and a power cut.

        Raises InputError: the disk refused; nothing of the rows is there then.
        """
        # Columns in order of first appearance; numbers other than counters must be floats in every file alike.
        names = dict.fromkeys(itertools.chain(*rows))
        self._append(pa.table({name: [row.get(name) for row in rows] for name in names}))

    def rows(self, keys: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        """Rows of ``keys`` that are there, by replication, without null columns. Raises InputError: a damaged file."""
        wanted = pa.array(list(keys), pa.string())
        by_key: dict[str, dict[int, dict[str, Any]]] = {}
        for table in self._tables():
            for row in table.filter(pc.is_in(table[KEY], wanted)).to_pylist():
                by_key.setdefault(row[KEY], {})[row[REPLICATION]] = {k: v for k, v in row.items() if v is not None}
        return {key: [row for _, row in sorted(rows.items())] for key, rows in by_key.items()}

    def table(self) -> pa.Table:
        """Everything, each cell once, in order of key and replication."""
        try:
            merged = pa.concat_tables(self._tables(), promote_options="default")
        except pa.ArrowException as error:
            raise InputError(f"damaged: its files do not go together: {error}", file=str(self.folder)) from None
        order = merged.select([KEY, REPLICATION]).to_pandas().drop_duplicates().sort_values([KEY, REPLICATION])
        return merged.take(order.index.to_numpy())

    def compact(self) -> None:
        """Merge all files into one, in which every row has every column; a kill in between leaves rows twice."""
        files = self._files()
        if len(files) < 2:
            return
        self._append(self.table())
        for path in files:
            path.unlink(missing_ok=True)

    def _append(self, table: pa.Table) -> None:
        target = self.folder / RESULTS / f"{uuid.uuid4().hex}.parquet"
        with written(target) as partial:
            pq.write_table(table, partial, compression="zstd")

    def _files(self) -> list[Path]:
        return sorted((self.folder / RESULTS).glob("*.parquet"))

    def _tables(self) -> list[pa.Table]:
        for _ in range(_TRIES):
            tables = []
            try:
                for path in self._files():
                    table = read_parquet(path)
                    for name, kind in ((KEY, pa.string()), (REPLICATION, pa.int64())):
                        if name not in table.column_names or table.schema.field(name).type != kind:
                            raise InputError(f"damaged: must have a column of {kind}", file=str(path), key=name)
                    tables.append(table)
            except InputError:
                if path.exists():
                    raise
                continue  # another sweep has just merged it into a new one
            return tables
        raise InputError("changes faster than it can be read; another sweep is merging it", file=str(self.folder))


def _is_fresh(folder: Path) -> bool:
    """Nothing is in it but what another sweep makes that begins here at this moment; results come after a manifest."""
    others = [entry for entry in folder.iterdir() if entry.name not in (RESULTS, MANIFEST) and not is_partial(entry)]
    return not others and not any((folder / RESULTS).glob("*"))
