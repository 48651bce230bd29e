"""What speculation does at each load of a live sweep, measured and forecast, and where it stops paying.

The effect in a closed loop is the ratio of throughputs, with speculation over off; at a rate it is the ratio of mean
E2E latencies, off over with speculation: above 1 speculation pays in both. Intervals come from a bootstrap: rounds are
drawn with replacement, and within a round stretches of time (closed loop) or requests, the same for both modes (rates).
Stretches and requests of one run are not independent, so with a single round an interval is rather too narrow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from draftcast.kernels.arrays import FloatArray
from draftcast.scenarios.live.validate.comparison import Validation

RESAMPLES = 400
_STRETCHES = 12
_TAIL = 2.5  # per cent
_LARGE_EFFECT = 0.05
"""A measured effect below this has no sign to be forecast."""
CUTOVER_BAR = 0.15
"""Largest relative distance of two cutovers that are not within a step of each other."""


@dataclass(frozen=True)
class Effect:
    """Speculation's effect in one mode at one load; the first three as in the sweep's index."""

    mode: str
    load_kind: str
    load: float
    measured: float  # over all rounds
    low: float  # of its interval
    high: float
    forecast: float  # over all rounds and replications
    resamples: FloatArray  # of the measured effect, shape (`RESAMPLES`,)
    replications: FloatArray  # the forecast effect by replication

    @property
    def sign(self) -> str:
        """``right`` or ``WRONG``; ``small`` where the measured effect is too small to have a sign."""
        if abs(self.measured - 1.0) <= _LARGE_EFFECT:
            return "small"
        return "right" if (self.measured > 1.0) == (self.forecast > 1.0) else "WRONG"


@dataclass(frozen=True)
class Cutover:
    """Closed-loop users at which a mode's throughput gain falls through 1.

    Infinite: it does so beyond the largest (inf) or below the smallest (-inf) number of users that was run.
    """

    mode: str
    measured: float
    low: float  # of the measured interval
    high: float
    forecast: float  # of the same loads
    forecast_low: float  # of the range over its replications
    forecast_high: float
    users: tuple[float, ...]  # the numbers of users that were run

    @property
    def within_bar(self) -> bool:
        """Whether the two are within one step of the numbers of users that were run, or within `CUTOVER_BAR`."""
        if math.isfinite(self.measured) and abs(self.forecast / self.measured - 1.0) <= CUTOVER_BAR:
            return True
        return abs(self._place(self.measured) - self._place(self.forecast)) <= 1.0

    def _place(self, users: float) -> float:
        """On the scale on which neighbouring numbers of users are 1 apart; what lies beyond an end, a step from it."""
        return float(np.interp(users, self.users, np.arange(len(self.users)), left=-1.0, right=len(self.users)))


def effect(mode: str, load_kind: str, load: float, pairs: Sequence[tuple[Validation, Validation]]) -> Effect:
    """The effect over the rounds of a load; ``pairs`` are the runs off and with speculation of each round."""
    rng = np.random.default_rng(0)
    make = _throughput_ratios if load_kind == "concurrency" else _latency_ratios
    rounds = [make(off, on, rng) for off, on in pairs]
    drawn = rng.integers(0, len(rounds), (RESAMPLES, len(rounds)))
    resamples = np.stack([values for _, values in rounds])[drawn, np.arange(RESAMPLES)[:, None]].mean(axis=1)
    low, high = np.percentile(resamples, (_TAIL, 100.0 - _TAIL))
    replications = np.mean([_forecasts(load_kind, off, on) for off, on in pairs], axis=0)
    measured, forecast = float(np.mean([value for value, _ in rounds])), float(replications.mean())
    return Effect(mode, load_kind, load, measured, float(low), float(high), forecast, resamples, replications)


def cutover(effects: Sequence[Effect]) -> Cutover | None:
    """Where one mode's closed-loop gain crosses 1, measured and forecast; None with fewer than two loads."""
    ordered = sorted(effects, key=lambda each: each.load)
    users = np.array([each.load for each in ordered])
    if len(users) < 2:
        return None
    resampled = [_crossing(users, gains) for gains in np.column_stack([each.resamples for each in ordered])]
    low, high = np.percentile(resampled, (_TAIL, 100.0 - _TAIL), method="nearest")
    measured = _crossing(users, np.array([each.measured for each in ordered]))
    forecast = _crossing(users, np.array([each.forecast for each in ordered]))
    played = [_crossing(users, gains) for gains in np.column_stack([each.replications for each in ordered])]
    forecasts = forecast, min(played), max(played)
    return Cutover(ordered[0].mode, measured, float(low), float(high), *forecasts, tuple(users.tolist()))


def _crossing(users: FloatArray, gains: FloatArray) -> float:
    """Users at which the gains, made to fall, reach 1: straight in between over the logarithm of the users."""
    fitted = isotonic_regression(gains, increasing=False).x
    if fitted[0] < 1.0:
        return -math.inf
    if fitted[-1] > 1.0:
        return math.inf
    return float(np.exp(np.interp(-1.0, -fitted, np.log(users))))


def _forecasts(load_kind: str, off: Validation, on: Validation) -> FloatArray:
    """The effect by replication; the same random numbers stand behind a replication of either run."""
    name = closed_loop_figure(off, on) if load_kind == "concurrency" else "mean_e2el_s"
    pairs = zip(off.replays, on.replays, strict=True)
    ratios = np.array([with_it.figures[name] / without.figures[name] for without, with_it in pairs])
    return ratios if load_kind == "concurrency" else 1.0 / ratios


def closed_loop_figure(*runs: Validation) -> str:
    """Throughput while all users are busy, where every run was long enough to have one."""
    busy = all("busy_throughput" in run.figures for run in runs)
    return "busy_throughput" if busy else "output_throughput"


def _throughput_ratios(off: Validation, on: Validation, rng: np.random.Generator) -> tuple[float, FloatArray]:
    """Ratio of throughputs, and resamples of it by stretches of each run's time."""
    name = closed_loop_figure(off, on)
    drawn = []
    for run in (off, on):
        tokens = _tokens_by_stretch(run, name == "busy_throughput")
        drawn.append(rng.choice(tokens, (RESAMPLES, len(tokens))).mean(axis=1) / tokens.mean())
    ratio = on.figures[name].measured / off.figures[name].measured
    return ratio, ratio * drawn[1] / np.maximum(drawn[0], 1e-9)


def _tokens_by_stretch(run: Validation, until_last_sending: bool) -> FloatArray:
    requests, chunks = run.question.requests, run.question.live.chunks
    end_s = requests["arrival_s" if until_last_sending else "finish_s"].max()
    edges = np.linspace(requests["arrival_s"].min(), end_s, _STRETCHES + 1)
    counts, _ = np.histogram(chunks["time_s"], edges, weights=chunks["tokens"])
    return counts.astype(np.float64)


def _latency_ratios(off: Validation, on: Validation, rng: np.random.Generator) -> tuple[float, FloatArray]:
    """Ratio of mean E2E latencies, and resamples of it by requests, the same requests in both runs."""
    requests = [run.question.requests.set_index("request_id") for run in (off, on)]
    e2e_s = [frame["finish_s"] - frame["arrival_s"] for frame in requests]
    both = pd.concat(e2e_s, axis=1, keys=["off", "on"]).dropna()
    ratio = off.figures["mean_e2el_s"].measured / on.figures["mean_e2el_s"].measured
    if not len(both):
        return ratio, np.full(RESAMPLES, math.nan)
    drawn = rng.integers(0, len(both), (RESAMPLES, len(both)))
    means = {side: both[side].to_numpy()[drawn].mean(axis=1) / both[side].mean() for side in ("off", "on")}
    return ratio, np.asarray(ratio * means["off"] / means["on"])
