"""Cells of a sweep: their content address, how one is computed, and the data set that keeps them.

A cell that speculates is simulated together with the same cell without speculation: its verdict is of these two runs,
whatever else the grid holds and wherever the other cells are computed. The address takes everything that can change the
figures: the scenario with its seed and the content of all files it names, the profile, this package's code. A worker
computes the address anew, so that one with other files or another version refuses instead of answering another
question; what another version kept in the data set is computed anew for the same reason.

The data set is a folder with ``manifest.json`` and ``results/*.parquet``, one row a replication. A file appears whole
or not at all and is never changed, only merged with others when a sweep ends; what a killed sweep finished is there,
and several sweeps may write at once. The same cell twice (two sweeps, a kill while files are merged) is read once.
"""

import functools
import hashlib
import itertools
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from draftcast import __version__
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.errors import InputError
from draftcast.files import is_partial, read_json, read_parquet, write_text, written
from draftcast.scenarios.compare.comparison import compare
from draftcast.scenarios.run.deployment import cached_profile
from draftcast.scenarios.schema import Scenario, members, to_mapping
from draftcast.scenarios.schema.load import gpus_by_device, load_scenario, scenario_hash

CODE_ROOMS = ("kernels", "calibration", "sim", "scenarios")
CODE_SUFFIXES = (".py", ".json", ".yaml")
# Profiles and embedded scenarios are part of the address by content already; what others or we measured changes no
# figure.
NOT_CODE = ("profiles", "files", "points", "validation_results")
MANIFEST, RESULTS = "manifest.json", "results"
FORMAT, FORMAT_VERSION = "draftcast-sweep", 1
DONE, ERROR = "done", "error"
KEY, REPLICATION, STATUS, MESSAGE = "key", "replication", "status", "error"
SCENARIO = ("scenario", "scenario_hash", "profile_checksum", "code", "draftcast_version")  # what was asked of whom
ENGINE = "engine_"  # begins the names of columns with the engine's counters
PREDICTED = "predicted_"  # and with the bounds of figures' prediction intervals
_TRIES = 5


@dataclass(frozen=True)
class CellKey:
    """What a cell's figures depend on."""

    scenario: str
    profile: str
    code: str

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(astuple(self)).encode()).hexdigest()

    def difference(self, other: Self) -> str:
        """Which parts differ, in words."""
        names = {"scenario": "files it names", "profile": "profile", "code": "draftcast's code"}
        return ", ".join(word for part, word in names.items() if getattr(self, part) != getattr(other, part))


@dataclass(frozen=True)
class CellTask:
    address: CellKey
    scenario: dict[str, Any]


@dataclass(frozen=True)
class CellOutcome:
    """What a worker sends back: rows for the data set, or why there are none (which another try may change)."""

    key: str
    rows: tuple[dict[str, Any], ...] = ()
    failure: str = ""

    @classmethod
    def failed(cls, key: str, error: Exception) -> Self:
        return cls(key, failure=f"{type(error).__name__}: {' '.join(str(error).split())}")


@functools.cache
def code_digest() -> str:
    """Sha256 (hex) of the version and of every source and data file that the figures may depend on."""
    package = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256(__version__.encode())
    for path in sorted(path for room in CODE_ROOMS for path in (package / room).rglob("*")):
        place = path.relative_to(package)
        if path.suffix in CODE_SUFFIXES and not {*place.parts} & {*NOT_CODE}:
            digest.update(place.as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def address_of(scenario: Scenario) -> CellKey:
    """The address of a scenario's results. Raises InputError: an unknown device or profile."""
    used = dict.fromkeys((member.profile, member.hardware) for member in members(scenario))
    profiles = [cached_profile(profile, load_hardware(hardware)).checksum() for profile, hardware in used]
    return CellKey(scenario_hash(scenario), "+".join(profiles), code_digest())


def task_of(scenario: Scenario) -> CellTask:
    """What to send for ``scenario``; errors as of `address_of`."""
    return CellTask(address_of(scenario), to_mapping(scenario))


def run_task(task: CellTask) -> CellOutcome:
    """Compute a cell in this process: the figures of every replication, or the input's error. What the input cannot
    help (a bug, no memory) is a failure: nothing is kept of it."""
    key = task.address.key
    try:
        scenario = load_scenario(task.scenario)
        address = address_of(scenario)
        if address != task.address:
            return CellOutcome(key, failure=f"the worker has another state of: {task.address.difference(address)}")
        return CellOutcome(key, tuple(_rows(scenario, task)))
    except InputError as error:
        return CellOutcome(key, ({**_head(task), REPLICATION: 0, STATUS: ERROR, MESSAGE: str(error)},))
    except Exception as error:
        return CellOutcome.failed(key, error)


def _head(task: CellTask) -> dict[str, Any]:
    contents = (json.dumps(task.scenario, sort_keys=True), *astuple(task.address), __version__)
    return {KEY: task.address.key, **dict(zip(SCENARIO, contents, strict=True))}


def _rows(scenario: Scenario, task: CellTask) -> list[dict[str, Any]]:
    (point,) = compare(scenario).points
    run, side, verdict = point.on, point.side, point.verdict
    slo_met = run.slo_met if side.has_figures else None
    if side.state == "overloaded" and run.summary["slo_asked"]:
        slo_met = False  # a growing queue breaks any objective in the end
    facts: dict[str, Any] = {
        "state": side.state,
        "slo_met": slo_met,
        "capacity_rps": side.mean_capacity_rps,
        "num_gpus": float(sum(gpus_by_device(scenario).values())),
        "confidence": scenario.statistics.confidence,
        "notes": json.dumps(run.summary["notes"]),
    }
    if verdict is not None:
        facts |= {"verdict": verdict.word, "why": verdict.why}
        if (advantage := verdict.advantage) is not None:
            facts |= advantage.columns("advantage")
    facts |= {ENGINE + name: float(value) for name, value in run.summary["engine"].items() if value is not None}
    for name, figure in side.predicted_figures.items():
        facts |= {f"{PREDICTED}{name}_low": figure.low, f"{PREDICTED}{name}_high": figure.high}
    rate = scenario.rate_rps
    tokens = run.requests.groupby("replication")["output_tokens"].mean()
    rows = []
    for index, figures in enumerate(run.replications):
        offered = rate * float(tokens[index]) if rate is not None else None
        row = {**_head(task), REPLICATION: index, STATUS: DONE, **facts, "offered_tokens_per_s": offered}
        row |= {name: float(value) for name, value in figures.items()}
        rows.append({name: value for name, value in row.items() if value is not None})
    return rows


class ResultStore:
    """Rows of finished cells. Raises InputError: the folder is another's or another version's, or cannot be written."""

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
                write_text(manifest, json.dumps({"format": FORMAT, "format_version": FORMAT_VERSION}) + "\n")
        except OSError as error:
            raise InputError(f"cannot be used: {error.strerror or error}", file=str(folder)) from None
        header = read_json(manifest)
        if header.get("format") != FORMAT:
            raise InputError("is no data set of a sweep; name another one", file=str(folder))
        if (version := header.get("format_version")) != FORMAT_VERSION:
            message = f"written by another version; this one reads {FORMAT_VERSION}"
            raise InputError(message, file=str(manifest), key="format_version", value=version)

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows as one new file that survives a power cut. Raises InputError: the disk refused, none are kept."""
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
        if len(files) > 1:
            self._append(self.table())
            for path in files:
                path.unlink(missing_ok=True)

    def _append(self, table: pa.Table) -> None:
        with written(self.folder / RESULTS / f"{uuid.uuid4().hex}.parquet") as partial:
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
