"""Measured times, one row a point: the table that `calibrate` writes, importers fill and profiles interpolate.

A row names an operator, its number formats, the kernel that ran and its shape, and holds the seconds of ONE launch.
Shape columns that an operator does not have are 0. It knows no device: the manifest beside the file does.

Operators and their shape columns:

==================  ===================================================================================================
linear              m rows, k input and n output features (lm_head is a linear layer of vocabulary width)
moe                 m tokens, k hidden, n expert width on the rank, num_experts, top_k: routed gate_up, activation, down
attention_decode    batch sequences, q queries each, context tokens attended to (the q new ones included), heads,
                    kv_heads, head_dim, window (0: none), tree (1: ancestor mask); q > 1 is verification
attention_prefill   the same with q the chunk; context is prefix + chunk
mla_decode          latent attention in absorbed form: batch, q and context as above, heads, one key of k and value of n
                    numbers a token for all heads; with the latents' norms, rotary embedding and cache write
mla_prefill         the same of a prompt's chunk in plain form: every head has keys of k and values of n numbers
gdn_decode          gated DeltaNet: batch sequences of q tokens, heads of n values, kv_heads of k keys, convolution
                    included; q > 1 is verification
gdn_prefill         the same of prompts of q tokens
kda_decode, ...     the same of Kimi Delta Attention and of Mamba-2 (mamba2_*), whose groups are kv_heads
indexer             sparse attention's scores: batch, q and context as above, heads of k numbers, top_k tokens chosen
mla_sparse          latent attention in absorbed form over top_k tokens of the context
dsa_decode          both in one layer, norms, rotary embeddings and cache writes included: heads, k, n and top_k as of
                    mla_sparse, kv_heads index heads of head_dim numbers
attention_launch    one launch over batch sequences of one query with context tokens each on average and n at most, and
                    a prompt's chunk of m tokens (0: none) at the end of its k tokens; heads as above
rmsnorm, swiglu     m rows of width n
rotary              m rows, heads, kv_heads, head_dim
embedding           m rows of width n, k the vocabulary
sampler             m rows of n logits
rejection_sampler   batch requests, q = drafts + 1, n logits
all_reduce          message_bytes over ranks
ngram               batch texts of context tokens searched for their own end (int32)
==================  ===================================================================================================
"""

import functools
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from draftcast.errors import HardwareError
from draftcast.files import read_frame, written
from draftcast.kernels.operators.registry import FACTS

SHAPE_FIELDS: dict[str, tuple[str, ...]] = {name: tuple(facts["shape"]) for name, facts in FACTS.items()}
"""Shape columns of each operator a table may hold."""

MAY_BE_ZERO = ("window", "tree")
WITHOUT_PROMPT = ("m", "k")  # columns of attention_launch that are 0 where it has no prompt
LABELS = ("operator", "dtype", "kv_dtype", "implementation")
_WIDEST = ("linear", "attention_decode", "moe", "all_reduce")  # operators that have all shape columns between them
SHAPES = tuple(dict.fromkeys(column for operator in _WIDEST for column in SHAPE_FIELDS[operator]))
FLAGS = ("graph", "settled")
TIMES = ("seconds", "low_s", "high_s")
COLUMNS = (*LABELS, *SHAPES, *FLAGS, *TIMES, "repeats")
POINT = (*LABELS, *SHAPES, "graph")  # columns that tell one measured point from another


def checked_table(frame: pd.DataFrame, file: str | None = None) -> pd.DataFrame:
    """``frame`` checked and ordered; shape columns, flags, bounds and repeats that are absent are filled in.

    One row a point with the columns `COLUMNS`: `LABELS` strings, `SHAPES` and repeats int64, `FLAGS` bool, `TIMES`
    float64 seconds; ``low_s`` and ``high_s`` bound the median (95 %), NaN where the source has none.

    Raises HardwareError: an unknown or missing column, an unknown operator, a shape of the wrong kind, a time that is
    not a positive number, the same point twice; ``file`` is named.
    """
    if unknown := [name for name in frame.columns if name not in COLUMNS]:
        raise HardwareError(f"unknown column; known: {', '.join(COLUMNS)}", file=file, key=str(unknown[0]))
    for name in ("operator", "dtype", "seconds"):
        if name not in frame.columns:
            raise HardwareError("column required, but missing", file=file, key=name)
    full = pd.DataFrame(index=frame.index)
    defaults: dict[str, object] = {"settled": True, "graph": False, "low_s": np.nan, "high_s": np.nan}
    for name in COLUMNS:
        column = frame[name] if name in frame.columns else defaults.get(name, "" if name in LABELS else 0)
        kind = object if name in LABELS else bool if name in FLAGS else np.float64 if name in TIMES else np.int64
        try:
            full[name] = pd.Series(column, index=frame.index).astype(kind)
        except (TypeError, ValueError) as error:
            raise HardwareError(f"column cannot be read as {kind.__name__}: {error}", file=file, key=name) from None
    _check(full, file)
    return full.sort_values(list(POINT), kind="stable").reset_index(drop=True)


def save_table(frame: pd.DataFrame, path: Path) -> None:
    """Write as Parquet (zstd, dictionary-encoded), a row group an operator; the same rows give the same bytes."""
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    starts = frame["operator"].drop_duplicates().index.to_numpy()
    with (
        written(path, HardwareError) as partial,
        pq.ParquetWriter(partial, table.schema, compression="zstd", compression_level=19) as writer,
    ):
        for start, end in zip(starts, [*starts[1:], len(table)], strict=True):
            writer.write_table(table.slice(start, end - start))


def load_table(path: Path) -> pd.DataFrame:
    """Read what `save_table` wrote. Raises HardwareError naming the file when it is not such a table."""
    frame: pd.DataFrame = read_frame(path, kind=HardwareError)
    if missing := [name for name in COLUMNS if name not in frame]:
        raise HardwareError("is not a latency table: column missing", file=str(path), key=missing[0])
    return checked_table(frame, file=str(path))


def read_points(path: Path, operator: str, **wanted: str | int) -> pd.DataFrame:
    """Kernel, shape and seconds of an operator's points, unchecked: a profile checks the file's checksum instead.

    ``wanted``: values of columns of `LABELS` and `SHAPES`. Raises HardwareError: unreadable, or not these columns.
    """
    columns, equal = ["implementation", *SHAPE_FIELDS[operator], "seconds"], {"operator": operator, **wanted}
    try:
        with pq.ParquetFile(path, memory_map=True, read_dictionary=list(LABELS)) as file:
            groups = _groups_of(file.metadata, operator)
            table = file.read_row_groups(groups, columns=[*dict.fromkeys([*columns, *equal])])
        chosen = functools.reduce(pc.and_, (pc.equal(table[name], value) for name, value in equal.items()))
        frame: pd.DataFrame = table.select(columns).filter(chosen).to_pandas()
    except (OSError, KeyError, pa.ArrowException) as error:
        raise HardwareError(f"is not a readable latency table: {str(error).splitlines()[0]}", file=str(path)) from None
    return frame


def _groups_of(metadata: pq.FileMetaData, operator: str) -> list[int]:
    """Row groups that can hold points of ``operator``, by the file's statistics; a file of ours has one each."""
    if "operator" not in metadata.schema.names:
        raise KeyError("operator")
    column = metadata.schema.names.index("operator")
    bounds = [metadata.row_group(index).column(column).statistics for index in range(metadata.num_row_groups)]
    return [i for i, of in enumerate(bounds) if of is None or not of.has_min_max or of.min <= operator <= of.max]


def _check(frame: pd.DataFrame, file: str | None) -> None:
    for operator, rows in frame.groupby("operator", sort=False):
        fields = SHAPE_FIELDS.get(str(operator))
        if fields is None:
            allowed = ", ".join(SHAPE_FIELDS)
            raise HardwareError(f"unknown operator; known: {allowed}", file=file, key="operator", value=operator)
        for name in SHAPES:
            may_be_zero = name in MAY_BE_ZERO or (operator == "attention_launch" and name in WITHOUT_PROMPT)
            low = 0 if may_be_zero or name not in fields else 1
            wrong = rows[(rows[name] < low) | ((rows[name] != 0) & (name not in fields))]
            if len(wrong):
                value = int(wrong[name].iloc[0])
                allowed = f"at least {low}" if name in fields else "0"
                raise HardwareError(f"must be {allowed} for {operator}", file=file, key=name, value=value)
    bad = frame[~(np.isfinite(frame["seconds"]) & (frame["seconds"] > 0.0))]
    if len(bad):
        seconds = float(bad["seconds"].iloc[0])
        raise HardwareError("must be a positive number of seconds", file=file, key="seconds", value=seconds)
    twice = frame[frame.duplicated(list(POINT))]
    if len(twice):
        point = ", ".join(f"{name}={twice[name].iloc[0]}" for name in POINT if twice[name].iloc[0])
        raise HardwareError("the same point stands twice", file=file, key="point", value=point)
