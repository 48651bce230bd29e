"""Rows of aiconfigurator's files as rows of the latency table.

Latencies are milliseconds, the mean of a few replays of a CUDA graph (all-reduce also without a graph, then with a copy
of its input). What one row covers, read off the data and the collecting scripts published beside it
(github.com/ai-dynamo/aiconfigurator, ``collector/``):

* gemm: one linear layer ``m x k @ k x n``, six different weights in turn; ``fp8`` quantises its input on the way.
  ``fp8_block`` is not taken: it runs outside a graph on one weight, which stays in the cache.
* generation_attention: one layer, one query a sequence, ``step`` tokens before it; writing the new K and V counts.
* context_attention: one layer, ``batch_size`` prompts of ``isl`` tokens after ``step`` earlier ones (always 0 so far).
* moe: top-k selection, both expert matrices, activation and weighted sum of one layer. ``inter_size`` is the whole
  width of an expert, of which a rank holds ``inter_size / moe_tp_size``.
* custom_allreduce: ``message_size`` counts 16-bit elements, not bytes.

``kernel_source`` is the kernel the engine picked by itself; the newest files hold one for every point. Where several
stand for one point all are kept, and a profile takes the fastest.

Experts were timed under three routings. ``balanced`` visits as many experts as it can, ``power_law_1.01`` crowds them;
work formulas assume uniform independent routing. Against balanced times matched to the number of experts that one
touches, over five devices, the medians of power_law_1.01 are within 17 % while ``m * top_k`` is at most 1.5 times the
number of experts (balanced: up to 39 % too slow), those of balanced within 12 % beyond. Each point takes the nearer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

GEMM_DTYPES = {"bfloat16": "bf16", "float16": "bf16", "fp8": "fp8"}
KV_DTYPES = {"bfloat16": "bf16", "float16": "bf16", "fp8": "fp8"}
MOE_DTYPES = {"bfloat16": "bf16", "float16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "w4a16_mxfp4": "mxfp4"}
CROWDED = 1.5
"""Token-expert pairs per expert up to which the crowded routing is the nearer one."""
_CROWDED_FIRST = {"power_law_1.01": 0, "power_law_1.2": 1, "balanced": 2}
_BALANCED_FIRST = {"balanced": 0, "power_law_1.01": 1, "power_law_1.2": 2}

LeftOut = dict[str, int]


@dataclass(frozen=True)
class FileKind:
    """One kind of file.

    Attributes:
        family: folder it stands in.
        name: its name without ``_perf.parquet``.
        texts, numbers: columns that must be there, beside those every file has.
        rows: from its rows to rows of the latency table; counts what it leaves out.
    """

    family: str
    name: str
    texts: tuple[str, ...]
    numbers: tuple[str, ...]
    rows: Callable[[pd.DataFrame, LeftOut], pd.DataFrame]


def _known(raw: pd.DataFrame, column: str, known: dict[str, str], what: str, left_out: LeftOut) -> pd.DataFrame:
    """Rows whose number format has a counterpart; the others are counted."""
    has = raw[column].isin(list(known))
    for name, count in raw.loc[~has, column].value_counts().items():
        left_out[f"{what} in {name}"] = int(count)
    return raw[has]


def gemm_rows(raw: pd.DataFrame, left_out: LeftOut) -> pd.DataFrame:
    """Linear layers."""
    rows = _known(raw, "gemm_dtype", GEMM_DTYPES, "linear layers", left_out)
    return pd.DataFrame(
        {
            "operator": "linear",
            "dtype": rows["gemm_dtype"].map(GEMM_DTYPES),
            "implementation": rows["kernel_source"],
            "m": rows["m"],
            "k": rows["k"],
            "n": rows["n"],
            "graph": True,
            "seconds": rows["latency"] * 1e-3,
        }
    )


def decode_rows(raw: pd.DataFrame, left_out: LeftOut) -> pd.DataFrame:
    """Attention of one query a sequence."""
    return _attention_rows(raw, left_out, "attention_decode")


def prefill_rows(raw: pd.DataFrame, left_out: LeftOut) -> pd.DataFrame:
    """Attention of prompts."""
    return _attention_rows(raw, left_out, "attention_prefill")


def _attention_rows(raw: pd.DataFrame, left_out: LeftOut, operator: str) -> pd.DataFrame:
    rows = _known(raw, "kv_cache_dtype", KV_DTYPES, f"{operator} over a KV cache", left_out)
    return pd.DataFrame(
        {
            "operator": operator,
            "dtype": "bf16",
            "kv_dtype": rows["kv_cache_dtype"].map(KV_DTYPES),
            "implementation": rows["kernel_source"],
            "batch": rows["batch_size"],
            "q": rows["isl"],
            "context": rows["step"] + rows["isl"],
            "heads": rows["num_heads"],
            "kv_heads": rows["num_key_value_heads"],
            "head_dim": rows["head_dim"],
            # Files of older versions have no windows.
            "window": rows.get("window_size", 0),
            "graph": True,
            "seconds": rows["latency"] * 1e-3,
        }
    )


def moe_rows(raw: pd.DataFrame, left_out: LeftOut) -> pd.DataFrame:
    """Routed experts, each point under the routing nearest to independent choice."""
    rows = _known(raw, "moe_dtype", MOE_DTYPES, "experts", left_out)
    # Nemotron's experts (22 of 512, or 1856 wide) have no gate matrix; Kimi-K3's activation was replaced by another.
    other = (rows["topk"] == 22) | (rows["inter_size"] == 1856) | rows["kernel_source"].str.endswith("_as_silu")
    elsewhere = rows["moe_ep_size"] > 1
    uneven = rows["inter_size"] % rows["moe_tp_size"] != 0
    for reason, bad in (
        ("experts that are not gate, up, SiLU and down", other),
        ("experts of which other ranks hold some", elsewhere & ~other),
        ("experts whose width the ranks do not divide", uneven & ~other & ~elsewhere),
    ):
        if bad.any():
            left_out[reason] = int(bad.sum())
    rows = rows[~(other | elsewhere | uneven)]
    crowded = rows["num_tokens"] * rows["topk"] <= CROWDED * rows["num_experts"]
    rank = rows["distribution"].map(_CROWDED_FIRST).where(crowded, rows["distribution"].map(_BALANCED_FIRST))
    point = ["moe_dtype", "kernel_source", "num_tokens", "hidden_size", "inter_size", "moe_tp_size", "topk"]
    nearest = rows.assign(rank=rank).sort_values("rank", kind="stable").drop_duplicates([*point, "num_experts"])
    rows = nearest[nearest["rank"].notna()].sort_index()
    return pd.DataFrame(
        {
            "operator": "moe",
            "dtype": rows["moe_dtype"].map(MOE_DTYPES),
            "implementation": rows["kernel_source"],
            "m": rows["num_tokens"],
            "k": rows["hidden_size"],
            "n": rows["inter_size"] // rows["moe_tp_size"],
            "num_experts": rows["num_experts"],
            "top_k": rows["topk"],
            "graph": True,
            "seconds": rows["latency"] * 1e-3,
        }
    )


def all_reduce_rows(raw: pd.DataFrame, left_out: LeftOut) -> pd.DataFrame:
    """All-reduces of 16-bit elements."""
    rows = _known(raw, "allreduce_dtype", {"bfloat16": "bf16", "float16": "bf16"}, "all-reduce", left_out)
    return pd.DataFrame(
        {
            "operator": "all_reduce",
            "dtype": "bf16",
            "implementation": rows["kernel_source"],
            "message_bytes": rows["message_size"] * 2,
            "ranks": rows["num_gpus"],
            "graph": rows["kernel_source"].str.endswith("_graph"),
            "seconds": rows["latency"] * 1e-3,
        }
    )


_ATTENTION = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim")
_MOE = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
FILES = (
    FileKind("gemm", "gemm", ("gemm_dtype",), ("m", "k", "n"), gemm_rows),
    FileKind("attention", "generation_attention", ("kv_cache_dtype",), _ATTENTION, decode_rows),
    FileKind("attention", "context_attention", ("kv_cache_dtype",), _ATTENTION, prefill_rows),
    FileKind("moe", "moe", ("moe_dtype", "distribution"), _MOE, moe_rows),
    FileKind("comm", "custom_allreduce", ("allreduce_dtype",), ("message_size", "num_gpus"), all_reduce_rows),
)
