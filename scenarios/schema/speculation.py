"""``speculative_config``: vLLM 0.32's own dictionary, key by key, as pasted from a ``vllm serve`` command.

Every key that vLLM takes from a user is taken here. Keys that cannot change a simulated time (which revision of the
weights, which attention backend) are accepted so that the command can be pasted, and ``without_effect`` names them.
``tree_width`` and ``max_tree_nodes`` are draftcast's own (vLLM 0.32 has no tree drafting): the shape of ``eagle_tree``;
``medusa`` and ``ngram`` with either of them draft trees too, ``ngram`` also with ``min_tree_width``, to which its tree
narrows. ``num_speculative_tokens`` is then the tree's depth.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from draftcast.frozen import Count, Faults, Frozen, Many, Nodes, NonEmpty, Probability, Width, in_schema, wrong
from draftcast.scenarios.schema.raw import NAMES
from draftcast.sim.cost.methods import METHODS as methods
from draftcast.sim.cost.methods import Method
from draftcast.yaml_text import yaml_beside

METHODS = tuple(name for name in methods if name != "none")
MTP_METHODS: tuple[str, ...] = tuple(NAMES["mtp"])
# vLLM names the parallel drafters by a base method and `parallel_drafting: true`.
PARALLEL = {"eagle": "p_eagle", "eagle3": "p_eagle", "draft_model": "pard"}
# Marks a field that no simulated time depends on.
UNTIMED = "changes no simulated time"
MAX_SPECULATIVE_TOKENS = 64
# Which engine runs which method, from which version on and up to which; for what is not said nothing is known.
_SUPPORT = yaml_beside(__file__, "support.yaml")
RESEARCH: dict[str, str] = _SUPPORT["research"]
"""Methods that are simulated for every engine, though none has a command for them, and why none has."""
LACKS: dict[str, dict[str, dict[str, Any]]] = _SUPPORT["lacks"]

_Entry = Annotated[tuple[int, int, int], Field(strict=False)]
Schedule = Annotated[tuple[_Entry, ...], Field(strict=False, min_length=1)]


def cannot_run(engine: str, number: tuple[int, ...], method: str) -> str | None:
    """Why a version of an engine cannot run a method; None where it can, or nothing is known."""
    lack = LACKS.get(engine, {}).get(method)
    if lack is None or [*number] < lack.get("since", []) or ("until" in lack and [*number] >= lack["until"]):
        return None
    return str(lack["why"])


class SpeculativeConfig(Frozen):
    """One method and how many draft tokens it makes; names and meaning are vLLM's."""

    method: Annotated[NonEmpty, in_schema(lambda: (*METHODS, *MTP_METHODS))] | None = None
    model: NonEmpty | None = None
    """The draft head or draft model."""
    num_speculative_tokens: Annotated[int, Field(ge=1, le=MAX_SPECULATIVE_TOKENS)] | None = None
    """Draft tokens a round, k."""
    num_speculative_tokens_per_batch_size: Schedule | None = None
    """A schedule: [[first, last, k], ...] by running requests."""
    draft_tensor_parallel_size: Count | None = None
    quantization: NonEmpty | None = None
    kv_cache_dtype: NonEmpty | None = None
    max_model_len: Count | None = None
    enforce_eager: Annotated[bool | None, UNTIMED] = None
    parallel_drafting: bool = False
    disable_eagle_block_drop: bool = False
    disable_lookahead_block_hashes: bool = False
    """vLLM 0.33: compute the last block of a prefix hit again, as the versions before do."""
    prompt_lookup_max: Annotated[Count | None, UNTIMED] = None
    prompt_lookup_min: Annotated[Count | None, UNTIMED] = None
    suffix_decoding_max_tree_depth: Count = 24
    suffix_decoding_max_cached_requests: Annotated[int, Field(ge=0), UNTIMED] = 10000
    suffix_decoding_max_spec_factor: Annotated[float, Field(ge=0, allow_inf_nan=False), UNTIMED] = 1.0
    suffix_decoding_min_token_prob: Annotated[Probability, UNTIMED] = 0.1
    enable_suffix_decoding: bool = False
    """Method arctic: suffix decoding takes over a round if it expects as many accepted drafts as the LSTM makes."""
    suffix_cache_max_depth: Count = 64
    """Method arctic: tokens of a match and its draft together."""
    rejection_sample_method: Literal["standard", "synthetic", "block"] = "standard"
    synthetic_acceptance_rates: Many[Probability] | None = None
    synthetic_acceptance_length: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    draft_sample_method: Annotated[Literal["greedy", "probabilistic"], UNTIMED] = "greedy"
    use_local_argmax_reduction: Annotated[bool, UNTIMED] = False
    use_heterogeneous_vocab: Annotated[bool, UNTIMED] = False
    disable_padded_drafter_batch: bool = False
    """Draft for the exact number of rows; vLLM before 0.33 then does not schedule asynchronously."""
    enable_adaptive_verification: bool = False
    dspark_draft_topk: Annotated[Count | None, UNTIMED] = None
    moe_backend: Annotated[str | None, UNTIMED] = None
    attention_backend: Annotated[str | None, UNTIMED] = None
    revision: Annotated[str | None, UNTIMED] = None
    code_revision: Annotated[str | None, UNTIMED] = None
    index_share_for_mtp_iteration: Annotated[bool | None, UNTIMED] = None
    draft_load_config: Annotated[dict[str, Any] | None, UNTIMED] = None
    tree_width: Width | None = None
    max_tree_nodes: Nodes | None = None
    min_tree_width: Width | None = None

    @property
    def resolved_method(self) -> str:
        """The simulator's method name: vLLM's inference when ``method`` is absent, ``parallel_drafting`` folded in."""
        method = self.method or ("ngram" if self.model in ("ngram", "[ngram]") else "draft_model")
        if method in MTP_METHODS:
            method = "mtp"
        return PARALLEL.get(method, method) if self.parallel_drafting else method

    @property
    def k(self) -> int:
        """Draft tokens per round at most: ``num_speculative_tokens``, or what a suffix search may draft."""
        if self.head_drafts:
            return max(self.head_drafts, min(self.suffix_cache_max_depth, MAX_SPECULATIVE_TOKENS))
        return self.num_speculative_tokens or min(self.suffix_decoding_max_tree_depth, MAX_SPECULATIVE_TOKENS)

    @property
    def head_drafts(self) -> int:
        """Draft tokens of the head, where a search may take its rounds over; 0: there is no such search."""
        return (self.num_speculative_tokens or 0) if self.enable_suffix_decoding else 0

    @property
    def tree(self) -> Method | None:
        """The method with the shape of the tree that it drafts; None: it drafts chains."""
        method = methods[self.resolved_method]
        if not (method.is_tree or self.tree_width or self.max_tree_nodes or self.min_tree_width):
            return None
        width, narrowest = self.tree_width or method.tree_width, self.min_tree_width
        nodes = self.max_tree_nodes or method.max_tree_nodes
        return method.with_tree(width, nodes, 0 if narrowest in (None, width) else narrowest)

    @property
    def drafting(self) -> str:
        """The method's name where engines are told apart by what they run: that of a tree ends in ``_tree``."""
        method = methods[self.resolved_method]
        return method.name if self.tree is None or method.is_tree else f"{method.name}_tree"

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Keys the user set that no simulated time depends on: show them, so that nobody tunes them here."""
        fields = type(self).model_fields
        keys = [key for key in fields if key in self.model_fields_set and UNTIMED in fields[key].metadata]
        if self.rejection_sample_method == "block":
            keys.append("rejection_sample_method")
        if self.num_speculative_tokens is not None and "suffix_decoding_max_tree_depth" in self.model_fields_set:
            keys.append("suffix_decoding_max_tree_depth")
        return tuple(keys)

    @property
    def synthetic_rates(self) -> tuple[float, ...] | None:
        """Unconditional acceptance per position that ``rejection_sample_method: synthetic`` prescribes, else None.

        A given mean length becomes vLLM's minimum-variance schedule: whole positions certain, one fractional, rest 0.
        """
        if self.synthetic_acceptance_rates is not None:
            return self.synthetic_acceptance_rates
        if self.synthetic_acceptance_length is None:
            return None
        accepted = self.synthetic_acceptance_length - 1
        return tuple(min(1.0, max(0.0, accepted - position)) for position in range(self.k))

    @field_validator("method")
    @classmethod
    def _known_method(cls, value: str | None) -> str | None:
        if value is None or value in METHODS or value in MTP_METHODS:
            return value
        if value == "dflash2":
            raise wrong("", value, "DFlash2 is a kind of draft head: give method dflash, and the head as model")
        models = ", ".join(MTP_METHODS) if value.endswith("mtp") else f"{MTP_METHODS[0]} and vLLM's other names of mtp"
        raise wrong("", value, f"unknown method; choose from {', '.join(METHODS)}, {models} (no speculation: null)")

    @field_validator("num_speculative_tokens_per_batch_size")
    @classmethod
    def _schedule_covers_every_batch(cls, value: Schedule | None) -> Schedule | None:
        if value is None:
            return None
        ordered = tuple(sorted(value))
        end = 0
        for first, last, k in ordered:
            if first < 1 or first > last or k < 0:
                raise wrong("", [first, last, k], "each entry is [first, last, k] with 1 <= first <= last and k >= 0")
            if first <= end:
                raise wrong("", [first, last, k], f"batch sizes overlap with the entry that ends at {end}")
            end = last
        if ordered[0][0] != 1:
            raise wrong("", list(ordered[0]), "the first entry must start at batch size 1")
        return ordered

    def faults(self) -> Faults:
        method = self.resolved_method
        if methods[method].needs_draft_model and self.model is None:
            yield wrong("model", None, f"method {method} needs a draft model")
        if self.num_speculative_tokens is None and method != "suffix":
            message = f"required for method {method}: draft tokens per round, 1 or more"
            yield self.refusal("num_speculative_tokens", message)
        if self.parallel_drafting and (self.method or "draft_model") not in (*PARALLEL, "p_eagle", "pard"):
            yield wrong("parallel_drafting", True, "only for methods eagle, eagle3 and draft_model")
        if self.use_heterogeneous_vocab:
            if not methods[method].needs_draft_model:
                yield wrong("use_heterogeneous_vocab", True, "only with method draft_model")
            if self.draft_sample_method != "greedy" or self.use_local_argmax_reduction:
                key = "use_local_argmax_reduction" if self.use_local_argmax_reduction else "draft_sample_method"
                yield wrong(key, getattr(self, key), "not with use_heterogeneous_vocab (vLLM refuses it)")
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if low is not None and high is not None and low > high:
            yield wrong("prompt_lookup_min", low, f"must not exceed prompt_lookup_max = {high}")
        if self.enable_adaptive_verification and method != "dspark":
            yield wrong("enable_adaptive_verification", True, "only with method dspark (vLLM refuses it)")
        if self.enable_adaptive_verification and self.num_speculative_tokens_per_batch_size is not None:
            yield wrong("enable_adaptive_verification", True, "not with num_speculative_tokens_per_batch_size")
        if method != "arctic" and self.enable_suffix_decoding:
            yield wrong("enable_suffix_decoding", True, "only with method arctic")
        default = type(self).model_fields["suffix_cache_max_depth"].default
        if not self.enable_suffix_decoding and self.suffix_cache_max_depth != default:
            yield self.refusal("suffix_cache_max_depth", "only with enable_suffix_decoding")
        trees = ", ".join(sorted(name for name in METHODS if methods[name].growth))
        for key in ("tree_width", "max_tree_nodes"):
            if not methods[method].growth and getattr(self, key) is not None:
                yield wrong(key, getattr(self, key), f"only with methods {trees}")
        width = self.tree_width or methods[method].tree_width
        if self.min_tree_width is not None and (methods[method].growth != "breadth" or self.min_tree_width > width):
            yield wrong("min_tree_width", self.min_tree_width, f"only with method ngram, at most tree_width = {width}")
        # A tree that narrows over more levels than it has nodes is another.
        if self.tree is not None and self.tree.max_tree_nodes < self.k and not self.tree.min_tree_width:
            nodes = self.tree.max_tree_nodes
            yield wrong("max_tree_nodes", nodes, f"a tree of depth {self.k} has at least as many nodes")
        yield from self._synthetic_faults()

    def _synthetic_faults(self) -> Faults:
        rates, length = self.synthetic_acceptance_rates, self.synthetic_acceptance_length
        if self.rejection_sample_method != "synthetic":
            if rates is not None or length is not None:
                key = "synthetic_acceptance_rates" if rates is not None else "synthetic_acceptance_length"
                yield wrong(key, rates or length, "only with rejection_sample_method: synthetic")
            return
        if self.tree is not None:
            yield wrong("rejection_sample_method", "synthetic", "prescribes a chain's acceptance, not a tree's")
        if (rates is None) == (length is None):
            message = "needs exactly one of synthetic_acceptance_rates and synthetic_acceptance_length"
            yield self.refusal("rejection_sample_method", message)
        if rates is not None and (len(rates) != self.k or list(rates) != sorted(rates, reverse=True)):
            yield wrong("synthetic_acceptance_rates", list(rates), f"needs {self.k} non-increasing rates")
        if length is not None and length > self.k + 1:
            yield wrong("synthetic_acceptance_length", length, f"at most num_speculative_tokens + 1 = {self.k + 1}")
