"""NVIDIA's kernel timings, as the package aiconfigurator-core ships them: Parquet, one file an operator.

Layout: ``systems/data/<system>/<family>/<engine>/<engine version>/<operator>_perf.parquet``; of several versions the
newest is taken.

Latencies are milliseconds, the mean of a few replays of a CUDA graph (all-reduce also without a graph, then with a copy
of its input). What one row covers, read off the data and the collecting scripts published beside it
(github.com/ai-dynamo/aiconfigurator, ``collector/``):

* gemm: one linear layer ``m x k @ k x n``, six different weights in turn; ``fp8`` quantises its input on the way.
  ``fp8_block`` is not taken: it runs outside a graph on one weight, which stays in the cache.
* generation_attention: one layer, one query a sequence, ``step`` tokens before it; writing the new K and V counts.
* context_attention: one layer, ``batch_size`` prompts of ``isl`` tokens after ``step`` earlier ones (always 0 so far).
* moe: top-k selection, both expert matrices, activation and weighted sum of one layer. ``inter_size`` is the whole
  width of an expert, of which a rank holds ``inter_size / moe_tp_size``.
* custom_allreduce: ``message_size`` counts 16-bit elements, not bytes. Newer and older files of one device may come
  from two machines: over PCIe the times differ by three (two RTX PRO 6000, 512 KiB: 18 and 56 us, with every engine and
  NCCL alike), as one machine's devices reach each other through the host. An unknown machine is not taken for the
  better one: where the version before is `SLOWER_LINK` times slower, its times count.
* gdn: the convolution or the delta rule of one gated DeltaNet layer; the sum of both is kept. Its state is fp32: the
  largest batches move 4 bytes a number at 74 to 91 % of the memory bandwidth.
* mla_generation_module, mla_context_module: the whole attention block of one layer, see
  `calibration/importers/latent_attention`.
* dsa_generation_module: the same of sparse attention, its indexer included.
* moe in fp8 blocks, the version before: until FlashInfer's kernels were its choice on Blackwell an engine ran Triton's.
  They are kept beside the newer ones where the newest file has none (B200); `calibration/profile/engines` says which
  an engine runs.

``kernel_source`` is the kernel the engine picked by itself; the newest files hold one for every point. Where several
stand for one point all are kept, and a profile takes the fastest.

Experts were timed under three routings. ``balanced`` visits as many experts as it can, ``power_law_1.01`` crowds them;
work formulas assume uniform independent routing. Against balanced times matched to the number of experts that one
touches, over five devices, the medians of power_law_1.01 are within 17 % while ``m * top_k`` is at most 1.5 times the
number of experts (balanced: up to 39 % too slow), those of balanced within 12 % beyond. Each point takes the nearer.
"""

import importlib.metadata
import importlib.util
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from draftcast.calibration.importers.latent_attention import module_rows, without_matrices
from draftcast.calibration.importers.plausible import plausible
from draftcast.calibration.importers.table_file import (
    PROMPTS,
    Imported,
    LeftOut,
    complete,
    launches,
    read_rows,
    table_of,
)
from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.load import sha256
from draftcast.errors import HardwareError
from draftcast.kernels.extras import require

DTYPES = {"bfloat16": "bf16", "float16": "bf16", "fp8": "fp8"}
MOE_DTYPES = {**DTYPES, "fp8_block": "fp8", "w4a16_mxfp4": "mxfp4", "int4_wo": "int4"}
SLOWER_LINK = 1.5
"""Ratio of two versions' times of one all-reduce from which on they were not taken over the same links."""
CROWDED = 1.5
"""Token-expert pairs per expert up to which the crowded routing is the nearer one."""
_CROWDED_FIRST = {"power_law_1.01": 0, "power_law_1.2": 1, "balanced": 2}
_BALANCED_FIRST = {"balanced": 0, "power_law_1.01": 1, "power_law_1.2": 2}


@dataclass(frozen=True)
class FileKind:
    family: str  # folder it stands in
    name: str  # without ``_perf.parquet``
    # texts, numbers: columns that must be there, beside those every file has
    texts: tuple[str, ...]
    numbers: tuple[str, ...]
    rows: Callable[[pd.DataFrame, LeftOut], pd.DataFrame]  # to rows of the latency table; counts what it leaves out


def _known(raw: pd.DataFrame, column: str, known: dict[str, str], what: str, left_out: LeftOut) -> pd.DataFrame:
    """Rows whose number format has a counterpart; the others are counted."""
    has = raw[column].isin(list(known))
    left_out.update(f"{what} in {name}" for name in raw.loc[~has, column])
    return raw[has]


def gemm_rows(raw: pd.DataFrame, left_out: LeftOut) -> pd.DataFrame:
    rows = _known(raw, "gemm_dtype", DTYPES, "linear layers", left_out)
    return launches(rows, "linear", rows["gemm_dtype"].map(DTYPES), ("m", "k", "n"))


def attention_rows(raw: pd.DataFrame, left_out: LeftOut, operator: str) -> pd.DataFrame:
    rows = _known(raw, "kv_cache_dtype", DTYPES, f"{operator} over a KV cache", left_out)
    kv_dtype, sizes = rows["kv_cache_dtype"].map(DTYPES), (*PROMPTS, "num_key_value_heads", "head_dim")
    window = rows.get("window_size", 0)  # files of older versions have none
    context = rows["step"] + rows["isl"]
    return launches(rows, operator, "bf16", sizes, kv_dtype=kv_dtype, context=context, window=window)


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
        left_out[reason] += int(bad.sum())
    rows = rows[~(other | elsewhere | uneven)]
    crowded = rows["num_tokens"] * rows["topk"] <= CROWDED * rows["num_experts"]
    rank = rows["distribution"].map(_CROWDED_FIRST).where(crowded, rows["distribution"].map(_BALANCED_FIRST))
    point = ["moe_dtype", "kernel_source", "num_tokens", "hidden_size", "inter_size", "moe_tp_size", "topk"]
    nearest = rows.assign(rank=rank).sort_values("rank", kind="stable").drop_duplicates([*point, "num_experts"])
    rows = nearest[nearest["rank"].notna()].sort_index()
    dtype, width = rows["moe_dtype"].map(MOE_DTYPES), rows["inter_size"] // rows["moe_tp_size"]
    return launches(rows, "moe", dtype, ("num_tokens", "hidden_size", "num_experts", "topk"), n=width)


def all_reduce_rows(raw: pd.DataFrame, left_out: LeftOut) -> pd.DataFrame:
    rows = _known(raw, "allreduce_dtype", {"bfloat16": "bf16", "float16": "bf16"}, "all-reduce", left_out)
    columns = {"graph": rows["kernel_source"].str.endswith("_graph"), "message_bytes": rows["message_size"] * 2}
    return launches(rows, "all_reduce", "bf16", ("num_gpus",), **columns)


def gdn_rows(raw: pd.DataFrame, left_out: LeftOut) -> pd.DataFrame:
    """Gated DeltaNet: a layer's convolution and delta rule, two kernels, as one; of equal shapes the least."""
    shape = ["phase", "batch_size", "seq_len", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim"]
    convolves = raw["kernel_source"].str.startswith("causal_conv1d")
    convolution, rule = raw[convolves], raw[~convolves]
    least = convolution.groupby(shape)["latency"].min().rename("convolution")
    rows = rule.sort_values("latency", kind="stable").drop_duplicates(shape).join(least, on=shape)
    left_out["linear attention without times of its convolution"] += int(rows["convolution"].isna().sum())
    both = rows.assign(latency=rows["latency"] + rows["convolution"]).dropna(subset="convolution")
    operator = both["phase"].map({"generation": "gdn_decode", "context": "gdn_prefill"})
    return launches(both, operator, "bf16", shape[1:], kv_dtype="fp32")


_ATTENTION = (*PROMPTS, "step", "num_key_value_heads", "head_dim")
_MOE = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
_MLA_TEXTS = ("model", "gemm_type", "kv_cache_dtype", "mla_dtype")
_MLA = (*PROMPTS, "step")
_DECODE = partial(attention_rows, operator="attention_decode")
_PREFILL = partial(attention_rows, operator="attention_prefill")
_GDN = ("batch_size", "seq_len", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim")
FILES = (
    FileKind("gemm", "gemm", ("gemm_dtype",), ("m", "k", "n"), gemm_rows),
    FileKind("attention", "generation_attention", ("kv_cache_dtype",), _ATTENTION, _DECODE),
    FileKind("attention", "context_attention", ("kv_cache_dtype",), _ATTENTION, _PREFILL),
    FileKind("moe", "moe", ("moe_dtype", "distribution"), _MOE, moe_rows),
    FileKind("mla", "mla_generation_module", _MLA_TEXTS, _MLA, partial(module_rows, operator="mla_decode")),
    FileKind("mla", "mla_context_module", _MLA_TEXTS, _MLA, partial(module_rows, operator="mla_prefill")),
    FileKind(
        "sparse_attention", "dsa_generation_module", _MLA_TEXTS, _MLA, partial(module_rows, operator="dsa_decode")
    ),
    FileKind("linear_attention", "gdn", ("phase",), _GDN, gdn_rows),
    FileKind("comm", "custom_allreduce", ("allreduce_dtype",), ("message_size", "num_gpus"), all_reduce_rows),
)


PACKAGE = "aiconfigurator_core"
LICENCE = "Apache-2.0"
SYSTEMS = {
    "a100-80g": "a100_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "h100-pcie": "h100_pcie",
    "h100-sxm": "h100_sxm",
    "h200": "h200_sxm",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""Device of draftcast -> system folder of the package."""
ENGINE = "vllm"
"""Whose kernels are taken."""


def read_aiconfigurator(path: Path | None, hardware: HardwareSpec, *, system: str | None = None) -> Imported:
    """Every row of one device that has a counterpart in the latency table, implausible ones dropped.

    Args:
        path: the package's folder, the one it stands in, its ``systems/data`` or one system's folder; None takes the
            installed package.
        hardware: the device, for the floor that no time may undercut.
        system: the package's name of the device; absent: by the name of ``hardware``.

    Raises:
        HardwareError: no package, no such system, a file that is unreadable or not of this format.
    """
    folder = find_system(path, hardware, system)
    frames: list[pd.DataFrame] = []
    left_out: LeftOut = Counter()
    sources: dict[str, str] = {}
    versions: dict[str, str] = {}
    devices: set[str] = set()
    for kind in FILES:
        found = newest_first(folder / kind.family / ENGINE, f"{kind.name}_perf.parquet")
        used = found[: 2 if kind.family in _EARLIER else 1]
        if not used:
            continue
        raw = [read_file(file, kind) for file in used]
        devices |= {device for rows in raw for device in rows["device"]}
        versions[f"{ENGINE} {kind.name}"] = ", ".join(sorted({version for rows in raw for version in rows["version"]}))
        sources |= {file.relative_to(folder.parent).as_posix(): sha256(file) for file in used}
        frames.append(complete(kind.rows(raw[0] if len(raw) == 1 else _EARLIER[kind.family](*raw), left_out)))
    if not frames:
        raise HardwareError(f"holds no times of {ENGINE}", file=str(folder))
    if len(devices) > 1:
        raise HardwareError(f"times of several devices: {', '.join(sorted(devices))}", file=str(folder))
    frame, dropped = plausible(pd.concat(frames, ignore_index=True), hardware)
    frame = without_matrices(frame, hardware, left_out)
    return Imported(
        table=table_of(frame, folder),
        device=devices.pop(),
        source=f"derived from aiconfigurator-core's timings of {ENGINE}'s kernels on this device, by NVIDIA",
        licence=LICENCE,
        versions={"aiconfigurator-core": _package_version(folder), **versions},
        sources=sources,
        left_out=dict(+left_out) | dropped,
    )


def find_system(path: Path | None, hardware: HardwareSpec, system: str | None = None) -> Path:
    """Folder of one system's times; arguments and errors of `read_aiconfigurator`."""
    name = system or SYSTEMS.get(hardware.name)
    if name is None:
        known = ", ".join(SYSTEMS)
        message = f"aiconfigurator-core's name of it is not known (known: {known}); name the system"
        raise HardwareError(message, key="hardware", value=hardware.name)
    if path is None:
        require("profiles", PACKAGE, place="--import aiconfigurator without a path")
        found = importlib.util.find_spec(PACKAGE)
        path = Path(next(iter((found and found.submodule_search_locations) or ())))
    for part in (f"{PACKAGE}/systems/data", "systems/data", "data", ""):
        if (folder := path / part / name).is_dir():
            return folder
    if path.name == name and path.is_dir():
        return path
    raise HardwareError(f"holds no times of the system {name}", file=str(path))


def newest_first(folder: Path, name: str) -> list[Path]:
    """Files ``name`` of the version folders below ``folder``."""
    found = [file for file in folder.glob(f"*/{name}") if re.fullmatch(r"\d+(\.\d+)*", file.parent.name)]
    return sorted(found, key=lambda file: [int(part) for part in file.parent.name.split(".")], reverse=True)


def _over_slower_links(rows: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """All-reduces of the newest version, with the times of the version before where that ran over slower links."""
    point = ["kernel_source", "allreduce_dtype", "num_gpus", "message_size"]
    earlier = rows[point].join(before.groupby(point)["latency"].min(), on=point)["latency"]
    return rows.assign(latency=rows["latency"].where(~(earlier > SLOWER_LINK * rows["latency"]), earlier))


def _with_triton(rows: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """Experts of the newest version, and those of the version before in fp8 blocks where only they ran by Triton."""
    blocks = rows.loc[rows["moe_dtype"] == "fp8_block", "kernel_source"]
    if not len(blocks) or not blocks.str.contains("flashinfer").all():
        return rows
    earlier = (before["moe_dtype"] == "fp8_block") & ~before["kernel_source"].str.contains("flashinfer")
    return pd.concat([rows, before[earlier]], ignore_index=True)


_EARLIER = {"comm": _over_slower_links, "moe": _with_triton}
"""Of these families the version before the newest is read too, and joined so."""


def _package_version(folder: Path) -> str:
    """Version of the package that holds ``folder``, from the metadata installed beside it."""
    for parent in folder.parents:
        if parent.name == PACKAGE:
            for found in importlib.metadata.distributions(path=[str(parent.parent)]):
                if found.metadata["Name"].replace("-", "_") == PACKAGE:
                    return found.version
    return "unknown"


def read_file(file: Path, kind: FileKind) -> pd.DataFrame:
    """Checked rows of one file. Raises HardwareError: not Parquet, a column missing or bad, another engine's times."""
    columns = ("framework", "version", "device", "kernel_source", *kind.texts, *kind.numbers, "latency")
    rows = read_rows(file, columns)
    if rows.frame.empty:
        raise HardwareError("holds no row", file=str(file))
    for column in kind.numbers:
        rows.whole(column, 0 if column == "step" else 1)
    rows.seconds("latency", 1e-3)
    rows.check("framework", rows.frame["framework"].str.lower() == ENGINE, f"times of {ENGINE} are needed")
    return rows.frame
