"""How far a long computation is: a function told a share of the whole, 0 to 1."""

from collections.abc import Callable

Progress = Callable[[float], None]


def part_of(progress: Progress | None, index: int, count: int) -> Progress | None:
    """Maps the 0 to 1 of part ``index`` of ``count`` to its part of the whole."""
    return None if progress is None else lambda share: progress((index + share) / count)
