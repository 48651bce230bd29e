"""Numbers on a command line: ``1,2,5``, ``1..20:8`` (evenly spaced), ``1..64:7log`` (evenly in the logarithm)."""

import math
import re

import numpy as np

from draftcast.errors import InputError

_RANGE = re.compile(r"(?P<low>[^:]+?)\.\.(?P<high>[^:]+?)(?::(?P<count>\d{1,9})(?P<log>log)?)?")
_MOST = 1000


def parse_values(text: str, place: str) -> list[float]:
    """Increasing positive numbers without repeats, of numbers and ranges. Raises InputError, which names ``place``."""
    if text.count(",") >= _MOST:
        raise InputError(f"at most {_MOST} numbers", file=place)
    values: set[float] = set()
    for part in text.split(","):
        points = parse_range(part.strip(), _MOST, whole=False, file=place)
        if points is None:
            try:
                points = [float(part)]
            except ValueError:
                message = "must be numbers separated by commas, or LOW..HIGH:POINTS"
                raise InputError(message, file=place, value=part) from None
        if not 0 < points[0] < math.inf:
            raise InputError("must be above 0 and finite", file=place, value=part)
        values.update(points)
    return sorted(values)


def parse_range(text: str, most: int, *, whole: bool, file: str, key: str | None = None) -> list[float] | None:
    """The rising numbers of a range; None: ``text`` is none.

    Args:
        most: largest number of points.
        whole: ``0..5``, a range without points, is every whole number, as ``int``; else it is no range.
        file, key: what an error names.

    Raises InputError: no numbers, a range that does not rise, or one of fewer than 2 or too many points.
    """
    matched = _RANGE.fullmatch(text)
    if matched is None or (matched["count"] is None and not whole):
        return None

    def wrong(message: str) -> InputError:
        return InputError(message, file=file, key=key, value=text)

    try:
        low, high = float(matched["low"]), float(matched["high"])
    except ValueError:
        raise wrong(f"must be {'LOW..HIGH or ' if whole else ''}LOW..HIGH:POINTS") from None
    if not (math.isfinite(low) and math.isfinite(high)):
        raise wrong("must be finite")
    if not low < high:
        raise wrong("must rise from LOW to HIGH")
    if matched["count"] is None and (low != int(low) or high != int(high)):
        raise wrong("needs whole ends, or LOW..HIGH:POINTS")
    count = int(matched["count"] or high - low + 1)
    if not 2 <= count <= most:
        raise wrong(f"must have 2 to {most} points")
    if matched["count"] is None:
        return [*range(int(low), int(high) + 1)]
    if matched["log"] and low <= 0:
        raise wrong("a logarithmic range starts above 0")
    # The ends as given, the others to six digits, which is how people would write them.
    points = np.geomspace(low, high, count) if matched["log"] else np.linspace(low, high, count)
    return [low, *(float(f"{point:.6g}") for point in points[1:-1]), high]
