"""Answers that take many runs, kept while the server runs and shared by all sessions, which must not change them.

Streamlit's own cache replays what was drawn while an answer was made; these are made under a progress bar that must be
gone afterwards.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """The answers used last, by their question.

    Args:
        most: how many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, question: Hashable, make: Callable[[], T]) -> T:
        """The answer, made where there is none; what ``make`` raises is not kept."""
        with self._lock:
            if question in self._found:
                self._found.move_to_end(question)
                return self._found[question]
        found = make()  # outside the lock: others ask meanwhile
        with self._lock:
            self._found[question] = found
            while len(self._found) > self._most:
                self._found.popitem(last=False)
        return found
