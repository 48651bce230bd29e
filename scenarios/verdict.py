"""The answer to "does speculation pay at this load" in one sentence, from a compared point."""

from __future__ import annotations

import math
from dataclasses import dataclass

from draftcast.scenarios.comparison import Point
from draftcast.sim.statistics import Estimate


@dataclass(frozen=True)
class Verdict:
    """What a compared point comes to.

    Attributes:
        word: the point's verdict (``pays``, ``costs``, ``even``, ...), ``off`` where nothing is compared.
        advice: ``on``, ``off`` or "" where neither can be recommended.
        sentence: for people, the advice in it.
    """

    word: str
    advice: str
    sentence: str


def verdict(point: Point, load: str) -> Verdict:
    """Put ``point.verdict`` into words; ``load`` says at which load, e.g. ``at 8 req/s``."""
    if point.off is None:
        return Verdict("off", "", f"Speculation is off {load}: there is nothing to compare.")
    word, advantage = point.verdict, point.advantage
    if word == "pays" and advantage is not None:
        gain = f"requests finish {_times(advantage)} times as fast as without"
        return Verdict(word, "on", f"Speculation pays {load}: {gain}. Recommended: on.")
    if word == "costs" and advantage is not None:
        loss = f"requests take {_times(_inverse(advantage))} times as long as without"
        return Verdict(word, "off", f"Speculation costs {load}: {loss}. Recommended: off.")
    if word.startswith("pays ("):
        return Verdict(word, "on", f"Speculation pays {load}: without it the cluster is overloaded. Recommended: on.")
    if word.startswith("costs ("):
        return Verdict(word, "off", f"Speculation costs {load}: with it the cluster is overloaded. Recommended: off.")
    if word == "overloaded":
        return Verdict(word, "", f"Overloaded {load}, with speculation and without: neither has a steady state.")
    if word == "even" and advantage is not None:
        text = f"Cannot tell {load}: latency without over with is {_times(advantage)}, which holds 1."
        return Verdict(word, "", text)
    return Verdict(
        word, "", f"Not settled {load}: requests in flight still grow; more requests will tell what the load does."
    )


def _times(ratio: Estimate) -> str:
    if not math.isfinite(ratio.low):
        return f"{ratio.mean:.2f} (one replication: no interval)"
    return f"{ratio.mean:.2f} ({ratio.confidence:.0%} interval {ratio.low:.2f} to {ratio.high:.2f})"


def _inverse(ratio: Estimate) -> Estimate:
    low, high = 1 / ratio.high, 1 / ratio.low
    return Estimate(1 / ratio.mean, low, high, (high - low) / 2, ratio.n, ratio.confidence)
