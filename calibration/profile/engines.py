"""Engine generations: what a step of a running engine costs besides its kernels, by engine and version.

One file a generation stands in ``calibration/engines``: the versions it covers, how it runs by default, and physical
constants that hold on any device, each beside its source.
"""

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter

from draftcast.calibration.profile.hardware import HardwareSpec, Section
from draftcast.calibration.profile.roofline import Seconds
from draftcast.errors import HardwareError
from draftcast.files import digest, read_text
from draftcast.kernels.model.spec import ModelSpec
from draftcast.yaml_text import parse_yaml, validated

FOLDER = Path(__file__).parents[1] / "engines"
DEFAULT_VERSION = "vllm 0.32"
EngineRule = Literal[
    "self_preempted_pass",  # a request of the lowest priority that preempts itself lets those behind it run
    # A block's hash covers the tokens behind it that EAGLE's and MTP's heads read, so no hit is computed again.
    "hashes_cover_lookahead",
    "caches_outputs",  # where drafts are made, blocks are cached with the output that fills them also without async
    # DFlash and DSpark draft beside the target's rows and need no last prefix block again; a pass of theirs must hold
    # the rows of all requests that run.
    "blocks_drafted_apart",
    "skips_unused_drafts",  # nothing is drafted in a step behind which nobody can use it
    "unpadded_async",  # `disable_padded_drafter_batch` leaves scheduling asynchronous
    "draft_bounds_length",  # `max_model_len` is at most the draft model's
    # With prefixes cached, blocks beside states of gated DeltaNet hold whole chunks of the kernel that leaves these.
    "aligns_cached_states",
    "request_limit_cuts_graphs",  # no larger batch is captured than a limit on running requests that was asked for
]
"""What a version does that its generation did not from the first, by the name in ``calibration/engines``."""
CudagraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
Ratio = Annotated[float, Field(ge=1.0, allow_inf_nan=False)]
Value = TypeVar("Value")
_VERSION = re.compile(r"(?P<engine>[a-z]+)[ =]+v?(?P<number>\d+(?:\.\d+)*)\S*(?: (?P<runner>v[12]))?", re.IGNORECASE)


@dataclass(frozen=True)
class Constant(Section):
    """One fitted or assumed number: its source, whether one set-up alone shows it, and methods that have their own."""

    value: Seconds
    source: Annotated[str, Field(min_length=1)]
    provisional: bool = False
    methods: dict[str, Seconds] = field(default_factory=dict)
    methods_until: str = ""  # the last version whose methods have their own

    def of(self, method: str, version: str) -> float:
        is_own = method in self.methods and _is_until(version, self.methods_until)
        return self.methods[method] if is_own else self.value


@dataclass(frozen=True)
class Constants(Section):
    """Seconds a step takes besides its kernels."""

    # The host's work (schedule, inputs, outputs); asynchronously scheduled, only what exceeds the device's time shows.
    host_step_s: Constant  # on a step
    host_request_s: Constant  # and on each request of it
    # An API server's work, beside the engine; one process serves one after the other.
    front_end_request_s: Constant  # on a request: HTTP, template, hand-over
    front_end_token_s: Constant  # on a token of its prompt
    front_end_output_s: Constant  # and on each piece of an answer that it streams
    # Replaying one full CUDA graph of `GRAPH_KERNELS`, others in proportion: inputs copied, launch, waits for kernels.
    full_graph_s: Constant
    piecewise_layer_s: Constant  # each layer of a step of piecewise graphs, whose attention runs between two graphs
    eager_launch_s: Constant  # operator by operator, the host's share of launching one kernel: a step's least time
    eager_gap_s: Constant  # what each kernel adds to the device's time then: the gap before it, lost fusion
    draft_pass_s: Constant  # a pass of the draft besides its kernels: metadata, choice of the token, index work
    verify_greedy_s: Constant  # verification besides the target's pass and the logits' kernels
    verify_sampled_s: Constant
    ngram_step_s: Constant  # text search on the host, each step
    ngram_request_s: Constant  # each request
    ngram_token_s: Constant  # each context token
    ngram_gpu_step_s: Constant  # on the device, besides reading the text
    suffix_request_s: Constant  # suffix decoding, each request
    uncaptured_launch_s: Constant | None = None  # each kernel beyond the captured sizes; None: nothing is compiled
    # The host's work beside ``host_step_s`` on a step that verifies drafts, in versions that overlap no such step.
    host_verify_request_s: Constant | None = None  # on each request: which tokens were accepted
    host_verify_tree_s: Constant | None = None  # and on trees: plans of an attention with masks
    expert_choice_s: Constant | None = None  # choosing a layer's experts by operations of PyTorch, not by one kernel


GRAPH_KERNELS = 400
"""Kernels of a pass of an 8B model of 32 to 36 layers, to which `Constants.full_graph_s` was fitted."""


@dataclass(frozen=True)
class MemoryReserve(Section):
    """GiB of a GPU's memory that weights and KV cache do not get where a scenario gives no share."""

    # A GPU's memory in GiB below which a row holds; GiB; GiB more for each GPU of a replica.
    base: tuple[tuple[float, float, float], ...]
    token: float = 0.0  # each token of a step, of 2,048 at least
    captured: float = 0.0  # each request of the largest captured batch
    # Captured requests below which a row holds; GiB more of each for each data-parallel rank that steps together.
    captured_rank: tuple[tuple[float, float], ...] = ((math.inf, 0.0),)
    eager_too: bool = False  # captured requests count where nothing is captured, too
    prompt_graphs: float = 0.0  # where prompts are captured
    latent_prompt_graphs: float = 0.0  # where those of a model with latent attention are
    least: float = 0.0  # on GPUs of more than 60 GiB
    head: float = 0.0  # above that, for a draft head
    draft_model: float = 0.0  # or for a draft model
    ranks: float = 0.0  # where data-parallel ranks step together


Latents = Literal["dense", "sparse", "dense, Hopper", "sparse, Hopper"]
"""Attention over all latents or those that an indexer chooses, and whether on GPUs that FlashMLA was written for."""

BLOCKS = "fp8 by blocks"  # what `EngineGeneration.step_ratio` calls checkpoints with a scale for each block of weights


@dataclass(frozen=True)
class EngineGeneration(Section):
    """Versions of an engine that run a step alike. What is by version holds from that version on (`since`)."""

    schema_version: Literal[1]
    name: str
    engine: str
    first: str  # versions covered, both included
    last: str  # with its patches
    async_scheduling: bool  # whether step n+1 is scheduled before step n is known, without speculation
    async_speculation: dict[str, bool]  # and with it, by version
    cudagraph_mode: dict[str, CudagraphMode]  # the default, by version
    # Bytes that the sampler holds of a logit in the start's profiling pass, by version.
    sampler_bytes: dict[str, Annotated[float, Field(gt=0.0, allow_inf_nan=False)]]
    full_graphs_of_any_k: bool  # whether uniform batches of fewer than k drafts, and policies that vary k, have them
    constants: Constants
    # Requests and tokens of a step by default, by version: a GPU's GiB of memory below which a row holds, and both.
    batch_limits: dict[str, tuple[tuple[float, int, int], ...]]
    compressed_requests: int | None = None  # requests of models with compressed attention, where they are others
    drafting_requests: int | None = None  # and, of any other, with speculation
    limits_of_ranks: bool = False  # whether data-parallel ranks that step together divide these tokens and requests
    runner: Literal["", "v1", "v2"] = ""  # vLLM's model runner where two exist beside each other
    plain_until: str | None = None  # the last version whose models with experts or states the generation before runs
    lacks_until: dict[str, str] = field(default_factory=dict)  # by method, the last version that the one before runs
    # By method, from when it is asynchronous by default where that is not from the first, or not at all otherwise.
    async_since: dict[str, str] = field(default_factory=dict)
    draft_graphs: Literal["FULL", "PIECEWISE"] = "FULL"  # CUDA graphs of a draft's passes, by default
    graphless_drafts: tuple[str, ...] = ()  # methods that have none: the host launches each kernel of their drafts
    draft_loop_since: str | None = None  # the version from which one graph holds EAGLE's passes behind the first
    batch_expansion: bool = False  # whether each verified row runs as a sequence of its own and reads all its context
    prompts_alone: bool = False  # whether prompts run in steps of their own while decoding waits
    # Whether room is kept for the output of running requests when others are admitted; where blocks run out all the
    # same, the request with the fewest output tokens is preempted and waits behind all others.
    retracts: bool = False
    pads_searches: bool = False  # whether a request without a match verifies as many rows as a text search may draft
    memory_beside: bool = False  # whether activations and CUDA graphs lie beside the share of weights and KV cache
    memory_reserve: dict[str, MemoryReserve] = field(default_factory=dict)  # left to them by default, by version
    multimodal_share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # of the default share, what multimodal models get
    amd_context_share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # of any, on AMD with over 8,192 context tokens
    graphs_counted_since: str | None = None  # CUDA graphs are counted before the KV cache is sized; None: on top of it
    # Bytes held of each of `max_num_seqs` and vocabulary token, where counted before the KV cache is sized, by version.
    request_state_bytes: dict[str, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]] = field(default_factory=dict)
    rules_since: dict[EngineRule, str] = field(default_factory=dict)  # the version from which a rule holds
    full_drafts: tuple[str, ...] = ()  # methods whose draft passes all run, however few drafts a schedule asks for
    schedules_until: dict[str, str] = field(default_factory=dict)  # by method, the last version that keeps schedules
    fuses_quantisation_since: str | None = None  # compiled steps quantise to fp8 in the norm or activation before
    # By format, the last version that runs experts by Triton's kernels where they were timed; else by the fastest.
    triton_experts_until: dict[str, str] = field(default_factory=dict)
    # The most experts of a group among which one kernel chooses, if all are a power of two: by version and by
    # transformers' class of the model (any: every other one).
    choice_kernels: dict[str, dict[str, int]] = field(default_factory=dict)
    choice_sizes: tuple[int, ...] = ()  # numbers of experts in one group that have a kernel of their own
    # The most rows of a step whose shared experts run beside the routed ones, by version, on these vendors' devices.
    shared_experts_beside: dict[str, Annotated[int, Field(ge=0)]] = field(default_factory=dict)
    beside_vendors: tuple[str, ...] = ("NVIDIA", "AMD")
    own_all_reduces_since: str | None = None  # the version from which its all-reduces are those timed of it
    # By GPUs and transformers' class of a model, the version from which FlashInfer's kernel, TensorRT-LLM's, runs its
    # all-reduces with the residual and the norm behind them, of up to so many rows; by version, devices without.
    fused_all_reduces: dict[Literal["Hopper", "Blackwell"], dict[str, str]] = field(default_factory=dict)
    fused_rows: int = 0
    unfused_devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # Of models with linear attention layers: memory for states over memory for KV, each a pool of its own, and states
    # that room is kept for with a request's prefixes cached, by version; None: one pool.
    state_pool_ratio: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = None
    state_slots: dict[str, Annotated[int, Field(ge=1)]] = field(default_factory=dict)
    caches_states_async: dict[str, bool] = field(default_factory=dict)  # whether models whose states it caches run so
    # Step times of models with latent or sparse attention over those of the timed kernels, by version and kind, if any.
    latent_ratio: dict[str, dict[Latents, Ratio]] = field(default_factory=dict)
    ratio_vendors: tuple[str, ...] = ("NVIDIA", "AMD")  # whose devices these are
    # Of sparse latents (DeepSeek-V3.2, GLM-5), by version, compute capabilities in whole numbers on which
    # ``kv_cache_dtype: auto`` is fp8, by transformers' class of the model (any: every one), on which fp8 is packed with
    # its scales, the rotary key in 16 bits (vLLM's ``fp8_ds_mla``), and on which there is no other format.
    fp8_latents: dict[str, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    packed_latents: dict[str, tuple[int, ...]] = field(default_factory=dict)
    no_wide_latents: dict[str, tuple[int, ...]] = field(default_factory=dict)
    block_ratio: dict[str, dict[str, Ratio]] = field(default_factory=dict)  # of fp8 by blocks, by version and device
    # By vendor, the version from which experts in fp8 by blocks run where ranks cut the blocks; else it does not start.
    cuts_blocks_since: dict[str, str] = field(default_factory=dict)
    # The most requests of a captured batch, where rows are not limited instead, by version: a GPU's GiB of memory below
    # which a row holds, of fewer than four GPUs, of four or more.
    max_graph_requests: dict[str, tuple[tuple[float, int, int], ...]] = field(default_factory=dict)
    latent_prompt_rows: dict[str, int] = field(default_factory=dict)  # the most of a captured prompt with latents
    # The default with speculation and of multimodal models, where it is another; with DP attention, pipelines and what
    # `graphs_hold_prompts` excludes, prompts are in no graph of an engine that runs them alone.
    drafting_cudagraph_mode: dict[str, CudagraphMode] = field(default_factory=dict)
    multimodal_cudagraph_mode: dict[str, CudagraphMode] = field(default_factory=dict)

    def follows(self, rule: EngineRule, version: str) -> bool:
        return is_since(version, self.rules_since.get(rule))

    def step_ratio(
        self, version: str, model: ModelSpec, weight_dtype: str, hardware: HardwareSpec
    ) -> tuple[str, float]:
        """What is slower than timed under a version, and a model's step times over those of the timed kernels.

        Of two kinds the larger one: each was seen with the other. Attention has none where it is compressed, whose
        kernels came with the model (DeepSeek-V4, three sources), and beside states (Kimi-Linear, one source).
        """
        ratios = {"": 1.0}
        as_timed = model.has_plain_attention or model.is_hybrid or model.kv_compression > 0
        if not as_timed and hardware.vendor in self.ratio_vendors:
            is_dense = model.is_mla and not model.has_latent_indexer
            kinds: tuple[Latents, Latents] = ("dense", "dense, Hopper") if is_dense else ("sparse", "sparse, Hopper")
            kind = kinds[hardware.is_hopper]
            ratios[kind] = since(self.latent_ratio, version, {}).get(kind, 1.0)
        if model.weight_block is not None and weight_dtype == model.quantization:
            ratios[BLOCKS] = since(self.block_ratio, version, {}).get(hardware.name, 1.0)
        return max(ratios.items(), key=itemgetter(1))

    def caches_in_fp8(self, version: str, model: ModelSpec, hardware: HardwareSpec) -> bool:
        """Whether the default format of a model's KV cache is fp8, whatever its weights are in."""
        if model.kv_compression:  # DeepSeek-V4, on every device
            return True
        by_class = since(self.fp8_latents, version, {})
        return _concerns((*by_class.get("any", ()), *by_class.get(model.architecture, ())), model, hardware)

    def packs_latents(self, version: str, model: ModelSpec, hardware: HardwareSpec) -> bool:
        """Whether fp8 latents are packed with their scales."""
        return model.kv_compression > 0 or _concerns(since(self.packed_latents, version, ()), model, hardware)

    def has_wide_latents(self, version: str, model: ModelSpec, hardware: HardwareSpec) -> bool:
        """Whether a model's latents may be in 16 bits."""
        return not _concerns(since(self.no_wide_latents, version, ()), model, hardware)

    def runs(self, version: str, method: str, *, is_plain: bool) -> bool:
        """Whether it runs a method by default, of a model without experts and states (``is_plain``) or with them."""
        lasts = (self.lacks_until.get(method), None if is_plain else self.plain_until)
        return not any(last is not None and _is_until(version, last) for last in lasts)

    def keeps_schedule(self, version: str, method: str) -> bool:
        """Whether it drafts by a schedule of draft lengths that it is given, or k tokens always."""
        last = self.schedules_until.get(method)
        return last is None or _is_until(version, last)

    def triton_experts(self, version: str) -> tuple[str, ...]:
        """Formats whose experts a version runs by Triton's kernels."""
        return tuple(dtype for dtype, last in self.triton_experts_until.items() if _is_until(version, last))

    def expert_choice_s(self, version: str, model: ModelSpec, vendor: str) -> float:
        """Seconds a layer that choosing experts by scores with a bias takes beyond one kernel, of NVIDIA's GPUs."""
        constant, groups, experts = self.constants.expert_choice_s, model.num_expert_groups, model.num_experts
        if constant is None or vendor != "NVIDIA" or not (model.router_bias and groups):
            return 0.0
        by_class = since(self.choice_kernels, version)
        most = by_class.get(model.architecture, by_class["any"])
        has_kernel = experts.bit_count() == 1 and experts <= groups * most
        return 0.0 if has_kernel or (groups == 1 and experts in self.choice_sizes) else constant.value

    def fuses_all_reduces(self, version: str, model: ModelSpec, hardware: HardwareSpec) -> bool:
        """Whether one kernel runs a model's all-reduces and the norms behind them."""
        kind: Literal["Hopper", "Blackwell"] = "Hopper" if hardware.is_hopper else "Blackwell"
        first = self.fused_all_reduces.get(kind, {}).get(model.architecture)
        is_known = int(hardware.compute_capability) in (9, 10)
        is_unfused = hardware.name in since(self.unfused_devices, version, ())
        return is_known and not is_unfused and is_since(version, first)

    def shared_rows(self, version: str, vendor: str) -> int:
        """The most rows of a step whose shared experts run beside the routed ones."""
        return since(self.shared_experts_beside, version, 0) if vendor in self.beside_vendors else 0

    @property
    def provisional(self) -> tuple[str, ...]:
        """Names of the constants that were seen in one set-up only, or assumed."""
        return tuple(name for name, constant in vars(self.constants).items() if constant and constant.provisional)

    def checksum(self) -> str:
        """SHA-256 over every number and source; a run's manifest holds it."""
        return digest(asdict(self))


@functools.cache
def generation_of(version: str, method: str = "none", *, is_plain: bool = True) -> EngineGeneration:
    """The generation of an engine's version, as ``vllm 0.32``, ``sglang 0.5.6`` or, with its runner, ``vllm 0.32 v1``.

    ``method``, ``is_plain``: as of `EngineGeneration.runs`. Raises HardwareError that lists the versions covered.
    """
    engine, number, runner = parse_version(version)
    of_engine = [entry for entry in generations() if entry.engine == engine and _number(entry.first) <= number]
    for generation in sorted(of_engine, key=lambda entry: _number(entry.first), reverse=True):
        runs = generation.runner == runner if runner else generation.runs(version, method, is_plain=is_plain)
        if runs and _is_until(version, generation.last):
            return generation
    raise _unknown(version)


@functools.cache
def parse_version(version: str) -> tuple[str, tuple[int, ...], str]:
    """Engine, number and runner ("" where none is named). Raises HardwareError where it is no engine and version."""
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise _unknown(version)
    return match["engine"].lower(), _number(match["number"]), (match["runner"] or "").lower()


@functools.cache
def generations() -> tuple[EngineGeneration, ...]:
    """Every bundled generation. Raises HardwareError for a bad file."""
    record, kind = TypeAdapter(EngineGeneration), HardwareError
    texts = {str(path): read_text(path, kind) for path in sorted(FOLDER.glob("*.yaml"))}
    return tuple(validated(record, parse_yaml(text, file, kind), file, kind) for file, text in texts.items())


def _concerns(capabilities: tuple[int, ...], model: ModelSpec, hardware: HardwareSpec) -> bool:
    return model.has_latent_indexer and int(hardware.compute_capability) in capabilities


def graphs_hold_prompts(model: ModelSpec, hardware: HardwareSpec) -> bool:
    """Whether SGLang's default holds a model's prompts in CUDA graphs (docs.sglang.io, Piecewise CUDA Graph)."""
    return hardware.vendor == "NVIDIA" and not model.has_latent_indexer


def since(values: Mapping[str, Value], version: str, default: Value | None = None) -> Value:
    """What holds from the latest of some versions on that is not after this one; ``default`` where none is."""
    number = parse_version(version)[1]
    holding = (value for first, value in reversed(list(values.items())) if number >= _number(first))
    return next(holding) if default is None else next(holding, default)


@functools.cache
def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def is_since(version: str, first: str | None) -> bool:
    """Whether a version is ``first`` or later; none is later than None."""
    return first is not None and parse_version(version)[1] >= _number(first)


def _is_until(version: str, last: str) -> bool:
    """Whether a version is not after ``last`` with its patches."""
    return parse_version(version)[1][: last.count(".") + 1] <= _number(last)


def _unknown(version: str) -> HardwareError:
    covered = sorted(generations(), key=lambda entry: (entry.engine != "vllm", _number(entry.first)))
    names = (f"{entry.engine} {entry.first} to {entry.last}" for entry in covered if entry.runner != "v2")
    message = f"must be an engine and its version; known: {', '.join(names)}"
    return HardwareError(f"{message}; vLLM's model runner may follow, as in vllm 0.32 v1", key="version", value=version)
