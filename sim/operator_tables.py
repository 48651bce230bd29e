"""Seconds of operators on one device at one tensor-parallel degree, for many row counts at once.

Work comes from `draftcast.kernels.layers`, seconds from the rooflines of a profile. It knows no method and no
scheduler: `draftcast.sim.step_tables` says which passes a step consists of.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from draftcast.calibration.origin import Origin
from draftcast.calibration.profile import OperatorProfile, RooflineProfile
from draftcast.kernels import layers
from draftcast.kernels.attention import attention_work
from draftcast.kernels.dtypes import activation_bytes
from draftcast.kernels.model import ModelSpec
from draftcast.kernels.sampler import sampler_work
from draftcast.kernels.work import Work
from draftcast.sim import step_time as st

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class OperatorTables:
    """Seconds of operators on one device at one tensor-parallel degree, as ``(rows, 3)`` tables by origin."""

    def __init__(self, profile: RooflineProfile, tp: int, dtype: str) -> None:
        self.profile = profile
        self.tp = tp
        self.dtype = dtype
        self.act_bytes = activation_bytes(dtype)
        # Formats narrower than 16 bits hold weights; attention, norms and unquantised matrices stay 16-bit.
        self.wide_dtype = dtype if dtype in ("fp32", "bf16", "fp16") else "bf16"

    def operator(self, family: str, dtype: str, work: Work, rows: IntArray, launches: float = 1.0) -> FloatArray:
        """Table of an operator family: ``launches`` kernels whose work sums to ``work``; zero rows take no time."""
        entry = self.profile.operator(family, dtype)
        seconds = entry.roofline.seconds(
            work.flops, work.bytes, self.profile.peak_flops(dtype), self.profile.bandwidth_bytes_per_s(family)
        )
        seconds = np.where(rows > 0, seconds + (launches - 1.0) * entry.roofline.t0_s, 0.0)
        return _by_origin(seconds, entry, rows)

    def linear(self, layer: layers.LinearLayer, rows: IntArray, family: str = "linear") -> FloatArray:
        narrow = layer.weight_bytes_per_element(self.dtype) < self.act_bytes
        dtype = self.dtype if narrow else self.wide_dtype
        work = layer.work(rows, self.dtype).scale(layer.count)
        return self.operator("moe" if layer.num_experts else family, dtype, work, rows, layer.count)

    def collective(self, bytes_moved: FloatArray, rows: IntArray, launches: float) -> FloatArray:
        """``launches`` equal collectives that move ``bytes_moved`` each, with the link's latency."""
        if self.tp == 1 or launches == 0:
            return np.zeros((len(rows), 3))
        work = Work(np.zeros(len(rows)), bytes_moved * launches)
        table = self.operator("all_reduce", self.wide_dtype, work, rows, launches)
        latency = np.where(rows > 0, launches * self.profile.hardware.link_latency_s, 0.0)
        return table + _by_origin(latency, self.profile.operator("all_reduce", self.wide_dtype), rows)

    def model_pass(self, model: ModelSpec, rows: IntArray, scopes: Collection[str] = ("pass",)) -> FloatArray:
        """A forward pass over each number of rows, without attention and lm_head."""
        table = np.zeros((len(rows), 3))
        for layer in layers.linear_layers(model, self.tp):
            if layer.scope in scopes:
                table += self.linear(layer, rows)
        work = layers.elementwise_work(model, rows, tp=self.tp, act_bytes=self.act_bytes)
        table += self.operator("elementwise", self.wide_dtype, work, rows, layers.elementwise_kernels(model))
        message = layers.all_reduce_bytes(model, rows, tp=self.tp, act_bytes=self.act_bytes)
        return table + self.collective(message, rows, layers.all_reduce_count(model))

    def scope(self, model: ModelSpec, rows: IntArray, scope: str) -> FloatArray:
        """Only the matrices of one scope."""
        chosen = [layer for layer in layers.linear_layers(model, self.tp) if layer.scope == scope]
        return sum((self.linear(layer, rows) for layer in chosen), np.zeros((len(rows), 3)))

    def lm_head(self, model: ModelSpec, rows: IntArray) -> FloatArray:
        """lm_head and the gathering of logits, for each number of rows."""
        table = self.linear(layers.lm_head(model, self.tp), rows, "lm_head")
        gathered = layers.logits_gather_bytes(model, rows, tp=self.tp, act_bytes=self.act_bytes)
        return table + self.collective(gathered, rows, 1.0)

    def argmax(self, model: ModelSpec, rows: IntArray) -> FloatArray:
        """Greedy choice of a draft token: the logits are read once."""
        elements = rows.astype(np.float64) * model.vocab_size
        work = Work(elements, elements * self.act_bytes)
        return self.operator("sampler", self.wide_dtype, work, rows)

    def sampler(self, model: ModelSpec, rows: IntArray) -> FloatArray:
        work = sampler_work(rows, model.vocab_size, self.act_bytes)
        return self.operator("sampler", self.wide_dtype, work, rows)

    def launches(self, model: ModelSpec, scopes: Collection[str] = ("pass",)) -> float:
        """Kernels of one forward pass: matrices, attention with its KV write, element-wise, collectives."""
        matrices = sum(layer.count for layer in layers.linear_layers(model, self.tp) if layer.scope in scopes)
        collectives = layers.all_reduce_count(model) if self.tp > 1 else 0
        return matrices + 2 * model.num_hidden_layers + layers.elementwise_kernels(model) + collectives

    def attention(self, model: ModelSpec, family: str, count: int, kv_cache_dtype: str, window: int) -> FloatArray:
        """One row of ``StepCost.attention`` for ``count`` equal attention layers."""
        column = np.zeros(st.N_COLUMNS)
        if count == 0:
            return column

        def unit(query_tokens: float, kv_tokens: float, query_kv: float) -> Work:
            return attention_work(
                model,
                query_tokens,
                kv_tokens,
                query_kv,
                tp=self.tp,
                kv_cache_dtype=kv_cache_dtype,
                act_bytes=self.act_bytes,
            )

        entry = self.profile.operator(family, self.wide_dtype)
        fit = entry.roofline
        per_flop_s = count / (fit.e_c * self.profile.peak_flops(self.wide_dtype))
        per_byte_s = count / (fit.e_m * self.profile.bandwidth_bytes_per_s(family))
        column[st.A_T0_S] = count * fit.t0_s
        column[st.A_QKV_S] = float(unit(0, 0, 1).flops) * per_flop_s
        column[st.A_KV_S] = float(unit(0, 1, 0).bytes) * per_byte_s
        column[st.A_ROW_S] = float(unit(1, 0, 0).bytes) * per_byte_s
        column[st.A_P] = fit.p
        column[st.A_ORIGIN] = entry.origin
        column[st.A_LOW_ROWS], column[st.A_HIGH_ROWS] = entry.fitted_rows or (0.0, np.inf)
        column[st.A_WINDOW] = window
        column[st.A_LAYERS] = count
        return column


def _by_origin(seconds: FloatArray, entry: OperatorProfile, rows: IntArray) -> FloatArray:
    origins = entry.origins(rows)
    return np.stack([np.where(origins == origin, seconds, 0.0) for origin in Origin], axis=1)
