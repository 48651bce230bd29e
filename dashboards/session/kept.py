"""Answers that take many runs, kept while the server runs and shared by all sessions, which must not change them.

Streamlit's own cache replays what was drawn while an answer was made; these are made under a progress bar that must be
gone afterwards, or in a thread that draws nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """The answers used last, by their question. Who asks what is being made for another waits for that one.

    Args:
        most: how many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[Hashable, Future[T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, question: Hashable, make: Callable[[], T]) -> T:
        """The answer, made where there is none; what ``make`` raises is not kept, and whoever waited makes it anew."""
        while True:
            with self._lock:
                found = self._found.get(question)
                if found is None:
                    own = self._found[question] = Future()
                    break
                self._found.move_to_end(question)
            if found.exception() is None:
                return found.result()
        try:
            own.set_result(make())
        except BaseException as error:
            with self._lock:
                self._found.pop(question, None)
            own.set_exception(error)
            raise
        with self._lock:
            while len(self._found) > self._most:
                self._found.popitem(last=False)
        return own.result()
