"""Step coefficients from an iteration log: ``fixed + row * rows + kv * KV tokens + sequence * sequences``.

Rows are all scheduled rows (prompt tokens and drafts to verify included), KV tokens stand in the cache before the
step, sequences are the requests in it: the features of an affine profile. A second log, of the same server with
speculative decoding, adds what a step costs beyond them: for a drafting model ``fixed + pass * passes + token * drafts
made + kv * KV tokens``, for text search a fraction of the target's time.

Errors are of stretches of time that took no part in the fit; neighbouring steps are alike, so single steps are never
held out.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from draftcast.calibration.engine_log.regression import (
    DRAFT,
    FRACTION,
    TARGET,
    Fit,
    Resampling,
    as_points,
    regress,
)
from draftcast.calibration.engine_log.steps import WHOLE_ELAPSED, Clock, TimedSteps, timed_steps, with_kv_tokens
from draftcast.calibration.profile.robust_fit import robust_fit
from draftcast.errors import InputError

SEARCHES = ("ngram", "ngram_gpu", "suffix")
"""Methods that draft by text search."""

# A speculative server verifies drafts in nearly every step; without one, a resumed request may look alike now and then.
_SPECULATIVE_SHARE = 0.02
# Points without KV tokens are dropped where they are fewer than this in every log; otherwise KV tokens are not fitted.
_MOST_KV_UNKNOWN = 0.5


@dataclass(frozen=True)
class EngineLogFit:
    """What an iteration log says about a server's step time.

    Attributes:
        regression: the coefficients, as an affine profile takes them, and their errors.
        clock: ``wall`` (stamps) or ``elapsed`` (the log's figure, plus the host's seconds where they are known).
        host_fixed_s, host_sequence_s: seconds of a step outside ``elapsed``; NaN where the log cannot say. They are in
            the coefficients already.
        elapsed_share: elapsed over wall time, NaN where no wall time is known.
        repeat_error: median relative difference of successive points alike in rows and sequences, over sqrt(2): about
            the held-out median error of a perfect fit.
        steps, points: steps used, and points they were taken together to.
        left_out: steps not used, by reason.
        sequences: smallest and largest number of requests in a step.
        method, num_speculative_tokens: of the second log, every k in it; "" and none without one.
        speculative: the only log is of a server with speculative decoding: drafting is in the target's coefficients.
        enforce_eager: what the server was started with; None where no log says so.
        sources, versions: files, and the vLLM versions they name.
    """

    regression: Fit
    clock: str
    host_fixed_s: float
    host_sequence_s: float
    elapsed_share: float
    repeat_error: float
    steps: int
    points: int
    left_out: dict[str, int]
    sequences: tuple[int, int]
    method: str
    num_speculative_tokens: tuple[int, ...]
    speculative: bool
    enforce_eager: bool | None
    sources: tuple[str, ...]
    versions: tuple[str, ...]

    @property
    def overhead_s(self) -> float:
        """Seconds of every step outside ``elapsed``, at most the fixed ones; 0 where not known."""
        return min(self.host_fixed_s, self.regression.value("fixed_s")) if math.isfinite(self.host_fixed_s) else 0.0

    def report(self) -> dict[str, Any]:
        """Plain data for JSON; None for what is not known."""
        return {**_plain(dataclasses.asdict(self)), "overhead_s": self.overhead_s}


def fit_engine_log(
    frame: pd.DataFrame,
    speculative_frame: pd.DataFrame | None = None,
    *,
    method: str | None = None,
    clock: Clock = "auto",
    warmup_steps: int = 10,
    held_out: float = 0.25,
    bootstrap: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
    kv_capacity_tokens: float | None = None,
    block_size: int | None = None,
) -> EngineLogFit:
    """Fit the step time of one server.

    Args:
        frame: of `read_engine_log`, or several concatenated; without speculative decoding where there is a second.
        speculative_frame: the same server with speculative decoding.
        method: of the second log, where that begins after the server said so.
        clock, warmup_steps: see `timed_steps`.
        held_out: share of the stretches of time that the fit behind the errors does not see; the coefficients are then
            fitted on all.
        bootstrap, confidence, seed: resamples of the stretches behind the intervals (0 none), their level, the seed.
        kv_capacity_tokens, block_size: see `with_kv_tokens`.

    Raises:
        InputError: too few usable steps, logs that do not belong together, an argument out of range.
    """
    resampling = Resampling(held_out, bootstrap, confidence, seed)
    frames = [frame]
    names: tuple[str, ...] = ()
    drafts_with = ""
    num_drafts: tuple[int, ...] = ()
    if speculative_frame is not None:
        frames.append(speculative_frame)
        drafts_with = _method(frame, speculative_frame, method)
        num_drafts = tuple(int(k) for k in sorted(speculative_frame["num_speculative_tokens"].unique()))
        names = (FRACTION,) if drafts_with in SEARCHES else tuple(DRAFT)
    timed: list[TimedSteps] = []
    for logged in frames:
        known = with_kv_tokens(logged, kv_capacity_tokens, block_size)
        # One clock for both logs, or the difference of the clocks would pass for drafting.
        timed.append(timed_steps(known, timed[0].clock if timed else clock, warmup_steps))
    hosts = [host_seconds(part) for part in timed]
    points = as_points([with_host(part, *host) for part, host in zip(timed, hosts, strict=True)])
    left_out: dict[str, int] = {}
    for part in timed:
        left_out |= {reason: left_out.get(reason, 0) + count for reason, count in part.left_out.items()}
    unknown = points["kv_tokens"].isna()
    if unknown.any() and unknown.groupby(points["speculative"]).mean().max() < _MOST_KV_UNKNOWN:
        left_out["KV tokens not known"] = int(points.loc[unknown, "steps"].sum())
        points = points[~unknown].reset_index(drop=True)
    each = points["sequences"] / points["steps"]
    return EngineLogFit(
        regression=regress(points, (*TARGET, *names), resampling, hosts[0][0]),
        clock=timed[0].clock,
        host_fixed_s=hosts[0][0],
        host_sequence_s=hosts[0][1],
        elapsed_share=timed[0].elapsed_share,
        repeat_error=_repeat_error(points[~points["speculative"]]),
        steps=int(points["steps"].sum()),
        points=len(points),
        left_out=left_out,
        sequences=(math.floor(each.min()), math.ceil(each.max())),
        method=drafts_with,
        num_speculative_tokens=num_drafts,
        speculative=speculative_frame is None and is_speculative(frame),
        enforce_eager=_enforce_eager(frames),
        sources=tuple(dict.fromkeys(str(source) for part in frames for source in part["source"].unique())),
        versions=tuple(dict.fromkeys(str(v) for part in frames for v in part["version"].unique() if v)),
    )


def is_speculative(frame: pd.DataFrame) -> bool:
    """Whether the steps verify drafts: more generation tokens than requests."""
    generation = frame[frame["generation_requests"] > 0]
    more = generation["generation_tokens"] > generation["generation_requests"]
    return bool(len(more)) and float(more.mean()) > _SPECULATIVE_SHARE


def _method(frame: pd.DataFrame, speculative_frame: pd.DataFrame, method: str | None) -> str:
    """The second log's method, the pair checked."""
    plain, drafting = str(frame["source"].iloc[0]), str(speculative_frame["source"].iloc[0])
    if is_speculative(frame):
        raise InputError("its steps verify drafts; the first log must be without speculative decoding", file=plain)
    if not is_speculative(speculative_frame):
        raise InputError("its steps verify no drafts; the second log must be with speculative decoding", file=drafting)
    logged = sorted(set(speculative_frame["method"]) - {"", "?"})
    if len(logged) > 1 or (logged and method not in (None, logged[0])):
        raise InputError(f"the log is of {', '.join(logged)}", file=drafting, key="method", value=method)
    if not logged and method is None:
        raise InputError("required: the log begins after the server named it", file=drafting, key="method")
    return logged[0] if logged else str(method)


def _enforce_eager(frames: list[pd.DataFrame]) -> bool | None:
    """What every log that names it says."""
    named: bool | None = None
    for frame in frames:
        for source, eager in frame.loc[frame["enforce_eager"].notna(), ["source", "enforce_eager"]].itertuples(False):
            if named not in (None, eager):
                message = f"the logs differ: the others are of a server with {named}"
                raise InputError(message, file=str(source), key="enforce_eager", value=bool(eager))
            named = bool(eager)
    return named


def host_seconds(timed: TimedSteps) -> tuple[float, float]:
    """Seconds of a step outside ``elapsed``, fixed and per sequence; NaN where elapsed is not the step's wait."""
    if not timed.elapsed_share >= WHOLE_ELAPSED:
        return math.nan, math.nan
    blocks = timed.blocks
    x = blocks[["steps", "sequences"]].to_numpy(dtype=np.float64)
    wall_s, steps = blocks["wall_s"].to_numpy(), blocks["steps"].to_numpy(dtype=np.float64)
    fixed_s, sequence_s = robust_fit(x, wall_s, steps, offset=blocks["elapsed_s"].to_numpy()).coefficients.tolist()
    return fixed_s, sequence_s


def with_host(timed: TimedSteps, fixed_s: float, sequence_s: float) -> pd.DataFrame:
    """The points, with the host's seconds added where ``elapsed`` is the clock."""
    points = timed.frame
    if timed.clock == "wall" or not math.isfinite(fixed_s):
        return points
    return points.assign(seconds=points["seconds"] + fixed_s * points["steps"] + sequence_s * points["sequences"])


def _repeat_error(points: pd.DataFrame) -> float:
    features = points[["run", "steps", "rows", "sequences"]].to_numpy(dtype=np.float64)
    alike = (np.diff(features, axis=0) == 0.0).all(axis=1)
    seconds = points["seconds"].to_numpy()
    change = np.abs(np.diff(seconds)) / np.minimum(seconds[1:], seconds[:-1])
    return float(np.median(change[alike]) / math.sqrt(2.0)) if alike.any() else math.nan


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
