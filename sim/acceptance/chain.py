"""A chain of drafts: rates by position, spread between requests, stretches along the output, and matches of a search.

One record composes what measurements show. Acceptance of draft j, given that those before it were accepted, is a rate
m_j; a request's own rate is the quantile of Beta(m_j concentration, (1 - m_j) concentration) at its own uniform number,
the same for every draft, cut into `BINS`; stretches of the output shift the log-odds up (good) or down (bad). With a
text search the stretches are those of matches instead, and only rounds that start at a match draft.

The stretches are a two-state chain indexed by output position, so that it is the same text whatever the rounds. Rounds
sample it unevenly: a good stretch is crossed in few long rounds. Averages over rounds, which is what servers count,
follow from the chain seen at round starts (the embedded chain, a Markov renewal process), each request by its rounds a
token.
"""

import functools
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import AfterValidator, Field, PrivateAttr, SerializerFunctionWrapHandler, model_serializer

from draftcast.calibration.acceptance.references import continued
from draftcast.frozen import MOST_TOKENS, Faults, Frozen, Probability, wrong
from draftcast.kernels.arrays import FloatArray, IntArray
from draftcast.sim.acceptance.compiled import KIND_BESIDE_HEAD, KIND_NGRAM, KIND_RATES, KIND_STATES, MAX_K, PARAMS
from draftcast.sim.acceptance.model import AcceptanceModel, Rates, check_drafts

BINS = 128
_REQUIRED = {"constant": "alpha", "per_position": "rates", "ngram": "match_probability"}
_TINY = 1e-12
_Rounds = tuple[FloatArray, FloatArray, list[FloatArray]]
"""[bins, states, states]: P(state of the next round's start | this one's), the same times the drafts accepted between,
and by draft, [bins, states], P(it and those before it are accepted | start)."""
Factor = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]
Step = Annotated[tuple[Annotated[int, Field(ge=0, le=MOST_TOKENS)], Factor], Field(strict=False)]


def _rising(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    for (before, _), (start, _) in pairwise(steps):
        if start <= before:
            raise wrong("", start, f"tokens must rise from step to step: {start} follows {before}")
    return steps


Steps = Annotated[tuple[Step, ...], Field(strict=False, max_length=32), AfterValidator(_rising)]


class Factors(Frozen):
    """What the odds p / (1 - p) of every draft's acceptance are multiplied by; of a text search, those of a match too.

    Factors of several causes multiply, and no probability leaves 0 to 1. They belong to the traffic against the rates
    beside them: a user states them, or a fit of a record does.

    Steps are [tokens, factor]: from so many tokens on, until the next step. Before the first the factor is 1. A round
    goes by the position it starts at. All combinations of steps are *bands*, the output's position the faster index.
    """

    temperature: Factor = 1.0  # The traffic's temperature against that of the rates' measurement.
    context: Steps = ()  # By tokens of prompt and output so far.
    output_position: Steps = ()  # By tokens of output so far.

    @property
    def log_odds(self) -> FloatArray:
        """What is added to the log-odds in each band. Shape [bands]."""
        causes = (self.context, self.output_position)
        context, position = (np.log([1.0, *(factor for _, factor in steps)]) for steps in causes)
        return np.asarray(np.log(self.temperature) + (context[:, None] + position).reshape(-1))

    def starts(self, prompt_tokens: ArrayLike) -> tuple[IntArray, IntArray]:
        """Output positions at which requests change band, int64[n, steps], and by how many bands, int64[steps]."""
        prompts = np.asarray(prompt_tokens, np.int64)[:, None]
        causes = (self.context, self.output_position)
        context, position = (np.array([start for start, _ in steps], np.int64) for steps in causes)
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


class Chain(AcceptanceModel):
    """How one draft after the other is accepted. What is not given is not there: no spread, no stretches, no search.

    Exactly one of ``alpha`` (the rate of every draft, of the mean request), ``rates`` (measured: unconditional, by
    position, over all rounds with a draft; `_rates_of_rounds` finds the m_j that show them) and ``alpha_good`` with
    ``alpha_bad`` (the rate in either kind of stretch; with ``match_probability`` that of a search which takes rounds
    over from a draft head, and the head's).
    """

    # The names besides chain say which key is required. Earlier files also said beta and markov (`respelled`).
    model: Literal["chain", "constant", "per_position", "ngram"] = "chain"
    alpha: Probability | None = None
    rates: Rates | None = None
    # The published measurement that the rates are of: a name of `draftcast.calibration.acceptance.references`.
    reference: str | None = None
    alpha_good: Probability | None = None
    alpha_bad: Probability | None = None
    # Between requests: Beta's a + b, small for long tails. Variance of alpha: alpha (1 - alpha) / (concentration + 1).
    concentration: Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)] | None = None
    # Log-odds between a good and a bad stretch, around ``rates``.
    contrast: Annotated[float, Field(ge=0, le=50, allow_inf_nan=False)] | None = None
    good_share: Probability | None = None
    # Lag-1 autocorrelation, by output token, of good and bad or of matched and not.
    persistence: Annotated[float, Field(ge=-1, lt=1, allow_inf_nan=False)] | None = None
    # Text searches: share of the output positions that match (None: every round drafts).
    match_probability: Probability | None = None
    # Suffix decoding: the proposal is as long as the match, geometric with this mean (None: always k).
    mean_match_tokens: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    # What the traffic changes against the rates: all above is what holds where every factor is 1.
    factors: Factors | None = None
    # Share of the output tokens in each band; those not listed are empty.
    _band_shares: tuple[float, ...] = PrivateAttr((1.0,))
    _head_drafts: int = PrivateAttr(0)

    def faults(self) -> Faults:
        yield from super().faults()
        key = _REQUIRED.get(self.model)
        if key is not None and getattr(self, key) is None:
            yield wrong(key, None, f"required for acceptance model {self.model}")
        rate_keys = [name for name in ("alpha", "rates", "alpha_good") if getattr(self, name) is not None]
        if len(rate_keys) != 1 or (self.alpha_good is None) != (self.alpha_bad is None):
            yield wrong("alpha", self.alpha, "give exactly one of alpha and rates (or alpha_good with alpha_bad)")
        if self.contrast and self.rates is None:
            yield wrong("contrast", self.contrast, "goes with rates; alpha_good and alpha_bad say it themselves")
        searches, stretches = self.match_probability is not None, self._has_stretches
        has_good = stretches and not searches
        for key, fits, why in (
            ("contrast", not (searches and self.contrast), "a text search's stretches are those of matches"),
            ("mean_match_tokens", searches or self.mean_match_tokens is None, "goes with match_probability"),
            ("good_share", has_good or self.good_share is None, "goes with contrast, or alpha_good and alpha_bad"),
            ("persistence", searches or stretches or not self.persistence, "of what? give contrast or matches"),
        ):
            if not fits:
                yield wrong(key, getattr(self, key), why)
        state, persistence = self._share, self.persistence or 0.0
        if persistence < -min(state, 1.0 - state) / max(state, 1.0 - state) - _TINY:
            yield wrong("persistence", persistence, f"cannot be so low with a share of {state:g} in either state")
        if persistence < 0.0 and searches:
            yield wrong("persistence", persistence, "must be at least 0 for matches")

    @model_serializer(mode="wrap")
    def _what_is_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain = dump(self).items()
        return {key: value for key, value in plain if value is not None or key in AcceptanceModel.model_fields}

    @property
    def _has_stretches(self) -> bool:
        return bool(self.contrast) or self.alpha_good is not None

    @property
    def _share(self) -> float:
        """Share of the output positions in state 1: matched, or good."""
        share = self.good_share if self.match_probability is None else self.match_probability
        return 0.5 if share is None else share

    @property
    def kind(self) -> int:  # type: ignore[override]
        if self.match_probability is not None:
            return KIND_BESIDE_HEAD if self._has_stretches else KIND_NGRAM
        return KIND_STATES if self._has_stretches else KIND_RATES

    def unconditional(self, k: int) -> FloatArray:
        return _over_rounds(self, check_drafts(k)).rates

    def draft_share(self, k: int) -> float:
        return _over_rounds(self, check_drafts(k)).draft_share if k else 0.0

    def draft_probabilities(self) -> FloatArray:
        """Shape [bands * bins * states, MAX_K]: rows of a bin's bad and good state, or of a bin alone."""
        return _probabilities(self)

    @property
    def log_odds(self) -> FloatArray:
        """What the factors add to the log-odds in each band. Shape [bands]."""
        return np.zeros(1) if self.factors is None else self.factors.log_odds

    def of_requests(self, prompt_tokens: ArrayLike, output_tokens: ArrayLike) -> Self:
        """With averages over requests of so many tokens, int[n] both; else those before any step of the factors."""
        if self.factors is None:
            return self
        model = self.model_copy()
        model._band_shares = self.factors.shares(prompt_tokens, output_tokens)
        return model

    def beside_head(self, drafts: int) -> Self:
        """Where a search takes rounds over from a head, with a head of so many drafts."""
        model = self.model_copy()
        model._head_drafts = drafts
        return model

    def parameters(self) -> NDArray[Any]:
        """``PARAMS[bands]``."""
        return np.array([self.parameters_at(log_odds) for log_odds in self.log_odds], PARAMS)

    def parameters_at(self, log_odds: float = 0.0) -> Any:
        """A row of ``PARAMS``, where the odds of a match are so much higher; stretches stay as they are."""
        share, persistence, row = self._share, self.persistence or 0.0, np.zeros(1, PARAMS)[0]
        if log_odds and self.match_probability is not None:
            share = float(_shifted(np.array(share), log_odds))
        row["stationary"], row["enter"] = share, share * (1.0 - persistence)
        row["stay"] = share + persistence * (1.0 - share)
        row["head"] = self._head_drafts
        beyond = (self.mean_match_tokens or 1.0) - max(self._head_drafts, 1)  # a search has no fewer than the head
        row["longer"] = 1.0 if self.mean_match_tokens is None else 1.0 - 1.0 / (max(beyond, 0.0) + 1.0)
        return row

    def lag_covariance(self, k: int, lag: int) -> float:
        """Covariance of the drafts accepted in two rounds of k, ``lag`` rounds apart, over all requests' rounds."""
        return _over_rounds(self, check_drafts(k), lag).product - float(self.unconditional(k).sum()) ** 2

    def between_requests(self, k: int) -> float:
        """Variance of the drafts that requests accept in a round of k, each request counted once."""
        return _over_rounds(self, check_drafts(k)).between


class _OverRounds(NamedTuple):
    rates: FloatArray  # [k] of the rounds with a draft
    draft_share: float
    product: float  # mean of the drafts accepted in a round times those of the round ``lag`` later
    between: float  # variance of the requests' means


@functools.lru_cache(maxsize=512)
def _over_rounds(model: Chain, k: int, lag: int = 1) -> _OverRounds:
    log_odds = model.log_odds
    by_band = np.split(_probabilities(model)[:, :k], len(log_odds))
    averages = [
        (tokens, _averages(model, rows, model.parameters_at(shift), lag))
        for tokens, rows, shift in zip(model._band_shares, by_band, log_odds, strict=False)
        if tokens > 0.0
    ]
    if len(averages) == 1:
        return averages[0][1]
    # Rounds by band from tokens by band, as if none crossed a border.
    rounds = np.array([tokens / (1.0 + band.draft_share * band.rates.sum()) for tokens, band in averages])
    rounds /= rounds.sum()
    drafted = rounds * [band.draft_share for _, band in averages]
    share = float(drafted.sum())
    rates = (drafted / share if share > 0.0 else rounds) @ np.array([band.rates for _, band in averages])
    product, between = ((rounds * [band[i] for _, band in averages]).sum() for i in (2, 3))
    return _OverRounds(rates, share, float(product), float(between))


def _averages(model: Chain, probabilities: FloatArray, row: Any, lag: int = 1) -> _OverRounds:
    """Long-run averages over rounds of k drafts in one band; ``probabilities``: [bins * states, k].

    With T the matrix of the stretches and A_j the diagonal of draft j's rates, a round that starts in state s leaves
    the next one's start with sum_{a<k} (prod_{i<a} A_i T) (I - A_a) T + (prod_{i<k} A_i T) T: the rejected position
    (or the bonus position) is emitted too, hence the last T. Rounds start in the stationary law of that matrix. The
    uniform numbers a round has looked at lie before the next start, so the result is exact in the long run; a request's
    first rounds still start from the chain's own law.
    """
    k = probabilities.shape[1]
    if model.kind == KIND_RATES:
        rates, drafting = np.cumprod(probabilities, axis=1), np.ones(len(probabilities))
        product = rates.sum(axis=1) ** 2
    else:
        # A search without a head beside it is one beside a head of no drafts, with the same rates in either state.
        is_search = model.kind == KIND_NGRAM
        by_bin = np.repeat(probabilities[:, None], 2, axis=1) if is_search else probabilities.reshape(-1, 2, k)
        follow = _along_stretches if model.kind == KIND_STATES else _beside_head
        kernel, weighted, arrived = follow(by_bin, row)
        turnover = kernel[:, 0, 1] + kernel[:, 1, 0]
        # Rounds that never change state (a chain of period 2 crossed two by two) keep the law of position 0.
        good = np.divide(kernel[:, 0, 1], turnover, out=np.full(len(by_bin), row["stationary"]), where=turnover > 1e-15)
        law = np.stack((1.0 - good, good), axis=1)
        drafting, with_draft = (good, np.array([0.0, 1.0])) if is_search else (np.ones(len(by_bin)), law)
        rates = np.array([(with_draft * reach).sum(axis=1) for reach in arrived]).reshape(k, len(by_bin)).T
        mean = weighted.sum(axis=2)  # of a round that starts in either state
        ahead = np.linalg.matrix_power(kernel, lag - 1)
        product = np.einsum("bi,bij,bjl,bl->b", law, weighted, ahead, mean)
    weights = 1.0 / (1.0 + drafting * rates.sum(axis=1))
    weights /= weights.sum()
    share = float(weights @ drafting)
    drafted = weights * drafting / share if share > 0.0 else weights
    return _OverRounds(drafted @ rates, share, float(drafted @ product), float(rates.sum(axis=1).var()))


def _along_stretches(by_bin: FloatArray, row: Any) -> _Rounds:
    """Each draft is accepted by the state at its own position; ``by_bin``: [bins, states, k]."""
    k = by_bin.shape[2]
    change = np.array([[1.0 - row["enter"], row["enter"]], [1.0 - row["stay"], row["stay"]]])
    reach = np.broadcast_to(np.eye(2), (len(by_bin), 2, 2))
    kernel, weighted = np.zeros((2, len(by_bin), 2, 2))
    arrived = []
    for j in range(k):
        accepted = by_bin[:, None, :, j]
        left = reach * (1.0 - accepted) @ change
        kernel, weighted = kernel + left, weighted + j * left
        reach = reach * accepted
        arrived.append(reach.sum(axis=2))
        reach = reach @ change
    left = reach @ change
    return kernel + left, weighted + k * left, arrived


def _beside_head(by_bin: FloatArray, row: Any) -> _Rounds:
    """All drafts of a round are accepted by the state at its start: a head's, or those of a search.

    With m the match probability and r the persistence, d tokens after a match another match has probability
    m + (1 - m) r^d, after none m (1 - r^d).
    """
    k, head = by_bin.shape[2], int(row["head"])
    reach = np.cumprod(by_bin, axis=2)
    reach[:, 0, head:] = 0.0
    reach[:, 1] *= row["longer"] ** np.maximum(np.arange(k) - max(head, 1) + 1, 0)
    ends = np.pad(reach, ((0, 0), (0, 0), (1, 1)))
    ends[:, :, 0] = 1.0
    exactly = ends[:, :, :-1] - ends[:, :, 1:]  # [bins, states, accepted]
    accepted = np.arange(k + 1)
    match = row["stationary"]
    matched = match + np.outer((-match, 1.0 - match), (row["stay"] - row["enter"]) ** (accepted + 1))
    after = np.stack((1.0 - matched, matched), axis=1)  # [states, states after, accepted]
    kernel = np.einsum("bsa,sta->bst", exactly, after)
    return kernel, np.einsum("bsa,sta->bst", exactly * accepted, after), list(np.moveaxis(reach, 2, 0))


@functools.lru_cache(maxsize=64)
def _probabilities(model: Chain) -> FloatArray:
    rows = _where_factors_are_1(model)
    return rows if model.factors is None else np.concatenate([_shifted(rows, shift) for shift in model.log_odds])


def _where_factors_are_1(model: Chain) -> FloatArray:
    if model.alpha is not None:
        return _rows(model, np.full(MAX_K, model.alpha))
    if model.rates is None:
        return _rows(model, np.repeat([[model.alpha_bad], [model.alpha_good]], MAX_K, axis=1))
    rates = np.array(continued(model.rates, MAX_K))
    before = np.concatenate(([1.0], rates))[:-1]
    target = np.divide(rates, before, out=np.zeros(MAX_K), where=before > 0)
    if model.concentration is None and not model.contrast:
        return _rows(model, target)
    return _rates_of_rounds(model, target[: len(model.rates)])


def _rates_of_rounds(model: Chain, target: FloatArray) -> FloatArray:
    """`_rows` whose averages over rounds of as many drafts have these conditional rates; the last one goes on."""
    row = model.parameters_at()
    longer = row["longer"] ** (np.arange(len(target)) > 0)
    mean = target.copy()
    for _ in range(200):
        rates = _averages(model, _rows(model, mean), row).rates
        before = np.concatenate(([1.0], rates))[:-1]
        shown = np.divide(rates, before * longer, out=np.zeros(len(rates)), where=before > 0)
        step = _log_odds(target) - _log_odds(shown)
        mean = np.where((target > 0.0) & (target < 1.0), _shifted(mean, step), target)
        if np.abs(shown - target).max() < 1e-10:
            break
    return _rows(model, np.concatenate((mean, np.full(MAX_K - len(mean), mean[-1]))))


def _rows(model: Chain, mean: FloatArray) -> FloatArray:
    """Rates of every bin and state around the mean ones, [len] or [states, len]. Shape [bins * states, len]."""
    bins = mean[None]
    if model.concentration is not None:
        from scipy.special import betaincinv

        values, where = np.unique(mean, return_inverse=True)
        inside = np.clip(values, _TINY, 1.0 - _TINY)
        quantiles = (np.arange(BINS) + 0.5)[:, None] / BINS
        drawn = betaincinv(inside * model.concentration, (1.0 - inside) * model.concentration, quantiles)
        drawn = np.where((values > 0.0) & (values < 1.0), drawn, values)
        bins = drawn[:, where.reshape(-1)].reshape(BINS, *mean.shape)
    if model.contrast:
        half = model.contrast / 2.0
        bins = np.stack((_shifted(bins, -half), _shifted(bins, half)), axis=1)
    return np.asarray(bins.reshape(-1, mean.shape[-1]), dtype=np.float64)


def _log_odds(rate: FloatArray) -> FloatArray:
    inside = np.clip(rate, _TINY, 1.0 - _TINY)
    return np.asarray(np.log(inside / (1.0 - inside)))


def _shifted(rate: FloatArray, log_odds: FloatArray | float) -> FloatArray:
    """The rate with its log-odds moved; 0 and 1 stay."""
    factor = np.exp(log_odds)
    return np.asarray(rate * factor / (1.0 - rate + rate * factor))


def respelled(section: Any) -> Any:
    """An acceptance section of the models ``beta`` and ``markov`` of earlier versions as a ``chain``."""
    if not isinstance(section, Mapping) or section.get("model") not in ("beta", "markov"):
        return section
    fields = {"alpha" if key == "mean" else key: value for key, value in section.items() if key != "model"}
    enter, leave = fields.get("p_bg"), fields.get("p_gb")
    if isinstance(enter, int | float) and isinstance(leave, int | float) and enter + leave > 0:
        del fields["p_bg"], fields["p_gb"]
        fields |= {"good_share": enter / (enter + leave), "persistence": 1.0 - enter - leave}
    return {"model": "chain", **fields}
