"""Answers that take long to make, kept by their question."""

import functools
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class AnswerCache(Generic[T]):
    """The answers used last, by their question. Whoever asks for one that is being made waits for it."""

    def __init__(self, most: int) -> None:
        self._lock = threading.Lock()
        # Of a question: a lock that is held while the answer is made, and the answer once there is one.
        self._slots = functools.lru_cache(most)(lambda _question: (threading.Lock(), list[T]()))

    def get(self, question: Hashable, make: Callable[[], T]) -> T:
        """The answer, made where there is none; what ``make`` raises is not kept, and whoever waited makes it anew."""
        with self._lock:
            lock, answers = self._slots(question)
        with lock:
            if not answers:
                answers.append(make())
            return answers[0]

    def known(self, question: Hashable) -> T | None:
        """The answer where there is one, without waiting for it."""
        with self._lock:
            _, answers = self._slots(question)
        return answers[0] if answers else None

    def clear(self) -> None:
        """Keep none of them."""
        self._slots.cache_clear()
