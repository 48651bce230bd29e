"""Acceptance of a draft tree from its shape: how many nodes a level drafts, and how many are verified in all.

Siblings are tried one after the other, each accepted with the same probability given that its elders were not (the
positional assumption of Sequoia, arXiv 2402.12374, section 3). The s-th child then follows its parent with probability
``alpha (1 - alpha)^(s-1)``, and a node at depth d whose path holds m younger-sibling steps is on the accepted path with
probability ``alpha^d (1 - alpha)^m``. Every level keeps its ``width`` likeliest nodes, and of all levels the
``max_nodes`` likeliest are verified (EAGLE-2, arXiv 2406.16858, section 4). Paths exclude one another: a level's rate
is the sum over its nodes. A real drafter ranks by its own confidence, which knows more than the rank of a sibling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from draftcast.kernels.arrays import FloatArray

_BISECTIONS = 60


def tree_rates(alpha: float, depth: int, width: int, max_nodes: int = 0) -> FloatArray:
    """P(some node at depth d is accepted), d = 1..depth: unconditional, non-increasing. Shape [depth].

    Args:
        alpha: acceptance of a child given that its elder siblings were rejected, in [0, 1].
        depth, width: levels, and nodes drafted in each.
        max_nodes: nodes verified in all; 0: every node drafted.
    """
    groups = []  # (probability of a node, depth, nodes): all nodes of a level with as many younger-sibling steps
    for level in range(1, depth + 1):
        left, steps = width, 0
        while left > 0:
            # Ways to share out the steps among the levels of the path.
            count = min(math.comb(steps + level - 1, level - 1) if level > 1 else 1, left)
            groups.append((alpha**level * (1.0 - alpha) ** steps, level, count))
            left -= count
            steps += 1
    rates = np.zeros(depth)
    left = max_nodes or depth * width
    for probability, level, count in sorted(groups, key=lambda group: (-group[0], group[1])):
        rates[level - 1] += probability * min(count, left)
        left -= min(count, left)
    return np.asarray(np.minimum.accumulate(np.minimum(rates, 1.0)), dtype=np.float64)


def rates_in_another_tree(
    rates: Sequence[float], measured: tuple[int, int], wanted: tuple[int, int], depth: int
) -> tuple[float, ...]:
    """Rates measured with one tree as they would be with another: scaled, level by level, by the ratio of the formula.

    The formula's alpha is the one that gives the measured mean length in the measured tree; in that tree the rates stay
    what they are.

    Args:
        rates: unconditional, by depth, of the measured tree; at least ``depth`` of them.
        measured, wanted: (width, max_nodes) of either tree.
        depth: levels wanted.
    """
    if measured == wanted:
        return tuple(rates[:depth])
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        alpha = (low + high) / 2.0
        low, high = (alpha, high) if tree_rates(alpha, len(rates), *measured).sum() < sum(rates) else (low, alpha)
    before, after = tree_rates(high, len(rates), *measured)[:depth], tree_rates(high, depth, *wanted)
    scale = np.divide(after, before, out=np.zeros(depth), where=before > 0.0)
    scaled = np.minimum.accumulate(np.minimum(np.array(rates[:depth]) * scale, 1.0))
    return tuple(float(rate) for rate in scaled)
