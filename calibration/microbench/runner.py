"""A calibration: visits points until the budget is spent or all are settled, and writes the profile folder.

What it may time and how comes as arguments; the journal decides what is left to do, so a run that was killed goes on
where it stopped.
"""

import contextlib
import datetime
import hashlib
import itertools
import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from draftcast.calibration.journal import Journal
from draftcast.calibration.microbench import noise
from draftcast.calibration.microbench.device import Device, ceilings, is_alive, stream_launches
from draftcast.calibration.microbench.noise import NoiseProbe, NoiseReading, QuietLevels, SpinAndRead
from draftcast.calibration.microbench.schedule import LAUNCH_SPREAD_S, MIN_BURSTS, PointProgress, next_point
from draftcast.calibration.microbench.shapes import Plan, Point
from draftcast.calibration.microbench.timer import Burst, CpuTimer, CudaTimer, Timer, freed_memory_kept
from draftcast.calibration.microbench.timer import launches as make_launches
from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.load import TABLE, write_manifest
from draftcast.calibration.profile.roofline_fit import OperatorErrors, fit_profile
from draftcast.calibration.profile.table import checked_table, save_table
from draftcast.errors import HardwareError, InputError
from draftcast.files import picked
from draftcast.kernels.operators.registry import Launch, Operator

JOURNAL = "journal.jsonl"
_RATE_BURSTS, _GEMM_SIZE = 4, {"cpu": 1024, "cuda": 8192}
# How long a visit waits for a quiet machine, and how often and how long it tries for a burst that stayed quiet.
_WAIT_S, _TRIES, _TRY_S = 2.0, 4, 0.5
# Kept back for the table and the fit: under a second for a thousand points, and as much to load pandas and scipy.
_WRITE_S = 2.0


@dataclass(frozen=True)
class RunnerStatus:
    spent_s: float
    measured: int
    settled: int
    points: int
    now: str


@dataclass(frozen=True)
class RunnerResult:
    """What was written, and how far interpolation was off on points held out of it."""

    folder: Path
    table: pd.DataFrame
    errors: list[OperatorErrors]
    left_out: dict[str, int]
    noise: dict[str, Any]


class Calibration(contextlib.AbstractContextManager["Calibration"]):
    """One run over a folder; a context manager that holds the journal."""

    def __init__(
        self,
        folder: Path,
        device: Device,
        plan: Plan,
        operators: Mapping[str, Operator],
        *,
        budget_s: float,
        began_s: float | None = None,
        timer: Timer | None = None,
        progress: Callable[[RunnerStatus], None] = lambda _status: None,
    ) -> None:
        """Open or start the journal in ``folder``.

        ``operators``: by name; linear is needed besides the planned ones, for the largest rate. ``budget_s``: wall time
        of the whole calibration, an earlier run that is continued included. ``began_s``: `time.perf_counter` when this
        run began; None: now.

        Raises HardwareError: the folder holds something else, or a journal of other settings or of another device.
        """
        self.folder, self.device, self.plan = folder, device, plan
        self.operators, self.budget_s, self.progress = operators, budget_s, progress
        self.timer: Timer = timer or (CpuTimer() if device.kind == "cpu" else CudaTimer())
        self.state: dict[str, PointProgress] = {}
        self.rates: dict[str, float] = {}
        self.readings: list[NoiseReading] = []
        self.levels = QuietLevels()
        self._seen: set[str] = set()  # points this process has launched
        self._noted_s = 0.0  # what the journal accounts for
        self._end_s = _WRITE_S  # what is kept back for the end
        check_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(folder / JOURNAL, {**device.identity(), **asdict(plan.settings)})
        for record in self.journal.records:
            self._take(record)
        self._probe = NoiseProbe(device.cache_bytes)
        # As if all runs were one that began so much earlier.
        self._began_s = (time.perf_counter() if began_s is None else began_s) - self._noted_s

    def __exit__(self, *_: object) -> None:
        self.journal.close()

    @property
    def spent_s(self) -> float:
        """Wall time until now, of this run and those that it continues."""
        return time.perf_counter() - self._began_s

    def measure(self) -> None:
        """Visit points until nothing or no time is left; whatever ends it, no process of an operator stays."""
        with freed_memory_kept(), contextlib.ExitStack() as closed:
            for operator in self.operators.values():
                closed.callback(operator.close)
            before_s = self.spent_s
            self._read_noise()
            self._end_s = _WRITE_S + self.spent_s - before_s  # it is read once more at the end
            self._measure_rates()
            end_s = self.budget_s - self._end_s
            while point := next_point(self.plan.points, self.state, self.levels, self.spent_s, end_s):
                if time.time() - self.readings[-1].time_s >= noise.INTERVAL_S:
                    self._read_noise()
                self.progress(self._status(point.key))
                self._visit(point)
            self._read_noise()

    def write(self, name: str, hardware: HardwareSpec, command: Sequence[str]) -> RunnerResult:
        """Write table, manifest and fit; ``command`` is what repeats it. Raises HardwareError: nothing was measured."""
        table = self.table()
        save_table(table, self.folder / TABLE)
        left_out = Counter(self.plan.left_out)
        left_out["no time left in the budget"] += sum(point.key not in self.state for point in self.plan.points)
        left_out.update(progress.failed for progress in self.state.values() if not progress.visits)
        write_manifest(
            self.folder,
            name=name,
            hardware=hardware.name,
            device=self.device.name,
            **picked(self.device, "driver clocks versions"),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            command=shlex.join(command),
            source="measured by draftcast calibrate",
            noise=self.noise(),
            ceilings=ceilings(self.rates, table, self.device.cache_bytes),
            left_out={reason: count for reason, count in left_out.items() if count},
        )
        _, errors = fit_profile(self.folder, hardware)
        return RunnerResult(self.folder, table, errors, dict(+left_out), self.noise())

    def table(self) -> pd.DataFrame:
        rows = []
        for point in self.plan.points:
            progress = self.state.get(point.key)
            if progress is None or not progress.visits:
                continue
            # The replay of a graph has no host code.
            estimate = progress.estimate(self.levels).widened(0.0 if point.graph else LAUNCH_SPREAD_S)
            labels = {**asdict(point), **dict(point.shape), **asdict(estimate)}
            rows.append({**labels, "repeats": progress.launches})
        if not rows:
            failed = next((progress.failed for progress in self.state.values()), "a larger --budget is needed")
            raise HardwareError(f"nothing was measured: {failed}", file=str(self.folder))
        frame = pd.DataFrame(rows).drop(columns="shape")
        whole = frame.columns.difference(["seconds", "low_s", "high_s"])
        return checked_table(frame.fillna(dict.fromkeys(whole, 0)))

    def noise(self) -> dict[str, Any]:
        measured = [progress for progress in self.state.values() if progress.visits]
        quiet = sum(len(progress.quiet_bursts(self.levels)) for progress in measured)
        bursts = sum(progress.visits for progress in measured)
        summary = {**noise.noise_summary(self.readings), "host": noise.host_facts(), "threads": self.device.threads}
        return {**summary, "quiet_bursts": quiet / bursts if bursts else 0.0, "bursts": bursts}

    def _take(self, record: Mapping[str, Any]) -> None:
        try:
            self._noted_s += record["took_s"]
            kind = record["kind"]
            if kind == "noise":
                reading = NoiseReading(*(record[name] for name in NoiseReading._fields))
                self.readings.append(reading)
                self.levels.add(SpinAndRead(*pair) for pair in zip(reading.spin_s, reading.read_s, strict=True))
            elif kind == "rate":
                self.rates[record["name"]] = record["per_s"]
            else:
                progress = self.state.setdefault(record["point"], PointProgress())
                progress.took_s += record["took_s"]
                if kind == "failed":
                    progress.failed = record["reason"]
                else:
                    moment = None if record["spin_s"] is None else SpinAndRead(record["spin_s"], record["read_s"])
                    progress.bursts.append((record["seconds"], moment))
                    self.levels.add([] if moment is None else [moment])
                    progress.launches += record["launches"]
        except (KeyError, TypeError):
            raise HardwareError("is not a line of a calibration's journal", file=str(self.journal.path)) from None

    def _note(self, **record: Any) -> None:
        """Write a line that accounts for all the time since the line before."""
        line = {**record, "took_s": round(self.spent_s - self._noted_s, 6)}
        self.journal.append(line, sync=True)
        self._take(line)

    def _read_noise(self) -> None:
        self._note(kind="noise", **self._probe.read()._asdict())

    def _measure_rates(self) -> None:
        """Large copies and square matrix products in every format and implementation, unless the journal has them."""
        kind, seed = self.device.kind, self.plan.settings.seed
        if not {"copy", "read"} <= self.rates.keys():
            for name, (moved, ready) in stream_launches(kind, self.device.cache_bytes).items():
                if name not in self.rates:
                    self._measure_rate(name, float(moved), ready)
        linear, size = self.operators["linear"], _GEMM_SIZE[kind]
        shape = {"m": size, "k": size, "n": size}
        for dtype, kernel in itertools.product(self.plan.settings.dtypes, linear.implementations):
            name, runs = f"gemm {dtype} {kernel}", dtype in linear.dtypes
            if runs and name not in self.rates and not linear.implementations[kernel].supports(shape, dtype, "", kind):
                point = Point("linear", dtype, "", kernel, tuple(shape.items()))
                flops = float(linear.work(shape, dtype, "").flops)
                self._measure_rate(name, flops, make_launches(linear, point, kind, seed, 0))

    def _measure_rate(self, name: str, amount: float, ready: Sequence[Launch]) -> None:
        best = math.inf
        for _ in range(_RATE_BURSTS):
            best = min(best, self._burst(ready)[0].seconds)
            if self._left_s() <= 0.0:
                break
        self._note(kind="rate", name=name, per_s=amount / best)

    def _visit(self, point: Point) -> None:
        """One burst of ``point``, or why it cannot be timed, written to the journal."""
        operator = self.operators[point.operator]
        visit = self.state[point.key].visits if point.key in self.state else 0
        seed = int.from_bytes(hashlib.sha256(f"{self.plan.settings.seed} {visit} {point.key}".encode()).digest()[:7])
        try:
            ready = make_launches(operator, point, self.device.kind, seed, self.device.cache_bytes)
            burst, moment = self._burst(ready, graph=point.graph, seen=point.key in self._seen)
            self._seen.add(point.key)
        except InputError:
            raise
        except Exception as error:  # whatever a kernel raises: out of memory, no such configuration
            first = (str(error).splitlines() or [""])[0]
            reason = f"{point.operator} {point.implementation}: {type(error).__name__}: {first}"[:200]
            if not is_alive(self.device.kind):
                raise HardwareError(f"the device failed: {reason}", file=point.key) from error
            self._note(kind="failed", point=point.key, reason=reason)
            return
        figures = {"seconds": burst.seconds, "samples": burst.samples, "launches": burst.samples * burst.launches}
        spin_s, read_s = moment or (None, None)
        self._note(kind="burst", point=point.key, visit=visit, **figures, spin_s=spin_s, read_s=read_s)

    def _burst(
        self, ready: Sequence[Launch], *, graph: bool = False, seen: bool = False
    ) -> tuple[Burst, SpinAndRead | None]:
        """A burst during which the machine was quiet, or after some tries one during which it was not.

        With the worse of the readings around it; None on a GPU, which does not feel who else uses the host's cores.
        """
        if self.device.kind != "cpu":
            return self.timer.burst(ready, graph=graph, seen=seen), None
        end = time.perf_counter() + min(_TRY_S, self._left_s())
        for _ in range(_TRIES):
            before = noise.wait_until_quiet(self._probe.quietness, self.levels, min(_WAIT_S, self._left_s()))
            burst = self.timer.burst(ready, graph=graph, seen=seen)
            seen = True
            moment = before.worse(self._probe.quietness())
            if self.levels.is_quiet(moment) or time.perf_counter() >= end:
                break
        return burst, moment

    def _left_s(self) -> float:
        return self.budget_s - self._end_s - self.spent_s

    def _status(self, now: str) -> RunnerStatus:
        timed = [progress for progress in self.state.values() if progress.visits]
        settled = sum(progress.estimate(self.levels).settled for progress in timed)
        measured = sum(progress.visits >= MIN_BURSTS for progress in timed)
        return RunnerStatus(self.spent_s, measured, settled, len(self.plan.points), now)


def check_folder(folder: Path) -> None:
    """Raise HardwareError unless ``folder`` is absent, empty, or holds a calibration."""
    if folder.exists() and not folder.is_dir():
        raise HardwareError("exists and is not a directory", file=str(folder))
    if folder.is_dir() and any(folder.iterdir()) and not (folder / JOURNAL).is_file():
        raise HardwareError("is not empty and holds no calibration; name another folder", file=str(folder))
