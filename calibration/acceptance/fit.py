"""From measured acceptance to the ``acceptance:`` section of a scenario, as plain data and as text to paste.

Knows the section's keys, not the code that reads it (that is above this room): the models are those of
``draftcast.sim.acceptance``.
"""

import json
import math
import textwrap
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import yaml

from draftcast.calibration.acceptance.measure import Measurement

WIDTH = 110
_DIGITS = 6
_MOST_PERSISTENT = 0.999


def per_position_model(rates: Sequence[float]) -> dict[str, Any]:
    """``per_position``: unconditional rates over the rounds with a draft."""
    return {"model": "per_position", "rates": [round(rate, _DIGITS) for rate in rates]}


def ngram_model(measured: Measurement) -> dict[str, Any]:
    """``ngram``: match probability and persistence by output position, rates of the rounds with a draft.

    Persistence is the measured lag-1 autocorrelation of matches along the output. The match probability is the one for
    which the model's own share of rounds with a draft is the measured share (`match_probability`). It is not the share
    of output positions with a match: accepted drafts skip positions, most of them matches.

    ``mean_match_tokens`` is set when drafts are shorter than k: geometric with the measured mean length, or as near to
    it as the model's non-increasing rates allow (a draft that goes on is accepted more often than one that just
    starts, so suffix decoding's drafts come out too long: what is accepted is exact, what is verified an upper bound).
    The section's rates are then those of the drafts proposed.
    """
    share = measured.figures["draft_share"].value
    rates = [rate.value for rate in measured.rates] if share > 0 else [0.0] * measured.num_speculative_tokens
    autocorrelation = measured.figures["match_autocorrelation"].value
    # nan (all positions alike) compares false.
    persistence = min(autocorrelation, _MOST_PERSISTENT) if autocorrelation > 0 else 0.0
    match = match_probability(share, rates, persistence)
    model: dict[str, Any] = {"model": "ngram", "match_probability": round(match, _DIGITS)}
    longer = 1.0
    if share > 0:
        longer = share_of_longer_drafts(measured.figures["mean_draft_tokens"].value, len(rates))
        longer = max([longer, *(after / before for before, after in pairwise(rates) if before > 0)])
    if longer < 1.0 - 1e-9:
        model["mean_match_tokens"] = round(1.0 / (1.0 - longer), _DIGITS)
        proposed = (rate / longer**position if rate > 0 else 0.0 for position, rate in enumerate(rates))
        rates = list(accumulate(proposed, min))  # rounding must not make them rise
    return model | {"rates": [round(rate, _DIGITS) for rate in rates], "persistence": round(persistence, _DIGITS)}


def arctic_model(measured: Measurement, head_rates: Sequence[float]) -> dict[str, Any]:
    """``chain`` of suffix decoding beside a head: where it takes rounds over, its drafts' rate, and the head's.

    Match probability and persistence as of `ngram_model`. The record has one rate a draft for the search and one for
    the head: those with the measured mean of accepted drafts. ``mean_match_tokens``: of drafts that have as many tokens
    as the head's and go on with one and the same probability.
    """
    figures, head, k = measured.figures, len(head_rates), measured.num_speculative_tokens
    share, autocorrelation = figures["draft_share"].value, figures["match_autocorrelation"].value
    persistence = min(autocorrelation, _MOST_PERSISTENT) if autocorrelation > 0 else 0.0
    rates = [rate.value for rate in measured.rates] if share > 0 else []
    match = match_probability(share, rates, persistence, head_rates)
    longer = share_of_longer_drafts(figures["mean_draft_tokens"].value - head + 1, k - head + 1) if share > 0 else 1.0
    model: dict[str, Any] = {"model": "chain", "match_probability": round(match, _DIGITS)}
    if longer < 1.0 - 1e-9:
        model["mean_match_tokens"] = round(head + longer / (1.0 - longer), _DIGITS)
    reached = [longer ** max(position - head + 1, 0) for position in range(k)]
    good, bad = _equal_rate(math.fsum(rates), reached), _equal_rate(math.fsum(head_rates), [1.0] * head)
    return model | {"alpha_good": good, "alpha_bad": bad, "persistence": round(persistence, _DIGITS)}


def _equal_rate(accepted: float, reached: Sequence[float]) -> float:
    """The probability a draft at which so many are accepted in the mean; ``reached``: P(it is drafted) by position."""
    from scipy.optimize import brentq

    def beyond(rate: float) -> float:
        return math.fsum(share * rate ** (position + 1) for position, share in enumerate(reached)) - accepted

    return 1.0 if beyond(1.0) <= 0.0 else round(float(brentq(beyond, 0.0, 1.0, xtol=1e-12)), _DIGITS)


def match_probability(share: float, rates: Sequence[float], persistence: float, others: Sequence[float] = ()) -> float:
    """Match probability m by output position for which a ``share`` of the rounds drafts.

    With r the persistence, d tokens after a match another has probability m + (1 - m) r^d, one token after none
    m (1 - r). A drafting round emits j + 1 tokens with probability u_j - u_{j+1} (u_0 = 1, u_j the unconditional
    rates), an idle one emits one, or, with the rates of ``others``, as many as another drafter's. Setting the
    stationary share s of these moves gives m / (1 - m) = s (1 - G) / ((1 - s)(1 - H)),
    G = sum_j (u_j - u_{j+1}) r^(j+1), and H the same of the others (r where there are none).
    """
    if not 0.0 < share < 1.0:
        return share

    def carried(rates: Sequence[float]) -> float:
        reach = [1.0, *rates, 0.0]
        return sum((reach[j] - reach[j + 1]) * persistence ** (j + 1) for j in range(len(rates) + 1))

    odds = share * (1.0 - carried(rates)) / ((1.0 - share) * (1.0 - carried(others)))
    return odds / (1.0 + odds)


def share_of_longer_drafts(mean_draft_tokens: float, k: int) -> float:
    """q with 1 + q + ... + q^(k-1) = the mean length of drafts cut at k; 1.0 when (nearly) all have k tokens."""
    if mean_draft_tokens >= k - 1e-9:
        return 1.0
    # Imported here: everything else of acceptance runs without scipy.
    from scipy.optimize import brentq

    return float(brentq(lambda share: sum(share**i for i in range(k)) - mean_draft_tokens, 0.0, 1.0, xtol=1e-15))


def acceptance_text(model: dict[str, Any], notes: Sequence[str], *, as_json: bool) -> str:
    """The mapping that stands under ``acceptance:``; YAML carries the notes as comments, JSON has none."""
    if as_json:
        return json.dumps(model, allow_nan=False) + "\n"
    lines = (line for note in notes for line in textwrap.wrap(" ".join(note.split()), WIDTH))
    comments = "".join(f"# {line}\n" for line in lines)
    return comments + yaml.safe_dump(model, sort_keys=False, default_flow_style=None, width=100)
