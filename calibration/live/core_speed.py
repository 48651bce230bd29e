"""How fast the machine's cores were while a run was recorded, and what that does to a step's time.

Cores of a virtual machine are often threads of a core that somebody else's machine uses too: the same instructions take
up to twice as long, for tenths of a second to minutes, and nothing inside the machine says so. A server whose steps are
timed at one moment and forecast for another is then off by that much whatever the forecast. So while a server computes
on this host's CPU, `draftcast.calibration.live.core_speed_probe` times a fixed piece of work beside it on every core.
It knows nothing of the server; what it reads says how fast the *machine* was.

A step's time goes with a power of what the probe reads: 1 where a step is nothing but instructions, less where it waits
for memory. One power for the cores the server computes on, one for those beside it, on which front end and client run.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from draftcast.calibration.live.cpu_use import PROC, tree
from draftcast.calibration.profile.spec import CoreResponse
from draftcast.errors import InputError
from draftcast.files import read_text

if TYPE_CHECKING:
    from draftcast.calibration.live.run_directory import LiveRun

FloatArray = NDArray[np.float64]

FILE = "core_speed.csv"
GROUPS = ("server", "beside")
"""The cores the server computes on, and the others that are allowed here."""
COLUMNS = tuple(f"log_{group}_spin" for group in GROUPS)
"""Of steps and points: natural logarithm of the probe's seconds around them."""

PERIOD_S = 0.02
# A probe's reading is a moment's, a step or a request goes on: readings are averaged over this long.
_WINDOW_S = 1.0
# A reading beyond so many times the run's median is an interrupt's, not the core's.
_INTERRUPTED = 4.0
_LEAST_READINGS = 20
_GRID_S = 0.25
# Readings that vary by less than this share of themselves say nothing of a power.
_LEAST_SPREAD = 0.01
_MOST = 1.5  # of a power; more is not the core's doing


class Probe:
    """The probe's process, from entering to leaving the context."""

    def __init__(self, file: Path, period_s: float = PERIOD_S) -> None:
        self._command = [sys.executable, "-m", "draftcast.calibration.live.core_speed_probe", str(period_s), str(file)]

    def __enter__(self) -> Probe:
        # A session of its own: Ctrl-C is for the parent, whose end closes the probe's standard input.
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def kept_off(cores: Collection[int]) -> Iterator[None]:
    """This thread on other cores than these, where it may use others."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, allowed - set(cores) or allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def can_probe() -> bool:
    """Whether this system lets a process choose its core."""
    return hasattr(os, "sched_setaffinity")


@dataclass(frozen=True)
class CoreSpeed:
    """What the probe read during a run.

    Attributes:
        readings: by group: times in seconds since the run's start, ascending, and the probe's seconds.
    """

    readings: Mapping[str, tuple[FloatArray, FloatArray]]

    @classmethod
    def of(cls, run: LiveRun) -> CoreSpeed | None:
        """The run's; None where nothing was read, or too little.

        Raises:
            InputError: the file is damaged.
        """
        cores = run.manifest["server_cores"]
        path = run.folder / FILE
        start_unix_s = run.manifest["start_unix_s"]
        if not cores or start_unix_s is None or not path.is_file():
            return None
        try:
            # A line that a full disk cut short has no end.
            lines = read_text(path).rpartition("\n")[0].splitlines()[1:]
            table = np.array([[float(value) for value in line.split(",")] for line in lines]).reshape(-1, 3)
        except ValueError as error:
            raise InputError(f"damaged: {error}", file=str(path)) from None
        found = {}
        own = np.isin(table[:, 1], cores)
        for group, chosen in zip(GROUPS, (own, ~own), strict=True):
            time_s, spin_s = table[chosen, 0] - float(start_unix_s), table[chosen, 2]
            if len(spin_s) >= _LEAST_READINGS:
                kept = spin_s <= _INTERRUPTED * np.median(spin_s)
                found[group] = (time_s[kept], spin_s[kept])
        return cls(found) if GROUPS[0] in found else None

    def logs(self, at_s: FloatArray) -> dict[str, FloatArray]:
        """By `COLUMNS`: logarithm of the mean reading around each moment; the nearest where there was none."""
        found = {}
        for group, column in zip(GROUPS, COLUMNS, strict=True):
            if group not in self.readings:
                continue
            time_s, spin_s = self.readings[group]
            low = np.searchsorted(time_s, at_s - _WINDOW_S / 2)
            high = np.searchsorted(time_s, at_s + _WINDOW_S / 2, side="right")
            empty = high <= low
            low = np.where(empty, np.clip(low - 1, 0, len(time_s) - 1), low)
            high = np.where(empty, low + 1, high)
            total = np.r_[0.0, np.cumsum(spin_s)]
            found[column] = np.log((total[high] - total[low]) / (high - low))
        return found

    def factor(self, response: Mapping[str, CoreResponse], begin_s: float, end_s: float) -> float:
        """How many times longer steps took between the two moments than the profile's, on average."""
        moments = np.arange(begin_s, max(end_s, begin_s + _GRID_S), _GRID_S)
        return float(np.mean(factors(response, self.logs(moments), len(moments))))


def factors(response: Mapping[str, CoreResponse], logs: Mapping[str, FloatArray], rows: int) -> FloatArray:
    """How many times longer than the profile's each of ``rows`` steps is at such readings; ones where none are known.

    Args:
        response: by group. logs: by `COLUMNS`, shape (rows,).
    """
    total = np.zeros(rows)
    for group, column in zip(GROUPS, COLUMNS, strict=True):
        if group in response and column in logs:
            known = response[group]
            total += known.exponent * (np.asarray(logs[column], dtype=np.float64) - np.log(known.spin_s))
    return np.asarray(np.exp(total), dtype=np.float64)


def exponents(deviations: FloatArray, residuals: FloatArray, weights: FloatArray, shares: FloatArray) -> FloatArray:
    """Powers, 0 to 1.5, by which times go with the probe's readings: weighted least squares; 0 where they hardly vary.

    Found together with small changes of the coefficients the times were fitted with (Frisch and Waugh, Econometrica
    1(4), 1933): one after the other, what a coefficient has taken for its own is never given back to a power.

    Args:
        deviations: logarithms of the readings beside the reference's, shape (points, groups).
        residuals: logarithms of measured over fitted seconds, these at the reference, shape (points,).
        weights: of the points, shape (points,).
        shares: of the fitted seconds that each coefficient makes, shape (points, coefficients).
    """
    found = np.zeros(deviations.shape[1])
    varied = deviations.std(axis=0) >= _LEAST_SPREAD
    if varied.any():
        root = np.sqrt(weights)[:, None]
        basis = np.linalg.qr(root * shares)[0]
        alone, left = (root * values for values in (deviations[:, varied], residuals[:, None]))
        alone, left = alone - basis @ (basis.T @ alone), left - basis @ (basis.T @ left)
        found[varied] = nnls(alone, left[:, 0])[0]
    return np.minimum(found, _MOST)


def server_cores(root: int, proc: Path = PROC) -> list[int]:
    """Cores that the busiest process of the tree below ``root`` may use; empty where that cannot be told."""
    used = tree(root, proc)
    if not used:
        return []
    busiest = max(used, key=lambda pid: used[pid])
    try:
        lines = (proc / str(busiest) / "status").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    spans = next((line.split(":")[1].strip() for line in lines if line.startswith("Cpus_allowed_list")), "")
    cores: list[int] = []
    for span in filter(None, spans.split(",")):
        first, _, last = span.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores
