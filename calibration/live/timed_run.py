"""A live run's engine steps with their composition and their time, ready to be fitted or compared.

Which clock times a step is `draftcast.calibration.engine_log.steps`' to know, but for one choice: where the log's
``elapsed`` is nearly the whole step (worker processes and synchronous scheduling), it is taken together with the host's
seconds beside it, because it is stamped next to the engine and the line's own stamp waits for a busy front end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from draftcast.calibration.engine_log.fit import host_seconds, with_host
from draftcast.calibration.engine_log.log import read_engine_log
from draftcast.calibration.engine_log.steps import WHOLE_ELAPSED, timed_steps
from draftcast.calibration.live.composition import FEATURES, compose
from draftcast.calibration.live.core_speed import COLUMNS, CoreSpeed
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.errors import InputError

# The client warms a server up before it records; the first steps are often the only ones with many prompts.
_WARMUP_STEPS = 0


@dataclass(frozen=True)
class TimedRun:
    """One run's steps.

    Attributes:
        run: where they come from.
        method, k: how the server drafted; "" and 0 without speculative decoding.
        steps: every logged step of the run, columns of `draftcast.calibration.live.composition.compose`.
        points: timed steps, or blocks of consecutive ones: sums of the features, ``steps``, ``seconds``, ``source``,
            ``line``; means of the cores' speed (`draftcast.calibration.live.core_speed.COLUMNS`) where it is known.
        clock: ``wall`` or ``elapsed``. elapsed_share: of the wall time, NaN where that is not known.
        host_s: seconds of a step beside ``elapsed``, fixed and per sequence; NaN with the wall clock.
        left_out: steps without a time, by reason.
    """

    run: LiveRun
    method: str
    k: int
    steps: pd.DataFrame
    points: pd.DataFrame
    clock: str
    elapsed_share: float
    host_s: tuple[float, float]
    left_out: dict[str, int]

    @property
    def label(self) -> str:
        """The run's folder and how it drafted, for tables."""
        how = f"{self.method} k={self.k}" if self.method else "off"
        return f"{run_name(self.run)} ({how})"


def run_name(run: LiveRun) -> str:
    """The run's folder with the one it lies in: a sweep's runs of one mode have the same last name."""
    return "/".join(run.folder.resolve().parts[-2:])


def composed_steps(run: LiveRun) -> pd.DataFrame:
    """Every logged step of the run with what it held, and how fast the cores were meanwhile where that is known.

    Raises:
        InputError: the run has no log, or one that does not belong to it.
    """
    log = run.server_log
    if log is None:
        raise InputError("has no server.log, so its steps are not known", file=str(run.folder))
    steps = compose(
        read_engine_log(log),
        run.requests,
        run.chunks,
        float(run.manifest["start_unix_s"]),
        run.manifest["speculative_config"],
    )
    speed = CoreSpeed.of(run)
    if speed is None:
        return steps
    return steps.assign(**speed.logs((steps["time_s"] - steps["elapsed_s"].fillna(0.0) / 2).to_numpy(np.float64)))


def timed_run(run: LiveRun, steps: pd.DataFrame | None = None, more: Sequence[str] = ()) -> TimedRun:
    """The run's steps with their time.

    Args:
        steps: of `composed_steps`, where they are there already; with further columns ``more`` to be summed.

    Raises:
        InputError: see `composed_steps`; or no step can be timed.
    """
    frame = composed_steps(run) if steps is None else steps
    speeds = [name for name in COLUMNS if name in frame]
    names = (*FEATURES, *speeds, *more)
    timed = timed_steps(frame, "auto", _WARMUP_STEPS, names)
    host_s = host_seconds(timed)
    if timed.clock == "wall" and timed.elapsed_share >= WHOLE_ELAPSED:
        timed = timed_steps(frame, "elapsed", _WARMUP_STEPS, names)
    points = with_host(timed, *host_s)
    points = points.assign(**{name: points[name] / points["steps"] for name in speeds})
    spec = run.manifest["speculative_config"] or {}
    return TimedRun(
        run=run,
        method=str(spec.get("method") or ("draft_model" if spec.get("model") else "")),
        k=int(spec.get("num_speculative_tokens") or 0),
        steps=frame,
        points=points,
        clock=timed.clock,
        elapsed_share=timed.elapsed_share,
        host_s=host_s,
        left_out=timed.left_out,
    )
