"""Profiles of LLMServingSim: the CSV files of one model on one device and tensor-parallel degree.

Folder ``.../<device>/<model>/<variant>/tp<N>/`` of github.com/casys-kaist/LLMServingSim (``profiler/perf``), times in
microseconds, timed inside vLLM without a CUDA graph:

* ``dense.csv``: layer, tokens, time_us
* ``per_sequence.csv``: layer, sequences, time_us (lm_head, sampler)
* ``attention.csv``: prefill_chunk, kv_prefill, n_decode, kv_decode, time_us; newer files name the second column
  prefill_key (``kv_prefill + prefill_chunk / 2``) and have layer and decode_q_len. A row with both a prompt and decodes
  is one launch over both (``attention_launch``)
* ``skew.csv``: launches over ``n`` decodes of ``kv_mean`` tokens on average and ``kv_big`` at most, with or without a
  prompt of ``pc`` tokens after ``kp`` others; t_skew_us is the sum of the ``measurement_iterations`` of ``meta.yaml``,
  where the other files have their mean (three times the times of attention.csv in the published profiles)
* ``meta.yaml``: gpu, model, variant (the weights' format) and tp_degrees, which must be those that are asked for
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

from draftcast.calibration.importers.table_file import ImportedTable, TableRows, complete, read_rows, table_of
from draftcast.calibration.measured_model import check_model
from draftcast.calibration.profile.hardware import HardwareSpec, recognised
from draftcast.calibration.profile.load import sha256
from draftcast.errors import HardwareError
from draftcast.files import read_text
from draftcast.kernels.model.dtypes import WEIGHT_BYTES
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.operators.linear import touched_experts
from draftcast.kernels.work.layers import linear_layers, lm_head

Columns = dict[str, Any]
META = "meta.yaml"
_FILES = ("dense.csv", "per_sequence.csv", "attention.csv", "skew.csv", "moe.csv", "layers.csv")
_LINEAR = {"qkv_proj": "qkv", "o_proj": "o", "gate_up_proj": "gate_up", "down_proj": "down"}
_LAYERS = {
    "dense.csv": ("layer", "tokens", "time_us", 1e-6),
    "per_sequence.csv": ("layer", "sequences", "time_us", 1e-6),
    "layers.csv": ("layer_name", "input", "latency(ns)", 1e-9),
}
"""Of a file of layers the columns of their name, of rows and of time, and its unit in seconds."""


def read_llmservingsim(
    path: Path, model: ModelSpec, tp: int | None = None, dtype: str = "bf16", hardware: HardwareSpec | None = None
) -> ImportedTable:
    """Linear layers, norms, rotary, activation, embedding, sampler, attention and experts of one ``tp<N>`` folder.

    ``model``: the profiled one, for the sizes. ``tp``: ranks; absent: the N of the folder's name, or the only one that
    ``meta.yaml`` names. ``dtype``: of weights (the folder above is called after it). ``hardware``: the timed device;
    None: not checked.

    Raises HardwareError: none of the files there, a column missing, a bad value: file, line and column are named;
    another degree, format or device than ``meta.yaml`` names; InputError: another model.
    """
    meta = _meta(path)
    ranks = _ranks(path, meta) if tp is None else tp
    _check(path / META, meta, model, ranks, dtype, hardware)
    shapes = _shapes(model, ranks, dtype)
    parts: list[pd.DataFrame] = []
    left_out: Counter[str] = Counter()
    files = {name: path / name for name in _FILES if (path / name).is_file()}
    if not files:
        raise HardwareError(f"holds none of {', '.join(_FILES)}", file=str(path))
    for name, file in files.items():
        if name == "attention.csv":
            parts += _attention(file, model, ranks, left_out)
        elif name == "skew.csv":
            parts.append(_skew(file, model, ranks, int(meta.get("measurement_iterations", "1"))))
        elif name == "moe.csv":
            parts.append(_experts(file, model, ranks, dtype, left_out))
        else:
            parts += _layers(file, shapes, ranks, left_out)
    frame = pd.concat([complete(part) for part in parts or [pd.DataFrame()]], ignore_index=True)
    return ImportedTable(
        table=table_of(frame.assign(implementation="vllm"), path),
        device=meta.get("gpu", ""),
        source="imported from a profile of LLMServingSim (github.com/casys-kaist/LLMServingSim)",
        versions={"vllm": meta["vllm_version"]} if "vllm_version" in meta else {},
        sources={name: sha256(file) for name, file in files.items()},
        left_out=dict(+left_out),
    )


def _meta(path: Path) -> dict[str, str]:
    """What the tool wrote down of the device and its measurement; empty without the file."""
    file = path / META
    text = read_text(file, HardwareError) if file.is_file() else ""
    # Not as YAML: later parts of the file have keys that are no words.
    keys = "gpu|vllm_version|measurement_iterations|model|variant|tp_degrees"
    return dict(re.findall(rf"^({keys}): *([^\s].*)$", text, re.MULTILINE))


def _degrees(meta: dict[str, str]) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", meta.get("tp_degrees", ""))]


def _ranks(path: Path, meta: dict[str, str]) -> int:
    named, degrees = re.fullmatch(r"tp([1-9]\d*)", path.name), _degrees(meta)
    if named is None and len(degrees) != 1:
        raise HardwareError("must be called tp<N>, or the tensor-parallel degree be given by --tp", file=str(path))
    return int(named[1]) if named is not None else degrees[0]


def _check(
    file: Path, meta: dict[str, str], model: ModelSpec, ranks: int, dtype: str, hardware: HardwareSpec | None
) -> None:
    """Refuse timings of something else than is asked for, as far as ``meta`` says."""
    check_model(meta.get("model", ""), model.name, str(file))
    degrees, variant, gpu = _degrees(meta), meta.get("variant", dtype), recognised(meta.get("gpu", ""))
    if degrees and ranks not in degrees:
        message = f"does not hold {ranks} ranks: give one of its degrees by --tp"
        raise HardwareError(message, file=str(file), key="tp_degrees", value=meta["tp_degrees"])
    if variant in WEIGHT_BYTES and variant != dtype:
        raise HardwareError(f"was timed, not {dtype}: give it by --dtype", file=str(file), key="variant", value=variant)
    # A file of the user's own may describe any device.
    if gpu is not None and hardware is not None and recognised(hardware.name) and gpu.name != hardware.name:
        message = f"was timed, not {hardware.name}: give --hardware {gpu.name}"
        raise HardwareError(message, file=str(file), key="gpu", value=meta["gpu"])


def _shapes(model: ModelSpec, tp: int, dtype: str) -> dict[str, Columns]:
    """Operator and sizes of each layer the files may name."""
    of_layer = {layer.name: layer for layer in linear_layers(model, tp)}
    heads, hidden, head = _heads(model, tp), model.hidden_size, lm_head(model, tp)
    shapes: dict[str, Columns] = {
        name: {"operator": "linear", "dtype": dtype, "k": of_layer[ours].k, "n": of_layer[ours].n}
        for name, ours in _LINEAR.items()
        if ours in of_layer
    }
    wide = {"operator": "linear", "dtype": dtype, "k": hidden}
    shapes["q_proj"] = {**wide, "n": heads["heads"] * heads["head_dim"]}
    shapes["k_proj"] = shapes["v_proj"] = {**wide, "n": heads["kv_heads"] * heads["head_dim"]}
    if "gate_up_proj" in shapes:
        width = of_layer["down"].k
        shapes["gate_proj"] = shapes["up_proj"] = {**wide, "n": width}
        shapes["act_fn"] = {"operator": "swiglu", "dtype": "bf16", "n": width}
    shapes["lm_head"] = {"operator": "linear", "dtype": "bf16", "k": head.k, "n": head.n}
    shapes["sampler"] = {"operator": "sampler", "dtype": "bf16", "n": model.vocab_size}
    shapes["embedding"] = {"operator": "embedding", "dtype": "bf16", "k": head.n, "n": hidden}
    shapes["layernorm"] = {"operator": "rmsnorm", "dtype": "bf16", "n": hidden}
    shapes["rotary_emb"] = shapes["rope"] = {"operator": "rotary", "dtype": "bf16", **heads}
    return shapes


def _layers(file: Path, shapes: dict[str, Columns], tp: int, left_out: Counter[str]) -> list[pd.DataFrame]:
    layer, tokens, time, unit_s = _LAYERS[file.name]
    ranks = ("tp_size",) if file.name == "layers.csv" else ()
    rows = read_rows(file, layer, tokens, time, *ranks)
    if ranks:
        rows.check("tp_size", rows.whole("tp_size", 1) == tp, f"{tp} is needed, as the folder says")
    parts = []
    for name, group in rows.frame.groupby(layer, sort=False):
        if name in shapes:
            of_layer = rows.where(rows.frame.index.isin(group.index))
            columns = {"m": of_layer.whole(tokens, 1), "seconds": of_layer.seconds(time, unit_s), **shapes[str(name)]}
            parts.append(group[[]].assign(**columns))
        else:
            left_out[f"layer {name}: no counterpart"] += len(group)
    return parts


def _attention(file: Path, model: ModelSpec, tp: int, left_out: Counter[str]) -> list[pd.DataFrame]:
    """Prompts alone, decodes alone, and both in one launch."""
    rows = read_rows(file)
    if "layer" in rows.frame:
        other = rows.has("layer") & (rows.frame["layer"] != "attention")
        left_out.update(f"layer {name}: no counterpart" for name in rows.frame.loc[other, "layer"])
        rows = rows.where(~other)
    chunk, batch = rows.whole("prefill_chunk"), rows.whole("n_decode")
    parts = []
    prompts = rows.where((chunk > 0) & (batch == 0))
    q = chunk[prompts.frame.index]
    parts.append(_timed(prompts, "attention_prefill", batch=1, q=q, context=_prefix(prompts, q) + q))
    decodes = rows.where((chunk == 0) & (batch > 0))
    q = _sometimes(decodes, "decode_q_len")
    context = decodes.whole("kv_decode") + q
    parts.append(_timed(decodes, "attention_decode", batch=batch[decodes.frame.index], q=q, context=context))
    both = rows.where((chunk > 0) & (batch > 0))
    single = _sometimes(both, "decode_q_len") == 1
    left_out["attention of a prompt beside several queries a sequence"] += int((~single).sum())
    both = both.where(single)
    m, context = chunk[both.frame.index], both.whole("kv_decode") + 1
    columns: Columns = {"m": m, "k": _prefix(both, m) + m, "n": context, "context": context}
    parts.append(_timed(both, "attention_launch", batch=batch[both.frame.index], **columns))
    return [part.assign(dtype="bf16", kv_dtype="bf16", **_heads(model, tp)) for part in parts]


def _timed(rows: TableRows, operator: str, time: str = "time_us", unit_s: float = 1e-6, **columns: Any) -> pd.DataFrame:
    return rows.frame[[]].assign(operator=operator, seconds=rows.seconds(time, unit_s), **columns)


def _prefix(rows: TableRows, chunk: pd.Series[int]) -> pd.Series[int]:
    """Tokens of the prompt before the chunk."""
    if "kv_prefill" in rows.frame or "prefill_key" not in rows.frame:
        return rows.whole("kv_prefill")
    return (rows.seconds("prefill_key", 1.0, may_be_zero=True) - chunk / 2).round().astype(np.int64)


def _sometimes(rows: TableRows, column: str) -> pd.Series[int]:
    """Whole numbers, 1 where the file does not say."""
    numbers = pd.Series(1, index=rows.frame.index)
    filled = rows.where(rows.has(column))
    if len(filled.frame):
        numbers.update(filled.whole(column, 1))
    return numbers


def _heads(model: ModelSpec, tp: int) -> dict[str, int]:
    heads, kv_heads = model.num_attention_heads // tp, model.kv_heads_per_rank(tp)
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": model.head_dim}


def _skew(file: Path, model: ModelSpec, tp: int, iterations: int) -> pd.DataFrame:
    rows = read_rows(file)
    mean, m = rows.seconds("kv_mean", 1.0), rows.whole("pc")
    columns: Columns = {"m": m, "k": (rows.whole("kp") + m).where(m > 0, 0), "n": rows.whole("kv_big", 1) + 1}
    columns |= {"batch": rows.whole("n", 1), "context": mean.round().astype(np.int64) + 1}
    launches = _timed(rows, "attention_launch", "t_skew_us", 1e-6 / iterations, **columns)
    return launches.assign(dtype="bf16", kv_dtype="bf16", **_heads(model, tp))


def _experts(file: Path, model: ModelSpec, tp: int, dtype: str, left_out: Counter[str]) -> pd.DataFrame:
    if not model.num_moe_layers:
        raise HardwareError(f"{model.name} has no experts", file=str(file))
    rows = read_rows(file)
    here = rows.where(_sometimes(rows, "ep") == 1)
    tokens, active = here.whole("tokens", 1), here.whole("activated_experts", 1)
    expected = touched_experts(tokens.to_numpy(), model.num_experts, model.num_experts_per_tok)
    distance = pd.Series(np.abs(np.log(active.to_numpy() / expected)), index=here.frame.index)
    nearest = here.where(here.frame.index.isin(distance.groupby(tokens).idxmin()))
    unlikely = "experts visited by fewer or more of them than independent routing does"
    left_out["experts of which other ranks hold some"] += len(rows.frame) - len(here.frame)
    left_out[unlikely] += len(here.frame) - len(nearest.frame)
    sizes: Columns = {"k": model.hidden_size, "n": math.ceil(model.moe_intermediate_size / tp)}
    routing: Columns = {"num_experts": model.num_experts, "top_k": model.num_experts_per_tok}
    return _timed(nearest, "moe", dtype=dtype, m=tokens, **sizes, **routing)
