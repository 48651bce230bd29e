"""Number formats: how many bytes a weight or a KV element takes and in which format the tensor cores compute.

Names are short (``bf16``); vLLM's spellings (``bfloat16``, ``fp8_e4m3``) are accepted everywhere.
"""

from __future__ import annotations

from typing import Any

from draftcast.errors import ModelError
from draftcast.kernels.extras import torch
from draftcast.yaml_text import yaml_beside

FORMATS: dict[str, Any] = yaml_beside(__file__, "formats.yaml")
WEIGHT_BYTES: dict[str, float] = FORMATS["weight_bytes"]
KV_BYTES: dict[str, float] = FORMATS["kv_bytes"]
COMPUTE_DTYPE: dict[str, str] = FORMATS["compute"]
NEEDS_UNITS = ("int8",)  # Weight formats that nothing expands: they need matrix units of `COMPUTE_DTYPE`.
E4M3_MAX = 448.0
FP8_SCALE = 1 / 64  # Standard normal numbers, times 64, fill e4m3's range up to seven standard deviations.


def weight_dtype(name: str) -> str:
    """Short name of a weight format. Raises ModelError: unknown; lists the known ones."""
    return _known(name, WEIGHT_BYTES, "dtype")


def kv_dtype(name: str) -> str:
    """Short name of a KV-cache format. Raises ModelError: unknown; lists the known ones."""
    return _known(name, KV_BYTES, "kv_cache_dtype")


def wide_dtype(dtype: str) -> str:
    """Format of what a model whose weights are in ``dtype`` does not quantise."""
    return dtype if dtype in ("fp32", "bf16", "fp16") else "bf16"


def activation_bytes(dtype: str) -> float:
    """Bytes of one activation element of a model whose weights are in ``dtype`` (4 for fp32, else 2)."""
    return 4.0 if weight_dtype(dtype) == "fp32" else 2.0


def torch_dtype(name: str) -> torch.dtype:
    """torch's format for "fp32", "bf16" or "fp8" (e4m3)."""
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}[name]


def fp8_runs(dtype: str, device: str) -> str:
    """Why a GPU cannot compute in ``dtype`` because it is fp8, or ""."""
    runs = dtype != "fp8" or device != "cuda" or torch.cuda.get_device_capability() >= (8, 9)
    return "" if runs else "fp8 needs a GPU of compute capability 8.9 or later"


def _known(name: str, table: dict[str, float], key: str) -> str:
    short: str = FORMATS["spellings"].get(name, name)
    if short not in table:
        raise ModelError(f"unknown number format; known: {', '.join(table)}", key=key, value=name)
    return short
