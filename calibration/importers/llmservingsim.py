"""Profiles of LLMServingSim: the CSV files of one model on one device and tensor-parallel degree.

Folder ``.../<device>/<model>/<variant>/tp<N>/`` of github.com/casys-kaist/LLMServingSim (``profiler/perf``), times in
microseconds, timed inside vLLM without a CUDA graph:

* ``dense.csv``: layer, tokens, time_us
* ``per_sequence.csv``: layer, sequences, time_us (lm_head, sampler)
* ``attention.csv``: prefill_chunk, kv_prefill, n_decode, kv_decode, time_us; newer files name the second column
  prefill_key (``kv_prefill + prefill_chunk / 2``) and have layer and decode_q_len. A row with both a prompt and decodes
  has no counterpart and is counted
* ``moe.csv``: tokens, activated_experts, time_us and, in newer files, ep; of several numbers of experts for one number
  of tokens the one nearest to what uniform independent routing touches is taken

The first version of the tool has one ``layers.csv`` instead: layer_name, input, kv_cache, tp_size, latency(ns), with q,
k, v, gate and up apart. The files name layers, not sizes, so the model must be given.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from draftcast.calibration.importers.table_file import Imported, complete, read_rows, table_of
from draftcast.calibration.profile.folder import sha256
from draftcast.errors import HardwareError
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.operators.moe import touched_experts
from draftcast.kernels.work.layers import linear_layers, lm_head

Columns = dict[str, Any]
_FILES = ("dense.csv", "per_sequence.csv", "attention.csv", "moe.csv", "layers.csv")
_LINEAR = {"qkv_proj": "qkv", "o_proj": "o", "gate_up_proj": "gate_up", "down_proj": "down"}
_ATTENTION = ("prefill_chunk", "n_decode", "kv_decode", "time_us")


def read_llmservingsim(path: Path, model: ModelSpec, tp: int | None = None, dtype: str = "bf16") -> Imported:
    """Linear layers, rotary, activation, embedding, sampler, attention and experts of one ``tp<N>`` folder.

    Args:
        path: the folder.
        model: the profiled model, for the sizes.
        tp: ranks; absent: the N of the folder's name.
        dtype: number format of weights (the folder above is called after it).

    Raises:
        HardwareError: none of the files there, a column missing, a bad value: file, line and column are named.
    """
    ranks = _ranks(path) if tp is None else tp
    shapes = _shapes(model, ranks, dtype)
    parts: list[pd.DataFrame] = []
    left_out: Counter[str] = Counter()
    sources: dict[str, str] = {}
    for name in _FILES:
        file = path / name
        if not file.is_file():
            continue
        sources[name] = sha256(file)
        if name == "attention.csv":
            parts.append(_attention(file, model, ranks, left_out))
        elif name == "moe.csv":
            parts.append(_experts(file, model, ranks, dtype, left_out))
        else:
            parts += _layers(file, shapes, ranks, left_out)
    if not sources:
        raise HardwareError(f"holds none of {', '.join(_FILES)}", file=str(path))
    frame = pd.concat([complete(part) for part in parts or [pd.DataFrame()]], ignore_index=True)
    return Imported(
        table=table_of(frame.assign(implementation="vllm"), path),
        device="",
        source="imported from a profile of LLMServingSim (github.com/casys-kaist/LLMServingSim)",
        sources=sources,
        left_out=dict(+left_out),
    )


def _ranks(path: Path) -> int:
    found = re.fullmatch(r"tp(\d+)", path.name)
    if found is None or int(found[1]) < 1:
        raise HardwareError("must be called tp<N>, or the tensor-parallel degree must be given", file=str(path))
    return int(found[1])


def _shapes(model: ModelSpec, tp: int, dtype: str) -> dict[str, Columns]:
    """Operator and sizes of each layer the files may name."""
    of_layer = {layer.name: layer for layer in linear_layers(model, tp)}
    heads, kv_heads, head_dim = model.num_attention_heads // tp, model.kv_heads_per_rank(tp), model.head_dim
    hidden, head = model.hidden_size, lm_head(model, tp)
    shapes: dict[str, Columns] = {
        name: {"operator": "linear", "dtype": dtype, "k": of_layer[ours].k, "n": of_layer[ours].n}
        for name, ours in _LINEAR.items()
        if ours in of_layer
    }
    wide = {"operator": "linear", "dtype": dtype, "k": hidden}
    shapes["q_proj"] = {**wide, "n": heads * head_dim}
    shapes["k_proj"] = shapes["v_proj"] = {**wide, "n": kv_heads * head_dim}
    if "gate_up_proj" in shapes:
        width = of_layer["down"].k
        shapes["gate_proj"] = shapes["up_proj"] = {**wide, "n": width}
        shapes["act_fn"] = {"operator": "swiglu", "dtype": "bf16", "n": width}
    shapes["lm_head"] = {"operator": "linear", "dtype": "bf16", "k": head.k, "n": head.n}
    shapes["sampler"] = {"operator": "sampler", "dtype": "bf16", "n": model.vocab_size}
    shapes["embedding"] = {"operator": "embedding", "dtype": "bf16", "k": head.n, "n": hidden}
    rotary = {"operator": "rotary", "dtype": "bf16", "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    shapes["rotary_emb"] = shapes["rope"] = rotary
    return shapes


def _layers(file: Path, shapes: dict[str, Columns], tp: int, left_out: Counter[str]) -> list[pd.DataFrame]:
    rows_column = {"dense.csv": "tokens", "per_sequence.csv": "sequences"}.get(file.name)
    if rows_column is None:
        layer, tokens, time, unit_s = "layer_name", "input", "latency(ns)", 1e-9
        rows = read_rows(file, (layer, tokens, time, "tp_size"))
        rows.check("tp_size", rows.whole("tp_size", 1) == tp, f"{tp} is needed, as the folder says")
    else:
        layer, tokens, time, unit_s = "layer", rows_column, "time_us", 1e-6
        rows = read_rows(file, (layer, tokens, time))
    parts = []
    for name, group in rows.frame.groupby(layer, sort=False):
        if name in shapes:
            own = rows.where(rows.frame.index.isin(group.index))
            columns = {"m": own.whole(tokens, 1), "seconds": own.seconds(time, unit_s), **shapes[str(name)]}
            parts.append(group[[]].assign(**columns))
        else:
            left_out[f"layer {name}: no counterpart"] += len(group)
    return parts


def _attention(file: Path, model: ModelSpec, tp: int, left_out: Counter[str]) -> pd.DataFrame:
    rows = read_rows(file, ("kv_prefill", *_ATTENTION), ("prefill_key", *_ATTENTION))
    if "layer" in rows.frame:
        other = rows.has("layer") & (rows.frame["layer"] != "attention")
        for name, count in rows.frame.loc[other, "layer"].value_counts().items():
            left_out[f"layer {name}: no counterpart"] += int(count)
        rows = rows.where(~other)
    chunk, batch = rows.whole("prefill_chunk"), rows.whole("n_decode")
    mixed = (chunk > 0) == (batch > 0)
    left_out["attention of a prompt and of decodes in one launch"] += int(mixed.sum())
    prompts, decodes = rows.where(~mixed & (chunk > 0)), rows.where(~mixed & (batch > 0))
    if "kv_prefill" in rows.frame:
        before = prompts.whole("kv_prefill")
    else:
        mean_key = prompts.seconds("prefill_key", 1.0, may_be_zero=True)
        before = (mean_key - chunk[mean_key.index] / 2).round().astype(np.int64)
    lengths = decodes.where(decodes.has("decode_q_len"))
    queries = pd.Series(1, index=decodes.frame.index)
    if len(lengths.frame):
        queries.update(lengths.whole("decode_q_len", 1))
    q = pd.concat([chunk[prompts.frame.index], queries])
    timed = rows.where(~mixed)
    return timed.frame[[]].assign(
        operator=(batch > 0).map({True: "attention_decode", False: "attention_prefill"}),
        batch=batch.clip(lower=1),
        q=q,
        context=pd.concat([before, decodes.whole("kv_decode")]) + q,
        seconds=timed.seconds("time_us", 1e-6),
        dtype="bf16",
        kv_dtype="bf16",
        heads=model.num_attention_heads // tp,
        kv_heads=model.kv_heads_per_rank(tp),
        head_dim=model.head_dim,
    )


def _experts(file: Path, model: ModelSpec, tp: int, dtype: str, left_out: Counter[str]) -> pd.DataFrame:
    if not model.num_moe_layers:
        raise HardwareError(f"{model.name} has no experts", file=str(file))
    rows = read_rows(file, ("tokens", "activated_experts", "time_us"))
    ranks = rows.where(rows.has("ep"))
    elsewhere = ranks.whole("ep", 1) > 1 if len(ranks.frame) else pd.Series(False, index=ranks.frame.index)
    here = rows.where(~elsewhere.reindex(rows.frame.index, fill_value=False))
    tokens, active = here.whole("tokens", 1), here.whole("activated_experts", 1)
    expected = touched_experts(tokens.to_numpy(), model.num_experts, model.num_experts_per_tok)
    distance = pd.Series(np.abs(np.log(active.to_numpy() / expected)), index=here.frame.index)
    nearest = here.where(here.frame.index.isin(distance.groupby(tokens).idxmin()))
    unlikely = "experts visited by fewer or more of them than independent routing does"
    left_out["experts of which other ranks hold some"] += len(rows.frame) - len(here.frame)
    left_out[unlikely] += len(here.frame) - len(nearest.frame)
    return nearest.frame[[]].assign(
        operator="moe",
        dtype=dtype,
        m=tokens,
        k=model.hidden_size,
        n=math.ceil(model.moe_intermediate_size / tp),
        num_experts=model.num_experts,
        top_k=model.num_experts_per_tok,
        seconds=nearest.seconds("time_us", 1e-6),
    )
