"""Numbers on a command line: ``1,2,5``, ``1..20:8`` (evenly spaced), ``1..64:7log`` (evenly in the logarithm)."""

import math
import re

import numpy as np

from draftcast.errors import InputError

_RANGE = re.compile(r"(?P<low>[^.:]+(?:\.\d+)?)\.\.(?P<high>[^:]+):(?P<count>\d{1,9})(?P<log>log)?")
_MOST = 1000


def parse_values(text: str, place: str) -> list[float]:
    """Increasing positive numbers without repeats, from numbers and ranges that commas separate.

    Raises InputError, which names ``place``: nothing, no number, not above 0, a range that does not rise or has fewer
    than 2 points.
    """
    if text.count(",") >= _MOST:
        raise InputError(f"at most {_MOST} numbers", file=place)
    found: set[float] = set()
    for part in text.split(","):
        matched = _RANGE.fullmatch(part.strip())
        if matched is None:
            found.add(_number(part, place))
            continue
        low, high = _number(matched["low"], place), _number(matched["high"], place)
        count = int(matched["count"])
        if not low < high or not 2 <= count <= _MOST:
            message = f"must be LOW..HIGH:POINTS with LOW < HIGH and 2 to {_MOST} points"
            raise InputError(message, file=place, value=part)
        found.update(spaced(low, high, count, log=matched["log"] is not None))
    return sorted(found)


def spaced(low: float, high: float, count: int, *, log: bool) -> list[float]:
    """``count`` numbers from ``low`` to ``high``, evenly spaced (in the logarithm): the ends as given, the others to
    six digits, which is how people would write them.
    """
    points = np.geomspace(low, high, count) if log else np.linspace(low, high, count)
    return [low, *(float(f"{point:.6g}") for point in points[1:-1]), high]


def _number(text: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError("must be numbers separated by commas, or LOW..HIGH:POINTS", file=place, value=text) from None
    if not 0 < value < math.inf:
        raise InputError("must be above 0 and finite", file=place, value=text)
    return value
