"""Latent attention from aiconfigurator-core's timings of a whole attention block.

One row of its modules is all of one layer's attention in a CUDA graph, all-reduce apart: the matrices (qkv_a, q_b, the
two halves of kv_b, o), the latents' norms, rotary embedding, cache write, attention over latents; of sparse attention
the indexer and its matrices too. The matrices are layers of their own in a step, so the profile's times of them, bf16
over the same rows, are taken off. What is left holds one thing more: in decode the halves of kv_b are two batched
products (8 to 13 us for the 3 to 14 us of one matrix). Decode rows whose matrices ran out of the cache are dropped
unless they still exceed the roofline of the others; prompts are bound by arithmetic, those of sparse attention by
launches, and not taken. docs/profiles.md says why, and how far the parts are off.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from draftcast.calibration.importers.plausible import plausible
from draftcast.calibration.importers.table_file import PROMPTS, LeftOut, known_rows, launches, without
from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.measured import TablePart, curves_of, parts_of, seconds_by
from draftcast.calibration.profile.roofline_fit import Rooflines, fit_table
from draftcast.calibration.profile.table import POINT, checked_table
from draftcast.kernels.arrays import FloatArray
from draftcast.kernels.model.catalog import load_model, named_format
from draftcast.kernels.model.dtypes import KV_BYTES, WEIGHT_BYTES
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.operators.attention import layer_shape
from draftcast.kernels.operators.sparse import sparse_decode_shape
from draftcast.kernels.work.layers import LinearLayer, linear_layers

MODEL = "deepseek-ai/DeepSeek-V3"
SPARSE_MODELS = ("deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5")
FP8_SPARSE_MODELS = ("deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5-FP8")
MODULES = {"mla_decode": (MODEL,), "mla_prefill": (MODEL,), "dsa_decode": SPARSE_MODELS}
"""Models of every operator's blocks; sparse ones are told apart by their index heads."""
MATRICES = ("qkv_a", "q_b", "kv_b", "o", "index_q", "index_k")
KV_DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}
CACHED = "latent attention whose weights and latents fit the cache: too fast"
NOTHING_LEFT = "latent attention no slower than its matrices"


def module_rows(
    raw: pd.DataFrame, left_out: LeftOut, operator: str, names: tuple[str, ...] = (), gemm_type: str = "bfloat16"
) -> pd.DataFrame:
    """Blocks of the models ``names`` (none: of `MODULES`) with ``gemm_type`` matrices; the others are counted."""
    names = names or MODULES[operator]
    wanted = {"model": names, "gemm_type": (gemm_type,), "mla_dtype": ("bfloat16",), "kv_cache_dtype": tuple(KV_DTYPES)}
    for column, values in wanted.items():
        raw = known_rows(raw, column, values, f"{operator} with {column}", left_out)
    models = {name: load_model(named_format(name)[0]) for name in names}
    heads = raw["model"].map({name: model.num_attention_heads for name, model in models.items()}).astype(np.int64)
    uneven = heads % raw["num_heads"] != 0
    rows = without(raw, uneven, f"{operator} with heads that ranks cannot share", left_out)
    kv_dtype, context = rows["kv_cache_dtype"].map(KV_DTYPES), rows["step"] + rows["isl"]
    sizes = pd.DataFrame({name: block_shape(model, operator, 1) for name, model in models.items()}).drop("heads")
    widths = {str(size): rows["model"].map(of_model) for size, of_model in sizes.iterrows()}
    return launches(rows, operator, "bf16", PROMPTS, kv_dtype=kv_dtype, context=context, **widths)


def block_shape(model: ModelSpec, operator: str, tp: int) -> dict[str, int]:
    """Shape fields of a block on one of ``tp`` ranks that the model fixes."""
    kind, _, phase = operator.partition("_")
    return sparse_decode_shape(model, tp) if kind == "dsa" else layer_shape(model, phase, tp)[1]


def without_matrices(
    frame: pd.DataFrame, hardware: HardwareSpec, left_out: LeftOut, dtype: str = "bf16"
) -> pd.DataFrame:
    """``frame``, its blocks (`module_rows`) less their matrices in ``dtype``; blocks left out are counted."""
    blocks = frame[frame["operator"].isin(MODULES)]
    if blocks.empty:
        return frame
    others = frame.drop(blocks.index)
    matrices = others[(others["operator"] == "linear") & (others["dtype"] == dtype)]
    if matrices.empty:
        left_out["latent attention without times of its matrices"] = len(blocks)
        return others
    blocks = blocks.assign(seconds=blocks["seconds"] - _matrix_seconds(blocks, matrices, hardware))
    blocks = without(blocks, blocks["seconds"] <= 0.0, NOTHING_LEFT, left_out)
    fits_cache = _footprint(blocks, WEIGHT_BYTES[dtype]) <= hardware.cache_bytes
    cached = blocks["operator"].str.endswith("decode") & fits_cache
    low = cached & (blocks["seconds"] < _roofline_seconds(blocks, blocks[~cached], hardware))
    rest = plausible(without(blocks, low, CACHED, left_out), hardware, left_out, "latent attention: ")
    return pd.concat([others, rest], ignore_index=True)


def _by_model(blocks: pd.DataFrame) -> Iterator[tuple[pd.DataFrame, list[LinearLayer]]]:
    """Blocks of one model on one rank, and their matrices."""
    models = {model.index_n_heads: model for model in map(load_model, (MODEL, *SPARSE_MODELS))}
    for (index_heads, heads), rows in blocks.groupby(["kv_heads", "heads"]):
        model = models[int(str(index_heads))]
        layers = linear_layers(model, model.num_attention_heads // int(str(heads)))
        yield rows, [layer for layer in layers if layer.name in MATRICES]


def _footprint(blocks: pd.DataFrame, weight_bytes: float) -> FloatArray:
    attended = blocks["context"].where(blocks["top_k"] == 0, np.minimum(blocks["context"], blocks["top_k"]))
    latents = blocks["batch"] * attended * blocks["k"] * blocks["kv_dtype"].map(KV_BYTES)
    touched = latents + blocks["batch"] * blocks["context"] * blocks["head_dim"]
    for rows, layers in _by_model(blocks):
        touched[rows.index] += sum(weight_bytes * layer.k * layer.n for layer in layers)
    return touched.to_numpy(np.float64)


def _fitted(rows: pd.DataFrame, hardware: HardwareSpec) -> Rooflines:
    once = rows.drop_duplicates(list(POINT)).assign(settled=False)
    return fit_table(checked_table(once), hardware)[0]


def _matrix_seconds(blocks: pd.DataFrame, matrices: pd.DataFrame, hardware: HardwareSpec) -> "pd.Series[float]":
    """Seconds of the matrices of every block, as a profile with these timings of matrices takes them."""
    linear = TablePart("linear", str(matrices["dtype"].iloc[0]))
    fit = seconds_by(_fitted(matrices, hardware)[linear.roofline], hardware.ceilings(*linear.roofline))
    curves = curves_of(linear, matrices, fit, {})
    seconds = pd.Series(0.0, index=blocks.index)
    for rows, layers in _by_model(blocks):
        m = (rows["batch"] * rows["q"]).to_numpy(np.float64)
        for layer in layers:
            seconds[rows.index] += curves.seconds(m, (layer.k, layer.n))[0]
    return seconds


def _roofline_seconds(blocks: pd.DataFrame, fitted: pd.DataFrame, hardware: HardwareSpec) -> "pd.Series[float]":
    """Seconds of every block by the rooflines of the ``fitted`` ones; infinite where none was fitted."""
    seconds = pd.Series(np.inf, index=blocks.index)
    fits = _fitted(fitted, hardware) if len(fitted) else {}
    for part, rows in parts_of(blocks):
        if part.roofline in fits:
            fit = seconds_by(fits[part.roofline], hardware.ceilings(*part.roofline))
            seconds[rows.index] = fit(part.work_of(rows))
    return seconds
