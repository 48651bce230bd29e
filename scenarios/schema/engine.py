"""The engine's flags, with names and defaults of ``vllm serve`` 0.32; None: the engine's own, see `batch_defaults`."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from draftcast.calibration.profile.engines import DEFAULT_VERSION, CudagraphMode, generation_of, since
from draftcast.errors import HardwareError
from draftcast.frozen import MOST_TOKENS, Count, Faults, Frozen, NonEmpty, OneOf, wrong
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.model.dtypes import FORMATS
from draftcast.scenarios.schema.speculation import SpeculativeConfig
from draftcast.sim.cost.methods import get_method

# vLLM's names -> the short names of draftcast.kernels.model.dtypes.
DTYPES: dict[str, str] = FORMATS["vllm_dtypes"]
QUANTIZATIONS: dict[str, str] = FORMATS["vllm_quantizations"]
KV_DTYPES: dict[str, str] = FORMATS["vllm_kv_dtypes"]

# A block takes 60 bytes here and holds 16 tokens by default: this many are more than any device has.
MOST_BLOCKS = 2**25


def batch_defaults(
    memory_bytes: float, device: str, tensor_parallel_size: int = 1, version: str = DEFAULT_VERSION
) -> tuple[int, int]:
    """Requests and tokens of a step that an engine's server takes when the batch flags are absent.

    To vLLM ``a100`` and ``cpu`` in the device's name matter (vLLM 0.32, ``EngineArgs.get_batch_defaults``).
    """
    name = device.lower() if version.lower().startswith("vllm") else ""
    if "cpu" in name:
        return 128 * tensor_parallel_size, 2048 * tensor_parallel_size
    memory_gib = 0.0 if "a100" in name else memory_bytes / 2**30
    limits = since(generation_of(version).batch_limits, version)
    return next((requests, tokens) for below, requests, tokens in limits if memory_gib < below)


def weight_dtype(dtype: str, quantization: str | None) -> str:
    """Short name (``bf16``, ``fp8``, ``int4``, ...) from vLLM's ``dtype`` and ``quantization``."""
    return QUANTIZATIONS[quantization] if quantization else DTYPES[dtype]


Degree = Annotated[int, Field(ge=1, le=1024)]


def _known_version(version: str) -> str:
    try:
        generation_of(version)
    except HardwareError as error:
        raise wrong("", version, error.message) from None
    return version


class Engine(Frozen):
    """One replica's engine: version, model, parallelism, scheduler and cache flags, speculation."""

    version: Annotated[str, AfterValidator(_known_version)] = DEFAULT_VERSION
    """Engine and version; it decides step times and what can run."""
    model: NonEmpty
    """A bundled model (draftcast models), or a folder or file with a Hugging Face config.json."""
    tensor_parallel_size: Degree = 1
    """GPUs that share every layer."""
    pipeline_parallel_size: Degree = 1
    data_parallel_size: Degree = 1
    enable_expert_parallel: bool = False
    expert_parallel_size: Degree | None = None
    """Groups of ranks that share out the experts (SGLang's --ep-size); null: each rank is one."""
    decode_context_parallel_size: Degree = 1
    dtype: Annotated[str, OneOf("dtype", DTYPES)] = "auto"
    quantization: Annotated[str, OneOf("quantization", QUANTIZATIONS, " or null")] | None = None
    """Format of the weights, such as fp8 or awq; null: as the checkpoint is stored."""
    kv_cache_dtype: Annotated[str, OneOf("kv_cache_dtype", ("auto", *KV_DTYPES))] = "auto"
    # A prompt token and an output token: below two no request has room.
    max_model_len: Annotated[int, Field(ge=2, le=MOST_TOKENS)] | None = None
    """Longest prompt and output together; null: the model's."""
    max_num_seqs: Annotated[int, Field(ge=1, le=2**20)] | None = None
    """Requests that run at once; null: the engine's default for the device."""
    max_num_batched_tokens: Count | None = None
    """Tokens of a step; null: the engine's default for the device."""
    max_num_scheduled_tokens: Count | None = None
    block_size: Annotated[int, Field(ge=1, le=2**16)] = 16
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    """Share of a GPU's memory for the engine (SGLang: for weights and KV cache); null: the engine's default."""
    num_gpu_blocks: Annotated[int, Field(ge=2, le=MOST_BLOCKS)] | None = None
    """KV blocks; null: as many as fit into memory."""
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: Annotated[int, Field(ge=0, le=MOST_TOKENS)] = 0
    watermark: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool | None = None
    """Schedule a step before the last one's output is known; null: as the engine's version does for the method."""
    api_server_count: Annotated[int, Field(ge=1, le=1024)] | None = None
    """API server processes; null: one per data-parallel rank."""
    enforce_eager: bool = False
    cudagraph_mode: CudagraphMode | None = None
    """null: the default of the engine's version."""
    max_cudagraph_capture_size: Annotated[int, Field(ge=0, le=MOST_TOKENS)] | None = None
    speculative_config: SpeculativeConfig | None = None

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica; decode-context parallelism divides those of tensor parallelism."""
        draft_gpus = self.draft_tensor_parallel_size if self._drafts_ahead else 0
        return (self.tensor_parallel_size * self.pipeline_parallel_size + draft_gpus) * self.data_parallel_size

    @property
    def layout(self) -> str:
        """How a replica is spread over its GPUs, as ``TP8 PP2 EP``."""
        sizes = self.pipeline_parallel_size, self.data_parallel_size, self.decode_context_parallel_size
        others = (f"{name}{size}" for name, size in zip(("PP", "DP", "DCP"), sizes, strict=True) if size > 1)
        experts = [f"EP{self.expert_parallel_size or ''}"] if self.enable_expert_parallel else []
        return " ".join([f"TP{self.tensor_parallel_size}", *others, *experts])

    @property
    def groups_experts(self) -> bool:
        """Whether whole experts are spread over groups of a layer's ranks, which vLLM does not know."""
        return self.expert_parallel_size not in (None, self.tensor_parallel_size * self.data_parallel_size)

    @property
    def weight_dtype(self) -> str:
        """Short name of the weights' format: as asked for, else as the model's config says."""
        stored = "" if self.quantization else load_model(self.model).quantization
        return stored or weight_dtype(self.dtype, self.quantization)

    @property
    def kv_dtype(self) -> str:
        """bf16, fp16, fp32, fp8 or nvfp4; ``auto`` is what the checkpoint asks for, else follows ``dtype``."""
        stored = load_model(self.model).kv_cache_dtype if self.kv_cache_dtype == "auto" else ""
        return stored or KV_DTYPES.get(self.kv_cache_dtype, DTYPES[self.dtype])

    @property
    def draft_weight_dtype(self) -> str:
        """Of the draft: as asked for, else as a draft model's config says, else unquantized in the target's dtype.

        The target's own MTP layer is in fp8 where the target is; checkpoints in 4 bits leave it in 16 (configs of
        DeepSeek, GLM-5, Qwen3.5: ``exclude_modules``), but one trained with experts in MXFP4 beside fp8 (DeepSeek-V4).
        """
        spec = self.speculative_config
        if spec is not None and spec.resolved_method == "mtp" and not spec.quantization and spec.model is None:
            model = load_model(self.model)
            dtypes = {dtype for _, dtype, _ in model.formats} if model.quantization == self.weight_dtype else set()
            is_as_trained = self.weight_dtype == "fp8" or dtypes == {"fp8", "mxfp4"}
            return self.weight_dtype if is_as_trained else DTYPES[self.dtype]
        if spec is None or spec.quantization or spec.model is None or spec.resolved_method != "draft_model":
            return weight_dtype(self.dtype, spec.quantization if spec else None)
        return load_model(spec.model).quantization or weight_dtype(self.dtype, None)

    @property
    def draft_kv_dtype(self) -> str:
        """Of the draft's KV cache: the target's unless ``speculative_config.kv_cache_dtype`` says otherwise."""
        spec = self.speculative_config
        return KV_DTYPES.get((spec.kv_cache_dtype if spec else None) or "auto", self.kv_dtype)

    @property
    def draft_tensor_parallel_size(self) -> int:
        """The draft's own degree; vLLM's default is the target's (1 for ``mlp_speculator``)."""
        spec = self.speculative_config
        if spec is None:
            return self.tensor_parallel_size
        alone = self._drafts_ahead or spec.resolved_method == "mlp_speculator"
        return spec.draft_tensor_parallel_size or (1 if alone else self.tensor_parallel_size)

    @property
    def _drafts_ahead(self) -> bool:
        """Whether the draft has GPUs of its own."""
        spec = self.speculative_config
        return spec is not None and get_method(spec.resolved_method).drafts_ahead

    def faults(self) -> Faults:
        tokens, seqs, length = self.max_num_batched_tokens, self.max_num_seqs, self.max_model_len
        if tokens is not None and seqs is not None and tokens < seqs:
            yield self.refusal("max_num_batched_tokens", f"must be at least max_num_seqs = {seqs}")
        if tokens is not None and length is not None and not self.enable_chunked_prefill and tokens < length:
            message = f"must be at least max_model_len = {length} without chunked prefill"
            yield self.refusal("max_num_batched_tokens", message)
        if self.max_num_scheduled_tokens is not None and tokens is not None and self.max_num_scheduled_tokens > tokens:
            yield self.refusal("max_num_scheduled_tokens", f"must not exceed max_num_batched_tokens = {tokens}")
        if self.tensor_parallel_size % self.decode_context_parallel_size:
            message = f"must divide tensor_parallel_size = {self.tensor_parallel_size} (vLLM refuses it)"
            yield self.refusal("decode_context_parallel_size", message)
        ranks, groups = self.tensor_parallel_size * self.data_parallel_size, self.expert_parallel_size
        if groups is not None and (not self.enable_expert_parallel or ranks % groups):
            why = f"must divide the {ranks} ranks of a layer" if ranks % groups else "needs enable_expert_parallel"
            yield self.refusal("expert_parallel_size", why)
        spec = self.speculative_config
        if spec is None:
            return
        degree = spec.draft_tensor_parallel_size
        if degree is not None and degree not in (1, self.tensor_parallel_size) and not self._drafts_ahead:
            message = f"must be 1 or the target's tensor_parallel_size = {self.tensor_parallel_size}"
            yield self.refusal("speculative_config.draft_tensor_parallel_size", message)
        if spec.quantization is not None and spec.quantization not in QUANTIZATIONS:
            yield self.refusal("speculative_config.quantization", f"choose from {', '.join(QUANTIZATIONS)} or null")
        if spec.kv_cache_dtype not in (None, "auto", *KV_DTYPES):
            yield self.refusal("speculative_config.kv_cache_dtype", f"choose from auto, {', '.join(KV_DTYPES)}")
