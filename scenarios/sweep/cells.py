"""One cell of a sweep: its content address, how it is computed, and what is kept of it.

A cell that speculates is simulated together with the same cell without speculation: its verdict is of these two runs,
whatever else the grid holds and wherever the other cells are computed. The address takes everything that can change
the figures: the scenario with its seed and the content of all files it names, the profile, this package's code. A
worker computes the address anew, so that one with other files or another version refuses instead of answering another
question; what another version kept in the data set is computed anew for the same reason.
"""

import functools
import hashlib
import json
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Self

from draftcast import __version__
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.errors import InputError
from draftcast.scenarios.compare.comparison import compare
from draftcast.scenarios.run.deployment import cached_profile
from draftcast.scenarios.schema import Scenario, members, to_mapping
from draftcast.scenarios.schema.load import gpus_by_device, load_scenario, scenario_hash
from draftcast.scenarios.sweep.store import KEY, REPLICATION

CODE_ROOMS = ("kernels", "calibration", "sim", "scenarios")
CODE_SUFFIXES = (".py", ".json", ".yaml")
# Profiles and embedded scenarios are part of the address by content already; what others or we measured changes no
# figure.
NOT_CODE = ("profiles", "files", "points", "validation_results")
DONE, ERROR = "done", "error"
STATUS, MESSAGE = "status", "error"
SCENARIO = ("scenario", "scenario_hash", "profile_checksum", "code", "draftcast_version")  # what was asked of whom
ENGINE = "engine_"  # begins the names of columns with the engine's counters


@dataclass(frozen=True)
class Address:
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
class Task:
    address: Address
    scenario: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
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


def address_of(scenario: Scenario) -> Address:
    """The address of a scenario's results. Raises InputError: an unknown device or profile."""
    used = dict.fromkeys((each.profile, each.hardware) for each in members(scenario))
    profiles = [cached_profile(profile, load_hardware(hardware)).checksum() for profile, hardware in used]
    return Address(scenario_hash(scenario), "+".join(profiles), code_digest())


def task_of(scenario: Scenario) -> Task:
    """What to send for ``scenario``; errors as of `address_of`."""
    return Task(address_of(scenario), to_mapping(scenario))


def run_task(task: Task) -> Outcome:
    """Compute a cell in this process: the figures of every replication, or the error that the input has.

    What the input cannot help (a bug, no memory) is a failure, not an error: nothing is kept of it.
    """
    key = task.address.key
    try:
        scenario = load_scenario(task.scenario)
        own = address_of(scenario)
        if own != task.address:
            return Outcome(key, failure=f"the worker has another state of: {task.address.difference(own)}")
        return Outcome(key, tuple(_rows(scenario, task)))
    except InputError as error:
        return Outcome(key, ({**_head(task), REPLICATION: 0, STATUS: ERROR, MESSAGE: str(error)},))
    except Exception as error:
        return Outcome.failed(key, error)


def _head(task: Task) -> dict[str, Any]:
    asked = (json.dumps(task.scenario, sort_keys=True), *astuple(task.address), __version__)
    return {KEY: task.address.key, **dict(zip(SCENARIO, asked, strict=True))}


def _rows(scenario: Scenario, task: Task) -> list[dict[str, Any]]:
    (point,) = compare(scenario).points
    run, own, verdict = point.on, point.own, point.verdict
    slo_met = run.slo_met if own.has_figures else None
    if own.state == "overloaded" and run.summary["slo_asked"]:
        slo_met = False  # a growing queue breaks any objective in the end
    facts: dict[str, Any] = {
        "state": own.state,
        "slo_met": slo_met,
        "capacity_rps": own.capacity.estimate.mean if own.capacity is not None else None,
        "num_gpus": float(sum(gpus_by_device(scenario).values())),
        "confidence": scenario.statistics.confidence,
    }
    if verdict is not None:
        facts |= {"verdict": verdict.word, "why": verdict.why}
        if (advantage := verdict.advantage) is not None:
            facts |= {"advantage": advantage.mean, "advantage_low": advantage.low, "advantage_high": advantage.high}
    facts |= {ENGINE + name: float(value) for name, value in run.summary["engine"].items() if value is not None}
    rate = scenario.rate_rps
    tokens = run.requests.groupby("replication")["output_tokens"].mean()
    rows = []
    for index, figures in enumerate(run.replications):
        offered = rate * float(tokens[index]) if rate is not None else None
        row = {**_head(task), REPLICATION: index, STATUS: DONE, **facts, "offered_tokens_per_s": offered}
        row |= {name: float(value) for name, value in figures.items()}
        rows.append({name: value for name, value in row.items() if value is not None})
    return rows
