"""Models with a hidden two-state chain along the output: markov (good and bad stretches), ngram (matched or not).

The chain is indexed by output position, so it is the same text whatever the rounds; rounds sample it unevenly, because
a good stretch is crossed in few long rounds and a bad one in many short ones. Averages over rounds therefore follow
from the chain seen at round starts (the embedded chain, a Markov renewal process), not from the chain's own
stationary distribution.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from draftcast.frozen import Probability, wrong
from draftcast.sim.acceptance.compiled import (
    KIND_MARKOV,
    KIND_NGRAM,
    N_PARAMS,
    P_ALPHA_0,
    P_ALPHA_1,
    P_ENTER,
    P_LONGER,
    P_STATIONARY,
    P_STAY,
)
from draftcast.sim.acceptance.model import AcceptanceModel, Constant, FloatArray, PerPosition, Rates, check_drafts


class Markov(AcceptanceModel):
    """Good and bad stretches with their own alpha; ``p_gb`` (good to bad) and ``p_bg`` are per output token.

    At position 0 the state is stationary, good with p_bg / (p_gb + p_bg). Its lag-1 autocorrelation: 1 - p_gb - p_bg.

    Long-run averages over rounds of k drafts (states ordered bad, good). With T the chain's transition matrix,
    A = diag(alpha) and R = I - A, a round started in state s accepts j or more drafts with [(A T)^(j-1) A 1]_s, and
    leaves the next round's start state with probabilities K = sum_{a<k} (A T)^a R T + (A T)^k T: the rejected position
    (or the bonus position) is emitted too, hence the last T. Rounds start in the stationary law of K. The uniform
    numbers a round has looked at lie before the next start, so given the state the rounds are independent and the
    result is exact in the long run; a request's first rounds still start from the chain's own law.
    """

    kind: ClassVar[int] = KIND_MARKOV

    model: Literal["markov"]
    alpha_good: Probability
    alpha_bad: Probability
    p_gb: Probability
    p_bg: Probability

    @model_validator(mode="after")
    def _not_frozen_in_both_states(self) -> Self:
        if self.p_gb == 0 and self.p_bg == 0:
            raise wrong("p_gb", 0, "at least one of p_gb and p_bg must be above 0")
        return self

    @property
    def good_share(self) -> float:
        """Share of output positions in the good state."""
        return self.p_bg / (self.p_gb + self.p_bg)

    def round_start_good_share(self, k: int) -> float:
        """Long-run share of rounds of k drafts that start in the good state."""
        transition, accept = self._matrices()
        step = accept @ transition
        kernel = np.zeros((2, 2))
        reach = np.eye(2)
        for _ in range(check_drafts(k)):
            kernel += reach @ (np.eye(2) - accept) @ transition
            reach = reach @ step
        kernel += reach @ transition
        turnover = kernel[0, 1] + kernel[1, 0]
        # Rounds that never change state (a chain of period 2 crossed two by two) keep the law of position 0.
        return float(kernel[0, 1] / turnover) if turnover > 1e-15 else self.good_share

    def unconditional(self, k: int) -> FloatArray:
        transition, accept = self._matrices()
        good = self.round_start_good_share(k)
        law = np.array([1.0 - good, good])
        rates = np.zeros(k)
        for j in range(k):
            law = law @ accept
            rates[j] = law.sum()
            law = law @ transition
        return rates

    def parameters(self) -> FloatArray:
        row = np.zeros(N_PARAMS)
        row[P_STATIONARY], row[P_ENTER], row[P_STAY] = self.good_share, self.p_bg, 1.0 - self.p_gb
        row[P_ALPHA_0], row[P_ALPHA_1] = self.alpha_bad, self.alpha_good
        return row

    def _matrices(self) -> tuple[FloatArray, FloatArray]:
        transition = np.array([[1.0 - self.p_bg, self.p_bg], [self.p_gb, 1.0 - self.p_gb]])
        return transition, np.diag([self.alpha_bad, self.alpha_good])


class Ngram(AcceptanceModel):
    """Prompt lookup (ngram) or suffix matching: a round drafts only where the context matches.

    An output position matches with probability ``match_probability``; matches come in bursts whose lag-1
    autocorrelation along the output is ``persistence``. A round that starts at a match drafts k tokens or, with
    ``mean_match_tokens`` (suffix decoding), min(k, L) with L >= 1 geometric of that mean. Its drafts are accepted with
    ``alpha``, or with unconditional ``rates`` by draft index, of those proposed.

    Rates and mean length average over rounds with a draft; a draft that was not proposed counts as not accepted, as in
    vLLM's per-position metric. They are exact: matches and accepted drafts use different random numbers.
    """

    kind: ClassVar[int] = KIND_NGRAM

    model: Literal["ngram"]
    match_probability: Probability
    alpha: Probability | None = None
    rates: Rates | None = None
    # 0: matches are independent; towards 1: matches come in bursts (same long-run share).
    persistence: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    # Suffix decoding: the proposal is as long as the match, geometric with this mean (None: always k).
    mean_match_tokens: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _one_kind_of_rate(self) -> Self:
        if (self.alpha is None) == (self.rates is None):
            raise wrong("alpha", self.alpha, "give exactly one of alpha and rates")
        return self

    def unconditional(self, k: int) -> FloatArray:
        rates = self._accepted().unconditional(k)
        return np.asarray(rates * self._longer() ** np.arange(len(rates)))

    def draft_probabilities(self) -> FloatArray:
        return self._accepted().draft_probabilities()

    def draft_share(self, k: int) -> float:
        """Long-run share of rounds that draft. Differs from match_probability when matches come in bursts.

        With m the match probability and r the persistence, d tokens after a match another match has probability
        m + (1 - m) r^d, one token after none m (1 - r). A drafting round emits d = 1 + accepted tokens, an idle one a
        single token; the share is stationary under these two moves.
        """
        if check_drafts(k) == 0:
            return 0.0
        reach = np.concatenate(([1.0], self.unconditional(k), [0.0]))
        exactly = reach[:-1] - reach[1:]
        miss = 1.0 - self.match_probability
        again = float((exactly * (self.match_probability + miss * self.persistence ** np.arange(1, k + 2))).sum())
        enter = self.match_probability * (1.0 - self.persistence)
        return enter / (1.0 - again + enter) if enter > 0.0 else 0.0

    def parameters(self) -> FloatArray:
        match, persistence = self.match_probability, self.persistence
        row = np.zeros(N_PARAMS)
        row[P_STATIONARY], row[P_ENTER] = match, match * (1.0 - persistence)
        row[P_STAY] = match + persistence * (1.0 - match)
        row[P_LONGER] = self._longer()
        return row

    def _accepted(self) -> Constant | PerPosition:
        if self.rates is not None:
            return PerPosition(model="per_position", rates=self.rates)
        assert self.alpha is not None
        return Constant(model="constant", alpha=self.alpha)

    def _longer(self) -> float:
        return 1.0 if self.mean_match_tokens is None else 1.0 - 1.0 / self.mean_match_tokens
