"""How far a long computation is: a function told a share of the whole, 0 to 1."""

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

Progress = Callable[[float], None]
T = TypeVar("T")


def part_of(progress: Progress | None, index: int, count: int) -> Progress | None:
    """Maps the 0 to 1 of part ``index`` of ``count`` to its part of the whole."""
    return None if progress is None else lambda share: progress((index + share) / count)


def parts_of(progress: Progress | None, items: Collection[T]) -> Iterator[tuple[T, Progress | None]]:
    """Each item with its part of the whole, which is done when the next item is asked for."""
    for index, item in enumerate(items):
        part = part_of(progress, index, len(items))
        yield item, part
        if part is not None:
            part(1.0)
