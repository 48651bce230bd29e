"""Which points to time for given models: their layers' shapes over a grid of rows, queries, sequences and contexts.

Shapes that several models or ranks share are timed once. What cannot be timed is counted with its reason.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter

from draftcast.calibration.microbench.device import Device
from draftcast.calibration.profile.measured import CURVES
from draftcast.calibration.profile.table import SHAPE_FIELDS
from draftcast.errors import HardwareError
from draftcast.kernels.model.dtypes import KV_BYTES, WEIGHT_BYTES, activation_bytes
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.operators.attention import layer_shape
from draftcast.kernels.operators.registry import Operator
from draftcast.kernels.work.layers import elementwise_parts, linear_layers, lm_head
from draftcast.yaml_text import yaml_beside

ShapeItems = tuple[tuple[str, int], ...]
# A launch over prompts and decodes and a whole latent attention are an engine's: they are imported, not timed here.
IMPORTED = {"attention_launch", "dsa_decode", "indexer", "mla_sparse"}
IMPORTED |= {f"{kind}_{phase}" for kind in ("gdn", "kda", "mamba2", "mla") for phase in ("decode", "prefill")}
OPERATORS = tuple(name for name in SHAPE_FIELDS if name not in IMPORTED)
DTYPES = ("fp32", "bf16", "fp8")
ATTENTION = ("attention_decode", "attention_prefill")
_MEMORY_SHARE = 0.15  # that one set of a point's buffers may hold: there are two, and the kernel's own temporaries


@dataclass(frozen=True)
class Point:
    """One row of a latency table, not measured yet: one kernel at one shape."""

    operator: str
    dtype: str
    kv_dtype: str
    implementation: str
    shape: ShapeItems  # the operator's shape fields with their values
    graph: bool = False  # timed as a replay of a CUDA graph

    @functools.cached_property
    def key(self) -> str:
        """The point in one line, the same in every run."""
        labels = "/".join((self.operator, self.dtype, self.kv_dtype, self.implementation, str(int(self.graph))))
        return f"{labels} {' '.join(f'{name}={value}' for name, value in self.shape)}"


class Series(NamedTuple):
    """Points of one operator over a grid."""

    operator: str
    dtype: str
    kv_dtype: str
    fixed: Mapping[str, int]  # shape fields that stay as they are
    axes: Mapping[str, Sequence[int]]  # that vary, over ascending values; ``ratio``: ``context`` in units of ``q``
    max_tokens: int = 0  # points with more cached tokens (batch x context) are not part of the grid; 0: no such bound

    def shapes(self, fields: Sequence[str]) -> list[tuple[tuple[int, int], ShapeItems]]:
        """((deepest level, sum of levels), shape) of every point, fields in the order given."""
        shapes = []
        for combination in itertools.product(*map(levels, self.axes.values())):
            sizes, depths = zip(*combination, strict=True)
            values = {**self.fixed, **dict(zip(self.axes, sizes, strict=True))}
            if "ratio" in values:
                values["context"] = values.pop("ratio") * values["q"]
            if self.max_tokens and values["batch"] * values["context"] > self.max_tokens:
                continue
            shapes.append(((max(depths), sum(depths)), tuple((name, values[name]) for name in fields)))
        return shapes


def levels(values: Sequence[int]) -> list[tuple[int, int]]:
    """(value, level) of an axis: its ends are level 0, the value nearest the middle of a gap (in logs) the next level.

    Taken level by level, an axis that is cut off anywhere is still covered from end to end.
    """
    level = {values[0]: 0, values[-1]: 0}

    def halve(low: int, high: int, depth: int) -> None:
        if high - low >= 2:
            middle = 0.5 * (math.log(values[low]) + math.log(values[high]))
            at = min(range(low + 1, high), key=lambda index: abs(math.log(values[index]) - middle))
            level[values[at]] = depth
            halve(low, at, depth + 1)
            halve(at, high, depth + 1)

    halve(0, len(values) - 1, 1)
    return [(value, level[value]) for value in values]


def row_grid(dense: int, largest: int) -> tuple[int, ...]:
    """1 to ``dense`` each, then 1, 1.25 and 1.5 times the powers of two up to ``largest``."""
    rows = {*range(1, min(dense, largest) + 1), largest}
    for power in doublings(16, largest):
        rows |= {row for row in (power, power * 5 // 4, power * 3 // 2) if dense < row <= largest}
    return tuple(sorted(rows))


def doublings(first: int, last: int) -> tuple[int, ...]:
    """``first``, ``2 * first``, ... up to ``last``; at least ``first``."""
    return tuple(first << power for power in range(max((last // first).bit_length(), 1)))


@dataclass(frozen=True)
class Grid:
    """Values of the axes (``grids.yaml``)."""

    rows: tuple[int, ...]  # of linear, elementwise and MoE kernels
    sampled_rows: tuple[int, ...]  # of the sampler
    queries: tuple[int, ...]  # of a sequence, in decode and verify attention
    batches: tuple[int, ...]  # sequences of decode and verify attention
    contexts: tuple[int, ...]  # cached tokens of a sequence, in decode and verify attention
    # (queries, sequences, contexts) under an ancestor mask; a coarser grid, as it is the chain's cost but for the mask.
    # The n-gram search takes its sequences and contexts too.
    trees: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    chunks: tuple[int, ...]  # queries of prefill attention
    ratios: tuple[int, ...]  # its context in units of the chunk
    prefills: tuple[int, ...]  # its sequences
    max_tokens: int  # most cached tokens of all sequences of a point; 0: any
    graphs: tuple[bool, ...]  # whether points are timed eager (False), inside a CUDA graph (True), or both


_GRIDS = yaml_beside(__file__, "grids.yaml")
_GRID = TypeAdapter(Grid)


def grid_for(kind: str, max_rows: int) -> Grid:
    """Grid of a kind of device, "cpu" or "cuda", up to ``max_rows`` rows."""
    values: dict[str, Any] = dict(_GRIDS[kind])
    rows, most = row_grid(values.pop("dense_rows"), max_rows), values.pop("most_sampled_rows") or max_rows
    sampled = tuple(row for row in rows if row <= most)
    chunks = tuple(chunk for chunk in values["chunks"] if chunk <= max_rows) or (max_rows,)
    return _GRID.validate_python({**values, "rows": rows, "sampled_rows": sampled, "chunks": chunks})


@dataclass(frozen=True)
class Settings:
    """What is measured; a journal goes on only under the same."""

    names: tuple[str, ...]  # the models'
    digest: str  # of their dimensions, as a path may hold another model next time
    tps: tuple[int, ...]
    dtypes: tuple[str, ...]
    kv_dtypes: tuple[str, ...]  # formats of the KV cache beside each dtype; fp32 activations keep fp32
    operators: tuple[str, ...]  # those to time
    max_rows: int
    seed: int


@dataclass(frozen=True)
class Plan:
    """Points in the order in which they are first visited, and how many were left out, by reason."""

    settings: Settings
    points: tuple[Point, ...]
    left_out: dict[str, int] = field(default_factory=dict)


def plan(
    models: Sequence[ModelSpec], settings: Settings, grid: Grid, operators: Mapping[str, Operator], device: Device
) -> Plan:
    """Points of every model at every tensor-parallel degree and number format, coarse ones first.

    ``operators``: by name; those of the settings are taken. ``device``: where each implementation must run.

    Raises HardwareError: nothing to time.
    """
    left_out: Counter[str] = Counter()
    ranked: dict[str, tuple[tuple[int, int], float, Point]] = {}
    for series in _all_series(models, settings, grid, left_out):
        if series.operator not in settings.operators:
            continue
        operator = operators[series.operator]
        for level, shape in series.shapes(SHAPE_FIELDS[series.operator]):
            for point in _points(operator, series, shape, grid, device, left_out):
                work = operator.work(dict(shape), series.dtype, series.kv_dtype)
                # Ten operations a byte: near enough to order points of one level by what they take.
                cost = float(np.asarray(work.flops)) / 10.0 + float(np.asarray(work.bytes))
                if point.key not in ranked or level < ranked[point.key][0]:
                    ranked[point.key] = (level, cost, point)
    if not ranked:
        reasons = "; ".join(f"{reason} ({count})" for reason, count in sorted(left_out.items()))
        raise HardwareError(f"nothing to time: {reasons or 'no operator of these models was asked for'}")
    shuffled = np.random.default_rng(settings.seed).permutation(len(ranked))
    ordered = sorted(zip(ranked.values(), shuffled, strict=True), key=lambda item: (*item[0][:2], item[1]))
    return Plan(settings, tuple(point for (_, _, point), _ in ordered), dict(left_out))


def footprint_bytes(operator: str, shape: Mapping[str, int], dtype: str, kv_dtype: str) -> float:
    """Bytes of one set of inputs and outputs, tables that a launch reads only parts of included."""
    size = Counter(shape)  # 0 for what the operator does not have
    m, k, n, batch, q, context, top_k = (size[name] for name in ("m", "k", "n", "batch", "q", "context", "top_k"))
    heads, kv_heads, head_dim = (size[name] for name in ("heads", "kv_heads", "head_dim"))
    if operator == "ngram":  # of token ids, which no weights come in
        return 4.0 * batch * context
    act, weight, kv = activation_bytes(dtype), WEIGHT_BYTES[dtype], KV_BYTES.get(kv_dtype or dtype, 0.0)
    attention = 2 * batch * context * kv_heads * head_dim * kv + 2 * batch * q * heads * head_dim * act
    footprints = {
        "linear": k * n * weight + m * (k + n) * act,
        "moe": 3 * size["num_experts"] * k * n * weight + m * (2 * k + 3 * top_k * n) * act,
        **dict.fromkeys(ATTENTION, attention),
        "rotary": 2 * m * (heads + kv_heads) * head_dim * act,
        "embedding": (k + m) * n * act,
        "rejection_sampler": 3 * batch * q * n * 4.0,
        "all_reduce": 2.0 * size["message_bytes"],
    }
    return footprints.get(operator, 4 * m * n * act)


def _points(
    operator: Operator, series: Series, shape: ShapeItems, grid: Grid, device: Device, left_out: Counter[str]
) -> Iterator[Point]:
    sizes, dtype, kv_dtype = dict(shape), series.dtype, series.kv_dtype
    if dtype not in operator.dtypes:
        left_out[f"{operator.name} has no {dtype} kernel"] += 1
        return
    if footprint_bytes(operator.name, sizes, dtype, kv_dtype) > _MEMORY_SHARE * device.memory_bytes:
        left_out["does not fit in memory"] += 1
        return
    graphs = grid.graphs if operator.name not in ("attention_prefill", "all_reduce") else (False,)
    for name, implementation in operator.implementations.items():
        if name == "triton" and device.kind != "cuda":  # its interpreter's times mean nothing
            continue
        if reason := implementation.supports(sizes, dtype, kv_dtype, device.kind):
            left_out[f"{operator.name} {name}: {reason}"] += 1
            continue
        for graph in graphs:
            yield Point(operator.name, dtype, kv_dtype, name, shape, graph)


def _all_series(
    models: Sequence[ModelSpec], settings: Settings, grid: Grid, left_out: Counter[str]
) -> Iterator[Series]:
    _, batches, contexts = grid.trees
    yield Series("ngram", "int32", "", {}, {"batch": batches, "context": contexts}, grid.max_tokens)
    for model, tp, dtype in itertools.product(models, settings.tps, settings.dtypes):
        act = "fp32" if dtype == "fp32" else "bf16"
        yield from _row_series(model, tp, dtype, act, grid)
        for kv_dtype in ("fp32",) if act == "fp32" else settings.kv_dtypes:
            yield from _attention_series(model, tp, act, kv_dtype, grid, left_out)


def _row_series(model: ModelSpec, tp: int, dtype: str, act: str, grid: Grid) -> Iterator[Series]:
    rows = {"m": grid.rows}
    for layer in (*linear_layers(model, tp), lm_head(model, tp)):
        if not layer.num_experts:
            yield Series("linear", layer.stored(dtype)[0], "", {"k": layer.k, "n": layer.n}, rows)
    if model.is_moe:
        sizes = {"k": model.hidden_size, "n": math.ceil(model.moe_intermediate_size / tp)}
        routing = {"num_experts": model.num_experts, "top_k": model.num_experts_per_tok}
        yield Series("moe", dtype, "", {**sizes, **routing}, rows)
    if tp > 1:
        messages = tuple(row * model.hidden_size * int(activation_bytes(act)) for row in doublings(1, grid.rows[-1]))
        yield Series("all_reduce", act, "", {"ranks": tp}, {"message_bytes": messages})
    for part in elementwise_parts(model, tp):
        if part.kernel and part.kernel != "embedding":
            yield Series(part.kernel, act, "", dict(zip(CURVES[part.kernel].axes, part.key, strict=True)), rows)
    yield Series("embedding", act, "", {"k": math.ceil(model.vocab_size / tp), "n": model.word_embed_proj_dim}, rows)
    yield Series("sampler", act, "", {"n": model.vocab_size}, {"m": grid.sampled_rows})  # all ranks' logits
    drafted = {"batch": grid.batches, "q": tuple(q for q in grid.queries if q > 1)}
    yield Series("rejection_sampler", act, "", {"n": model.vocab_size}, drafted)


def _attention_series(
    model: ModelSpec, tp: int, act: str, kv_dtype: str, grid: Grid, left_out: Counter[str]
) -> Iterator[Series]:
    if not model.num_hidden_layers:
        return
    if model.is_mla:
        left_out["multi-head latent attention has no kernel here that norms, rotates and writes the latents too"] += 1
        return
    # Forecasts interpolate between times without a window, also for layers that have one, to whose times only the
    # roofline is fitted.
    for window in sorted({0, model.sliding_window} if model.num_sliding_layers else {0}):
        fixed = {**layer_shape(model, "decode", tp)[1], "window": window}
        decode = {"q": grid.queries, "batch": grid.batches, "context": grid.contexts}
        yield Series("attention_decode", act, kv_dtype, {**fixed, "tree": 0}, decode, grid.max_tokens)
        tree = dict(zip(("q", "batch", "context"), grid.trees, strict=True))
        yield Series("attention_decode", act, kv_dtype, {**fixed, "tree": 1}, tree, grid.max_tokens)
        prefill = {"q": grid.chunks, "batch": grid.prefills, "ratio": grid.ratios}
        yield Series("attention_prefill", act, kv_dtype, fixed, prefill, grid.max_tokens)
