"""Acceptance of a draft tree from its shape: how many nodes a level grows, and how many are verified in all.

Siblings are tried one after the other, each accepted with the same probability given that its elders were not (the
positional assumption of Sequoia, arXiv 2402.12374, section 3): a node at depth d whose path holds m younger-sibling
steps is on the accepted path with probability ``alpha^d (1 - alpha)^m``. Paths exclude one another: a level's rate is
the sum over its nodes. How trees grow:

- ``best``: the ``width`` likeliest nodes of a level grow ``width`` children each; of all nodes, grown from or not, the
  ``max_nodes`` likeliest are verified (EAGLE-2, arXiv 2406.16858, section 4).
- ``all``: of the tree in which every node has ``width`` children, the ``max_nodes`` likeliest (Medusa, arXiv
  2401.10774, section 2.3.3: nodes are added by their accuracy, heads counted as independent).
- ``breadth``: of that tree the first ``max_nodes``, level by level, elder nodes' children first. SGLang's n-grams may
  narrow to ``narrowest`` children (cpp_ngram/trie.cpp, buildRecency): the longest match has the narrowest root, each
  level is narrower than the one above it, and shorter matches take the nodes that longer ones leave. The longest match
  is of ``m`` tokens with probability ``alpha^(m-1) (1 - alpha)``.

A real drafter ranks by its own confidence, which knows more than the rank of a sibling, and a text rarely offers a
search as many continuations as it may take.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from draftcast.kernels.arrays import FloatArray, IntArray

_BISECTIONS = 60


def tree_rates(
    alpha: float, depth: int, width: int, max_nodes: int = 0, narrowest: int = 0, *, growth: str = "best"
) -> FloatArray:
    """P(some node at depth d is accepted), d = 1..depth: unconditional, non-increasing. Shape [depth].

    Args:
        alpha: acceptance of a child given that its elder siblings were rejected, in [0, 1].
        depth, width: levels, and children of a node that has any.
        max_nodes: nodes verified in all; 0: every node drafted (of growth ``best`` alone).
        narrowest: children of the narrowest node, of growth ``breadth``; 0: as many as of the widest.
    """
    if growth == "breadth":
        return _rates_by_breadth(alpha, depth, width, max_nodes, narrowest or width)
    most = width if growth == "best" else max_nodes  # of all nodes none beyond the verified ones has verified children
    grown = np.ones(1)  # nodes of the level above that grow children, by the younger-sibling steps of their paths
    probabilities, counts = [], []  # by level and steps
    for level in range(1, depth + 1):
        drafted = np.convolve(grown, np.ones(width))
        probabilities.append(alpha**level * (1.0 - alpha) ** np.arange(drafted.size))
        counts.append(drafted)
        grown = np.trim_zeros(np.diff(np.minimum(np.cumsum(drafted), most), prepend=0.0), "b")
    levels = np.repeat(np.arange(depth), [drafted.size for drafted in counts])
    chance, nodes = np.concatenate(probabilities), np.concatenate(counts)
    likeliest = np.argsort(-chance, kind="stable")  # of equals the upper level first: a parent before its children
    verified = np.diff(np.minimum(np.cumsum(nodes[likeliest]), max_nodes or np.inf), prepend=0.0)
    rates = np.bincount(levels[likeliest], chance[likeliest] * verified, depth)
    return np.asarray(np.minimum.accumulate(np.minimum(rates, 1.0)), dtype=np.float64)


def _rates_by_breadth(alpha: float, depth: int, width: int, max_nodes: int, narrowest: int) -> FloatArray:
    longest = 1 if narrowest == width else depth  # of equal breadths every match has the same tree
    rates = np.zeros(depth)
    for match in range(1, longest + 1):
        levels, steps = _search_tree(depth, width, max_nodes, narrowest, match)
        chance = alpha ** (match - 1) * (1.0 - alpha if match < longest else 1.0)
        rates += chance * np.bincount(levels - 1, alpha**levels * (1.0 - alpha) ** steps, depth)
    return np.minimum.accumulate(np.minimum(rates, 1.0))


@lru_cache(maxsize=1024)
def _search_tree(depth: int, width: int, max_nodes: int, narrowest: int, longest: int) -> tuple[IntArray, IntArray]:
    """Levels and younger-sibling steps of the nodes for a match of ``longest`` tokens, if all matches go on alike."""
    nodes = dict[tuple[int, ...], None]()  # by the rank of each branch from the root
    step = (width - narrowest) / depth
    for match in range(longest, 0, -1):
        breadth, level = narrowest + (depth - match) * step, list[tuple[int, ...]]([()])
        for _ in range(depth + 1 - match):
            children = range(max(1, int(breadth)))
            # More than `max_nodes` of a level are never taken.
            level = [(*path, child) for path in level for child in children[:max_nodes]][:max_nodes]
            nodes |= dict.fromkeys(level)
            breadth -= step
            if len(nodes) >= max_nodes:
                break
    taken = list(nodes)[:max_nodes]
    return np.array([len(path) for path in taken]), np.array([sum(path) for path in taken])


def rates_in_another_tree(
    rates: Sequence[float], measured: tuple[int, ...], wanted: tuple[int, ...], depth: int, growth: str = "best"
) -> tuple[float, ...]:
    """Rates measured with one tree as they would be with another: scaled, level by level, by the ratio of the formula.

    The formula's alpha is the largest that gives no more than the measured mean length in the measured tree.
    ``rates``: unconditional, by depth, at least ``depth`` of them; ``measured``, ``wanted``: (width, max_nodes,
    narrowest) of either tree, which grow alike.
    """
    if measured == wanted:
        return tuple(rates[:depth])
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        alpha = (low + high) / 2.0
        mean = tree_rates(alpha, len(rates), *measured, growth=growth).sum()
        low, high = (alpha, high) if mean <= sum(rates) else (low, alpha)
    before = tree_rates(high, len(rates), *measured, growth=growth)[:depth]
    after = tree_rates(high, depth, *wanted, growth=growth)
    scale = np.divide(after, before, out=np.zeros(depth), where=before > 0.0)
    return tuple(np.minimum.accumulate(np.minimum(np.array(rates[:depth]) * scale, 1.0)).tolist())
