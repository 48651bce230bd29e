"""Work of measured points: FLOPs and bytes of an operator from the shape columns of a latency table.

The formulas are those of `draftcast.kernels`; here they are bound to the columns. Attention and MoE are counted per
launch: one layer, both matrices of the experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from draftcast.errors import HardwareError
from draftcast.kernels.all_reduce import all_reduce_work
from draftcast.kernels.dtypes import KV_BYTES, WEIGHT_BYTES, activation_bytes
from draftcast.kernels.linear import linear_work
from draftcast.kernels.moe import moe_work
from draftcast.kernels.sampler import sampler_work
from draftcast.kernels.work import FloatArray, Work, as_array

Columns = Mapping[str, Any]


def point_work(operator: str, dtype: str, kv_dtype: str, shape: Columns) -> Work:
    """Work of one launch; ``shape`` maps the operator's shape columns to arrays that broadcast.

    Raises:
        HardwareError: an operator no table holds.
    """
    if operator in _ELEMENTS:
        elements = as_array(_ELEMENTS[operator](shape))
        return Work(elements, elements * activation_bytes(dtype))
    if operator == "linear":
        return linear_work(shape["m"], shape["k"], shape["n"], WEIGHT_BYTES[dtype], activation_bytes(dtype))
    if operator == "moe":
        return _moe(shape, dtype)
    if operator in ("attention_decode", "attention_prefill"):
        return _attention(operator, shape, dtype, kv_dtype)
    if operator == "sampler":
        return sampler_work(shape["m"], shape["n"], activation_bytes(dtype))
    if operator == "rejection_sampler":
        return sampler_work(as_array(shape["batch"]) * shape["q"], shape["n"], activation_bytes(dtype))
    if operator == "all_reduce":
        return all_reduce_work(shape["message_bytes"], shape["ranks"])
    raise HardwareError("unknown operator", key="operator", value=operator)


# Elements moved: a norm with its residual reads and writes two rows, rotary q and k, SwiGLU reads two and writes one.
_ELEMENTS: dict[str, Callable[[Columns], Any]] = {
    "rmsnorm": lambda shape: 4.0 * as_array(shape["m"]) * shape["n"],
    "swiglu": lambda shape: 3.0 * as_array(shape["m"]) * shape["n"],
    "embedding": lambda shape: 2.0 * as_array(shape["m"]) * shape["n"],
    "rotary": lambda shape: 2.0 * as_array(shape["m"]) * (shape["heads"] + shape["kv_heads"]) * shape["head_dim"],
}


def _moe(shape: Columns, dtype: str) -> Work:
    """Gate and up (k -> 2n), then down (n -> k), of the experts visited."""
    hidden, width, experts, top_k = (shape[name] for name in ("k", "n", "num_experts", "top_k"))
    weight, act = WEIGHT_BYTES[dtype], activation_bytes(dtype)
    up = moe_work(shape["m"], hidden, 2 * width, experts, top_k, weight, act)
    return up.add(moe_work(shape["m"], width, hidden, experts, top_k, weight, act))


def _attention(operator: str, shape: Columns, dtype: str, kv_dtype: str) -> Work:
    """One layer over ``batch`` equal sequences; a window cuts the context of every query."""
    batch, q, context = (as_array(shape[name]) for name in ("batch", "q", "context"))
    window = as_array(shape.get("window", 0))
    heads, kv_heads, head_dim = (as_array(shape[name]) for name in ("heads", "kv_heads", "head_dim"))
    seen: FloatArray = context if operator == "attention_decode" else context - 0.5 * (q - 1.0)
    seen = np.where(window > 0, np.minimum(seen, np.maximum(window, 1.0)), seen)
    read = np.where(window > 0, np.minimum(context, window + q - 1.0), context)
    flops = 4.0 * heads * head_dim * batch * q * seen
    kv_bytes = 2.0 * batch * (read + q) * kv_heads * head_dim * KV_BYTES[kv_dtype]
    return Work(flops, kv_bytes + 2.0 * batch * q * heads * head_dim * activation_bytes(dtype))
