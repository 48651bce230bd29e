"""Seconds of operators on one device at one tensor-parallel degree, for many row counts at once.

Seconds come from the profile's measured times where it has any, else from its rooflines. `sim/cost/step_cost.py` says
which passes a step consists of.
"""

from dataclasses import dataclass, field
from functools import partial, reduce

import numpy as np

from draftcast.calibration.profile.engines import is_since
from draftcast.calibration.profile.interpolation import AttentionGrid, CurveSet
from draftcast.calibration.profile.measured import TablePart
from draftcast.calibration.profile.roofline import Origin
from draftcast.calibration.profile.spec import RooflineProfile
from draftcast.kernels.arrays import FloatArray, IntArray
from draftcast.kernels.model.dtypes import COMPUTE_DTYPE, KV_BYTES, activation_bytes, wide_dtype
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.operators.all_reduce import all_reduce_work
from draftcast.kernels.operators.attention import attention_work, layer_shape
from draftcast.kernels.operators.cost import Work
from draftcast.kernels.operators.gated_delta import gated_delta_work, linear_shape
from draftcast.kernels.operators.linear import fullest_rank_share
from draftcast.kernels.operators.sampler import sampler_work
from draftcast.kernels.operators.sparse import DSA_DECODE, indexer_work, sparse_decode_shape
from draftcast.kernels.work import layers
from draftcast.sim.cost import attention_time as at
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.step_time import Record, empty_record

# Gathered latents keep the matrix units waiting: 0.4 of the peak FLOP/s over prompts of 4,096 and 8,192 tokens on H200,
# 16 and 128 heads, where dense latent decodes reach 0.8 (aiconfigurator-core 0.12.0, dsa_context_module of vLLM 0.24).
_SPARSE_PROMPT = 2.0
_SPARSE_HEADS = 64  # to which FlashMLA's sparse kernels pad the heads of a rank (vLLM)
# Of the time of a layer's routed experts on one rank, what does not shrink when whole experts are spread over ranks:
# the fullest rank has more than its share of the rows, and every rank sorts and sums up all rows. From 1,024 rows of
# all ranks on the second. Fitted to aiconfigurator-core 0.12.0 (vLLM's experts on H100, H200, B200 under
# power_law_1.01, moe_ep_size 2 to 32 against 1): medians of 1.05, 1.14, 1.3, 1.6 and 2.1 times an even share, and 1.1,
# 1.3, 1.7, 2.5 and 3.8 times from 1,024 rows on. Provisional: synthetic routing.
UNDIVIDED_SHARE = (0.04, 0.10)
MANY_ROWS = 1024
# What SGLang launches one by one for a layer besides `launches`, in kernels of the usual host time (35 us): what the
# time to the first token of one request, less 8 ms, leaves (SGLang cookbook and pull requests, 0.5.0 to 0.5.12). Around
# Triton's experts 9 for Qwen3-235B on 8 B200, 13 for ERNIE-4.5-21B and 17 for Llama-4-Scout on MI300X, 28 for Step-3.5
# on 4 H200; where experts are one fused kernel 3 (gpt-oss-120b on 8 B200). In latent attention 16 for GLM-4.7-Flash, 17
# for DeepSeek-Math-V2, 24 for DeepSeek-R1 and 30 for DeepSeek-V4-Flash, all on B200. Provisional; these times beside
# today's forecasts: benchmarks/first_token.py.
_SORTING_KERNELS = 15
_LATENT_KERNELS = 20
# A choice of several tokens: a softmax reads and writes float32, torch.topk reads it for each of four digits and once
# more to gather, in some 25 kernels. On H100 that is 162 us for 64 rows of 131,072 and 2.9 ms for 2,048; torch.topk
# alone was timed at 178 us and 3.0 ms (FlashInfer's pull request 3009, on a card it does not name; 4 rows of 65,536 in
# 93 us: SGLang's 33237). Provisional.
_TOP_K_BYTES = 28.0
_TOP_K_KERNELS = 25
# Rate of the last-level cache over that of the memory, for what one kernel wrote and the next reads: SwiGLU, norm and
# rotary that move 5 to 45 MB ran at 1.2 to 2.5 of the memory's rate on RTX PRO 6000, starts of some 3 us included,
# and SwiGLU at 1.0 from 157 MB on, beyond its 128 MB (LLMServingSim, profiler/perf).
_CACHE_SPEED = 2.0
_SAMPLER_KERNELS = 3  # a cast, a softmax and a choice, see `sampler_work`
_UNITS = ((0, 0, 1), (0, 1, 0), (1, 0, 0))  # a (query, token) pair, a token read, a row
# All-gather and reduce-scatter between ranks of one node: (1 + log2 ranks) / 2 of the link's latency, and this share of
# its bandwidth. NCCL 2.29 on H100 and H200 (aiconfigurator-core 0.12.0, 2, 4 and 8 ranks): 5.4, 7.4 and 10.6 us; 0.57,
# 0.70 and 0.75 of the bandwidth. B200 takes 9 to 17 us and reaches 0.5 to 0.7. Provisional.
EXCHANGE_SHARE = 0.7


@dataclass(eq=False)
class OperatorTables:
    """Seconds of operators on one device and rank, as ``(rows, 3)`` tables by origin.

    Attributes:
        tp, dtype: tensor-parallel ranks and format of the weights, the target's or the draft's.
        config: the engine; where none is given, of one rank.
        kv_dtype: format of the KV cache; the engine's where none is given.
        grids: what ``StepCost.attention_grids`` consists of: the measured grids of the kinds of attention asked for.
    """

    profile: RooflineProfile
    tp: int
    dtype: str
    config: EngineConfig = field(default_factory=EngineConfig)
    kv_dtype: str = ""
    grids: list[FloatArray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hardware = self.profile.hardware
        self.kv_dtype = self.kv_dtype or self.config.kv_dtype
        self.act_bytes = activation_bytes(self.dtype)
        # Formats narrower than 16 bits hold weights; attention, norms and unquantised matrices stay 16-bit.
        self.wide_dtype = wide_dtype(self.dtype)
        self.generation = self.config.generation
        # Routed experts are spread over tp x dp ranks: data-parallel ones step together.
        self.dp = self.config.lockstep_ranks
        # Ranks that share out the tokens of the KV cache; a draft with a degree of its own holds all of them.
        self.dcp = self.config.decode_context_parallel_size if self.tp == self.config.tensor_parallel_size else 1

    def fitted(self, family: str, dtype: str, work: Work, rows: IntArray, launches: float = 1.0) -> FloatArray:
        """Table of a family's roofline: ``launches`` kernels whose work sums to ``work``; zero rows take no time."""
        entry = self.profile.operator(family, dtype)
        seconds = self.profile.seconds_of(family, dtype)(work)
        seconds = np.where(rows > 0, seconds + (launches - 1.0) * entry.t0_s, 0.0)
        return split(seconds, entry.origin)

    def measured(
        self, operator: str, family: str, dtype: str, x: FloatArray | IntArray, key: tuple[int, ...], *engines: str,
        **group: int,
    ) -> FloatArray | None:  # fmt: skip
        """Table of one launch of a measured operator; None when the profile measured nothing of the kind.

        ``engines``: those whose own kernels count before those that all share; by default the config's.
        """
        # Triton's kernels run experts in some formats, where they were timed.
        triton = operator == "moe" and dtype in self.config.triton_experts
        tables = self.profile.times_for(*(engines or (self.generation.engine,)))
        seconds = self.profile.seconds_of(family, dtype)
        for name in ("flashinfer", "") if triton else ("",):
            nearest = None
            for times in tables:
                curves = times.curves(operator, dtype, seconds, name, **group)
                # Another engine's kernel of this very shape says more than the engine's own of other shapes.
                if curves is not None and key in curves.curves:
                    return split(*curves.seconds(x, key))
                nearest = nearest or curves
            if nearest is not None:
                return split(*nearest.seconds(x, key))
        return None

    def linear(self, layer: layers.LinearLayer, rows: IntArray, family: str = "linear") -> FloatArray:
        dtype = self._timed_as(layer, family)
        work = layer.work(rows, self.dtype).scale(layer.count)
        one = self.measured("linear", family, dtype, rows, (layer.k, layer.n))
        table = self.fitted(family, dtype, work, rows, layer.count) if one is None else layer.count * one
        return self._beside_routed(table, work, rows) if layer.group == "shared_experts" else table

    def _timed_as(self, layer: layers.LinearLayer, family: str) -> str:
        """The format of a layer's kernel: in blocks where the profile tells that from fp8 by tensors or rows."""
        dtype, _ = layer.stored(self.dtype)
        in_blocks = f"{dtype}_block"
        return in_blocks if layer.in_blocks and in_blocks in self.profile.operators[family].dtypes else dtype

    def _beside_routed(self, shared: FloatArray, work: Work, rows: IntArray) -> FloatArray:
        """Shared experts of small steps run beside the routed ones, to whose time they add what they read."""
        most = self.generation.shared_rows(self.config.version, self.hardware.vendor)
        seconds = np.maximum(shared.sum(axis=1), 1e-12)
        reading = work.bytes / self.hardware.memory_bandwidth_bytes_per_s
        share = np.where(rows <= most, np.minimum(reading / seconds, 1.0), 1.0)
        return np.asarray(shared * share[:, None])

    def all_reduce(self, rows: IntArray, row_bytes: float, launches: float, *, fused: bool = False) -> FloatArray:
        """``launches`` equal all-reduces of ``row_bytes`` a row on each rank; ``fused``: with the norms behind them."""
        if self.tp == 1 or launches == 0:
            return np.zeros((len(rows), 3))
        message = np.asarray(rows * row_bytes, dtype=np.float64)
        has_own = is_since(self.config.version, self.generation.own_all_reduces_since)
        engines = ("trtllm",) * fused + (self.generation.engine if has_own else "",)
        table = self.measured("all_reduce", "all_reduce", self.wide_dtype, message, (), *engines, ranks=self.tp)
        if table is not None:
            return launches * table
        if self.tp in self.profile.all_reduce:
            return split(launches * self._published_all_reduce(message), Origin.EXTRAPOLATED)
        work = all_reduce_work(message, self.tp).scale(launches)
        table = self.fitted("all_reduce", self.wide_dtype, work, rows, launches)
        latency = np.where(rows > 0, launches * self.hardware.link_latency_s, 0.0)
        return table + split(latency, self.profile.operator("all_reduce", self.wide_dtype).origin)

    def _published_all_reduce(self, message: FloatArray) -> FloatArray:
        part, latency = TablePart("all_reduce", self.wide_dtype), self.hardware.link_latency_s
        fitted = self.profile.seconds_of(*part.roofline)

        def roofline(size: FloatArray, _: tuple[int, ...]) -> FloatArray:
            return latency + fitted(part.work({"message_bytes": size, "ranks": self.tp}))

        size, seconds = np.array(self.profile.all_reduce[self.tp]).T
        curve = CurveSet.from_points(np.zeros((len(size), 0), dtype=np.int64), size, seconds, roofline)
        return curve.seconds(message, ())[0]

    def all_reduces(self, model: ModelSpec, rows: IntArray) -> FloatArray:
        """The all-reduces of a forward pass: of hidden states, and of the squares of queries and keys (`layers`)."""
        (width, count), of_norms = layers.all_reduces(model, self.act_bytes)
        table = self.all_reduce(rows, width, count) + self.all_reduce(rows, *of_norms)
        if self._fused_norms(model):
            fused = self.all_reduce(rows, width, count, fused=True)
            table = np.where((rows <= self.generation.fused_rows)[:, None], fused, table)
        return table

    def _fused_norms(self, model: ModelSpec) -> int:
        """Norms that the kernel of the all-reduce before them runs."""
        fuses = self.generation.fuses_all_reduces(self.config.version, model, self.hardware)
        if not fuses or self.tp == 1 or self.dp > 1 or "trtllm" not in self.profile.of_engine:
            return 0
        return sum(part.launches for part in layers.elementwise_parts(model, self.tp) if part.kernel == "rmsnorm")

    def layers_of(self, model: ModelSpec, *scopes: str) -> list[layers.LinearLayer]:
        return [layer for layer in layers.linear_layers(model, self.tp) if layer.scope in scopes]

    def matrices(self, model: ModelSpec, rows: IntArray, *scopes: str) -> FloatArray:
        """The matrices of some scopes, routed experts apart."""
        chosen = (layer for layer in self.layers_of(model, *scopes) if not layer.num_experts)
        return sum((self.linear(layer, rows) for layer in chosen), np.zeros((len(rows), 3)))

    def model_pass(self, model: ModelSpec, rows: IntArray, *more_scopes: str) -> FloatArray:
        """A forward pass over each number of rows, without attention and lm_head."""
        table = self.matrices(model, rows, "pass", *more_scopes)
        if self.dp == 1:  # the rows of other ranks pass through their experts too, see `routed`
            table += self.routed(model, rows)
        table += self._elementwise(model, rows)
        table += self.all_reduces(model, rows)
        if self.dcp > 1 and not model.is_mla:
            table += self._context_parallel(model, rows)
        if fused := self._fused_quantisation(model):
            table *= 1.0 - fused / np.maximum(table.sum(axis=1, keepdims=True), fused)
        return table

    def _fused_quantisation(self, model: ModelSpec) -> float:
        """Seconds of quantising kernels that were timed with fp8 matrices and that a compiled engine does not launch.

        Norms and activations write fp8 themselves. Such a kernel takes what an fp8 matrix starts later than a wide one,
        2.2 us on H100 (1.7 in a step of Llama-2-7B, SGLang PR 32994); what it moves is in the cache.
        """
        if self.config.enforce_eager or not is_since(self.config.version, self.generation.fuses_quantisation_since):
            return 0.0
        fed = (layer for layer in self.layers_of(model, "pass") if layer.group in ("attention", "dense_mlp"))
        count = sum(layer.count for layer in fed if layer.stored(self.dtype)[0] == "fp8")
        fp8, wide = (self.profile.operator("linear", dtype).t0_s for dtype in ("fp8", self.wide_dtype))
        return count * max(fp8 - wide, 0.0)

    def routed(self, model: ModelSpec, rows: IntArray) -> FloatArray:
        """All layers' routed experts on the fullest rank, and between data-parallel ranks the exchange of rows.

        ``rows`` are those of all ranks. vLLM 0.32's default (``allgather_reducescatter``) gathers every rank's rows on
        every other and sums up the outputs the same way.
        """
        ranks = self.tp * self.dp
        groups = min(self.config.expert_groups, ranks)  # a draft may have a degree of its own
        routed = [layer for layer in layers.linear_layers(model, self.tp, ranks // groups) if layer.num_experts]
        if not routed:
            return np.zeros((len(rows), 3))
        table = self._experts(routed, rows)
        if groups > 1:
            launches = np.where(rows > 0, model.num_moe_layers * self.profile.operator("moe", self.dtype).t0_s, 0.0)
            seconds = table.sum(axis=1)
            launches = np.minimum(launches, seconds)
            undivided = np.where(rows < MANY_ROWS, *UNDIVIDED_SHARE)
            share = undivided + (1.0 - undivided) / groups
            share = np.maximum(share, fullest_rank_share(rows, model.num_experts, model.num_experts_per_tok, groups))
            table = split(launches + (seconds - launches) * share, Origin.EXTRAPOLATED)
        if self.dp > 1:
            # With whole experts tensor-parallel ranks, whose rows are the same, send a part each and gather it at the
            # end (vLLM's sequence-parallel experts); the all-reduce of the pass counts for that.
            hidden, between = model.hidden_size * self.act_bytes, ranks if groups > 1 else self.dp
            table += self.exchange(rows, hidden, between, 2.0 * model.num_moe_layers)
        return table

    def exchange(self, rows: IntArray, row_bytes: float, ranks: int, count: float) -> FloatArray:
        """``count`` all-gathers or reduce-scatters of ``row_bytes`` a row, in all between ``ranks`` ranks."""
        message = np.asarray(rows * row_bytes, dtype=np.float64)
        latency = self.hardware.link_latency_s * (1.0 + np.log2(ranks)) / 2.0
        moved = message * ((ranks - 1) / ranks) / (EXCHANGE_SHARE * self.hardware.link_bandwidth_bytes_per_s)
        return split(np.where(rows > 0, count * (latency + moved), 0.0), Origin.EXTRAPOLATED)

    def _context_parallel(self, model: ModelSpec, rows: IntArray) -> FloatArray:
        """Per layer: the group's queries gathered, its outputs' log-sums gathered, its outputs summed and scattered."""
        heads = model.num_attention_heads // self.tp * self.dcp
        if model.is_mla:
            query, output = model.kv_lora_rank + model.qk_rope_head_dim, model.kv_lora_rank
        else:
            query = output = model.head_dim
        widths = (query * self.act_bytes, 4.0 * self.dcp, output * self.act_bytes)
        exchanges = (self.exchange(rows, heads * width, self.dcp, model.num_attention_layers) for width in widths)
        return sum(exchanges, np.zeros((len(rows), 3)))

    def _experts(self, routed: list[layers.LinearLayer], rows: IntArray) -> FloatArray:
        """All layers' routed experts: both matrices, permutation, activation and weighted sum of a layer as one."""
        down = routed[-1]
        dtype = self._timed_as(down, "moe")
        experts = {"num_experts": down.num_experts, "top_k": down.num_experts_per_tok}
        table = self.measured("moe", "moe", dtype, rows, (down.n, down.k), **experts)
        if table is not None:
            return down.count * table
        works = (layer.work(rows, self.dtype).scale(layer.count) for layer in routed)
        return self.fitted("moe", dtype, reduce(Work.add, works), rows, down.count)

    def _elementwise(self, model: ModelSpec, rows: IntArray) -> FloatArray:
        """Norms, rotary, activations and the rest of a pass; kernels that were measured by name count as measured."""
        table = np.zeros((len(rows), 3))
        rest = Work(np.zeros(len(rows)), np.zeros(len(rows)))
        launches = -self._fused_norms(model)
        for part in layers.elementwise_parts(model, self.tp):
            if part.in_experts:
                continue  # in the time of the experts, see `_experts`
            one = self.measured(part.kernel, "elementwise", self.wide_dtype, rows, part.key) if part.kernel else None
            if one is not None:
                table += part.count * one
            else:
                moved = part.work(rows, self.act_bytes)
                rest = rest.add(Work(moved.flops, self._through_cache(moved.bytes, part.count)))
                launches += part.launches
        if launches:
            table += self.fitted("elementwise", self.wide_dtype, rest, rows, launches)
        choice_s = self.generation.expert_choice_s(self.config.version, model, self.hardware.vendor)
        seconds = np.where(rows > 0, model.num_moe_layers * choice_s, 0.0)
        return np.asarray(table + split(seconds, Origin.EXTRAPOLATED))

    def _through_cache(self, moved: FloatArray, runs: float) -> FloatArray:
        """Bytes at the memory's rate that take as long as ``moved``, by ``runs`` kernels in all.

        Of what a kernel moves, the cache holds all up to its size, and nothing from twice its size on.
        """
        cache = self.hardware.cache_bytes
        cached = np.clip(2.0 - moved / runs / cache, 0.0, 1.0) if cache else 0.0
        return np.asarray(moved * (1.0 - cached * (1.0 - 1.0 / _CACHE_SPEED)))

    def lm_head(self, model: ModelSpec, rows: IntArray) -> FloatArray:
        """lm_head and the gathering of logits, for each number of rows, and of latents the exchange of their contexts.

        Of latents only decoding rows exchange (vLLM 0.32, ``MLAAttention``), which are nearly those with logits.
        """
        table = self.linear(layers.lm_head(model, self.tp), rows, "lm_head")
        # A gather moves half of what an all-reduce of the same message does: ``(tp-1)/tp`` of rows x vocabulary.
        table = table + self.all_reduce(rows, model.vocab_size * self.act_bytes / 2.0, 1.0)
        return table + self._context_parallel(model, rows) if model.is_mla and self.dcp > 1 else table

    def argmax(self, model: ModelSpec, rows: IntArray) -> FloatArray:
        """Greedy choice of a draft token: the logits are read once."""
        elements = rows.astype(np.float64) * model.vocab_size
        work = Work(elements, self._through_cache(elements * self.act_bytes, 1.0))
        return self.fitted("sampler", self.wide_dtype, work, rows)

    def top_k(self, model: ModelSpec, rows: IntArray) -> FloatArray:
        """Choice of several draft tokens a row, for a tree: softmax and ``torch.topk`` (SGLang's `fast_topk`)."""
        elements = rows.astype(np.float64) * model.vocab_size
        work = Work(elements, elements * _TOP_K_BYTES)
        return self.fitted("elementwise", self.wide_dtype, work, rows, _TOP_K_KERNELS)

    def sampler(self, model: ModelSpec, rows: IntArray, verify_rows: int) -> FloatArray:
        """Sampling of ``rows`` of logits; with more than one row a request, their rejection sampler."""
        operator, group = ("rejection_sampler", {"q": verify_rows}) if verify_rows > 1 else ("sampler", {})
        table = self.measured(operator, "sampler", self.wide_dtype, rows / verify_rows, (model.vocab_size,), **group)
        if table is not None:
            return table
        work = sampler_work(rows, model.vocab_size, self.act_bytes)
        work = Work(work.flops, self._through_cache(work.bytes, _SAMPLER_KERNELS))
        return self.fitted("sampler", self.wide_dtype, work, rows)

    def launches(self, model: ModelSpec) -> float:
        """Kernels of one forward pass: matrices, attention with its KV write, element-wise, collectives."""
        matrices = sum(layer.count for layer in self.layers_of(model, "pass"))
        # Attention and KV write; of latent attention both latents' norms and the rotary embedding too.
        attention = (5 if model.is_mla else 2) * model.num_attention_layers
        attention += 2 * model.num_linear_layers  # convolution and delta rule
        attention += 4 * model.num_indexed_layers  # norm and rotary embedding, cache write, scores, choice
        collectives = sum(count for _, count in layers.all_reduces(model)) if self.tp > 1 else 0
        collectives += 3 * model.num_attention_layers if self.dcp > 1 else 0
        collectives += 2 * model.num_moe_layers if self.dp > 1 else 0
        elementwise = layers.elementwise_kernels(model, self.tp) - self._fused_norms(model)
        return matrices + attention + elementwise + collectives

    def eager_launches(self, model: ModelSpec) -> float:
        """Kernels of a pass that no graph or compiler holds: those of `launches`, and those that quantise and sort."""
        formats = [(layer, layer.stored(self.dtype)[0]) for layer in self.layers_of(model, "pass")]
        quantised = sum(layer.count for layer, dtype in formats if COMPUTE_DTYPE[dtype] in ("fp8", "fp4", "int8"))
        experts = {dtype for layer, dtype in formats if layer.num_experts}
        has_fused = "fp4" in self.hardware.peak_flops and self.hardware.vendor == "NVIDIA"
        is_fused = has_fused and not experts & set(self.config.triton_experts)
        of_experts = 0 if is_fused else _SORTING_KERNELS * model.num_moe_layers
        of_latents = _LATENT_KERNELS * model.num_attention_layers if model.is_mla else 0
        return self.launches(model) + quantised + of_experts + of_latents

    def attention(self, model: ModelSpec, phase: str, count: int, window: int, *, sparse: bool = False) -> Record:
        """One row of ``StepCost.attention`` for ``count`` equal layers in a phase, "decode" or "prefill".

        ``sparse``: over an indexer's choice, by the roofline of decodes: prompts run absorbed too.
        """
        if count == 0:
            return empty_record(at.ATTENTION)
        sparse |= model.kv_compression > 0
        # Ranks that share out a context attend to a part each, with the heads of all of them. Prompts gather it.
        dcp = self.dcp if phase == "decode" else 1
        tp = self.tp // dcp
        absorbed = sparse or phase == "decode"
        unit = partial(
            attention_work, model, tp=tp, kv_cache_dtype=self.kv_dtype, act_bytes=self.act_bytes, absorbed=absorbed
        )
        family, shape = layer_shape(model, phase, tp)
        pair, key, row = (unit(*one) for one in _UNITS)
        flops, heads = float(pair.flops), None if sparse else shape
        family = family.replace("prefill", "decode") if sparse else family
        if sparse and model.is_mla:
            flops *= max(shape["heads"], _SPARSE_HEADS) / shape["heads"]
            flops *= _SPARSE_PROMPT if phase == "prefill" else 1.0
        kind = self._kind(family, self.kv_dtype, heads, count, (flops / dcp, float(key.bytes) / dcp, float(row.bytes)))
        if kind["grid"] >= 0 and dcp > 1:
            at.stretch_contexts(self.grids[-1], dcp)
        kind["window"] = window
        kind["is_prefill"] = phase == "prefill"
        return kind

    def linear_attention(self, model: ModelSpec, phase: str) -> Record:
        """`attention` of the model's linear attention layers."""
        heads = linear_shape(model, self.tp)
        state = model.linear_state_dtype(self.dtype)
        unit = partial(gated_delta_work, chunked=phase == "prefill", kind=model.linear_kind)
        sequence, one = (unit({"batch": 1.0, "q": q, **heads}, self.wide_dtype, state) for q in (0.0, 1.0))
        work = (float(one.flops), float(sequence.bytes), float(one.bytes - sequence.bytes))
        fields = heads if model.linear_kind == "gated_delta" else None
        return self._kind(f"gdn_{phase}", state, fields, model.num_linear_layers, work)

    def sparse_decode(self, model: ModelSpec) -> Record:
        """`attention` of the layers with indexers of sparse latent attention in decode, the indexers included."""
        shape = sparse_decode_shape(model, self.tp)
        query = {"batch": 1, "q": 1, **shape}
        row, more = (DSA_DECODE.work({**query, "context": c}, self.wide_dtype, self.kv_dtype) for c in (0, 1))
        work = (float(more.flops - row.flops), float(more.bytes - row.bytes), float(row.bytes))
        return self._kind("dsa_decode", self.kv_dtype, shape, model.num_indexed_layers, work)

    def add_indexer(self, kind: Record, model: ModelSpec, phase: str) -> None:
        """Add sparse layers' indexers to full attention's row, by the roofline of the model's attention.

        Both look at the whole context. DeepSeek's keys are fp8.
        """
        pair, key, row = (indexer_work(model, *one, self.tp) for one in _UNITS)
        family = f"{'mla' if model.is_mla else 'attention'}_{phase}"
        wide, _ = self.hardware.ceilings(family, "bf16")
        narrow, _ = self.hardware.ceilings("linear", "fp8" if model.is_mla else "bf16")
        work = (float(pair.flops) * wide / narrow, float(key.bytes), float(row.bytes))
        indexer = self._kind(family, "bf16", None, model.num_indexed_layers, work)
        for name in ("t0_s", "qkv_s", "kv_s", "row_s", "layers"):
            kind[name] += indexer[name]
        for name in ("p", "origin", "grid"):
            kind[name] = indexer[name]

    def _kind(
        self, family: str, dtype: str, heads: dict[str, int] | None, count: int, work: tuple[float, float, float]
    ) -> Record:
        """``count`` layers of a family; ``work``: FLOPs of a (query, token) pair, bytes of a token read and of a row.

        Without ``heads`` nothing of the kind was measured.
        """
        pair_flops, kv_bytes, row_bytes = work
        entry = self.profile.operator(family, dtype)
        peak_flops, bandwidth = self.hardware.ceilings(family, dtype)
        per_byte_s = count / (entry.e_m * bandwidth)
        kind = empty_record(at.ATTENTION)
        kind["t0_s"] = count * entry.t0_s
        kind["qkv_s"] = pair_flops * (count / (entry.e_c * peak_flops))
        kind["kv_s"] = kv_bytes * per_byte_s
        kind["row_s"] = row_bytes * per_byte_s
        kind["p"], kind["origin"], kind["layers"] = entry.p, entry.origin, count
        grid = None if heads is None else self._grid(family, dtype, heads)
        kind["grid"] = -1 if grid is None else self.place(at.flat_grid(grid, count))
        return kind

    def place(self, grid: FloatArray) -> int:
        """Add a measured grid; where it starts."""
        self.grids.append(grid)
        return sum(len(before) for before in self.grids[:-1])

    def _grid(self, family: str, kv_cache_dtype: str, heads: dict[str, int]) -> AttentionGrid | None:
        seconds = self.profile.seconds_of(family, kv_cache_dtype)
        tables = self.profile.times_for(self.generation.engine)
        grids = (times.grid(family, self.wide_dtype, kv_cache_dtype, seconds, **heads) for times in tables)
        return next((grid for grid in grids if grid is not None), None)

    def shared_launch(self, decode: Record, prefill: Record, model: ModelSpec) -> FloatArray | None:
        """Fill what a decode kind takes in one launch with prompts; the measured launches where there are any."""
        if model.is_mla or model.is_sparse or decode["layers"] == 0 or self.dcp > 1:
            return None
        _, heads = layer_shape(model, "decode", self.tp)
        kernel = self.hardware.attention_kernel
        # FlashAttention 2 takes no narrow KV cache; FlashInfer is vLLM's next choice (platforms/cuda.py) and SGLang's.
        if kernel == "flash_attention_2" and (self.generation.engine == "sglang" or KV_BYTES[self.kv_dtype] < 2.0):
            kernel = "separate"
        pair_s = float(prefill["qkv_s"])
        at.fill_launch(decode, kernel, self.hardware.multiprocessors, heads["heads"], heads["kv_heads"], pair_s)
        if kernel != self.hardware.attention_kernel:
            return None
        of_prompts = self._grid("attention_prefill", self.kv_dtype, heads)
        of_decodes = self._grid("attention_decode", self.kv_dtype, heads)
        if self.profile.measured is None or of_prompts is None or of_decodes is None:
            return None
        decode["verify_measured"] = bool(of_decodes.measured[1:].any())
        launches = self.profile.measured.launches(self.wide_dtype, self.kv_dtype, **heads)
        return None if launches is None else at.measured_launches(decode, launches, of_prompts, of_decodes)


def split(seconds: FloatArray, origins: IntArray | Origin) -> FloatArray:
    """Seconds of shape (rows,) as (rows, 3): each in the column of its `Origin`."""
    return np.stack([np.where(origins == origin, seconds, 0.0) for origin in Origin], axis=1)
