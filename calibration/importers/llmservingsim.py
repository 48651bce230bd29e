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
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from draftcast.calibration.importers.csv_rows import Row, read_rows
from draftcast.calibration.importers.imported import Imported, complete, table_of
from draftcast.calibration.profile.folder import sha256
from draftcast.errors import HardwareError
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.operators.moe import touched_experts
from draftcast.kernels.work.layers import linear_layers, lm_head

Columns = dict[str, object]
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
    rows: list[Columns] = []
    left_out: dict[str, int] = {}
    sources: dict[str, str] = {}
    for name in _FILES:
        file = path / name
        if not file.is_file():
            continue
        sources[name] = sha256(file)
        if name == "attention.csv":
            rows += _attention(file, model, ranks, left_out)
        elif name == "moe.csv":
            rows += _moe(file, model, ranks, dtype, left_out)
        else:
            rows += _layers(file, shapes, ranks, left_out)
    if not sources:
        raise HardwareError(f"holds none of {', '.join(_FILES)}", file=str(path))
    frame = complete(pd.DataFrame(rows)).assign(implementation="vllm")
    return Imported(
        table=table_of(frame, path),
        device="",
        source="imported from a profile of LLMServingSim (github.com/casys-kaist/LLMServingSim)",
        sources=sources,
        left_out=left_out,
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


def _layers(file: Path, shapes: dict[str, Columns], tp: int, left_out: dict[str, int]) -> Iterator[Columns]:
    rows_column = {"dense.csv": "tokens", "per_sequence.csv": "sequences"}.get(file.name)
    first = rows_column is None
    layer, time, scale = ("layer_name", "latency(ns)", 1e-9) if first else ("layer", "time_us", 1e-6)
    tokens = rows_column or "input"
    _, rows = read_rows(file, (layer, tokens, time, *(("tp_size",) if first else ())))
    for row in rows:
        name = row.text(layer)
        if first and row.whole("tp_size", 1) != tp:
            raise row.fault("tp_size", f"{tp} is needed, as the folder says")
        if name not in shapes:
            _count(left_out, f"layer {name}: no counterpart")
            continue
        yield {"kv_dtype": "", "m": row.whole(tokens, 1), "seconds": row.time(time) * scale, **shapes[name]}


def _attention(file: Path, model: ModelSpec, tp: int, left_out: dict[str, int]) -> Iterator[Columns]:
    header, rows = read_rows(file, ("kv_prefill", *_ATTENTION), ("prefill_key", *_ATTENTION))
    heads = {
        "dtype": "bf16",
        "kv_dtype": "bf16",
        "heads": model.num_attention_heads // tp,
        "kv_heads": model.kv_heads_per_rank(tp),
        "head_dim": model.head_dim,
    }
    for row in rows:
        if row.has("layer") and row.text("layer") != "attention":
            _count(left_out, f"layer {row.text('layer')}: no counterpart")
            continue
        chunk, batch = row.whole("prefill_chunk"), row.whole("n_decode")
        if (chunk > 0) == (batch > 0):
            _count(left_out, "attention of a prompt and of decodes in one launch")
            continue
        q = chunk or (row.whole("decode_q_len", 1) if row.has("decode_q_len") else 1)
        if batch:
            before = row.whole("kv_decode")
        elif "kv_prefill" in header:
            before = row.whole("kv_prefill")
        else:
            before = round(row.time("prefill_key", may_be_zero=True) - chunk / 2)
        yield {
            "operator": "attention_decode" if batch else "attention_prefill",
            "batch": batch or 1,
            "q": q,
            "context": before + q,
            "seconds": row.time("time_us") * 1e-6,
            **heads,
        }


def _moe(file: Path, model: ModelSpec, tp: int, dtype: str, left_out: dict[str, int]) -> Iterator[Columns]:
    if not model.num_moe_layers:
        raise HardwareError(f"{model.name} has no experts", file=str(file))
    _, rows = read_rows(file, ("tokens", "activated_experts", "time_us"))
    nearest: dict[int, tuple[float, Row]] = {}
    for row in rows:
        if row.has("ep") and row.whole("ep", 1) > 1:
            _count(left_out, "experts of which other ranks hold some")
            continue
        tokens, active = row.whole("tokens", 1), row.whole("activated_experts", 1)
        expected = float(touched_experts(tokens, model.num_experts, model.num_experts_per_tok))
        distance = abs(math.log(active / expected))
        if tokens in nearest:
            _count(left_out, "experts visited by fewer or more of them than independent routing does")
        if tokens not in nearest or distance < nearest[tokens][0]:
            nearest[tokens] = distance, row
    for tokens, (_, row) in nearest.items():
        yield {
            "operator": "moe",
            "dtype": dtype,
            "kv_dtype": "",
            "m": tokens,
            "k": model.hidden_size,
            "n": math.ceil(model.moe_intermediate_size / tp),
            "num_experts": model.num_experts,
            "top_k": model.num_experts_per_tok,
            "seconds": row.time("time_us") * 1e-6,
        }


def _count(left_out: dict[str, int], reason: str) -> None:
    left_out[reason] = left_out.get(reason, 0) + 1
