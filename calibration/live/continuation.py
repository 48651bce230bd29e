"""The text a testbed model writes, known without running it, and where its draft model errs.

A testbed target always says ``next_token[t]`` after token t (`draftcast.calibration.live.checkpoint` builds weights
that do). ``next_token`` runs through the vocabulary in a few long cycles, so a greedy continuation never repeats
itself within a cycle's length.

Its draft says the same except after *wrong* tokens, which are laid along the cycles in blocks: ``a`` right tokens and
one wrong token. A round of k drafts that starts at a block's first token accepts min(a, k) of them, and the next token
opens the next block: the target's own for a < k, the bonus token for a = k. So every round meets one block, and with
lengths ``a`` in shares ``rates[a-1] - rates[a]`` the unconditional acceptance of position i is ``rates[i]``. A request
that begins inside a block, or loses its drafts to a preemption, is in step again at the block's end. A layout holds for
its own k only.

Prompts come with the answers they must get. Requests walk along the cycles one after the other, so a run sees every
block about equally often. What stands before the last token of a prompt is random and not part of its answer, unless
n-gram drafting is to hit: a piece of the answer stands in the prompt, ``prompt_lookup_min`` tokens to be found and
``a`` tokens to be drafted right; rounds until the next piece find nothing. So the lengths ``a`` set the acceptance of
matched rounds, and the gaps between pieces the share of rounds that match. Pieces stand in the prompt from the last to
the first: what follows one is never its continuation. For any other model the prompts are random.
"""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from draftcast.errors import InputError
from draftcast.files import open_input, written
from draftcast.kernels.arrays import FloatArray, IntArray

SPECIAL_TOKENS = 4  # unknown, begin, end, padding: never part of a prompt or of a continuation
CYCLE_TOKENS = 4096  # length a cycle is given at least where the vocabulary has so many tokens
_DECK = 400  # blocks in which the shares hold exactly; a request of some forty rounds hardly notices


@dataclass(frozen=True, eq=False)
class _Saved:
    """Arrays and numbers in a file of a testbed model's folder."""

    FILE: ClassVar[str]

    def write(self, folder: Path) -> None:
        with written(folder / self.FILE) as partial, partial.open("wb") as file:
            np.savez(file, **vars(self))

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Of the testbed model in ``folder``; None when that is any other model. Raises InputError: damaged."""
        path = folder / cls.FILE
        if not path.is_file():
            return None
        try:
            with open_input(path) as file, np.load(file) as data:
                return cls(**{field.name: data[field.name][()] for field in fields(cls)})
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise InputError(f"damaged: {error}", file=str(path)) from None


@dataclass(frozen=True, eq=False)
class Continuation(_Saved):
    FILE = "continuation.npz"
    order: IntArray  # the tokens of all cycles, one cycle after the other, int64[n]
    cycles: IntArray  # cycle c is ``order[cycles[c]:cycles[c + 1]]``, int64[number + 1]
    vocab_size: int  # of the model

    @classmethod
    def build(cls, vocab_size: int, seed: int) -> Self:
        """Cycles of `CYCLE_TOKENS` or more, drawn by ``seed``."""
        order = np.random.default_rng([seed, 0]).permutation(np.arange(SPECIAL_TOKENS, vocab_size))
        number = max(1, len(order) // CYCLE_TOKENS)
        return cls(order, np.arange(number + 1) * len(order) // number, vocab_size)

    @property
    def next_token(self) -> IntArray:
        """The token after each token, int64[vocab_size]; special tokens follow themselves."""
        follows = np.arange(self.vocab_size)
        for first, last in pairwise(self.cycles):
            cycle = self.order[first:last]
            follows[cycle] = np.roll(cycle, -1)
        return follows

    def stretch(self, position: int, tokens: int) -> IntArray:
        """``tokens`` tokens from ``order[position]`` on, along its cycle."""
        cycle = int(np.searchsorted(self.cycles, position, side="right")) - 1
        first, last = int(self.cycles[cycle]), int(self.cycles[cycle + 1])
        return self.order[first + (position - first + np.arange(tokens)) % (last - first)]

    def before(self, position: int) -> int:
        """The token that ``order[position]`` follows."""
        last = int(np.searchsorted(self.cycles, position, side="right"))
        return int(self.order[position - 1 if position > self.cycles[last - 1] else self.cycles[last] - 1])


@dataclass(frozen=True, eq=False)
class DraftLayout(_Saved):
    FILE = "draft_layout.npz"
    rates: FloatArray  # unconditional acceptance by position that it was built for; their number is its k
    starts: IntArray  # positions in `Continuation.order` where blocks start, rising; each block ends in a wrong token

    @classmethod
    def build(cls, continuation: Continuation, rates: Sequence[float], seed: int) -> Self:
        """Blocks along every cycle, the last as long as is left. Raises InputError: as `check_rates`."""
        checked = check_rates(rates)
        lengths = dealt(shares_of(checked), np.random.default_rng([seed, 1, len(checked)]))
        starts = []
        for first, last in pairwise(continuation.cycles.tolist()):
            position = first
            while position < last:
                starts.append(position)
                position += next(lengths) + 1
        return cls(np.array(checked), np.array(starts, dtype=np.int64))

    def next_token(self, continuation: Continuation) -> IntArray:
        """What the draft says after each token, int64[vocab_size]: a permutation as the target's is."""
        says = continuation.next_token
        wrong = continuation.order[np.append(self.starts[1:], continuation.cycles[-1]) - 1]
        says[wrong] = np.roll(says[wrong], -1)
        return says


def dealt(shares: FloatArray, rng: np.random.Generator) -> Iterator[int]:
    """The numbers 0, 1, 2, ... in given shares: exact in every `_DECK` of them, in random order inside."""
    owed = np.zeros(len(shares))
    while True:
        owed += shares * _DECK  # and what rounding left out of the deck before
        counts = np.maximum(np.floor(owed), 0).astype(np.int64)
        missing = max(0, round(owed.sum()) - int(counts.sum()))
        counts[np.argsort(owed - counts)[::-1][:missing]] += 1
        owed -= counts
        yield from reversed(rng.permutation(np.repeat(np.arange(len(counts)), counts)).tolist())


def shares_of(rates: Sequence[float]) -> FloatArray:
    """Share of rounds that accept exactly 0, 1, ..., k drafts, from unconditional rates by position."""
    return -np.diff([1.0, *rates, 0.0])


def check_rates(rates: Sequence[float]) -> tuple[float, ...]:
    """The rates as floats. Raises InputError: none, a rate outside 0 to 1, or one above the rate before it."""
    checked = tuple(float(rate) for rate in rates)
    if not checked:
        raise InputError("at least one acceptance rate is needed", key="rates")
    for position, (above, rate) in enumerate(pairwise((1.0, *checked))):
        if not 0.0 <= rate <= above:
            allowed = f"from 0 to {above:g} (unconditional rates never rise)"
            raise InputError(allowed, key=f"rates[{position}]", value=rate)
    return checked


@dataclass(frozen=True)
class NgramTarget:
    match_rate: float  # share of rounds with a match
    rates: tuple[float, ...]  # unconditional acceptance by position of rounds with a match; their number is k
    prompt_lookup_min: int  # as the server is told

    def __post_init__(self) -> None:
        most = 1.0 / self.prompt_lookup_min
        if not 0.0 < self.match_rate <= most:
            allowed = f"above 0 and at most {most:g} with prompt_lookup_min = {self.prompt_lookup_min}"
            raise InputError(allowed, key="match_probability", value=self.match_rate)


def random_prompts(prompt_tokens: ArrayLike, vocab_size: int, seed: int) -> list[IntArray]:
    """Random tokens for a model of which nothing is known; the first `SPECIAL_TOKENS` ids are left out."""
    return [
        np.random.default_rng([seed, index]).integers(SPECIAL_TOKENS, vocab_size, length)
        for index, length in enumerate(np.asarray(prompt_tokens, dtype=np.int64))
    ]


def continuation_prompts(
    prompt_tokens: ArrayLike,
    output_tokens: ArrayLike,
    continuation: Continuation,
    seed: int,
    layout: DraftLayout | None = None,
    ngram: NgramTarget | None = None,
) -> tuple[list[IntArray], list[IntArray]]:
    """Prompts for a testbed target, and the greedy answer to each; their lengths are int[n], each 1 or more.

    ``seed``: another seed, other prompts: runs on one server never meet each other's prefixes. ``layout``: of the
    server's draft; answers then begin where a block does. ``ngram``: what n-gram drafting shall find; None: nothing.

    Raises InputError: a prompt too short for the pieces its answer needs (the request and the need are named).
    """
    rng = np.random.default_rng([seed, 2])
    starts = np.arange(len(continuation.order)) if layout is None else layout.starts
    accepted = dealt(shares_of(ngram.rates if ngram is not None else ()), rng)
    cursor = int(rng.integers(len(starts)))
    prompts, answers = [], []
    lengths = np.column_stack([prompt_tokens, output_tokens]).astype(np.int64).tolist()
    for index, (length, outputs) in enumerate(lengths):
        first = int(starts[cursor])
        cursor = int(np.searchsorted(starts, first + outputs)) % len(starts)
        answer = continuation.stretch(first, outputs)
        last = continuation.before(first)
        copied = answer[:0]
        if ngram is not None:
            longest = outputs + ngram.prompt_lookup_min + len(ngram.rates)
            copied = _pieces(continuation.stretch(first, longest), outputs, ngram, accepted, rng)
        if len(copied) + 1 > length:
            message = f"request {index} copies {len(copied)} tokens for its {outputs} tokens of output; a longer prompt"
            raise InputError(f"{message} is needed", key="prompt_tokens", value=length)
        free = np.ones(continuation.vocab_size, dtype=np.bool_)
        free[answer] = free[last] = False
        others = continuation.order[free[continuation.order]]
        if not len(others):
            raise InputError(f"request {index} uses up the vocabulary", key="output_tokens", value=outputs)
        prompts.append(np.concatenate((rng.choice(others, length - 1 - len(copied)), copied, [last])))
        answers.append(answer)
    return prompts, answers


def _pieces(
    text: IntArray, outputs: int, target: NgramTarget, accepted: Iterator[int], rng: np.random.Generator
) -> IntArray:
    """Pieces of the answer ``text[:outputs]``, behind which the text goes on, in the order of the prompt."""
    lookup = target.prompt_lookup_min
    # Between two pieces lookup - 1 rounds find nothing whatever stands there; the gap adds this many on average. It is
    # geometric: matches come independently of each other.
    mean_gap = (1.0 - target.match_rate) / target.match_rate - (lookup - 1)
    pieces, end = [text[:0]], 0
    while (at := end + int(rng.geometric(1.0 / (1.0 + mean_gap))) - 1) + lookup < outputs:  # a round is still to come
        end = at + lookup + next(accepted)
        pieces.append(text[at:end])
    return np.concatenate(pieces[::-1])
