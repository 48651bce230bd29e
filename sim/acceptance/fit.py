"""A `Chain` from the accepted drafts of each request's rounds.

Rates are those of all rounds. The covariances of rounds next to each other and two apart and the variance of the
requests' means fix the rest: concentration, contrast and persistence.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftcast.calibration.acceptance.measure import accepted_by_round
from draftcast.errors import InputError
from draftcast.kernels.arrays import FloatArray, IntArray
from draftcast.sim.acceptance.chain import Chain, Factors
from draftcast.sim.acceptance.model import FIRST_POSITION

FEWEST = 4  # rounds of a request that has a mean
LEAST_PERSISTENCE = 1e-3
FAR = 10_000  # rounds apart: only the request is the same
# Output positions that have a factor of their own: below the first step, and each doubling with so many rounds.
FIRST_STEP, FEWEST_ROUNDS = 128, 200
MOST_LOG_ODDS = 6.0


class RoundMoments(NamedTuple):
    """Of the drafts accepted in a round."""

    rates: FloatArray  # [k] unconditional
    covariances: FloatArray  # [2] of rounds next to each other and two apart, about the mean of all
    spread: float  # variance of the requests' means, each counted once
    counts: FloatArray  # rounds of each of these requests

    @property
    def lag_1(self) -> float:
        """Correlation of rounds next to each other, all requests together: requests that differ count as stretches."""
        variance = _variance(self.rates)
        return float(self.covariances[0]) / variance if variance else 0.0


def _variance(rates: FloatArray) -> float:
    """Of the drafts accepted in a round."""
    return float(((2 * np.arange(len(rates)) + 1) * rates).sum() - rates.sum() ** 2)


def recorded_rounds(offsets: IntArray, lengths: NDArray[np.uint8], k: int) -> list[FloatArray]:
    """Drafts accepted in each round of k, by request, when a record by output position is replayed.

    A record's last entry is of the whole output, after which no round starts.
    """
    return accepted_by_round([np.minimum(row[:-1], k).astype(np.int32) for row in np.split(lengths, offsets[1:-1])])


def round_moments(rounds: Sequence[FloatArray], k: int) -> RoundMoments:
    """Raises InputError: fewer than two requests have enough rounds to differ."""
    together = np.concatenate([np.zeros(0), *rounds])
    long = [drafts for drafts in rounds if len(drafts) >= FEWEST]
    if len(long) < 2:
        raise InputError(f"fewer than two requests have {FEWEST} rounds or more: there is no spread to fit")
    mean = together.mean()

    def covariance(lag: int) -> float:
        products = [((drafts[:-lag] - mean) * (drafts[lag:] - mean)).sum() for drafts in rounds if len(drafts) > lag]
        return float(sum(products) / sum(len(drafts) - lag for drafts in rounds if len(drafts) > lag))

    rates = np.array([(together > position).mean() for position in range(k)])
    spread = float(np.var([drafts.mean() for drafts in long]))
    covariances = np.array([covariance(1), covariance(2)])
    return RoundMoments(rates, covariances, spread, np.array([len(drafts) for drafts in long], float))


def expected_spread(model: Chain, k: int, counts: FloatArray) -> float:
    """Variance of the means of requests with so many rounds: what requests differ by and what chance adds.

    Chance is that of rounds whose covariance, less the part that requests differ by, falls geometrically with the lag.
    """
    variance = _variance(model.unconditional(k))
    shared, first, second = (model.lag_covariance(k, lag) for lag in (FAR, 1, 2))
    fall = min(max((second - shared) / (first - shared), 0.0), 0.9999) if first > shared + 1e-9 else 0.0
    neighbours = 2.0 * (first - shared) / (1.0 - fall) * (1.0 - (1.0 - fall**counts) / (counts * (1.0 - fall)))
    return model.between_requests(k) + float(((variance - shared + neighbours) / counts).mean())


def fit_chain(moments: RoundMoments) -> Chain:
    """The chain with these rates whose covariances and spread are nearest to those measured."""
    from scipy.optimize import least_squares

    rates, k = tuple(moments.rates.tolist()), len(moments.rates)
    goals = np.array([*moments.covariances, moments.spread])
    scale = max(float(np.abs(goals).max()), 1e-6)

    def chain(at: FloatArray) -> Chain:
        spread, contrast, persistence = at.tolist()
        return Chain(rates=rates, concentration=math.exp(spread), contrast=contrast, persistence=persistence)

    def misses(at: FloatArray) -> FloatArray:
        model = chain(at)
        covariances = (model.lag_covariance(k, lag) for lag in (1, 2))
        return np.asarray((np.array([*covariances, expected_spread(model, k, moments.counts)]) - goals) / scale)

    solution = least_squares(misses, [2.0, 1.5, 0.7], bounds=([-2.0, 0.01, 0.0], [9.0, 8.0, 0.99]), diff_step=1e-3)
    fitted = chain(solution.x)
    if solution.x[2] >= LEAST_PERSISTENCE:
        return fitted
    # Rounds next to each other are as unlike as any: no contrast would show, and none is told.
    return fitted.model_copy(update={"contrast": 0.0, "persistence": 0.0})


def with_positions(model: Chain, rounds: Sequence[FloatArray], k: int) -> Chain:
    """The chain with a factor for every doubling of the output position: rounds that start there accept as many drafts.

    ``rounds``: drafts accepted in each round of k by request, rounds without a draft included.
    """
    from scipy.optimize import brentq

    accepted = np.concatenate([np.zeros(0), *rounds])
    starts = np.concatenate([np.zeros(0), *(FIRST_POSITION + np.cumsum(drafts + 1) - drafts - 1 for drafts in rounds)])
    band = np.where(starts < FIRST_STEP, 0, np.floor(np.log2(np.maximum(starts, 1) / FIRST_STEP)) + 1)
    steps: list[tuple[int, float]] = []
    for step in range(int(band.max(initial=-1)) + 1):
        inside = accepted[band == step]
        if len(inside) < FEWEST_ROUNDS:
            break

        def miss(log_odds: float, mean: float = float(inside.mean())) -> float:
            changed = model.model_copy(update={"factors": Factors(temperature=float(np.exp(log_odds)))})
            return changed.tokens_per_round(k) - 1.0 - mean

        low, high = -MOST_LOG_ODDS, MOST_LOG_ODDS
        log_odds = low if miss(low) > 0.0 else high if miss(high) < 0.0 else brentq(miss, low, high, xtol=1e-4)
        steps.append((FIRST_STEP << (step - 1) if step else 0, round(float(np.exp(log_odds)), 4)))
    return model.model_copy(update={"factors": Factors(output_position=tuple(steps))}) if steps else model
