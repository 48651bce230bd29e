"""Stated factors of acceptance: temperature, context length and output position.

A factor multiplies odds, p / (1 - p), so factors of several causes multiply, and no probability leaves 0 to 1. They
belong to the traffic against the rates beside them: a user states them, or a fit of a record does.
"""

from itertools import pairwise
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike
from pydantic import AfterValidator, Field

from draftcast.frozen import MOST_TOKENS, Frozen, wrong
from draftcast.kernels.arrays import FloatArray, IntArray

Factor = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]
Step = Annotated[tuple[Annotated[int, Field(ge=0, le=MOST_TOKENS)], Factor], Field(strict=False)]


def _rising(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    for (before, _), (start, _) in pairwise(steps):
        if start <= before:
            raise wrong("", start, f"tokens must rise from step to step: {start} follows {before}")
    return steps


Steps = Annotated[tuple[Step, ...], Field(strict=False, max_length=32), AfterValidator(_rising)]


class Factors(Frozen):
    """What the odds of every draft's acceptance are multiplied by; of a text search, the odds of a match too.

    Steps are [tokens, factor]: from so many tokens on, until the next step. Before the first the factor is 1. A round
    goes by the position it starts at. All combinations of steps are *bands*, the output's position the faster index.
    """

    temperature: Factor = 1.0  # The traffic's temperature against that of the rates' measurement.
    context: Steps = ()  # By tokens of prompt and output so far.
    output_position: Steps = ()  # By tokens of output so far.

    @property
    def log_odds(self) -> FloatArray:
        """What is added to the log-odds in each band. Shape [bands]."""
        context, position = (
            np.log([1.0, *(factor for _, factor in steps)]) for steps in (self.context, self.output_position)
        )
        return np.asarray(np.log(self.temperature) + (context[:, None] + position).reshape(-1))

    def starts(self, prompt_tokens: ArrayLike) -> tuple[IntArray, IntArray]:
        """Output positions at which requests change band, int64[n, steps], and by how many bands, int64[steps]."""
        prompts = np.asarray(prompt_tokens, np.int64)[:, None]
        context, position = (
            np.array([start for start, _ in steps], np.int64) for steps in (self.context, self.output_position)
        )
        starts = np.concatenate((context - prompts, np.broadcast_to(position, (len(prompts), len(position)))), axis=1)
        return starts, np.repeat([len(position) + 1, 1], [len(context), len(position)])

    def shares(self, prompt_tokens: ArrayLike, output_tokens: ArrayLike) -> tuple[float, ...]:
        """Share of the output tokens in each band, by requests of so many tokens, int[n] both; none: (1.0,)."""
        starts, jumps = self.starts(prompt_tokens)
        ends = np.maximum(np.asarray(output_tokens, np.int64), 1)[:, None]
        order = np.argsort(starts, axis=1, kind="stable")
        edges = np.clip(np.take_along_axis(starts, order, axis=1), 0, ends)
        lengths = np.diff(np.concatenate((np.zeros_like(ends), edges, ends), axis=1))
        bands = np.concatenate((np.zeros_like(ends), np.cumsum(jumps[order], axis=1)), axis=1)
        tokens = np.bincount(bands.reshape(-1), weights=lengths.reshape(-1), minlength=len(self.log_odds))
        return tuple((tokens / tokens.sum()).tolist()) if len(ends) else (1.0,)
