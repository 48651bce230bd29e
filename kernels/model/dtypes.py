"""Number formats: how many bytes a weight or a KV element takes and in which format the tensor cores compute.

Names are short (``bf16``); vLLM's spellings (``bfloat16``, ``fp8_e4m3``) are accepted everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftcast.errors import ModelError

if TYPE_CHECKING:
    import torch

# int4: GPTQ/AWQ with groups of 128 weights, each with a 16-bit scale and a 4-bit zero point: 0.5 + 2.5/128.
# mxfp4, mxfp8: OCP MX, groups of 32 with one 8-bit scale: 0.5 + 1/32 (gpt-oss experts), 1 + 1/32.
# nvfp4: groups of 16 with one 8-bit scale: 0.5 + 1/16; nvfp4a16: the same with 16-bit activations (ModelOpt's W4A16).
# int8: W8A8, a scale a channel.
WEIGHT_BYTES: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int4": 0.5 + 2.5 / 128,
    "mxfp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "nvfp4a16": 0.5 + 1 / 16,
    "mxfp8": 1.0 + 1 / 32,
    "int8": 1.0,
}
KV_BYTES: dict[str, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "nvfp4": 0.5 + 1 / 16}
# Weight-only formats are expanded on the fly and multiplied in 16 bits, as are fp8, mxfp8 and nvfp4 on devices without
# matrix units for them (vLLM's Marlin kernels).
COMPUTE_DTYPE: dict[str, str] = {
    "fp32": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "int4": "fp16",
    "mxfp4": "bf16",
    "nvfp4": "fp4",
    "nvfp4a16": "bf16",
    "mxfp8": "fp8",
    "int8": "int8",
}
NEEDS_UNITS = ("int8",)
"""Weight formats that nothing expands: they need matrix units of `COMPUTE_DTYPE`."""
_SPELLINGS = {
    "auto": "bf16",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "awq": "int4",
    "gptq": "int4",
    "w4a16": "int4",
    "w8a8": "int8",
}


def weight_dtype(name: str) -> str:
    """Short name of a weight format.

    Raises:
        ModelError: unknown format; lists the known ones.
    """
    return _known(name, WEIGHT_BYTES, "dtype")


def kv_dtype(name: str) -> str:
    """Short name of a KV-cache format.

    Raises:
        ModelError: unknown format; lists the known ones.
    """
    return _known(name, KV_BYTES, "kv_cache_dtype")


def wide_dtype(dtype: str) -> str:
    """Format of what a model whose weights are in ``dtype`` does not quantise."""
    return dtype if dtype in ("fp32", "bf16", "fp16") else "bf16"


def activation_bytes(dtype: str) -> float:
    """Bytes of one activation element of a model whose weights are in ``dtype`` (4 for fp32, else 2)."""
    return 4.0 if weight_dtype(dtype) == "fp32" else 2.0


def torch_dtype(name: str) -> torch.dtype:
    """torch's format for "fp32", "bf16" or "fp8" (e4m3)."""
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}[name]


def _known(name: str, table: dict[str, float], key: str) -> str:
    short = _SPELLINGS.get(name, name)
    if short not in table:
        raise ModelError(f"unknown number format; known: {', '.join(table)}", key=key, value=name)
    return short
