"""Prompts of given lengths, as token ids, and the answers they must get.

For a testbed target (`draftcast.calibration.live.continuation`) the answer is known. Requests walk along the cycles
one after the other, so a run sees every block of the draft's layout about equally often. What stands before the last
token of a prompt is random and not part of its answer, unless n-gram drafting is to hit.

An n-gram hit is a piece of the answer in the prompt: ``prompt_lookup_min`` tokens to be found and ``a`` tokens to be
drafted right. The round that stands at the end of the first ones finds the piece, accepts a drafts and the token
after them; rounds until the next piece find nothing. So the lengths ``a`` set the acceptance of matched rounds, and
the gaps between pieces the share of rounds that match. Pieces stand in the prompt from the last to the first: what
follows one is never its continuation, and a search finds each once.

For any other model the prompts are random tokens and the answers unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from draftcast.calibration.live.continuation import (
    SPECIAL_TOKENS,
    Continuation,
    Deck,
    DraftLayout,
    Tokens,
    check_rates,
    shares_of,
)
from draftcast.errors import InputError


@dataclass(frozen=True)
class NgramTarget:
    """What n-gram drafting shall find.

    Attributes:
        match_rate: share of rounds with a match.
        rates: unconditional acceptance by position of rounds with a match; their number is k.
        prompt_lookup_min: as the server is told.
    """

    match_rate: float
    rates: tuple[float, ...]
    prompt_lookup_min: int

    def __post_init__(self) -> None:
        check_rates(self.rates)
        most = 1.0 / self.prompt_lookup_min
        if not 0.0 < self.match_rate <= most:
            allowed = f"above 0 and at most {most:g} with prompt_lookup_min = {self.prompt_lookup_min}"
            raise InputError(allowed, key="match_probability", value=self.match_rate)


@dataclass(frozen=True, eq=False)
class Prompts:
    """Prompts of one run.

    Attributes:
        tokens: token ids of each prompt.
        answers: the greedy answer to each, None where it is not known.
    """

    tokens: tuple[Tokens, ...]
    answers: tuple[Tokens, ...] | None


def random_prompts(prompt_tokens: ArrayLike, vocab_size: int, seed: int) -> Prompts:
    """Random tokens for a model of which nothing is known; the first `SPECIAL_TOKENS` ids are left out."""
    lengths = np.asarray(prompt_tokens, dtype=np.int64)
    drawn = [
        np.random.default_rng([seed, index]).integers(SPECIAL_TOKENS, vocab_size, length)
        for index, length in enumerate(lengths)
    ]
    return Prompts(tuple(drawn), None)


def continuation_prompts(
    prompt_tokens: ArrayLike,
    output_tokens: ArrayLike,
    continuation: Continuation,
    seed: int,
    layout: DraftLayout | None = None,
    ngram: NgramTarget | None = None,
) -> Prompts:
    """Prompts for a testbed target.

    Args:
        prompt_tokens, output_tokens: lengths, int[n], each 1 or more.
        seed: another seed, other prompts: runs on one server never meet each other's prefixes.
        layout: of the server's draft; answers then begin where a block does.
        ngram: what n-gram drafting shall find; None: nothing.

    Raises:
        InputError: a prompt too short for the pieces its answer needs (the request and the need are named).
    """
    rng = np.random.default_rng([seed, 2])
    starts = np.arange(len(continuation.order)) if layout is None else layout.starts
    pieces = _Pieces(ngram, rng) if ngram is not None else None
    cursor = int(rng.integers(len(starts)))
    prompts, answers = [], []
    lengths = (np.asarray(values, dtype=np.int64).tolist() for values in (prompt_tokens, output_tokens))
    for index, (length, outputs) in enumerate(zip(*lengths, strict=True)):
        first = int(starts[cursor])
        cursor = int(np.searchsorted(starts, first + outputs)) % len(starts)
        answer = continuation.stretch(first, outputs)
        last = continuation.before(first)
        copied = pieces.of(continuation, first, outputs) if pieces is not None else answer[:0]
        if len(copied) + 1 > length:
            message = f"request {index} copies {len(copied)} tokens for its {outputs} tokens of output; a longer prompt"
            raise InputError(f"{message} is needed", key="prompt_tokens", value=length)
        free = np.ones(continuation.vocab_size, dtype=np.bool_)
        free[answer] = free[last] = False
        others = continuation.order[free[continuation.order]]
        if not len(others):
            raise InputError(f"request {index} uses up the vocabulary", key="output_tokens", value=outputs)
        filler = rng.choice(others, length - 1 - len(copied))
        prompts.append(np.concatenate((filler, copied, [last])))
        answers.append(answer)
    return Prompts(tuple(prompts), tuple(answers))


class _Pieces:
    """Deals pieces of answers."""

    def __init__(self, wanted: NgramTarget, rng: np.random.Generator) -> None:
        self._lookup = wanted.prompt_lookup_min
        self._longest = len(wanted.rates)
        self._accepted = Deck(shares_of(wanted.rates), rng)
        self._rng = rng
        # Between two pieces prompt_lookup_min - 1 rounds find nothing whatever stands there; the gap adds this many.
        self._mean_gap = (1.0 - wanted.match_rate) / wanted.match_rate - (self._lookup - 1)

    def of(self, continuation: Continuation, first: int, outputs: int) -> Tokens:
        """Pieces of the answer that begins at ``first``, in the order in which the prompt holds them."""
        text = continuation.stretch(first, outputs + self._lookup + self._longest)
        found = []
        at = self._gap()
        while at + self._lookup < outputs:  # a round is still to come when its first tokens are out
            length = self._lookup + self._accepted.deal()
            found.append(text[at : at + length])
            at += length + self._gap()
        return np.concatenate(found[::-1]) if found else text[:0]

    def _gap(self) -> int:
        """Tokens between two pieces, geometric: matches come independently of each other."""
        return int(self._rng.geometric(1.0 / (1.0 + self._mean_gap))) - 1
