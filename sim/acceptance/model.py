"""How many draft tokens the target accepts: what every model answers, a tree, and a recording.

There is no default: only the user, or a measurement, knows it. Rates are *unconditional*: ``rates[i]`` is the share of
rounds in which the first i+1 drafts were all accepted (vLLM's ``synthetic_acceptance_rates`` and
``vllm:spec_decode_num_accepted_tokens_per_pos / num_drafts``), so they never rise. Every round meets fresh uniform
numbers (see compiled.py), so the formulas are exact.
"""

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numba import njit
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, PrivateAttr

from draftcast.calibration.acceptance.references import continued
from draftcast.errors import ScenarioError
from draftcast.frozen import Count, Faults, Frozen, Many, Nodes, NonEmpty, Probability, Width, wrong
from draftcast.kernels.arrays import FloatArray, IntArray
from draftcast.sim.acceptance.compiled import KIND_RATES, KIND_TRACE, MAX_K, PARAMS

FIRST_POSITION = 1  # the prefill emits the first output token, so no round of a recording starts at position 0


def _non_increasing(rates: tuple[float, ...]) -> tuple[float, ...]:
    for position in range(1, len(rates)):
        if rates[position] > rates[position - 1]:
            message = f"unconditional rates never rise: position {position} exceeds the {rates[position - 1]} before it"
            raise wrong(str(position), rates[position], message)
    return rates


Rates = Annotated[Many[Probability], Field(max_length=MAX_K), AfterValidator(_non_increasing)]


class AcceptanceModel(Frozen):
    """How many draft tokens of a round the target accepts.

    A *round* verifies k draft tokens and always emits one token more than it accepts (the bonus or the corrected
    token). Rates are averages over the rounds that carry a draft, as in vLLM's metrics; rounds without one are not
    counted. k runs from 0 to :data:`MAX_K`. Rates beyond those given go on with the last conditional rate.
    """

    kind: ClassVar[int] = KIND_RATES

    # How well the draft's own confidence tells accepted tokens from rejected ones, for policies that go by it: mean
    # confidence of accepted drafts less that of rejected ones. None: the draft's confidence is not known.
    confidence_discrimination: Probability | None = None
    # How sure the mean acceptance length is: its relative standard error, or over how many rounds it was measured.
    relative_error: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] | None = None
    num_rounds: Count | None = None

    def faults(self) -> Faults:
        if self.relative_error is not None and self.num_rounds is not None:
            yield wrong("num_rounds", self.num_rounds, "give relative_error or num_rounds, not both")

    @abstractmethod
    def unconditional(self, k: int) -> FloatArray:
        """P(the first j + 1 drafts are all accepted), j = 0..k-1. Shape [k]."""

    def conditional(self, k: int) -> FloatArray:
        """P(draft j accepted | those before it were), j = 0..k-1; 0 where that never happens. Shape [k]."""
        rates = self.unconditional(k)
        before = np.concatenate(([1.0], rates))[:k]
        return np.divide(rates, before, out=np.zeros(k), where=before > 0)

    def mean_acceptance_length(self, k: int) -> float:
        """Mean tokens per round with the bonus token: vLLM's 1 + accepted / rounds."""
        return 1.0 + float(self.unconditional(k).sum())

    def draft_share(self, k: int) -> float:
        """Share of a request's rounds that carry a draft when k are asked for: 1, or less for ngram."""
        return 1.0 if check_drafts(k) > 0 else 0.0

    def tokens_per_round(self, k: int) -> float:
        """Mean tokens per round, rounds without a draft (one token each) included."""
        return 1.0 + self.draft_share(k) * (self.mean_acceptance_length(k) - 1.0)

    def known_positions(self) -> int | None:
        """How many draft positions were given; None when the model has rates for any number."""
        listed = getattr(self, "rates", None) or getattr(self, "widths", None)
        return len(listed) if listed is not None else None

    def max_drafts(self) -> int:
        """Largest k the model can answer for."""
        return MAX_K

    def draft_probabilities(self) -> FloatArray:
        """What the engine compares a uniform number with. Shape [rows, max_drafts()], or of one row."""
        return self.conditional(self.max_drafts())

    def parameters(self) -> NDArray[Any]:
        """The rows of ``AcceptanceArrays.params``: ``PARAMS[bands]``."""
        return np.zeros(1, PARAMS)


def check_drafts(k: int, most: int = MAX_K, source: str = "one round") -> int:
    """k as int; ``ScenarioError`` unless 0 <= k <= most."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 0 <= k <= most:
        message = f"must be a whole number from 0 to {most}, the most drafts that {source} covers"
        raise ScenarioError(message, key="num_speculative_tokens", value=k)
    return int(k)


class Tree(AcceptanceModel):
    """A draft tree: drafts of a round are the tree's depths, of which at most one node each is accepted.

    ``alpha`` of one branch, or unconditional ``rates`` per depth as measured with one tree. Alpha alone follows the
    shape of the tree that is simulated; ``widths`` says instead how many children of the accepted node are tried at
    each depth, each accepted with probability ``alpha`` given that its elder siblings were not. Rates hold for the tree
    they were measured with (``tree_width``, ``max_tree_nodes``, ``min_tree_width``; absent: the default tree) and are
    carried over to another. How many nodes are verified (the cost) is the method's business, not this model's. Of a
    text search ``match_probability`` and ``persistence`` say when it finds any, as of a chain; the rates are of those
    rounds.
    """

    model: Literal["tree"]
    rates: Rates | None = None
    alpha: Probability | None = None
    widths: Annotated[Many[Count], Field(max_length=MAX_K)] | None = None
    tree_width: Width | None = None
    max_tree_nodes: Nodes | None = None
    min_tree_width: Width | None = None
    match_probability: Probability | None = None
    persistence: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] | None = None

    def faults(self) -> Faults:
        yield from super().faults()
        if (self.alpha is None) == (self.rates is None):
            yield wrong("alpha", self.alpha, "give exactly one of rates and alpha (alpha with or without widths)")
        if self.widths is not None and self.alpha is None:
            yield wrong("widths", list(self.widths), "goes with alpha, one width per depth")
        for key in ("tree_width", "max_tree_nodes", "min_tree_width"):
            if self.rates is None and getattr(self, key) is not None:
                yield wrong(key, getattr(self, key), "says which tree rates were measured with; alpha needs none")
        if self.persistence is not None and self.match_probability is None:
            yield wrong("persistence", self.persistence, "of matches; give match_probability")

    def max_drafts(self) -> int:
        return MAX_K if self.widths is None else len(self.widths)

    def unconditional(self, k: int) -> FloatArray:
        k = check_drafts(k, self.max_drafts(), "the acceptance tree's depth")
        if self.rates is not None:
            return np.array(continued(self.rates, k))
        return np.asarray(np.cumprod(self.draft_probabilities()[:k]), dtype=np.float64)

    def draft_probabilities(self) -> FloatArray:
        """P(some node at depth d accepted | its parent was); with ``widths`` 1 - (1 - alpha)^width.

        Siblings are tried one after the other (SpecInfer, arXiv 2305.09781, section 4.3; Sequoia, arXiv 2402.12374,
        section 3).
        """
        if self.alpha is None or self.widths is None:
            return super().draft_probabilities()
        # 1 - (1 - alpha) may lose a bit, and a tree of single children is the chain of `constant`, bit for bit.
        alpha, rejected = self.alpha, 1.0 - self.alpha
        return np.array([alpha if width == 1 else 1.0 - np.prod(np.full(width, rejected)) for width in self.widths])


class Trace(AcceptanceModel):
    """Replays accepted drafts (bonus excluded) by output position: min(recorded, drafts), 0 beyond the record.

    The recording is ``<record>.acc_len`` of a ``specdecode_bench`` file: without ``path`` the one the requests come
    from; with it, each request replays a row of that file. It comes with the request table, so the formulas need
    `of_recording`. They replay each request once from output position 1 to the end of its record, in rounds of k, so
    they are exact for requests that run to that end.

    A recording does not tell a round that found no draft from one whose drafts were all rejected. For text searches
    ``match_probability`` says which share of the rounds has a draft (vLLM's drafts over rounds): rounds that accepted
    one do, and of the others as many, drawn at random, as make up that share.
    """

    kind: ClassVar[int] = KIND_TRACE

    model: Literal["trace"]
    record: NonEmpty = "acc_eagle"
    path: NonEmpty | None = None
    match_probability: Probability | None = None
    _recording: tuple[IntArray, NDArray[np.uint8]] | None = PrivateAttr(None)

    def faults(self) -> Faults:
        yield from super().faults()
        if self.num_rounds is not None:
            message = "the rates are the record's own; give relative_error if other traffic may differ from it"
            yield wrong("num_rounds", self.num_rounds, message)

    def of_recording(self, offsets: IntArray | None, lengths: NDArray[np.uint8] | None) -> Self:
        """With a request table's ``acceptance_offsets`` and ``acceptance_lengths``, where it has them."""
        model = self.model_copy()
        if offsets is not None and lengths is not None:
            model._recording = offsets, lengths
        return model

    def unconditional(self, k: int) -> FloatArray:
        at_least, rounds = self._replayed(k)
        return np.asarray(at_least / max(self.draft_share(k) * rounds, 1.0), dtype=np.float64)

    def draft_share(self, k: int) -> float:
        return super().draft_share(k) if self.match_probability is None or k == 0 else self.match_probability

    def missed_share(self, k: int) -> float:
        """Share of the rounds without an accepted draft that have one: 1 where every round drafts.

        Raises ScenarioError: more rounds of the recording accepted a draft than have one.
        """
        if self.match_probability is None or self.match_probability == 1.0 or k == 0:
            return 1.0
        at_least, rounds = self._replayed(k)
        accepted = at_least[0] / max(rounds, 1)
        if accepted > self.match_probability:
            message = f"must be at least {accepted:.4f}: so many rounds of the recording accepted a draft"
            raise ScenarioError(message, key="acceptance.match_probability", value=self.match_probability)
        return float((self.match_probability - accepted) / (1.0 - accepted))

    def _replayed(self, k: int) -> tuple[IntArray, int]:
        if self._recording is None:
            raise ScenarioError("the recorded lengths are needed first; they come with the request trace", key="trace")
        return _replay(*self._recording, check_drafts(k), FIRST_POSITION)

    def draft_probabilities(self) -> FloatArray:
        return np.zeros(0)  # the engine reads the recording instead


@njit(cache=True)
def _replay(offsets: IntArray, lengths: NDArray[np.uint8], k: int, first: int) -> tuple[IntArray, int]:
    """Rounds that accepted at least 1..k drafts, and all rounds, when every record is crossed in rounds of k."""
    at_least = np.zeros(k, dtype=np.int64)
    rounds = 0
    for request in range(len(offsets) - 1):
        at = offsets[request] + first
        while at < offsets[request + 1]:
            accepted = min(k, int(lengths[at]))
            for j in range(accepted):
                at_least[j] += 1
            rounds += 1
            at += accepted + 1
    return at_least, rounds
