"""The text a testbed model writes, known without running it, and where its draft model errs.

A testbed target always says ``next_token[t]`` after token t (`draftcast.calibration.live.checkpoint` builds weights
that do). ``next_token`` runs through the vocabulary in a few long cycles, so a greedy continuation never repeats
itself within a cycle's length.

Its draft says the same except after *wrong* tokens, which are laid along the cycles in blocks: ``a`` right tokens and
one wrong token. A round of k drafts that starts at a block's first token accepts min(a, k) of them; for a < k the
target's own token then opens the next block, and for a = k the round ends on the block's last token, whose wrongness
nobody looks at, and the bonus token opens the next block. So every round meets one block, and the lengths ``a`` are
dealt with shares ``rates[a-1] - rates[a]``: the unconditional acceptance of position i is ``rates[i]``. A request that
begins inside a block, or loses its drafts to a preemption, is in step again at the block's end.

A layout holds for its own k only (`DraftLayout.rates_of` says what a smaller k would see).
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftcast.errors import InputError
from draftcast.files import open_input, written

Tokens = NDArray[np.int64]

SPECIAL_TOKENS = 4  # unknown, begin, end, padding: never part of a prompt or of a continuation
CYCLE_TOKENS = 4096
"""Length a cycle is given at least where the vocabulary has so many tokens."""
_DECK = 400  # blocks in which the shares hold exactly; a request of some forty rounds hardly notices
CONTINUATION, LAYOUT = "continuation.npz", "draft_layout.npz"


@dataclass(frozen=True, eq=False)
class Continuation:
    """What a testbed target says.

    Attributes:
        order: the tokens of all cycles, one cycle after the other, int64[n].
        cycles: cycle c is ``order[cycles[c]:cycles[c + 1]]``, int64[number + 1].
        vocab_size: of the model.
    """

    order: Tokens
    cycles: Tokens
    vocab_size: int

    @classmethod
    def build(cls, vocab_size: int, seed: int) -> Continuation:
        """Cycles of `CYCLE_TOKENS` or more, drawn by ``seed``."""
        order = np.random.default_rng([seed, 0]).permutation(np.arange(SPECIAL_TOKENS, vocab_size))
        number = max(1, len(order) // CYCLE_TOKENS)
        return cls(order, np.arange(number + 1) * len(order) // number, vocab_size)

    @property
    def next_token(self) -> Tokens:
        """The token after each token, int64[vocab_size]; special tokens follow themselves."""
        follows = np.arange(self.vocab_size)
        for first, last in zip(self.cycles[:-1], self.cycles[1:], strict=True):
            cycle = self.order[first:last]
            follows[cycle] = np.roll(cycle, -1)
        return follows

    def stretch(self, position: int, tokens: int) -> Tokens:
        """``tokens`` tokens from ``order[position]`` on, along its cycle."""
        cycle = int(np.searchsorted(self.cycles, position, side="right")) - 1
        first, last = int(self.cycles[cycle]), int(self.cycles[cycle + 1])
        return self.order[first + (position - first + np.arange(tokens)) % (last - first)]

    def before(self, position: int) -> int:
        """The token that ``order[position]`` follows."""
        last = int(np.searchsorted(self.cycles, position, side="right"))
        return int(self.order[position - 1 if position > self.cycles[last - 1] else self.cycles[last] - 1])

    def after(self, token: int, tokens: int) -> Tokens:
        """The greedy continuation of any prompt that ends with ``token``, int64[tokens]."""
        if not SPECIAL_TOKENS <= token < self.vocab_size:
            return np.full(tokens, token)
        (position,) = np.flatnonzero(self.order == token)
        return self.stretch(int(position), tokens + 1)[1:]

    def write(self, folder: Path) -> None:
        with written(folder / CONTINUATION) as partial, partial.open("wb") as file:
            np.savez(file, order=self.order, cycles=self.cycles, vocab_size=self.vocab_size)

    @classmethod
    def read(cls, folder: Path) -> Continuation | None:
        """Of the testbed target in ``folder``; None when that is any other model.

        Raises:
            InputError: the file is damaged.
        """
        data = _read(folder / CONTINUATION, ("order", "cycles", "vocab_size"))
        return None if data is None else cls(data["order"], data["cycles"], int(data["vocab_size"]))


@dataclass(frozen=True, eq=False)
class DraftLayout:
    """Where a draft errs.

    Attributes:
        rates: unconditional acceptance by position that it was built for; their number is its k.
        starts: positions in `Continuation.order` where blocks start, rising; each block ends in a wrong token.
    """

    rates: tuple[float, ...]
    starts: Tokens

    @classmethod
    def build(cls, continuation: Continuation, rates: Sequence[float], seed: int) -> DraftLayout:
        """Blocks along every cycle; the last one of a cycle is as long as is left.

        Raises:
            InputError: rates that are none, rise, or lie outside 0 to 1.
        """
        checked = check_rates(rates)
        deck = Deck(shares_of(checked), np.random.default_rng([seed, 1, len(checked)]))
        starts = []
        for first, last in zip(continuation.cycles[:-1], continuation.cycles[1:], strict=True):
            position = int(first)
            while position < last:
                starts.append(position)
                position += deck.deal() + 1
        return cls(checked, np.array(starts, dtype=np.int64))

    def wrong_positions(self, continuation: Continuation) -> Tokens:
        """Positions in ``order`` of the wrong tokens: the last one of every block."""
        return np.append(self.starts[1:], continuation.cycles[-1]) - 1

    def next_token(self, continuation: Continuation) -> Tokens:
        """What the draft says after each token, int64[vocab_size]: a permutation as the target's is."""
        says = continuation.next_token
        wrong = continuation.order[self.wrong_positions(continuation)]
        if len(wrong) > 1:
            says[wrong] = np.roll(says[wrong], -1)
        return says

    def rates_of(self, k: int) -> tuple[float, ...]:
        """Acceptance by position in rounds of ``k`` drafts, 1 <= k <= the layout's own.

        A block of ``a`` right tokens is met in pieces of k + 1 tokens; the last piece holds what is left.
        """
        accepted = np.zeros(k + 1)
        for a, share in enumerate(shares_of(self.rates)):
            pieces, left = divmod(a, k + 1)
            accepted[k] += share * pieces
            accepted[left] += share
        reached = np.cumsum(accepted[::-1])[::-1] / accepted.sum()
        return tuple(float(rate) for rate in reached[1:])

    def write(self, folder: Path) -> None:
        with written(folder / LAYOUT) as partial, partial.open("wb") as file:
            np.savez(file, rates=np.array(self.rates), starts=self.starts)

    @classmethod
    def read(cls, folder: Path) -> DraftLayout | None:
        """Of the testbed draft in ``folder``; None when that is any other model.

        Raises:
            InputError: the file is damaged.
        """
        data = _read(folder / LAYOUT, ("rates", "starts"))
        return None if data is None else cls(tuple(data["rates"].tolist()), data["starts"])


class Deck:
    """Deals the numbers 0, 1, 2, ... in given shares: exact in every `_DECK` of them, in random order inside."""

    def __init__(self, shares: Sequence[float], rng: np.random.Generator) -> None:
        self._shares = np.asarray(shares, dtype=np.float64)
        self._rng = rng
        self._owed = np.zeros(len(self._shares))
        self._cards: list[int] = []

    def deal(self) -> int:
        """The next number."""
        if not self._cards:
            # What rounding left out of one deck is owed to the next.
            self._owed += self._shares * _DECK
            counts = np.maximum(np.floor(self._owed), 0).astype(np.int64)
            missing = max(0, round(self._owed.sum()) - int(counts.sum()))
            counts[np.argsort(self._owed - counts)[::-1][:missing]] += 1
            self._owed -= counts
            self._cards = self._rng.permutation(np.repeat(np.arange(len(counts)), counts)).tolist()
        return self._cards.pop()


def shares_of(rates: Sequence[float]) -> list[float]:
    """Share of rounds that accept exactly 0, 1, ..., k drafts, from unconditional rates by position."""
    bounds = [1.0, *rates, 0.0]
    return [bounds[i] - bounds[i + 1] for i in range(len(rates) + 1)]


def check_rates(rates: Sequence[float]) -> tuple[float, ...]:
    """The rates as floats.

    Raises:
        InputError: none, a rate outside 0 to 1, or one above the rate before it.
    """
    found = tuple(float(rate) for rate in rates)
    if not found:
        raise InputError("at least one acceptance rate is needed", key="rates")
    for position, (above, rate) in enumerate(zip((1.0, *found), found, strict=False)):
        if not 0.0 <= rate <= above:
            allowed = f"from 0 to {above:g} (unconditional rates never rise)"
            raise InputError(allowed, key=f"rates[{position}]", value=rate)
    return found


def _read(path: Path, names: Sequence[str]) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        with open_input(path) as file, np.load(file) as data:
            return {name: data[name] for name in names}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"damaged: {error}", file=str(path)) from None
