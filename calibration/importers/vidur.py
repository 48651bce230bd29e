"""Profiles of the simulator Vidur: ``mlp.csv`` and ``attention.csv`` of one model on one device.

They stand in ``data/profiling/compute/<device>/<model>/`` of github.com/microsoft/vidur. Times are milliseconds of one
layer without a CUDA graph, given as ``time_stats.<operator>.<min|max|mean|median|std>``; the median is taken, which has
no interval. The tool times in 16 bits, so rows become bf16. ``attn_pre_proj`` is the fused qkv, ``mlp_up_proj`` gate
and up when ``use_gated_mlp``; norms and ``add`` are apart, unlike the fused norm of an engine, and are not taken.
Attention counts writing the new keys and values (``attn_kv_cache_save``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from draftcast.calibration.importers.csv_rows import Row, read_rows
from draftcast.calibration.importers.imported import Imported, complete, table_of
from draftcast.calibration.profile.folder import sha256
from draftcast.errors import HardwareError

MLP, ATTENTION = "mlp.csv", "attention.csv"
_MLP_SHAPE = (
    "n_head",
    "n_kv_head",
    "n_embd",
    "n_expanded_embd",
    "vocab_size",
    "use_gated_mlp",
    "num_tokens",
    "num_tensor_parallel_workers",
)
_ATTENTION_SHAPE = (
    "n_embd",
    "n_q_head",
    "n_kv_head",
    "num_tensor_parallel_workers",
    "batch_size",
    "prefill_chunk_size",
    "kv_cache_size",
    "is_prefill",
)
_LAYERS = ("emb", "attn_pre_proj", "attn_rope", "attn_post_proj", "mlp_up_proj", "mlp_act", "mlp_down_proj")


def read_vidur(path: Path) -> Imported:
    """Linear layers, rotary, activation, embedding and attention of a folder of Vidur's, or of one of its two files.

    Raises:
        HardwareError: neither file there, a column missing, a bad value: file, line and column are named.
    """
    files = [path] if path.is_file() else [path / name for name in (MLP, ATTENTION) if (path / name).is_file()]
    if not files:
        raise HardwareError(f"holds neither {MLP} nor {ATTENTION}", file=str(path))
    rows: list[dict[str, object]] = []
    for file in files:
        if file.name not in (MLP, ATTENTION):
            raise HardwareError(f"must be called {MLP} or {ATTENTION}", file=str(file))
        rows += _mlp(file) if file.name == MLP else _attention(file)
    frame = complete(pd.DataFrame(rows)).assign(implementation="vidur")
    return Imported(
        table=table_of(frame, path),
        device="",
        source="imported from a compute profile of Vidur (github.com/microsoft/vidur)",
        sources={file.name: sha256(file) for file in files},
    )


def _median(operator: str) -> str:
    return f"time_stats.{operator}.median"


def _mlp(file: Path) -> Iterator[dict[str, object]]:
    _, rows = read_rows(file, (*_MLP_SHAPE, *(_median(layer) for layer in _LAYERS)))
    for row in rows:
        tp = row.whole("num_tensor_parallel_workers", 1)
        hidden, heads = row.whole("n_embd", 1), row.whole("n_head", 1)
        head_dim = _divided(row, "n_embd", hidden, heads)
        q_heads, kv_heads = _divided(row, "n_head", heads, tp), max(row.whole("n_kv_head", 1) // tp, 1)
        width = _divided(row, "n_expanded_embd", row.whole("n_expanded_embd", 1), tp)
        vocab = -(-row.whole("vocab_size", 1) // tp)
        gated = row.flag("use_gated_mlp")
        shapes: dict[str, dict[str, object]] = {
            "emb": {"operator": "embedding", "k": vocab, "n": hidden},
            "attn_pre_proj": {"operator": "linear", "k": hidden, "n": (q_heads + 2 * kv_heads) * head_dim},
            "attn_rope": {"operator": "rotary", "heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim},
            "attn_post_proj": {"operator": "linear", "k": q_heads * head_dim, "n": hidden},
            "mlp_up_proj": {"operator": "linear", "k": hidden, "n": 2 * width if gated else width},
            "mlp_down_proj": {"operator": "linear", "k": width, "n": hidden},
        }
        if gated:
            shapes["mlp_act"] = {"operator": "swiglu", "n": width}
        for layer, shape in shapes.items():
            # A model without rotary embedding has no time for it.
            if row.has(_median(layer)):
                seconds = row.time(_median(layer)) * 1e-3
                yield {"dtype": "bf16", "kv_dtype": "", "m": row.whole("num_tokens", 1), "seconds": seconds, **shape}


def _attention(file: Path) -> Iterator[dict[str, object]]:
    columns = (_median("attn_prefill"), _median("attn_decode"), _median("attn_kv_cache_save"))
    _, rows = read_rows(file, (*_ATTENTION_SHAPE, *columns))
    for row in rows:
        tp = row.whole("num_tensor_parallel_workers", 1)
        heads, prefill = row.whole("n_q_head", 1), row.flag("is_prefill")
        q = row.whole("prefill_chunk_size", 1) if prefill else 1
        seconds = row.time(_median("attn_prefill" if prefill else "attn_decode"))
        if row.has(_median("attn_kv_cache_save")):
            seconds += row.time(_median("attn_kv_cache_save"), may_be_zero=True)
        yield {
            "operator": "attention_prefill" if prefill else "attention_decode",
            "dtype": "bf16",
            "kv_dtype": "bf16",
            "batch": row.whole("batch_size", 1),
            "q": q,
            "context": row.whole("kv_cache_size") + q,
            "heads": _divided(row, "n_q_head", heads, tp),
            "kv_heads": max(row.whole("n_kv_head", 1) // tp, 1),
            "head_dim": _divided(row, "n_embd", row.whole("n_embd", 1), heads),
            "seconds": seconds * 1e-3,
        }


def _divided(row: Row, column: str, value: int, parts: int) -> int:
    if value % parts:
        raise row.fault(column, f"a multiple of {parts} is needed")
    return value // parts
