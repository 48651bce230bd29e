"""Profiles of the simulator Vidur: ``mlp.csv`` and ``attention.csv`` of one model on one device.

They stand in ``data/profiling/compute/<device>/<model>/`` of github.com/microsoft/vidur. Times are milliseconds of one
layer without a CUDA graph, given as ``time_stats.<operator>.<min|max|mean|median|std>``; the median is taken, which has
no interval. The tool times in 16 bits, so rows become bf16. ``attn_pre_proj`` is the fused qkv, ``mlp_up_proj`` gate
and up when ``use_gated_mlp``; norms and ``add`` are apart, unlike the fused norm of an engine, and are not taken.
Attention counts writing the new keys and values (``attn_kv_cache_save``).
"""

from pathlib import Path
from typing import Any

import pandas as pd

from draftcast.calibration.importers.table_file import ImportedTable, complete, read_rows, table_of
from draftcast.calibration.profile.load import sha256
from draftcast.errors import HardwareError

MLP, ATTENTION = "mlp.csv", "attention.csv"
_LAYERS = ("emb", "attn_pre_proj", "attn_rope", "attn_post_proj", "mlp_up_proj", "mlp_act", "mlp_down_proj")


def read_vidur(path: Path) -> ImportedTable:
    """Linear layers, rotary, activation, embedding and attention of a folder of Vidur's, or of one of its two files.

    Raises HardwareError: neither file there, a column missing, a bad value: file, line and column are named.
    """
    files = [path] if path.is_file() else [path / name for name in (MLP, ATTENTION) if (path / name).is_file()]
    if not files:
        raise HardwareError(f"holds neither {MLP} nor {ATTENTION}", file=str(path))
    parts = []
    for file in files:
        if file.name not in (MLP, ATTENTION):
            raise HardwareError(f"must be called {MLP} or {ATTENTION}", file=str(file))
        parts += _mlp(file) if file.name == MLP else [_attention(file)]
    frame = pd.concat([complete(part) for part in parts], ignore_index=True).assign(implementation="vidur")
    return ImportedTable(
        table=table_of(frame, path),
        device="",
        source="imported from a compute profile of Vidur (github.com/microsoft/vidur)",
        sources={file.name: sha256(file) for file in files},
    )


def _median(operator: str) -> str:
    return f"time_stats.{operator}.median"


def _mlp(file: Path) -> list[pd.DataFrame]:
    rows = read_rows(file, *map(_median, _LAYERS))
    tp = rows.whole("num_tensor_parallel_workers", 1)
    hidden, heads = rows.whole("n_embd", 1), rows.whole("n_head", 1)
    head_dim = rows.divided("n_embd", hidden, heads)
    q_heads, kv_heads = rows.divided("n_head", heads, tp), (rows.whole("n_kv_head", 1) // tp).clip(lower=1)
    width = rows.divided("n_expanded_embd", rows.whole("n_expanded_embd", 1), tp)
    vocab = -(-rows.whole("vocab_size", 1) // tp)
    gated = rows.flag("use_gated_mlp")
    num_tokens = rows.whole("num_tokens", 1)
    shapes: dict[str, dict[str, Any]] = {
        "emb": {"operator": "embedding", "k": vocab, "n": hidden},
        "attn_pre_proj": {"operator": "linear", "k": hidden, "n": (q_heads + 2 * kv_heads) * head_dim},
        "attn_rope": {"operator": "rotary", "heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim},
        "attn_post_proj": {"operator": "linear", "k": q_heads * head_dim, "n": hidden},
        "mlp_up_proj": {"operator": "linear", "k": hidden, "n": width.where(~gated, 2 * width)},
        "mlp_down_proj": {"operator": "linear", "k": width, "n": hidden},
        "mlp_act": {"operator": "swiglu", "n": width},
    }
    parts = []
    for layer, shape in shapes.items():
        # A model without rotary embedding has no time for it.
        timed = rows.has(_median(layer)) & (gated | (layer != "mlp_act"))
        seconds = rows.where(timed).seconds(_median(layer), 1e-3)
        parts.append(rows.frame[[]].assign(dtype="bf16", m=num_tokens, seconds=seconds, **shape)[timed])
    return parts


def _attention(file: Path) -> pd.DataFrame:
    save = _median("attn_kv_cache_save")
    rows = read_rows(file, save)
    tp = rows.whole("num_tensor_parallel_workers", 1)
    heads, prefill = rows.whole("n_q_head", 1), rows.flag("is_prefill")
    q = rows.whole("prefill_chunk_size").where(prefill, 1)
    rows.check("prefill_chunk_size", q >= 1, "a whole number >= 1 is needed")
    phases = {"attn_prefill": prefill, "attn_decode": ~prefill}
    times = [rows.where(chosen).seconds(_median(name), 1e-3) for name, chosen in phases.items()]
    saving = rows.where(rows.has(save)).seconds(save, 1e-3, may_be_zero=True)
    return rows.frame[[]].assign(
        operator=prefill.map({True: "attention_prefill", False: "attention_decode"}),
        dtype="bf16",
        kv_dtype="bf16",
        batch=rows.whole("batch_size", 1),
        q=q,
        context=rows.whole("kv_cache_size") + q,
        heads=rows.divided("n_q_head", heads, tp),
        kv_heads=(rows.whole("n_kv_head", 1) // tp).clip(lower=1),
        head_dim=rows.divided("n_embd", rows.whole("n_embd", 1), heads),
        seconds=pd.concat(times).add(saving, fill_value=0.0),
    )
