"""A point to be timed: one kernel at one shape; and grids of them in an order that covers coarsely first."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Shape = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Point:
    """One row of a latency table, not measured yet.

    Attributes:
        shape: the operator's shape fields with their values.
        graph: timed as a replay of a CUDA graph.
    """

    operator: str
    dtype: str
    kv_dtype: str
    implementation: str
    shape: Shape
    graph: bool = False

    @functools.cached_property
    def key(self) -> str:
        """The point in one line, the same in every run."""
        labels = "/".join((self.operator, self.dtype, self.kv_dtype, self.implementation, str(int(self.graph))))
        return f"{labels} {' '.join(f'{name}={value}' for name, value in self.shape)}"


@dataclass(frozen=True)
class Series:
    """Points of one operator over a grid.

    Attributes:
        fixed: shape fields that stay as they are.
        axes: shape fields that vary, each over ascending values; ``ratio`` stands for ``context`` in units of ``q``.
        max_tokens: points with more cached tokens (batch x context) are not part of the grid; 0: no such bound.
    """

    operator: str
    dtype: str
    kv_dtype: str
    fixed: Mapping[str, int]
    axes: Mapping[str, Sequence[int]]
    max_tokens: int = 0

    def shapes(self, fields: Sequence[str]) -> list[tuple[tuple[int, int], Shape]]:
        """((deepest level, sum of levels), shape) of every point, fields in the order given."""
        ranked = [[(level, name, value) for value, level in levels(values)] for name, values in self.axes.items()]
        found = []
        for combination in itertools.product(*ranked):
            values = {**self.fixed, **{name: value for _, name, value in combination}}
            if "ratio" in values:
                values["context"] = values.pop("ratio") * values["q"]
            if self.max_tokens and values["batch"] * values["context"] > self.max_tokens:
                continue
            depths = [level for level, _, _ in combination]
            found.append(((max(depths), sum(depths)), tuple((name, values[name]) for name in fields)))
        return found


def levels(values: Sequence[int]) -> list[tuple[int, int]]:
    """(value, level) of an axis: its ends are level 0, the value nearest the middle of a gap (in logs) the next level.

    Taken level by level, an axis that is cut off anywhere is still covered from end to end.
    """
    level = {values[0]: 0, values[-1]: 0}
    gaps = [(0, len(values) - 1)]
    depth = 0
    while gaps:
        depth += 1
        halves = []
        for low, high in gaps:
            if high - low < 2:
                continue
            middle = 0.5 * (math.log(values[low]) + math.log(values[high]))
            at = min(range(low + 1, high), key=lambda index: abs(math.log(values[index]) - middle))
            level[values[at]] = depth
            halves += [(low, at), (at, high)]
        gaps = halves
    return [(value, level[value]) for value in values]


def row_grid(dense: int, largest: int) -> tuple[int, ...]:
    """1 to ``dense`` each, then 1, 1.25 and 1.5 times the powers of two up to ``largest``."""
    rows = set(range(1, min(dense, largest) + 1))
    power = 16
    while power <= largest:
        rows |= {row for row in (power, power * 5 // 4, power * 3 // 2) if dense < row <= largest}
        power *= 2
    return tuple(sorted(rows | {largest}))


def doublings(first: int, last: int, factor: int = 2) -> tuple[int, ...]:
    """``first``, ``factor * first``, ... up to ``last``."""
    found = [first]
    while found[-1] * factor <= last:
        found.append(found[-1] * factor)
    return tuple(found)
