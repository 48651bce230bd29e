from __future__ import annotations
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineSettings:
    k: int
    tp: int
    draft_tp: int
    dtype: str
    draft_dtype: str
    kv_cache_dtype: str
    max_num_batched_tokens: int
    max_num_seqs: int
    enforce_eager: bool
    max_model_len: int
    max_cudagraph_capture_size: int | None
    cudagraph_capture_sizes: tuple[int, ...] | None


def fill_roofline(*a):
    raise NotImplementedError
