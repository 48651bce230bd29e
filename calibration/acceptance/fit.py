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
from draftcast.calibration.acceptance.references import conditional_rate

WIDTH = 110
_DIGITS = 6
_MOST_PERSISTENT = 0.999
_ALL = 1.0 - 1e-9  # a share of drafts that is 1 but for rounding


def per_position_model(rates: Sequence[float]) -> dict[str, Any]:
    """``per_position``: unconditional rates over the rounds with a draft."""
    return {"model": "per_position", "rates": [round(rate, _DIGITS) for rate in rates]}


def ngram_model(measured: Measurement) -> dict[str, Any]:
    """``ngram``: match probability and persistence by output position, rates of the rounds with a draft.

    Persistence is the measured lag-1 autocorrelation of matches along the output. The match probability is the one for
    which the model's own share of rounds with a draft is the measured share (`_match_probability`). It is not the share
    of output positions with a match: accepted drafts skip positions, most of them matches.

    ``mean_match_tokens`` is set when drafts are shorter than k: geometric with the measured mean length, or as near to
    it as the model's non-increasing rates allow (a draft that goes on is accepted more often than one that just
    starts, so suffix decoding's drafts come out too long: what is accepted is exact, what is verified an upper bound).
    The section's rates are then those of the drafts proposed.
    """
    rates, persistence, match = _matches(measured)
    falls = (after / before for before, after in pairwise(rates) if before > 0)
    longer = max([_share_of_longer_drafts(measured, 1), *falls])
    model = {"model": "ngram", "match_probability": match} | _mean_match_tokens(longer, 1)
    if longer < _ALL:
        proposed = (rate / longer**position if rate > 0 else 0.0 for position, rate in enumerate(rates))
        rates = list(accumulate(proposed, min))  # rounding must not make them rise
    return model | {"rates": [round(rate, _DIGITS) for rate in rates], "persistence": round(persistence, _DIGITS)}


def arctic_model(measured: Measurement, head_rates: Sequence[float]) -> dict[str, Any]:
    """``chain`` of suffix decoding beside a head: where it takes rounds over, its drafts' rate, and the head's.

    Match probability and persistence as of `ngram_model`. The record has one rate a draft for the search and one for
    the head: those with the measured mean of accepted drafts. ``mean_match_tokens``: of drafts that have as many tokens
    as the head's and go on with one and the same probability.
    """
    rates, persistence, match = _matches(measured, head_rates)
    head = len(head_rates)
    longer = _share_of_longer_drafts(measured, head)
    reached = [longer ** max(position - head + 1, 0) for position in range(measured.num_speculative_tokens)]
    return {
        "model": "chain",
        "match_probability": match,
        **_mean_match_tokens(longer, head),
        "alpha_good": round(conditional_rate(math.fsum(rates), reached), _DIGITS),
        "alpha_bad": round(conditional_rate(math.fsum(head_rates), [1.0] * head), _DIGITS),
        "persistence": round(persistence, _DIGITS),
    }


def _matches(measured: Measurement, others: Sequence[float] = ()) -> tuple[list[float], float, float]:
    """Rates of the rounds with a draft, persistence and match probability; ``others``: see `_match_probability`."""
    share, autocorrelation = (measured.figures[name].value for name in ("draft_share", "match_autocorrelation"))
    rates = [rate.value if share > 0 else 0.0 for rate in measured.rates]
    # nan (all positions alike) compares false.
    persistence = min(autocorrelation, _MOST_PERSISTENT) if autocorrelation > 0 else 0.0
    return rates, persistence, round(_match_probability(share, rates, persistence, others), _DIGITS)


def _share_of_longer_drafts(measured: Measurement, least: int) -> float:
    """Of drafts of ``least`` tokens or more those that go on, at every token up to k alike; 1.0: all have k tokens."""
    if not measured.figures["draft_share"].value > 0:
        return 1.0
    more = measured.figures["mean_draft_tokens"].value - least
    return conditional_rate(more, [1.0] * (measured.num_speculative_tokens - least))


def _mean_match_tokens(longer: float, least: int) -> dict[str, float]:
    return {"mean_match_tokens": round(least + longer / (1.0 - longer), _DIGITS)} if longer < _ALL else {}


def _match_probability(share: float, rates: Sequence[float], persistence: float, others: Sequence[float] = ()) -> float:
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


def acceptance_text(model: dict[str, Any], notes: Sequence[str], *, as_json: bool) -> str:
    """The mapping that stands under ``acceptance:``; YAML carries the notes as comments, JSON has none."""
    if as_json:
        return json.dumps(model, allow_nan=False) + "\n"
    lines = (line for note in notes for line in textwrap.wrap(" ".join(note.split()), WIDTH))
    comments = "".join(f"# {line}\n" for line in lines)
    return comments + yaml.safe_dump(model, sort_keys=False, default_flow_style=None, width=100)
