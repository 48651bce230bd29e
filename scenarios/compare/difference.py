"""Two runs side by side: the difference of each figure, and whether it can be told from chance.

Runs with as many replications are compared pair by pair: under common random numbers a pair meets the same requests and
what both share cancels. Otherwise (a live run beside replications) the difference has no interval and no verdict.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from draftcast.sim.statistics.intervals import Estimate, paired_difference, paired_ratio, replication_interval

Judgement = Literal["better", "worse", "cannot tell", "as offered"]
_LESS_IS_BETTER = ("ttft_s", "tpot_s", "itl_s", "e2el_s", "queue_time_s")
_OFFERED = ("request_throughput", "output_throughput", "tokens_per_s_per_gpu")
_MORE_IS_BETTER = ("throughput", "goodput", "attainment", "tokens_per_s_per_gpu", "acceptance")


@dataclass(frozen=True)
class Difference:
    """``first`` minus ``second`` in one figure."""

    figure: str
    # In the figure's unit; bounds are NaN where the runs cannot be paired or there is one replication
    difference: Estimate
    ratio: Estimate | None  # first over second; None where the second is 0
    # Of the first; ``cannot tell`` while the interval holds 0 or is unknown, and where neither direction is better;
    # ``as offered``: two open loops below their capacity deliver what arrives
    verdict: Judgement


def less_is_better(figure: str) -> bool | None:
    """True for latencies, False for throughput and goodput, None where neither is better."""
    if any(name in figure for name in _LESS_IS_BETTER):
        return True
    return False if any(name in figure for name in _MORE_IS_BETTER) else None


def difference(
    figure: str,
    first: Sequence[Mapping[str, float]],
    second: Sequence[Mapping[str, float]],
    confidence: float = 0.95,
    *,
    as_offered: bool = False,
) -> Difference | None:
    """The difference in ``figure``, a mapping of figures per replication each; None where either run has none.

    Args:
        as_offered: both are open loops below their capacity.
    """
    a, b = _values(figure, first), _values(figure, second)
    if not a or not b:
        return None
    if len(a) == len(first) == len(second) == len(b):
        change = paired_difference(a, b, confidence)
        ratio = paired_ratio(a, b, confidence) if sum(b) else None
    else:
        mean, other = sum(a) / len(a), sum(b) / len(b)
        change = replication_interval([mean - other], confidence)
        ratio = replication_interval([mean / other], confidence) if other else None
    less = less_is_better(figure)
    verdict: Judgement = "cannot tell"
    if as_offered and figure in _OFFERED:
        verdict = "as offered"
    elif less is not None and (change.low > 0 or change.high < 0):
        verdict = "better" if (change.high < 0) == less else "worse"
    return Difference(figure, change, ratio, verdict)


def _values(figure: str, replications: Sequence[Mapping[str, float]]) -> list[float]:
    found = [each[figure] for each in replications if figure in each]
    return [value for value in found if math.isfinite(value)] if len(found) == len(replications) else []
