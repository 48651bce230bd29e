"""How far a result can be trusted, in one word: from what its device time was predicted.

A profile predicts each operator from a measurement of that very shape, from measured neighbours, or beyond what was
measured. The engine adds up device seconds by these origins; here they become the badge a reader sees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from draftcast.sim.statistics.intervals import Estimate

Word = Literal["measured", "interpolated", "extrapolated"]
ORIGINS: tuple[Word, ...] = ("measured", "interpolated", "extrapolated")
# A third of the device time on weaker ground is too much to hide behind the better word.
TOLERATED = 1 / 3


@dataclass(frozen=True)
class Fidelity:
    """Shares of the device time by origin, of the run that rests on extrapolation most."""

    # ``extrapolated`` when more than a third of the device time is; else ``measured`` when at least two thirds are;
    # else ``interpolated``
    word: Word
    shares: Mapping[Word, float]  # by origin; they add up to 1

    @property
    def worst_share(self) -> float:
        """Share of the device time that was extrapolated."""
        return self.shares["extrapolated"]

    def __str__(self) -> str:
        return f"{self.word} · {self.worst_share:.0%} of device time extrapolated"


def fidelity(runs: Sequence[Mapping[str, Estimate]]) -> Fidelity | None:
    """Of the figures of the runs that are shown together, the worst; None when no device time was spent."""
    known = [shares for figures in runs if (shares := _shares(figures)) is not None]
    if not known:
        return None
    shares = max(known, key=lambda each: each["extrapolated"])
    word: Word = "interpolated"
    if shares["extrapolated"] > TOLERATED:
        word = "extrapolated"
    elif shares["measured"] >= 1 - TOLERATED:
        word = "measured"
    return Fidelity(word, shares)


def _shares(figures: Mapping[str, Estimate]) -> Mapping[Word, float] | None:
    shares = {word: figures[f"share_device_time_{word}"].mean for word in ORIGINS if _has(figures, word)}
    return shares if len(shares) == len(ORIGINS) else None


def _has(figures: Mapping[str, Estimate], word: Word) -> bool:
    estimate = figures.get(f"share_device_time_{word}")
    return estimate is not None and math.isfinite(estimate.mean)
