"""From an iteration log's rows to timed steps: which intervals are a step's time, and how many KV tokens it read.

A step is timed by the wall clock from the line before it to its own. That is the step's period, scheduling and output
included, if the engine had no time to idle in between: sure when the step has a generation request, which was in the
engine before the step began. Other steps (prompts only) may follow a pause and are not timed by the wall clock. Stamps
are rounded down. Consecutive steps are taken together until the rounding is under a fiftieth of their time; with whole
seconds such a block begins and ends where the second changes, and is uncertain by a step, not by a second.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd

from draftcast.calibration.engine_log.regression import robust_fit
from draftcast.errors import InputError
from draftcast.kernels.arrays import FloatArray

Clock = Literal["auto", "wall", "elapsed"]

DEFAULT_BLOCK_SIZE = 16  # vLLM's block size on GPUs where none is given on the command line
_BLOCK_UNCERTAINTIES = 25.0  # times the uncertainty of its ends: the difference of two uniform errors is 1.6 % rms
_SHORT_BLOCK = 4.0  # steps of wall-clock blocks that are taken as they are; of longer ones a whole elapsed says more
WHOLE_ELAPSED = 0.8  # share of the wall time that elapsed must hold to stand for the step


@dataclass(frozen=True)
class TimedSteps:
    # A row per block: ``steps``, sums over them of ``rows``, ``kv_tokens`` (NaN: not known), ``sequences``,
    # ``draft_tokens`` (drafts made, by what the next step verifies), ``draft_passes`` (drafts made for one request),
    # ``context_tokens``; ``elapsed_s``, ``wall_s`` (NaN: not known), ``seconds`` (by the clock); ``source``, ``run``,
    # ``line`` (of the last step)
    frame: pd.DataFrame
    clock: Literal["wall", "elapsed"]
    elapsed_share: float  # elapsed over wall time where both are known, NaN where no wall time is
    host_s: tuple[float, float]  # seconds outside ``elapsed``, fixed and per sequence; NaN: it is not the step's wait
    left_out: dict[str, int]  # steps that are not in it, by reason

    @property
    def points(self) -> pd.DataFrame:
        """``frame`` with the host's seconds added where ``elapsed`` is the clock."""
        fixed_s, sequence_s = self.host_s
        if self.clock == "wall" or not math.isfinite(fixed_s):
            return self.frame
        outside_s = fixed_s * self.frame["steps"] + sequence_s * self.frame["sequences"]
        return self.frame.assign(seconds=self.frame["seconds"] + outside_s)


def with_kv_tokens(
    frame: pd.DataFrame, kv_capacity_tokens: float | None = None, block_size: int | None = None
) -> pd.DataFrame:
    """``frame`` with ``kv_tokens``: tokens in the KV cache before each step, over the requests that are in it.

    From the KV usage of the line before: used share x capacity, less half a block for each request that goes on (its
    last block is half full on average). In a stretch of steps without prompts, drafts or finished requests every step
    adds one token a request, so its steps share one estimate, which takes the rounding of the usage (0.1 % of the
    capacity) away. With asynchronous scheduling the next step's blocks are in the usage already; that is seen from when
    the usage jumps, and taken off. NaN where the line before is missing or shows no usage.

    Approximate: with speculative decoding rejected drafts and lookahead slots count, a few tokens a request; shared
    prefixes count once; models with sliding windows hold less than they have seen. A column ``kv_tokens`` is left as it
    is. The two arguments are for logs that begin after the line that names them (``KV cache size``, the command line).
    """
    if "kv_tokens" in frame:
        return frame
    capacity = frame["kv_capacity_tokens"] if kv_capacity_tokens is None else float(kv_capacity_tokens)
    size = frame["block_size"].fillna(DEFAULT_BLOCK_SIZE) if block_size is None else float(block_size)
    usage = frame.assign(used=frame["kv_usage"] * capacity, slack=(size - 1.0) / 2.0)
    runs = [pd.Series(_kv_of_run(run), run.index) for _, run in usage.groupby(["source", "run"], sort=False)]
    return frame.assign(kv_tokens=pd.concat(runs))


def _kv_of_run(run: pd.DataFrame) -> FloatArray:
    follows = np.r_[False, np.diff(run["step"]) == 1]
    used = np.where(follows, run["used"].shift().to_numpy(), np.nan)
    requests = run["generation_requests"].to_numpy()
    rows = run["context_tokens"].to_numpy() + run["generation_tokens"].to_numpy()
    kv = used - run["slack"].to_numpy() * requests - (rows if _allocates_ahead(run) else 0)
    kv = np.maximum(kv, np.where(np.isnan(kv), np.nan, requests))
    plain = (run["context_requests"].to_numpy() == 0) & (requests == run["generation_tokens"].to_numpy())
    same = follows & plain & np.r_[False, plain[:-1] & (np.diff(requests) == 0)]
    stretch = np.cumsum(~same)
    grown = np.cumsum(np.where(same, requests, 0))
    level = pd.Series(kv - grown).groupby(stretch).transform("mean").to_numpy()
    return np.asarray(level + grown, dtype=np.float64)


def _allocates_ahead(run: pd.DataFrame) -> bool:
    """Whether a prompt's blocks show in the usage one line before its step: asynchronous scheduling."""
    used = run["used"].to_numpy()
    prompts = run["context_tokens"].to_numpy()[2:]
    rise = np.diff(used)
    comparable = (prompts > 0) & ~np.isnan(rise[1:]) & ~np.isnan(rise[:-1])
    if not comparable.any():
        return False
    on_time = np.abs(rise[1:] - prompts)[comparable]
    ahead = np.abs(rise[:-1] - prompts)[comparable]
    return bool(np.mean(ahead) < np.mean(on_time))


def timed_steps(
    frame: pd.DataFrame, clock: Clock = "auto", warmup_steps: int = 10, features: Sequence[str] = ()
) -> TimedSteps:
    """Steps with their time, from a frame with ``kv_tokens``.

    Where ``frame`` has a column ``busy``, it says which steps followed the one before without a pause. ``clock``:
    ``wall``; ``elapsed``: the log's own figure; ``auto``: the wall clock where its blocks are short or ``elapsed``
    holds under 80 % of the wall time, otherwise, as without stamps, ``elapsed``. ``warmup_steps``: first steps of each
    run that are left out: compilation, cold caches. ``features``: further columns, to be summed like the others.

    Raises InputError: no step can be timed by the wall clock asked for.
    """
    if clock not in get_args(Clock):
        raise InputError(f"must be one of {', '.join(get_args(Clock))}", key="clock", value=clock)
    runs = [_step_features(run, warmup_steps, features) for _, run in frame.groupby(["source", "run"], sort=False)]
    steps, blocks = pd.concat(runs), pd.concat([_blocks(run, features) for run in runs], ignore_index=True)
    usable = steps[steps["reason"] == ""]
    left_out = {str(reason): int(n) for reason, n in steps["reason"].value_counts().items() if reason}
    share = float(blocks["elapsed_s"].sum() / blocks["wall_s"].sum()) if len(blocks) else np.nan
    short = len(blocks) > 0 and float(blocks["steps"].median()) <= _SHORT_BLOCK
    if clock == "auto":
        clock = "wall" if len(blocks) and (short or share < WHOLE_ELAPSED) else "elapsed"
    if clock == "wall" and not len(blocks):
        raise InputError("no step can be timed: no time stamps, or no two steps in a row", key="clock", value=clock)
    timed = blocks if clock == "wall" else usable[usable["elapsed_s"] > 0.0]
    if untimed := len(usable) - int(timed["steps"].sum()):
        left_out["wall time not sure" if clock == "wall" else "elapsed rounds to 0"] = untimed
    timed = timed.assign(seconds=timed[f"{clock}_s"]).reset_index(drop=True)
    return TimedSteps(timed, clock, share, _host_seconds(blocks, share), left_out)


def _host_seconds(blocks: pd.DataFrame, elapsed_share: float) -> tuple[float, float]:
    """`TimedSteps.host_s` from blocks of the wall clock, in which both times are known."""
    if not elapsed_share >= WHOLE_ELAPSED:
        return math.nan, math.nan
    x = blocks[["steps", "sequences"]].to_numpy(dtype=np.float64)
    fit = robust_fit(x, blocks["wall_s"].to_numpy(), x[:, 0], offset=blocks["elapsed_s"].to_numpy())
    fixed_s, sequence_s = fit.coefficients.tolist()
    return fixed_s, sequence_s


def _step_features(run: pd.DataFrame, warmup_steps: int, more: Sequence[str]) -> pd.DataFrame:
    """One row per step of a run; ``reason`` is empty for those that may be used."""
    follows = np.r_[False, np.diff(run["step"]) == 1]
    generation = run["generation_requests"].to_numpy()
    verified = run["generation_tokens"].to_numpy() - generation
    # Every request drafts as many, but for those near their end: rounded up, the mean is the number of passes.
    depth = -(-verified // np.maximum(generation, 1))
    is_next = np.r_[follows[1:] & (generation[1:] > 0), False]
    wall_s = np.r_[np.nan, np.diff(run["time_s"])]
    busy = run["busy"].to_numpy() if "busy" in run else generation > 0
    columns = ["source", "run", "line", "kv_tokens", "context_tokens", "elapsed_s", "time_s", "resolution_s"]
    features = run[columns].assign(
        steps=1,
        rows=run["context_tokens"] + run["generation_tokens"],
        sequences=run["context_requests"] + generation,
        draft_tokens=np.where(is_next, np.r_[verified[1:], 0], verified),
        draft_passes=np.where(is_next, np.r_[depth[1:], 0], depth),
        wall_s=np.where(follows & busy & (wall_s >= 0.0), wall_s, np.nan),
    )
    features = features.assign(**{name: run[name] for name in more})
    reason = np.full(len(run), "", dtype=object)
    reason[run["encoder_inputs"].to_numpy() > 0] = "encoder ran"
    reason[run["dummy"].to_numpy()] = "dummy"
    reason[:warmup_steps] = "warm-up"
    return features.assign(reason=reason)


def _blocks(run: pd.DataFrame, more: Sequence[str]) -> pd.DataFrame:
    """Blocks of consecutive steps between two stamps that bound their time well enough."""
    usable = (run["reason"] == "").to_numpy() & run["wall_s"].notna().to_numpy()
    wall_s, resolution = run["wall_s"].to_numpy(), run["resolution_s"].to_numpy()
    typical_s = float(np.mean(wall_s[usable])) if usable.any() else 0.0
    ends: list[tuple[int, int]] = []  # first and last step
    first: int | None = None
    spent = 0.0
    for i in range(len(run)):
        if not usable[i]:
            first = None
            continue
        # A stamp finer than a step will do; of coarser ones, one that has just changed.
        fine = resolution[i] <= typical_s
        sharp = fine or wall_s[i] > 0.0
        if first is None and sharp:
            # It begins a block; a fine stamp's step is in the block, which begins with the stamp before it.
            first, spent = (i if fine else i + 1), 0.0
        if first is None or i < first:
            continue
        spent += wall_s[i]
        if sharp and spent >= _BLOCK_UNCERTAINTIES * min(resolution[i], typical_s):
            ends.append((first, i))
            first, spent = i + 1, 0.0
    if not ends:
        return run.head(0)
    summed = ["rows", "kv_tokens", "sequences", "draft_tokens", "draft_passes", "context_tokens", "elapsed_s", "wall_s"]
    summed = [*dict.fromkeys((*summed, *more))]
    totals = np.vstack([np.zeros(len(summed)), np.cumsum(run[summed].fillna(0.0).to_numpy(), axis=0)])
    unknown = np.r_[0, np.cumsum(run["kv_tokens"].isna())]
    a, b = np.array(ends).T
    blocks: pd.DataFrame = run.take(b)
    blocks[summed] = totals[b + 1] - totals[a]
    blocks["steps"] = b + 1 - a
    blocks.loc[(unknown[b + 1] - unknown[a]) > 0, "kv_tokens"] = np.nan
    return blocks
