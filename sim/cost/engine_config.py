"""One replica's engine under vLLM's names: the record that step cost, memory and scheduler are made from."""

from dataclasses import dataclass

from draftcast.calibration.profile import engines
from draftcast.calibration.profile.engines import is_since, since
from draftcast.errors import ScenarioError
from draftcast.kernels.model.dtypes import activation_bytes, kv_dtype, weight_dtype, wide_dtype
from draftcast.kernels.model.spec import WINDOWS
from draftcast.sim.cost.methods import METHODS, DraftPlan, Method, by_rule

COUNTS = (
    "tensor_parallel_size pipeline_parallel_size data_parallel_size decode_context_parallel_size "
    "draft_tensor_parallel_size max_num_batched_tokens max_num_seqs max_model_len api_server_count "
    "num_speculative_tokens"
)
"""Fields that must be at least 1, drafts only of a method that makes any."""


@dataclass(frozen=True)
class EngineConfig:
    """The engine's flags, resolved: nothing is left to a default that depends on model or device.

    What is said of a draft's fields holds where they are left out.
    """

    version: str = engines.DEFAULT_VERSION  # engine and version, as ``vllm 0.32``
    is_moe: bool = False  # whether the target has experts
    is_hybrid: bool = False  # whether some of its layers keep states; with experts, version and method the generation
    is_multimodal: bool = False  # of the target, as the next what the default CUDA graph mode goes by
    graphs_hold_prompts: bool = True  # `draftcast.calibration.profile.engines.graphs_hold_prompts`
    method: Method = METHODS["none"]  # what drafts; of a tree method with its width and nodes
    num_speculative_tokens: int = 0  # the configured k, of a tree its depth; 0 with method ``none``
    is_dynamic: bool = False  # drafts vary by a schedule or policy, so one-token admissions are not padded
    drafts_in_full: bool = False  # all draft passes run in each step, however few drafts a schedule asks for
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1  # ranks with a scheduler of their own; those of a model with experts step together
    enable_expert_parallel: bool = False  # whole experts are spread over all tensor- and data-parallel ranks
    expert_parallel_size: int | None = None  # or over so many groups of ranks, which share the matrices of theirs
    decode_context_parallel_size: int = 1  # tensor-parallel ranks that share out the tokens of the KV cache
    draft_tensor_parallel_size: int = 0  # the target's
    weight_dtype: str = "bf16"  # a format of `WEIGHT_BYTES`
    draft_weight_dtype: str = ""  # the target's, but 16 bits where that is quantised, as published heads and drafts are
    kv_dtype: str = "auto"  # a format of `KV_BYTES`; ``auto`` is the activations' format
    draft_kv_dtype: str = ""  # the target's
    packs_latents: bool = False  # whether latents in fp8 stand beside their scales, `ModelSpec.kv_bytes_per_layer`
    cuts_blocks: bool = False  # whether ranks cut the blocks of experts in fp8, which Triton's kernels alone run
    max_model_len: int = 8192
    max_num_seqs: int = 256
    request_limit: int | None = None  # ``max_num_seqs`` where no larger batch is captured because it was asked for
    max_num_batched_tokens: int = 8192
    max_num_scheduled_tokens: int = 0  # 0: ``max_num_batched_tokens``
    block_size: int = 16
    gpu_memory_utilization: float | None = None  # None: the engine's default, `draftcast.sim.cost.memory.memory_share`
    num_gpu_blocks: int = 0  # vLLM's null block among them; 0: as many as fit into memory
    fixed_blocks: int = 0  # that a running request holds besides its context's (states of linear attention layers)
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    scheduling_policy: str = "fcfs"
    temperature: float = 1.0  # of the requests; 0: drafts are verified greedily
    async_scheduling: bool | None = None  # None: as the generation runs the method by default
    api_server_count: int = 1
    enforce_eager: bool = False
    cudagraph_mode: str = ""  # vLLM's name; empty: the generation's default, NONE with ``enforce_eager``
    max_cudagraph_capture_size: int | None = None  # None: vLLM's default, see `capture_sizes`
    sliding_window: int = 0  # tokens that the target's layers with a window see, 0: it has none
    window_kind: int = 0  # place in `WINDOWS`
    window_groups: int = 0  # groups of such layers that give back blocks behind it (without prefix caching)
    disable_eagle_block_drop: bool = False  # EAGLE family: keep the last block of a prefix hit
    disable_lookahead_block_hashes: bool = False  # vLLM 0.33: drop it as the versions before
    num_nextn_layers: int = 0  # MTP modules of the target

    def __post_init__(self) -> None:
        """Fill what follows from other fields.

        Raises ScenarioError (a number out of range), ModelError (number format), HardwareError (engine or version).
        """
        target = weight_dtype(self.weight_dtype)
        kv = _kv_dtype(self.kv_dtype, target)
        engine = self.generation
        runs_async = self.overlaps_speculation if self.method.drafts else engine.async_scheduling
        runs_async &= self.pipeline_parallel_size == 1 or engine.runner == "v2"
        if engine.caches_states_async and self.is_hybrid and self.enable_prefix_caching:
            runs_async &= since(engine.caches_states_async, self.version)
        limited = engine.drafting_cudagraph_mode if self.method.drafts else {}
        limited = engine.multimodal_cudagraph_mode if self.is_multimodal else limited
        mode = since(limited or engine.cudagraph_mode, self.version)
        holds_prompts = self.graphs_hold_prompts and max(self.lockstep_ranks, self.pipeline_parallel_size) == 1
        if engine.prompts_alone and not holds_prompts:
            mode = "FULL_DECODE_ONLY"
        resolved = {
            "weight_dtype": target,
            "kv_dtype": kv,
            "draft_weight_dtype": weight_dtype(self.draft_weight_dtype or wide_dtype(target)),
            "draft_kv_dtype": _kv_dtype(self.draft_kv_dtype or kv, target),
            "draft_tensor_parallel_size": self.draft_tensor_parallel_size or self.tensor_parallel_size,
            "max_num_scheduled_tokens": self.max_num_scheduled_tokens or self.max_num_batched_tokens,
            "async_scheduling": runs_async if self.async_scheduling is None else self.async_scheduling,
            "cudagraph_mode": "NONE" if self.enforce_eager else self.cudagraph_mode or mode,
        }
        for name, value in resolved.items():
            object.__setattr__(self, name, value)
        for name in COUNTS.split():
            least = 0 if name == "num_speculative_tokens" and not self.method.drafts else 1
            if getattr(self, name) < least:
                raise ScenarioError(f"must be at least {least}", key=name, value=getattr(self, name))
        k = self.num_speculative_tokens
        if not self.method.drafts and k:
            raise ScenarioError("must be 0 without a method", key="num_speculative_tokens", value=k)

    @property
    def generation(self) -> engines.EngineGeneration:
        """What the version's steps cost besides their kernels."""
        return engines.generation_of(self.version, self.method.name, is_plain=not (self.is_moe or self.is_hybrid))

    @property
    def overlaps_speculation(self) -> bool:
        """Whether the version can schedule the method's next step while one runs."""
        first = self.generation.async_since.get(self.method.name, "0" if self.method.is_async else None)
        return bool(since(self.generation.async_speculation, self.version)) and is_since(self.version, first)

    @property
    def triton_experts(self) -> tuple[str, ...]:
        """Formats of experts that Triton's kernels run."""
        formats = self.generation.triton_experts(self.version)
        return (*formats, "fp8") if self.cuts_blocks else formats

    @property
    def lockstep_ranks(self) -> int:
        """Data-parallel ranks that step together: all of a model with experts, one of any other (vLLM 0.32)."""
        return self.data_parallel_size if self.is_moe else 1

    @property
    def expert_groups(self) -> int:
        """Groups of ranks that share out the experts; 1: every rank holds a part of each expert."""
        every = self.tensor_parallel_size * self.lockstep_ranks
        return (self.expert_parallel_size or every) if self.enable_expert_parallel else 1

    @property
    def depth(self) -> int:
        """Batches in flight before the oldest is awaited (vLLM 0.32, ``max_concurrent_batches``)."""
        return self.pipeline_parallel_size + bool(self.async_scheduling)

    @property
    def max_drafts(self) -> int:
        """The most drafts that a request verifies in a step: k, or the nodes of a tree."""
        return self.method.verify_nodes(self.num_speculative_tokens)

    @property
    def slots(self) -> int:
        """Input rows that the method adds per request."""
        return 0 if self.drafts_apart else by_rule(self.method.slots_rule, self.num_speculative_tokens)

    @property
    def lookahead(self) -> int:
        """KV slots reserved past the scheduled tokens."""
        return by_rule(self.method.lookahead_rule, self.num_speculative_tokens)

    @property
    def window_cap(self) -> int:
        """Most blocks a request must find in a window group to be admitted (vLLM's admission cap)."""
        slides = WINDOWS[self.window_kind] == "sliding"
        tokens = min(self.sliding_window - slides + self.depth * self.max_num_batched_tokens, self.max_model_len)
        return -(-tokens // self.block_size) + slides

    @property
    def tree_depth(self) -> int:
        """Draft passes behind the verified nodes of a tree, 0: a chain."""
        return self.num_speculative_tokens if self.method.is_tree else 0

    @property
    def pads_searches(self) -> bool:
        """Whether rows for a text search's drafts are scheduled before it is known to have found any."""
        return self.method.proposes_by_match and (bool(self.async_scheduling) or self.generation.pads_searches)

    @property
    def skips_unused_drafts(self) -> bool:
        """Whether nothing is drafted in a step whose requests all end with it or have prompt left."""
        alone = self.lookahead > 0 and self.lockstep_ranks == 1  # an idle rank never agrees
        return alone and not self.makes_all_drafts and self.follows("skips_unused_drafts")

    @property
    def makes_all_drafts(self) -> bool:
        """Whether the runner makes k drafts in each step, however few a schedule asks for."""
        return self.method.name in self.generation.full_drafts

    @property
    def pads_single_tokens(self) -> bool:
        """Whether one-token admissions are padded to all rows of a round."""
        return not self.is_dynamic and self.max_drafts > 0

    @property
    def drops_last_hit(self) -> bool:
        """Whether the last block of a prefix hit is computed again."""
        return self._reads_ahead and self.hash_lookahead == 0

    @property
    def hash_lookahead(self) -> int:
        """Tokens behind a block that its hash covers: those that the head reads with it (vLLM 0.33)."""
        covers = self.follows("hashes_cover_lookahead") and not self.disable_lookahead_block_hashes
        if not (covers and self._reads_ahead):
            return 0
        modules = self.num_nextn_layers if self.method.name == "mtp" else 1
        return self.num_speculative_tokens if modules > 1 else 1

    @property
    def _reads_ahead(self) -> bool:
        """Whether the head's KV of a token is made of the next one too, which a prefix hit may not have."""
        return self.method.drops_last_prefix_block and not (self.drafts_apart or self.disable_eagle_block_drop)

    @property
    def drafts_apart(self) -> bool:
        """Whether the rows of a block of drafts do not count among those of the target's step."""
        return self.method.plan == DraftPlan.CONTEXT_BLOCK and self.follows("blocks_drafted_apart")

    def follows(self, rule: engines.EngineRule) -> bool:
        """Whether the version does what a rule of `draftcast.calibration.profile.engines` says."""
        return self.generation.follows(rule, self.version)


def stage_layers(num_layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each pipeline stage: as many in each, what is left over from the last but one backwards (vLLM 0.32)."""
    fewest, left = divmod(num_layers, stages)
    return tuple(fewest + (stages - 1 - left <= stage < stages - 1) for stage in range(stages))


def graph_sizes(largest: int) -> list[int]:
    """Rows that vLLM captures as CUDA graphs, up to ``largest``: 1, 2, 4, by 8 below 256, then by 16."""
    return [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)) if size <= largest]


def given_graph_sizes(config: EngineConfig) -> tuple[int, ...] | None:
    """Rows captured as CUDA graphs where the scenario says up to which, ascending; None where the engine decides.

    Raises ScenarioError: a largest size below 0.
    """
    largest = config.max_cudagraph_capture_size
    if config.cudagraph_mode == "NONE":
        return ()
    if largest is None:
        return None
    if largest < 0:
        raise ScenarioError("must be at least 0 (0: no CUDA graphs)", key="max_cudagraph_capture_size", value=largest)
    return tuple(sorted(sizes_up_to(largest, config.max_num_batched_tokens)))


def sizes_up_to(largest: int, limit: int) -> set[int]:
    """`graph_sizes` up to ``largest``, and the batch of most rows, ``limit``, if it is no larger."""
    return {*graph_sizes(min(largest, limit)), *([limit] if limit <= largest else [])}


def most_captured(config: EngineConfig, memory_gib: float) -> int | None:
    """Requests of the largest batch that an engine captures by default on a GPU; None: it limits rows instead."""
    few = config.tensor_parallel_size * config.lockstep_ranks < 4
    by_version = config.generation.max_graph_requests
    limits = since(by_version, config.version) if by_version else ()
    most = next((less if few else more for below, less, more in limits if memory_gib < below), None)
    if most is None or config.request_limit is None:
        return most
    return min(most, config.request_limit * config.lockstep_ranks)  # SGLang's limit is one of all ranks


def _kv_dtype(name: str, dtype: str) -> str:
    if name != "auto":
        return kv_dtype(name)
    return "fp32" if activation_bytes(dtype) == 4.0 else "bf16"
