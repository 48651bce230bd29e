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
* mla_generation_module, mla_context_module, dsa_generation_module: see `calibration/importers/latent_attention`.
* generation_mla and mla_bmm of SGLang: the attention of a decode over latents, and the two batched products before and
  after it; their sum and three small kernels (`LATENT_KERNELS_S`) stand beside the blocks of vLLM less their matrices.
  A narrow cache that is slower than a wide one (FlashAttention 3 on Hopper) is no choice of an engine.
* moe in bf16 and fp8 blocks, the version before: until FlashInfer's kernels were its choice on Blackwell an engine ran
  Triton's. They are kept beside the newer ones where the newest file has none (B200); `calibration/profile/engines`
  says which an engine runs.

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
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from draftcast.calibration.importers import latent_attention, table_file
from draftcast.calibration.importers.latent_attention import FP8_SPARSE_MODELS, MODEL, block_shape, module_rows
from draftcast.calibration.importers.plausible import plausible
from draftcast.calibration.importers.table_file import NAMES, ImportedTable, LeftOut, known_rows, launches, without
from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.load import sha256
from draftcast.errors import HardwareError
from draftcast.kernels.extras import require
from draftcast.kernels.model.catalog import load_model

DTYPES = {"bfloat16": "bf16", "float16": "bf16", "fp8": "fp8"}
GEMM_DTYPES = {**DTYPES, "nvfp4": "nvfp4"}
MOE_DTYPES = {**GEMM_DTYPES, "fp8_block": "fp8", "int4_wo": "int4", "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4"}
PRODUCTS = "mla_bmm"
LATENT_KERNELS_S = 3 * 2.4e-6
"""Norms of the latents, rotary embedding, cache write: kernels of a few rows in a CUDA graph, see `default.yaml`."""
SLOWER_LINK = 1.5
"""Ratio of two versions' times of one all-reduce from which on they were not taken over the same links."""
CROWDED = 1.5
"""Token-expert pairs per expert up to which the crowded routing is the nearer one."""
_CROWDED_FIRST = {"power_law_1.01": 0, "power_law_1.2": 1, "balanced": 2}
_BALANCED_FIRST = {"balanced": 0, "power_law_1.01": 1, "power_law_1.2": 2}


def gemm_rows(raw: pd.DataFrame, left_out: LeftOut) -> pd.DataFrame:
    rows = known_rows(raw, "gemm_dtype", GEMM_DTYPES, "linear layers in", left_out)
    return launches(rows, "linear", rows["gemm_dtype"].map(GEMM_DTYPES), ("m", "k", "n"))


def attention_rows(raw: pd.DataFrame, left_out: LeftOut, operator: str) -> pd.DataFrame:
    rows = known_rows(raw, "kv_cache_dtype", DTYPES, f"{operator} over a KV cache in", left_out)
    kv_dtype, sizes = rows["kv_cache_dtype"].map(DTYPES), (*table_file.PROMPTS, "num_key_value_heads", "head_dim")
    window = rows.get("window_size", 0)  # files of older versions have none
    return launches(rows, operator, "bf16", sizes, kv_dtype=kv_dtype, context=rows["step"] + rows["isl"], window=window)


def moe_rows(raw: pd.DataFrame, left_out: LeftOut, dtypes: dict[str, str] = MOE_DTYPES) -> pd.DataFrame:
    """Routed experts, each point under the routing nearest to independent choice."""
    rows = known_rows(raw, "moe_dtype", dtypes, "experts in", left_out)
    # Nemotron's experts (22 of 512, or 1856 wide) have no gate matrix; Kimi-K3's activation was replaced by another.
    other = (rows["topk"] == 22) | (rows["inter_size"] == 1856) | rows["kernel_source"].str.endswith("_as_silu")
    rows = without(rows, other, "experts that are not gate, up, SiLU and down", left_out)
    rows = without(rows, rows["moe_ep_size"] > 1, "experts of which other ranks hold some", left_out)
    uneven = rows["inter_size"] % rows["moe_tp_size"] != 0
    rows = without(rows, uneven, "experts whose width the ranks do not divide", left_out)
    crowded = rows["num_tokens"] * rows["topk"] <= CROWDED * rows["num_experts"]
    rank = rows["distribution"].map(_CROWDED_FIRST).where(crowded, rows["distribution"].map(_BALANCED_FIRST))
    point = ["moe_dtype", "kernel_source", "num_tokens", "hidden_size", "inter_size", "moe_tp_size", "topk"]
    nearest = rows.assign(rank=rank).sort_values("rank", kind="stable").drop_duplicates([*point, "num_experts"])
    rows = nearest[nearest["rank"].notna()].sort_index()
    dtype, width = rows["moe_dtype"].map(MOE_DTYPES), rows["inter_size"] // rows["moe_tp_size"]
    return launches(rows, "moe", dtype, ("num_tokens", "hidden_size", "num_experts", "topk"), n=width)


def all_reduce_rows(raw: pd.DataFrame, left_out: LeftOut) -> pd.DataFrame:
    rows = known_rows(raw, "allreduce_dtype", ("bfloat16", "float16"), "all-reduce in", left_out)
    columns = {"graph": ~rows["kernel_source"].str.endswith("_eager"), "message_bytes": rows["message_size"] * 2}
    return launches(rows, "all_reduce", "bf16", ("num_gpus",), **columns)


def gdn_rows(raw: pd.DataFrame, left_out: LeftOut) -> pd.DataFrame:
    """Gated DeltaNet: a layer's convolution and delta rule, two kernels, as one; of equal shapes the least."""
    shape = ["phase", "batch_size", "seq_len", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim"]
    convolves = raw["kernel_source"].str.startswith("causal_conv1d")
    convolution, rule = raw[convolves], raw[~convolves]
    least = convolution.groupby(shape)["latency"].min().rename("convolution")
    rows = rule.sort_values("latency", kind="stable").drop_duplicates(shape).join(least, on=shape)
    rows = without(rows, rows["convolution"].isna(), "linear attention without times of its convolution", left_out)
    operator = rows["phase"].map({"generation": "gdn_decode", "context": "gdn_prefill"})
    both = rows.assign(latency=rows["latency"] + rows["convolution"])
    return launches(both, operator, "bf16", shape[1:], kv_dtype="fp32")


def latent_rows(raw: pd.DataFrame, left_out: LeftOut) -> pd.DataFrame:
    """Attention of a decode over latents alone, of DeepSeek-V3's widths; `with_products` adds the rest."""
    kv_dtype, context = raw["kv_cache_dtype"].map(DTYPES), raw["step"] + raw["isl"]
    widths = block_shape(load_model(MODEL), "mla_decode", 1)
    del widths["heads"]
    rows = launches(raw, "mla_decode", "bf16", table_file.PROMPTS, kv_dtype=kv_dtype, context=context, **widths)
    wide = rows[kv_dtype == "bf16"].groupby(["batch", "context", "heads"])["seconds"].min().rename("wide")
    slower = (kv_dtype == "fp8") & (rows["seconds"] > rows.join(wide, on=["batch", "context", "heads"])["wide"])
    return without(rows, slower, "latent attention slower over a narrow cache than over a wide one", left_out)


def product_rows(raw: pd.DataFrame, left_out: LeftOut) -> pd.DataFrame:
    """The batched products before and after latent attention, bf16, both as one; no rows of a latency table."""
    rows = known_rows(raw, "bmm_dtype", ("bfloat16",), "products of latent attention in", left_out)
    both = rows.groupby(["op_name", "num_tokens", "num_heads"])["latency"].min().unstack("op_name").dropna().sum(axis=1)
    named = both.rename("latency").reset_index().assign(kernel_source="")
    return launches(named, PRODUCTS, "bf16", ("num_tokens", "num_heads"))


def with_products(frame: pd.DataFrame) -> pd.DataFrame:
    """`latent_rows` with the times of `product_rows` over the same rows and heads and of the small kernels between."""
    products = frame[frame["operator"] == PRODUCTS].sort_values("m")
    rest = frame[frame["operator"] != PRODUCTS].copy()
    for heads, rows in rest[rest["operator"] == "mla_decode"].groupby("heads"):
        of_heads = products[products["heads"] == heads]
        if of_heads.empty:
            rest = rest.drop(rows.index)
        else:
            rest.loc[rows.index, "seconds"] += np.interp(rows["batch"], of_heads["m"], of_heads["seconds"])
            rest.loc[rows.index, "seconds"] += LATENT_KERNELS_S
    return rest


_sparse = partial(module_rows, operator="dsa_decode")
FILES: dict[str, dict[str, Callable[[pd.DataFrame, LeftOut], pd.DataFrame]]] = {
    "vllm": {
        "gemm": gemm_rows,
        "generation_attention": partial(attention_rows, operator="attention_decode"),
        "context_attention": partial(attention_rows, operator="attention_prefill"),
        "moe": moe_rows,
        "mla_generation_module": partial(module_rows, operator="mla_decode"),
        "mla_context_module": partial(module_rows, operator="mla_prefill"),
        "dsa_generation_module": _sparse,
        "gdn": gdn_rows,
        "custom_allreduce": all_reduce_rows,
    },
    "sglang": {
        "moe": partial(moe_rows, dtypes={k: dtype for k, dtype in MOE_DTYPES.items() if k != "w4a16_mxfp4"}),
        "generation_mla": latent_rows,
        "mla_bmm": product_rows,
        "dsa_generation_module": partial(_sparse, names=FP8_SPARSE_MODELS, gemm_type="fp8_block"),
        "gdn": gdn_rows,
        "custom_allreduce": all_reduce_rows,
    },
    "trtllm": {"custom_allreduce": all_reduce_rows},
}
"""By engine, those of `ENGINE` and then those of kernels that other engines have of their own: files without
``_perf.parquet``, each with what turns it into rows of the latency table and counts what it leaves out.

``files`` of `NAMES` says the folder a file stands in and the columns it must have. Of SGLang's experts in MXFP4 with
16-bit inputs a fallback was timed (on Hopper two to three times slower than what gpt-oss is served by); on Blackwell it
rounds inputs to MXFP8 by default (server_args.py, flashinfer_mxfp4_moe_precision), as vLLM does but for gpt-oss.
"""


PACKAGE = "aiconfigurator_core"
ENGINE = "vllm"  # whose kernels are taken


def read_aiconfigurator(path: Path | None, hardware: HardwareSpec, *, system: str | None = None) -> ImportedTable:
    """Every row of one device that has a counterpart in the latency table, implausible ones dropped.

    ``path``: the package's folder, the one it stands in, its ``systems/data`` or one system's folder; None takes the
    installed package. ``system``: the package's name of the device; absent: by the name of ``hardware``.

    Raises HardwareError: no package, no such system, a file that is unreadable or not of this format.
    """
    folder = find_system(path, hardware, system)
    left_out: dict[str, LeftOut] = {engine: Counter() for engine in FILES}
    parts: defaultdict[str, list[pd.DataFrame]] = defaultdict(list)
    devices: set[str] = set()
    versions = {"aiconfigurator-core": _package_version(folder)}
    sources: dict[str, str] = {}
    for engine, kinds in FILES.items():
        for kind, rows_of in kinds.items():
            files = newest_first(folder / NAMES["files"][kind]["family"] / engine, f"{kind}_perf.parquet")
            # The newest version, and the one before where that counts too.
            used = files[: 2 if kind in _EARLIER and engine == ENGINE else 1]
            raw = {file: read_file(file, kind, engine) for file in used}
            if raw:
                devices.update(*(rows["device"] for rows in raw.values()))
                timed = sorted({version for rows in raw.values() for version in rows["version"]})
                versions[f"{engine} {kind}"] = ", ".join(timed)
                sources |= {file.relative_to(folder.parent).as_posix(): sha256(file) for file in raw}
                newest = next(iter(raw.values())) if len(raw) == 1 else _EARLIER[kind](*raw.values())
                parts[engine].append(table_file.complete(rows_of(newest, left_out[engine])))
    frames = {engine: pd.concat(of_engine, ignore_index=True) for engine, of_engine in parts.items()}
    if ENGINE not in frames:
        raise HardwareError(f"holds no times of {ENGINE}", file=str(folder))
    dropped: LeftOut = Counter()
    frame = plausible(frames.pop(ENGINE), hardware, dropped)
    frame = latent_attention.without_matrices(frame, hardware, left_out[ENGINE])
    if len(devices) > 1:
        raise HardwareError(f"times of several devices: {', '.join(sorted(devices))}", file=str(folder))
    matrices = frame[frame["operator"] == "linear"]
    others = {name: _of_other(rows, matrices, hardware, left_out[name]) for name, rows in frames.items()}
    counts = dict(left_out.pop(ENGINE) | dropped)
    return ImportedTable(
        table=table_file.table_of(frame, folder),
        engines={name: table_file.table_of(rows, folder) for name, rows in others.items()},
        device=devices.pop(),
        source=f"derived from aiconfigurator-core's timings of {ENGINE}'s kernels on this device, by NVIDIA",
        licence="Apache-2.0",
        versions=versions,
        sources=sources,
        left_out=counts | {f"{name}: {why}": n for name, counted in left_out.items() for why, n in (+counted).items()},
    )


def _of_other(rows: pd.DataFrame, matrices: pd.DataFrame, hardware: HardwareSpec, left_out: LeftOut) -> pd.DataFrame:
    """Another engine's rows, the matrices of sparse blocks taken off by the times of ``matrices``."""
    frame = plausible(with_products(rows), hardware, left_out)
    blocks = frame["operator"] == "dsa_decode"
    sparse = pd.concat([frame[blocks], matrices], ignore_index=True)
    apart = latent_attention.without_matrices(sparse, hardware, left_out, "fp8")
    return pd.concat([frame[~blocks], apart[apart["operator"] == "dsa_decode"]], ignore_index=True)


def find_system(path: Path | None, hardware: HardwareSpec, system: str | None = None) -> Path:
    """Folder of one system's times; arguments and errors of `read_aiconfigurator`."""
    name = system or NAMES["systems"].get(hardware.name)
    if name is None:
        systems = ", ".join(NAMES["systems"])
        message = f"aiconfigurator-core's name of it is not known (known: {systems}); name the system"
        raise HardwareError(message, key="hardware", value=hardware.name)
    if path is None:
        require("profiles", PACKAGE, place="--import aiconfigurator without a path")
        package = importlib.util.find_spec(PACKAGE)
        path = Path(next(iter((package and package.submodule_search_locations) or ())))
    for part in (f"{PACKAGE}/systems/data", "systems/data", "data", ""):
        if (folder := path / part / name).is_dir():
            return folder
    if path.name == name and path.is_dir():
        return path
    raise HardwareError(f"holds no times of the system {name}", file=str(path))


def newest_first(folder: Path, name: str) -> list[Path]:
    """Files ``name`` of the version folders below ``folder``."""
    files = [file for file in folder.glob(f"*/{name}") if re.fullmatch(r"\d+(\.\d+)*(rc\d+)?", file.parent.name)]

    def version(file: Path) -> tuple[list[int], float]:
        release, _, candidate = file.parent.name.partition("rc")
        return [int(part) for part in release.split(".")], float(candidate or "inf")

    return sorted(files, key=version, reverse=True)


def _over_slower_links(rows: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """All-reduces of the newest version, with the times of the version before where that ran over slower links."""
    point = ["kernel_source", "allreduce_dtype", "num_gpus", "message_size"]
    earlier = rows[point].join(before.groupby(point)["latency"].min(), on=point)["latency"]
    return rows.assign(latency=rows["latency"].where(~(earlier > SLOWER_LINK * rows["latency"]), earlier))


def _with_triton(rows: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """Experts of the newest version, and of the version before those in formats that only it ran by Triton."""
    parts = [rows]
    for dtype in ("bfloat16", "fp8_block"):
        newest, earlier = (
            frame["kernel_source"].str.contains("flashinfer")[frame["moe_dtype"] == dtype] for frame in (rows, before)
        )
        if len(newest) and newest.all():
            parts.append(before.loc[earlier.index[~earlier]])
    return pd.concat(parts, ignore_index=True)


_EARLIER = {"custom_allreduce": _over_slower_links, "moe": _with_triton}
"""Of these files the version before the newest is read too, and joined so."""


def _package_version(folder: Path) -> str:
    """Version of the package that holds ``folder``, from the metadata installed beside it."""
    places = [str(parent.parent) for parent in folder.parents if parent.name == PACKAGE]
    packages = importlib.metadata.distributions(name=PACKAGE, path=places)
    return next((package.version for package in packages), "unknown")


def read_file(file: Path, kind: str, engine: str = ENGINE) -> pd.DataFrame:
    """Checked rows of one file. Raises HardwareError: not Parquet, a column missing or bad, another engine's times."""
    texts, numbers = (NAMES["files"][kind].get(columns, ()) for columns in ("texts", "numbers"))
    rows = table_file.read_rows(file, "framework", "version", "device", "kernel_source", *texts, *numbers, "latency")
    if rows.frame.empty:
        raise HardwareError("holds no row", file=str(file))
    for column in numbers:
        rows.whole(column, 0 if column == "step" else 1)
    rows.seconds("latency", 1e-3)
    rows.check("framework", rows.frame["framework"].str.lower() == engine, f"times of {engine} are needed")
    return rows.frame
