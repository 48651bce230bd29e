"""Sparse latent attention (DeepSeek-V3.2, arXiv 2512.02556): an indexer scores the context, attention reads the best.

indexer: for each of q new tokens of each of ``batch`` sequences the ``top_k`` tokens of largest score, which is ``sum
over heads of weight * relu(q_head . key)`` over one fp8 index key of ``k`` numbers a context token. mla_sparse: latent
attention in absorbed form over those tokens alone, prompts and decodes alike; every query reads its own. dsa_decode:
both, one after the other, with ``kv_heads`` index heads of ``head_dim`` numbers.
"""

from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from draftcast.kernels.extras import torch
from draftcast.kernels.model.dtypes import KV_BYTES, activation_bytes, kv_dtype
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.operators.attention import layer_shape
from draftcast.kernels.operators.cost import Work, as_array, attended_work, sizes_of
from draftcast.kernels.operators.registry import Draw, Outputs, Shape, Tensors, formula_operator


def indexer_work(model: ModelSpec, query_tokens: ArrayLike, kv_tokens: ArrayLike, query_kv: ArrayLike, tp: int) -> Work:
    """One layer's indexer over a batch; arguments as `attention_work`.

    Every (query, context token) pair takes a product of ``index_head_dim`` a head, and its fp32 score is written and
    read again for the choice. A context token's key is read once a sequence (vLLM's fp8 MQA logits). Of compressed
    attention a key stands for several tokens.
    """
    queries, ratio = as_array(query_tokens), model.indexed_kv_compression or 1
    context, pairs = as_array(kv_tokens) / ratio, as_array(query_kv) / ratio
    heads = model.index_n_heads if model.is_mla else max(1, model.index_n_heads // tp)
    width = heads * model.index_head_dim
    moved = (context + queries) * model.index_key_bytes + queries * (width + 4.0 * heads)
    return Work(2.0 * width * pairs, moved + 8.0 * pairs)


def sparse_decode_shape(model: ModelSpec, tp: int) -> dict[str, int]:
    """Shape fields of dsa_decode that the model fixes on one of ``tp`` ranks; every rank has the whole indexer."""
    _, latents = layer_shape(model, "decode", tp)
    indexer = {"kv_heads": model.index_n_heads, "head_dim": model.index_head_dim, "top_k": model.sliding_window}
    return {**latents, **indexer}


def _index_shape_work(shape: Mapping[str, Any], dtype: str, kv_cache_dtype: str) -> Work:
    batch, q, context, heads, k = sizes_of(shape, "batch q context heads k")
    key = k * KV_BYTES[kv_dtype(kv_cache_dtype)]
    rows = batch * q
    flops = 2.0 * heads * k * rows * context
    return Work(flops, batch * context * key + rows * (heads * (k * activation_bytes(dtype) + 4.0) + 8.0 * context))


def _sparse_shape_work(shape: Mapping[str, Any], dtype: str, kv_cache_dtype: str) -> Work:
    batch, q, heads, k, n, topk = sizes_of(shape, "batch q heads k n top_k")
    read, rows = topk * k * KV_BYTES[kv_dtype(kv_cache_dtype)], batch * q
    return attended_work(heads, k + n, rows * topk, rows, rows * read, activation_bytes(dtype))


def _decode_work(shape: Mapping[str, Any], dtype: str, kv_cache_dtype: str) -> Work:
    """Kernels read ``top_k`` latents a query however short the context is; scores of fp8 keys run at twice the rate."""
    index = _index_shape_work(_indexer_of(shape), dtype, "fp8")
    return _sparse_shape_work(shape, dtype, kv_cache_dtype).add(Work(index.flops / 2.0, index.bytes))


def _indexer_of(shape: Mapping[str, Any]) -> dict[str, Any]:
    return {**shape, "heads": shape["kv_heads"], "k": shape["head_dim"]}


def draw_index(shape: Shape, draw: Draw) -> dict[str, Any]:
    """query [batch, q, heads, k], key [batch, context, k] with the q new ones at its end, weight [batch, q, heads]."""
    batch, q, context, heads, k = (shape[name] for name in ("batch", "q", "context", "heads", "k"))
    return {
        "query": draw.normal(batch, q, heads, k),
        "key": draw.normal(batch, context, k, dtype=draw.kv_dtype),
        "weight": draw.uniform(batch, q, heads),
        "top_k": shape["top_k"],
    }


def index_outputs(inputs: Tensors) -> Outputs:
    """Scores of the chosen tokens in falling order, float32 [batch, q, topk], and which they are, int64."""
    query, size = inputs["query"], (*inputs["query"].shape[:2], inputs["top_k"])
    return {"score": query.new_empty(size, dtype=torch.float32), "token": query.new_empty(size, dtype=torch.int64)}


def index_tokens(inputs: Tensors, dtype: Any) -> Outputs:
    """The scores of all tokens that each query may see, in ``dtype``, and the best of them."""
    query, key, weight = (inputs[name].to(dtype) for name in ("query", "key", "weight"))
    scores = torch.einsum("bqh,bqhc->bqc", weight, torch.einsum("bqhk,bck->bqhc", query, key).relu())
    q, context = scores.shape[1:]
    ends = torch.arange(context - q, context, device=scores.device)
    hidden = torch.arange(context, device=scores.device) > ends[:, None]
    best = scores.masked_fill(hidden, -torch.inf).topk(inputs["top_k"], dim=-1)
    return {"score": best.values, "token": best.indices}


def draw_sparse(shape: Shape, draw: Draw) -> dict[str, Any]:
    """query [batch, q, heads, k], latent [batch, context, k], token int64 [batch, q, topk] without repeats."""
    batch, q, context, heads, k = (shape[name] for name in ("batch", "q", "context", "heads", "k"))
    return {
        "query": draw.normal(batch, q, heads, k),
        "latent": draw.normal(batch, context, k, dtype=draw.kv_dtype),
        "token": draw.uniform(batch, q, context).argsort(dim=-1)[..., : shape["top_k"]],
        "n": shape["n"],
    }


def sparse_outputs(inputs: Tensors) -> Outputs:
    """Sums of the chosen latents' first n numbers, [batch, q, heads, n]."""
    query = inputs["query"]
    return {"out": query.new_empty((*query.shape[:3], inputs["n"]))}


def attend(inputs: Tensors, dtype: Any) -> Outputs:
    """Softmax over the chosen latents' products, scaled by 1 / sqrt(k), and the sum of their first n numbers."""
    query, latent, token = inputs["query"].to(dtype), inputs["latent"].to(dtype), inputs["token"]
    rows = torch.arange(latent.shape[0], device=latent.device)[:, None, None]
    chosen = latent[rows, token]  # [batch, q, topk, k]
    shares = (torch.einsum("bqhk,bqtk->bqht", query, chosen) * query.shape[-1] ** -0.5).softmax(-1)
    return {"out": torch.einsum("bqht,bqtn->bqhn", shares, chosen[..., : inputs["n"]])}


def draw_both(shape: Shape, draw: Draw) -> dict[str, Any]:
    """Inputs of `draw_index`, its query as index_query, and of `draw_sparse` without the tokens."""
    index, sparse = draw_index(_indexer_of(shape), draw), draw_sparse(shape, draw)
    return {**sparse, **index, "query": sparse["query"], "index_query": index["query"]}


def choose_and_attend(inputs: Tensors, dtype: Any) -> Outputs:
    """`attend` over the tokens that `index_tokens` chooses."""
    chosen = index_tokens({**inputs, "query": inputs["index_query"]}, dtype)
    return attend({**inputs, **chosen}, dtype)


def _supports(shape: Shape, dtype: str, kv_cache_dtype: str, device: str) -> str:
    return "" if shape["top_k"] <= shape["context"] - shape["q"] + 1 else "the first query must see topk tokens"


INDEXER = formula_operator("indexer", _index_shape_work, draw_index, index_outputs, _supports, index_tokens)
MLA_SPARSE = formula_operator("mla_sparse", _sparse_shape_work, draw_sparse, sparse_outputs, _supports, attend)
DSA_DECODE = formula_operator("dsa_decode", _decode_work, draw_both, sparse_outputs, _supports, choose_and_attend)
