"""Every file that draftcast reads or writes, in one place each.

An input is a regular file, plain or gzip, no larger than this machine's memory holds; anything else is one `InputError`
line. What is written appears whole or not at all. Knows nothing of what a file holds beyond text and JSON.
"""

import dataclasses
import gzip
import hashlib
import json
import math
import os
import re
import stat
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from draftcast.errors import CapacityError, DraftcastError, InputError

_PIECE_BYTES = 2**22
_SECRETS = ("--api-key", "--hf-token")


def check_memory(needed_bytes: float, what: str, *, file: str | None = None, key: str | None = None) -> None:
    """Refuse what this machine's free memory does not hold. Raises CapacityError: names ``what`` and both in GB."""
    import psutil  # 10 ms to import: only who reads or runs pays

    available = psutil.virtual_memory().available
    if needed_bytes > available:
        message = f"{what} takes about {needed_bytes / 1e9:.1f} GB of memory, {available / 1e9:.1f} GB are available"
        raise CapacityError(message, file=file, key=key)


@contextmanager
def open_input(path: str | Path, kind: type[InputError] = InputError) -> Iterator[BinaryIO]:
    """An input file's bytes, decompressed where it is gzip.

    Raises ``kind``, also while it is read: missing, no regular file (FIFO, device, folder), unreadable, damaged gzip.
    """
    file = str(path)
    try:
        # Looked at before it is opened: opening a FIFO waits for a writer, and opening some devices does something.
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise kind("is a directory, not a file" if stat.S_ISDIR(mode) else "is not a regular file", file=file)
        with open(path, "rb") as raw:
            zipped = raw.peek(2)[:2] == b"\x1f\x8b"
            with gzip.GzipFile(fileobj=raw) if zipped else raw as opened:
                yield opened  # type: ignore[misc]
    except FileNotFoundError:
        raise kind("no such file", file=file) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise kind(f"damaged gzip file: {error}", file=file) from None
    except OSError as error:
        raise kind(f"cannot be read: {error.strerror or error}", file=file) from None
    except ValueError as error:
        if "null byte" not in str(error):
            raise
        raise kind("no file can have this name", file=file) from None


def read_bytes(path: str | Path, kind: type[InputError] = InputError) -> bytes:
    """The whole of an input file. Raises ``kind`` as of `open_input`; CapacityError when memory does not hold it."""
    with open_input(path, kind) as file:
        size, data = os.fstat(file.fileno()).st_size, bytearray()
        # Text, objects made of it and the bytes themselves stand in memory side by side.
        if size > _PIECE_BYTES:
            check_memory(4 * size, "reading it", file=str(path))
        while piece := file.read(_PIECE_BYTES):
            data += piece
            if len(data) > size:  # gzip: a small file may hold more than any memory
                check_memory(3 * len(data), "reading it", file=str(path))
        return bytes(data)


def read_text(path: str | Path, kind: type[InputError] = InputError) -> str:
    """The whole of a UTF-8 file. Raises ``kind`` as of `read_bytes`, and when it is not UTF-8 (line and byte)."""
    data = read_bytes(path, kind)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"not UTF-8 text (byte {error.start} of the file)"
        raise kind(message, file=str(path), line=line, value=data[error.start : error.start + 1]) from None


def parse_json(text: str | bytes, file: str, kind: type[InputError] = InputError, line: int | None = None) -> Any:
    """One JSON document; ``line``: where it stands in ``file``, when it is one line of many.

    Raises ``kind``: not JSON, nested too deeply, or an integer of thousands of digits.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        cut = "" if text.rstrip()[-1:] in ("}", "]", b"}", b"]") else "; is the file truncated?"
        message = f"not valid JSON: {error.msg} at column {error.colno}{cut}"
        raise kind(message, file=file, line=line or error.lineno) from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).partition(";")[0]
        raise kind(f"not valid JSON: {reason}", file=file, line=line) from None


def json_lines(text: str, file: str, kind: type[InputError] = InputError) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and object of each line that is not blank. Raises ``kind`` as of `read_json`, with the line."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            data = parse_json(line, file, kind, number)
            if not isinstance(data, dict):
                raise kind("each line must be a JSON object", file=file, line=number, value=data)
            yield number, data


def read_json(path: str | Path, kind: type[InputError] = InputError) -> dict[str, Any]:
    """The JSON object in a file. Raises ``kind`` as of `read_text` and `parse_json`, and when it is no object."""
    data = parse_json(read_text(path, kind), str(path), kind)
    if not isinstance(data, dict):
        raise kind("must be a JSON object", file=str(path))
    return data


def read_parquet(path: str | Path, columns: list[str] | None = None, kind: type[InputError] = InputError) -> Any:
    """A Parquet file (of it ``columns``, or all) as an Arrow table; its rows are checked against memory first.

    Raises ``kind`` as of `open_input`, or: not Parquet, damaged, a column missing; CapacityError as of `check_memory`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = str(path)
    with open_input(path, kind):
        pass
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for column in columns or ():
                if column not in names:
                    raise kind("damaged: column missing", file=name, key=column)
            rows, width = file.metadata.num_rows, len(columns or names)
            # Eight bytes a value, twice: Arrow's copy and the frame made of it.
            check_memory(16.0 * rows * width, f"a table of {rows:,} rows", file=name)
            # pandas' own notes in a file may ask for types that it does not have; the columns' types say all.
            return file.read(columns, use_threads=False).replace_schema_metadata(None)
    except (OSError, ValueError, KeyError, OverflowError, pa.ArrowException) as error:
        raise kind(f"damaged: {(str(error) or type(error).__name__).splitlines()[0]}", file=name) from None


def read_frame(path: str | Path, columns: list[str] | None = None, kind: type[InputError] = InputError) -> Any:
    """A Parquet file as a pandas DataFrame. Raises as of `read_parquet`."""
    table = read_parquet(path, columns, kind)
    try:
        return table.to_pandas()
    except (TypeError, ValueError, OverflowError) as error:  # text that is no UTF-8, dates beyond pandas'
        raise kind(f"damaged: {(str(error) or type(error).__name__).splitlines()[0]}", file=str(path)) from None


def check_output(path: str | Path, kind: type[DraftcastError] = InputError) -> Path:
    """Where a file to be written really goes (a link is followed), before any work is done.

    Raises ``kind``: it exists and is not a regular file, or its folder does not exist.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise kind("exists and is not a regular file", file=str(path))
    if not target.parent.is_dir():
        raise kind("its folder does not exist", file=str(path))
    return target


def check_new(path: str | Path) -> None:
    """Refuse a file to be written that is there already, or whose folder is not. Raises InputError."""
    if os.path.lexists(path):
        raise InputError("already exists; nothing is overwritten", file=str(path))
    check_output(path)


@contextmanager
def written(path: str | Path, kind: type[DraftcastError] = InputError) -> Iterator[Path]:
    """A temporary name beside ``path`` for the block to write; moved there, and on disk, when the block ends.

    When anything fails the temporary file is removed, and an older file at ``path`` stays as it is. Raises ``kind``:
    `check_output`, or the disk refuses.
    """
    target = check_output(path, kind)
    partial = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise kind(f"cannot be written: {error.strerror or error}", file=str(path)) from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_bytes(path: str | Path, content: bytes, kind: type[DraftcastError] = InputError) -> None:
    """Write a file whole or not at all. Raises ``kind`` as of `written`."""
    with written(path, kind) as partial:
        partial.write_bytes(content)


def write_text(path: str | Path, text: str, kind: type[DraftcastError] = InputError) -> None:
    """Write a UTF-8 file whole or not at all. Raises ``kind`` as of `written`."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"), kind)


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: numpy scalars as numbers, tuples as lists, dataclasses as objects, NaN as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def digest(data: object) -> str:
    """SHA-256 of plain data, hexadecimal."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def made(folder: Path, kind: type[DraftcastError] = InputError) -> Path:
    """The folder, made where it is not there. Raises ``kind``: it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise kind(f"cannot be made: {error.strerror or error}", file=str(folder)) from None
    return folder


def picked(record: object, names: str) -> dict[str, Any]:
    """Some attributes of a record by their names, which spaces separate."""
    return {name: getattr(record, name) for name in names.split()}


def value_at(data: Any, path: str) -> Any:
    """What stands at a dotted key of JSON, None where nothing does.

    Of a list on the way the element named ``profiling`` (AIPerf's phases) is taken, else the first.
    """
    for key in path.split("."):
        data = data.get(key) if isinstance(data, Mapping) else None
        if isinstance(data, list):
            named = [item for item in data if isinstance(item, dict) and item.get("name") == "profiling"]
            data = (named or data or [None])[0]
    return data


def without_secrets(command: Sequence[str]) -> list[str]:
    """A command line as a manifest may hold it: what follows ``--api-key`` is left out."""
    words: list[str] = []
    secret = False
    for word in command:
        option, equals, _ = word.partition("=")
        is_key = option.replace("_", "-") in _SECRETS
        secret = (secret and not word.startswith("-")) or (is_key and not equals)  # Several keys may follow one option.
        words.append(f"{option}=***" if is_key and equals else "***" if secret and not is_key else word)
    return words


def is_partial(path: Path) -> bool:
    """Whether a file is what `written` has not moved to its place yet, or could not when it was killed."""
    return re.fullmatch(r"\.[0-9a-f]{32}\.tmp", path.name) is not None


def is_inside(name: str) -> bool:
    """Whether a name that a manifest gives is of something in the manifest's own folder, and leads nowhere else."""
    return not ({"", ".", ".."} & set(name.split("/"))) and "\0" not in name
