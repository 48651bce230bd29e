"""Acceptance measured without a model: the real matcher run over logged prompts and outputs.

Under greedy decoding the target accepts exactly the drafts that equal what it would have written anyway, and drafts
never change the text. So a log of prompts and outputs says, for n-gram lookup and suffix decoding, what every round
would have drafted and how much of it would have been accepted. Rounds run as in vLLM: the first output token comes from
the prefill, every round emits its accepted drafts and one token more.

Figures follow vLLM (``v1/spec_decode/metrics.py``): a draft position's rate is the share of rounds *with a draft* whose
drafts up to that position were all accepted; mean acceptance length is 1 + accepted / rounds with a draft. What the
target would have written beyond a record's end is not known: drafts there count as rejected, and
``rounds_cut_by_end`` says how many rounds that concerns. With sampling instead of greedy decoding the same holds for
the record at hand, because a lookup's draft distribution is a point mass.

Intervals are percentiles of a bootstrap over requests, which keeps the dependence within a request.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from draftcast.errors import InputError, TraceError
from draftcast.files import json_lines, picked, plain, read_text
from draftcast.kernels.arrays import FloatArray
from draftcast.kernels.search import ngram, suffix

# Keys of a token log's lines; SpecDecode-Bench has the first of the outputs'.
PROMPT_KEY = "prompt_token_ids"
OUTPUT_KEYS = ("generated_token_ids", "output_token_ids")
MAX_DRAFTS = 64  # what a scenario takes
CONFIDENCE = 0.95  # of the intervals
SUFFIX = suffix.SuffixSettings()
ARCTIC = SUFFIX._replace(max_tree_depth=64)  # as in Arctic Inference 0.1.1

# Of the sums over a request, from which every figure follows, those that are reported.
COUNTS = ["num_rounds", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "rounds_cut_by_end"]
_RATIOS = {
    "draft_share": ("num_drafts", "num_rounds"),
    "tokens_per_round": ("num_emitted_tokens", "num_rounds"),
    "mean_draft_tokens": ("num_draft_tokens", "num_drafts"),
    "draft_acceptance_rate": ("num_accepted_tokens", "num_draft_tokens"),
    "match_share": ("num_matches", "num_positions"),
}

Matches = tuple[NDArray[np.int32], NDArray[np.int32]]  # tokens drafted and accepted, by a round's output position


class TokenRequest(NamedTuple):
    """One request: prompt and output token ids, int32."""

    prompt: NDArray[np.int32]
    output: NDArray[np.int32]


def read_token_log(path: str | Path) -> list[TokenRequest]:
    """The requests of a token log in the file's order: one JSON object a line; blank lines and other keys are ignored.

    Raises TraceError: the file cannot be read, is empty, or a line is not such an object; file, line and key are named.
    """
    file = str(path)
    lines = json_lines(read_text(path, TraceError), file, TraceError)
    requests = [_request(entry, file, number) for number, entry in lines]
    if not requests:
        raise TraceError("holds no request", file=file)
    return requests


def _request(entry: dict[str, Any], file: str, number: int) -> TokenRequest:
    outputs = [key for key in OUTPUT_KEYS if key in entry]
    if len(outputs) != 1:
        raise TraceError(f"needs exactly one of {' or '.join(OUTPUT_KEYS)}, has {len(outputs)}", file=file, line=number)
    if PROMPT_KEY not in entry:
        raise TraceError("missing", file=file, line=number, key=PROMPT_KEY)
    return TokenRequest(*(_tokens(entry[key], file, number, key) for key in (PROMPT_KEY, outputs[0])))


def _tokens(value: Any, file: str, number: int, key: str) -> NDArray[np.int32]:
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise TraceError("must be a list of token ids (whole numbers)", file=file, line=number, key=key)
    if outside := [token for token in value if not 0 <= token < 2**31]:
        raise TraceError("token ids are 0 to 2147483647", file=file, line=number, key=key, value=outside[0])
    return np.array(value, dtype=np.int32)


class Bootstrap(NamedTuple):
    """A figure with its interval; nan bounds where there is nothing to resample."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Measurement:
    """What the matcher would have drafted over a token log."""

    method: str
    num_speculative_tokens: int
    settings: dict[str, float]
    sums: pd.DataFrame  # a row per request, see `request_sums`
    figures: dict[str, Bootstrap]
    rates: tuple[Bootstrap, ...]  # by draft position, unconditional, non-increasing
    rounds: list[FloatArray] = field(default_factory=list)  # drafts accepted in each round, by request

    def report(self) -> dict[str, Any]:
        """Plain data for JSON; undefined figures are None."""
        of_requests = figures(self.sums)
        report: dict[str, Any] = {
            **picked(self, "method num_speculative_tokens settings"),
            "confidence": CONFIDENCE,
            "num_requests": len(self.sums),
            **{name: int(self.sums[name].sum()) for name in COUNTS},
            "figures": {name: estimate._asdict() for name, estimate in self.figures.items()},
            "per_position_acceptance_rates": [rate._asdict() for rate in self.rates],
            "per_request": {
                name: _quantiles(of_requests[name].dropna().to_numpy())
                for name in ("mean_acceptance_length", "draft_share", "tokens_per_round")
            },
        }
        return dict(plain(report))


def measure_ngram(
    requests: Sequence[TokenRequest],
    k: int,
    min_n: int = 5,
    max_n: int = 5,
    max_model_len: int = ngram.UNLIMITED,
    **resampling: int,
) -> Measurement:
    """N-gram lookup over a log. ``min_n`` and ``max_n`` are vLLM's prompt_lookup_min and _max (5 and 5 by default).

    ``resampling``: as of `summarise`. Raises InputError: a setting out of its range, no request with a decoding round.
    """
    _check_range("--num-speculative-tokens", k, 1, MAX_DRAFTS)
    _check_range("--prompt-lookup-min", min_n, 1, 2**20)
    _check_range("--prompt-lookup-max", max_n, 1, 2**20)
    if min_n > max_n:
        raise InputError(f"must not exceed --prompt-lookup-max = {max_n}", file="--prompt-lookup-min", value=min_n)
    _check_range("--max-model-len", max_model_len, 1, ngram.UNLIMITED)
    matches = [ngram.match_positions(prompt, output, k, min_n, max_n, max_model_len) for prompt, output in requests]
    return _measured("ngram", k, {"prompt_lookup_min": min_n, "prompt_lookup_max": max_n}, matches, **resampling)


def measure_suffix(
    requests: Sequence[TokenRequest],
    k: int | None = None,
    settings: suffix.SuffixSettings = SUFFIX,
    max_model_len: int = ngram.UNLIMITED,
    **resampling: int,
) -> Measurement:
    """Suffix decoding over a log, its requests one after the other; k None: the tree depth, as in vLLM.

    Other arguments and errors as of `measure_ngram`.
    """
    named = _suffix_settings(settings)
    k = min(settings.max_tree_depth, MAX_DRAFTS) if k is None else k
    _check_range("--num-speculative-tokens", k, 1, MAX_DRAFTS)
    _check_range("--max-model-len", max_model_len, 1, ngram.UNLIMITED)
    matches = list(suffix.match_positions(requests, k, settings, max_model_len))
    return _measured("suffix", k, named, matches, **resampling)


def measure_arctic(
    requests: Sequence[TokenRequest],
    head_rates: Sequence[float],
    settings: suffix.SuffixSettings = ARCTIC,
    max_model_len: int = ngram.UNLIMITED,
    **resampling: int,
) -> Measurement:
    """Suffix decoding beside a head over a log: it takes a round over where its score reaches the head's drafts.

    Rounds with a draft are those that it takes over; all others accept as many of the head's drafts as ``head_rates``
    say (unconditional, by position), drawn anew at every output position. Other arguments and errors as of
    `measure_suffix`; InputError also for rates that rise.
    """
    named = _suffix_settings(settings)
    rates = np.array(head_rates, float)
    if not 1 <= len(rates) <= MAX_DRAFTS or not (np.diff(rates, prepend=1.0, append=0.0) <= 0).all():
        text = f"must be 1 to {MAX_DRAFTS} unconditional rates by position, 1 to 0, none above the one before"
        raise InputError(text, file="--head-rates", value=rates.tolist())
    _check_range("--max-model-len", max_model_len, 1, ngram.UNLIMITED)
    k = max(len(rates), min(settings.max_tree_depth, MAX_DRAFTS))
    generator = np.random.Generator(np.random.Philox(key=[resampling.get("seed", 0), 1]))
    matches = []
    for drafted, accepted in suffix.match_positions(requests, k, settings, max_model_len, least_score=len(rates)):
        of_head = (generator.random((len(drafted), 1)) < rates).sum(axis=1)
        of_head = np.minimum(of_head, np.arange(len(drafted), 0, -1))  # nothing is known beyond the record's end
        matches.append((drafted, np.where(drafted > 0, accepted, of_head)))
    return _measured("arctic", k, named, matches, **resampling)


def _measured(method: str, k: int, settings: dict[str, float], drafts: list[Matches], **resampling: int) -> Measurement:
    measured = summarise(method, k, settings, pd.DataFrame([request_sums(*pair, k) for pair in drafts]), **resampling)
    return replace(measured, rounds=accepted_by_round([accepted for _, accepted in drafts]))


def _suffix_settings(settings: suffix.SuffixSettings) -> dict[str, float]:
    """Checked, by the names of vLLM's keys."""
    _check_range("--suffix-max-tree-depth", settings.max_tree_depth, 1, 2**20)
    _check_range("--suffix-max-cached-requests", settings.max_cached_requests, 0, 2**31 - 1)
    _check_range("--suffix-max-spec-factor", settings.max_spec_factor, 0, 1e6)
    _check_range("--suffix-min-token-prob", settings.min_token_prob, 0, 1)
    return {f"suffix_decoding_{name}": value for name, value in settings._asdict().items()}


def rounds_of(accepted: NDArray[np.int32]) -> list[int]:
    """Output positions at which rounds start: each goes on after the accepted drafts of the one before and one more."""
    starts, position = [], 1
    while position < len(accepted):
        starts.append(position)
        position += int(accepted[position]) + 1
    return starts


def accepted_by_round(accepted: Sequence[NDArray[np.int32]]) -> list[FloatArray]:
    return [request[rounds_of(request)].astype(np.float64) for request in accepted]


def request_sums(drafted: NDArray[np.int32], accepted: NDArray[np.int32], k: int) -> dict[str, int]:
    """Sums of one request by name; arrays by output position as `match_positions` gives them.

    Rounds that accept without having drafted are another drafter's: they count as rounds and by what they emit.
    """
    outputs, starts = len(drafted), np.array(rounds_of(accepted), dtype=np.int64)
    proposed, confirmed = drafted[starts], np.minimum(accepted, drafted)[starts]
    matches = drafted[1:] > 0
    sums: dict[str, int] = {
        "num_rounds": len(starts),
        "num_drafts": int((proposed > 0).sum()),
        "num_draft_tokens": int(proposed.sum()),
        "num_accepted_tokens": int(confirmed.sum()),
        # Every draft there was something to compare with was right, and then the record ended.
        "rounds_cut_by_end": int(((starts + confirmed == outputs) & (confirmed < proposed)).sum()),
        "num_emitted_tokens": int(np.minimum(accepted[starts] + 1, outputs - starts).sum()),
        "num_positions": len(matches),
        "num_matches": int(matches.sum()),
    }
    for kind, series in (("match", matches), ("round", proposed > 0)):
        first, second = series[:-1], series[1:]
        neighbours = {"first": first, "second": second, "both": first & second, "pairs": np.ones_like(first)}
        sums |= {f"{kind}_{name}": int(values.sum()) for name, values in neighbours.items()}
    return sums | {f"accepted_{position}": int((confirmed > position).sum()) for position in range(k)}


def summarise(
    method: str, k: int, settings: dict[str, float], sums: pd.DataFrame, *, bootstrap: int = 1000, seed: int = 0
) -> Measurement:
    """Figures and intervals of the requests' sums, from ``bootstrap`` resamples."""
    _check_range("--bootstrap", bootstrap, 0, 100_000)
    _check_range("--seed", seed, 0, 2**63 - 1)
    if sums.empty or sums["num_rounds"].sum() == 0:
        raise InputError("no request has two output tokens or more, so there is no decoding round to measure")
    values = figures(sums.sum().to_frame().T)
    draws = values.iloc[:0]
    requests = len(sums)
    if bootstrap and requests > 1:
        generator = np.random.Generator(np.random.Philox(key=seed))
        weights = generator.multinomial(requests, np.full(requests, 1.0 / requests), size=bootstrap)
        draws = figures(pd.DataFrame(weights @ sums.to_numpy(), columns=sums.columns))
    estimates = {str(name): _estimate(values[name].item(), draws[name].to_numpy()) for name in values}
    rates = tuple(estimates.pop(f"rate_{position}") for position in range(k))
    return Measurement(method, k, settings, sums, estimates, rates)


def figures(sums: pd.DataFrame) -> pd.DataFrame:
    """Every figure of each row of sums, NaN where it is not defined; ``rate_0`` ... by draft position."""
    drafts = sums["num_drafts"]
    columns = {"mean_acceptance_length": 1.0 + sums["num_accepted_tokens"] / drafts}
    columns |= {name: sums[part] / sums[whole] for name, (part, whole) in _RATIOS.items()}
    for kind in ("match", "round"):
        # Pooled over requests, so that requests that differ count as bursts.
        first, second, both, count = (sums[f"{kind}_{name}"] for name in ("first", "second", "both", "pairs"))
        spread = np.sqrt(1.0 * first * (count - first) * second * (count - second)) / count**2
        columns[f"{kind}_autocorrelation"] = (both / count - (first / count) * (second / count)) / spread
    columns |= {str(name).replace("accepted", "rate"): sums[name] / drafts for name in sums.filter(regex="^accepted_")}
    return pd.DataFrame(columns)


def _estimate(value: float, draws: FloatArray) -> Bootstrap:
    finite, tail = draws[np.isfinite(draws)], (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(finite, (tail, 1.0 - tail)) if len(finite) else (math.nan, math.nan)
    return Bootstrap(value, float(low), float(high))


def _quantiles(values: FloatArray) -> dict[str, float | None]:
    if len(values) == 0:
        return dict.fromkeys(("mean", "std", "p10", "p50", "p90"))
    p10, p50, p90 = (float(value) for value in np.quantile(values, (0.1, 0.5, 0.9)))
    return {"mean": float(values.mean()), "std": float(values.std()), "p10": p10, "p50": p50, "p90": p90}


def _check_range(option: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InputError(f"must be {least:g} to {most:g}", file=option, value=value)
