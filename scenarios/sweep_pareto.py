"""The Pareto front of points with two figures of which more is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def pareto_front(points: Iterable[T], figures: Callable[[T], tuple[float, float]]) -> list[T]:
    """The points that no other beats or equals in both figures and beats in one, by rising first figure.

    Equal points are all on the front or all off it; points with an undefined figure are left out.
    """
    known = [(figures(point), point) for point in points]
    known = [pair for pair in known if all(map(math.isfinite, pair[0]))]
    known.sort(key=lambda pair: (-pair[0][0], -pair[0][1]))
    front: list[T] = []
    best, last = -math.inf, (math.nan, math.nan)
    for pair, point in known:
        if pair[1] > best or pair == last:
            front.append(point)
            best, last = max(best, pair[1]), pair
    return front[::-1]
