"""What a profile holds (origin, rooflines, held-out errors, coverage), and two side by side, as tables and text."""

import dataclasses
import functools
import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from draftcast.calibration.profile import load
from draftcast.calibration.profile.engines import DEFAULT_VERSION, graphs_hold_prompts
from draftcast.calibration.profile.hardware import HardwareSpec, load_hardware
from draftcast.calibration.profile.measured import TablePart, parts_of
from draftcast.calibration.profile.roofline_fit import OperatorErrors, interpolation_errors, modelled
from draftcast.calibration.profile.spec import HardwareProfile, RooflineProfile
from draftcast.calibration.profile.table import POINT, SHAPE_FIELDS, load_table
from draftcast.errors import HardwareError
from draftcast.files import picked
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.work import layers
from draftcast.scenarios.show.tables import LOOKS
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.methods import get_method
from draftcast.sim.cost.operator_tables import OperatorTables
from draftcast.sim.cost.step_cost import compile_step_cost

MOST_ROWS = 6000  # that one picture and its prediction take; whole curves are kept together
WIDTH = 110
BATCHES = (1, 8, 64, 128, 256)
MODES = ("eager launches", "launches without a graph", "piecewise graphs", "full graph")
MAX_ROWS = 8192


@dataclass(frozen=True)
class OpenProfile:
    """A profile with the device it is bound to and, for a measured one, its folder."""

    profile: HardwareProfile
    hardware: HardwareSpec
    folder: Path | None  # None for a profile without a table
    manifest: load.ProfileManifest | None  # None for a profile that is one YAML file

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """The measured table, read once. Raises HardwareError when the profile has none."""
        if self.folder is None:
            raise HardwareError("holds no measured table", key="profile", value=self.profile.name)
        return load_table(self.folder / load.TABLE)


def open_profile(name_or_path: str, hardware: str | None = None) -> OpenProfile:
    """Load a profile on its device, or on ``hardware`` where it fits any. Raises HardwareError: unknown or none."""
    path = load.find_profile(name_or_path)
    manifest = load.read_manifest(path) if path.is_dir() else None
    folder = path if manifest is not None and manifest.has_table else None
    named = manifest.hardware if manifest else str(load.read_top(path).get("hardware", "any"))
    if hardware is None and named == "any":
        raise HardwareError("the profile fits any device: name one", key="--hardware", value=None)
    spec = load_hardware(named if hardware is None else hardware)
    return OpenProfile(load.load_profile(str(path) if manifest else name_or_path, spec), spec, folder, manifest)


def bundled() -> dict[str, dict[str, Any]]:
    """Of every bundled profile its device ("any"), date, kind, and how many measured points it holds (0: none)."""
    profiles = {}
    for name in load.profile_names():
        path = load.find_profile(name)
        raw, table = load.read_top(path), path / load.TABLE
        points = pq.read_metadata(table).num_rows if table.is_file() else 0
        kind = "measured points" if points else "assumed efficiencies"
        kind = "whole-step fit of one model" if raw.get("kind") == "affine" else kind
        profiles[name] = {key: str(raw.get(key)) for key in ("hardware", "date")} | {"kind": kind, "points": points}
    return profiles


def fits_any_device(name_or_path: str) -> bool:
    """Whether a profile is of no device in particular. Raises HardwareError when there is no such profile."""
    return str(load.read_top(load.find_profile(name_or_path)).get("hardware", "any")) == "any"


def rooflines(profile: RooflineProfile) -> list[dict[str, Any]]:
    """A row for every roofline: family, dtype ("" for the family's own), its four numbers, origin and source."""
    return [
        {"family": family, "dtype": dtype, "t0_us": 1e6 * fit.t0_s}
        | {"e_c": fit.e_c, "e_m": fit.e_m, "p": fit.p, "origin": fit.origin.label, "source": fit.source}
        for family, operator in sorted(profile.operators.items())
        for dtype, fit in [("", operator), *sorted(operator.dtypes.items())]
    ]


def errors_of(opened: OpenProfile) -> list[dict[str, Any]]:
    """Held-out errors as the profile records them; none for a profile without a table."""
    profile = opened.profile
    return [dataclasses.asdict(errors) for errors in profile.held_out] if isinstance(profile, RooflineProfile) else []


def errors_by_shape(opened: OpenProfile) -> list[dict[str, Any]]:
    """Held-out errors of every operator and format, computed anew, by the operator's x in powers of four."""
    rows = []
    for errors in held_out_predictions(opened):
        x = LOOKS["sizes"].get(errors.part.operator, "m")
        powers = np.floor(np.log(errors.predictions[x].clip(lower=1)) / math.log(4.0)).astype(int)
        for low, error in errors.predictions["error"].abs().groupby(powers):
            figures = {"median": error.median(), "p90": error.quantile(0.9), "worst": error.max()}
            size = f"{x} {4**low}..{4 ** (low + 1) - 1}"
            rows.append({**errors.part._asdict(), "size": size, "points": len(error), **figures})
    return rows


def held_out_predictions(opened: OpenProfile) -> Iterator[OperatorErrors]:
    """Interpolation of the held-out points of every operator and format of the table."""
    for part, rows in parts_of(modelled(opened.table)):
        yield _predictions(opened, part, rows)


def fit_points(opened: OpenProfile, part: TablePart) -> OperatorErrors:
    """Predictions of a part's held-out points, of a large one by every n-th curve. Raises HardwareError: none there."""
    frame = opened.table
    points = frame[(frame[list(TablePart._fields)] == list(part)).all(axis=1)]
    if points.empty:
        raise HardwareError(f"has no measured points of {part}", key="profile", value=opened.profile.name)
    rows = modelled(points.reset_index(drop=True))
    if len(rows) > MOST_ROWS:
        curve = ["k", "n", "num_experts", "top_k", "heads", "kv_heads", "head_dim", "window"]
        every = -(-len(rows) // MOST_ROWS)
        rows = rows[rows.groupby(curve, sort=True).ngroup() % every == 0].reset_index(drop=True)
    return _predictions(opened, part, rows)


def _predictions(opened: OpenProfile, part: TablePart, rows: pd.DataFrame) -> OperatorErrors:
    assert isinstance(opened.profile, RooflineProfile)  # as every profile with a table
    return interpolation_errors(part, rows, opened.profile.seconds_of(*part.roofline))


def coverage(table: pd.DataFrame) -> list[dict[str, Any]]:
    """By operator and format: points, range of each shape column, ``settled`` (None: the source gave no intervals)."""
    rows = []
    for part, points in parts_of(table):
        ranges = []
        for name in SHAPE_FIELDS[part.operator]:
            low, high, count = points[name].min(), points[name].max(), points[name].nunique()
            ranges.append(f"{name} {low}" if low == high else f"{name} {low}..{high} ({count})")
        settled = float(points["settled"].mean()) if points["low_s"].notna().any() else None
        kernels = ", ".join(sorted(points["implementation"].unique()))
        note = LOOKS["notes"]["verification"] if part.operator.endswith("decode") and points["q"].max() == 1 else ""
        measured = {"points": len(points), "settled": settled, "kernels": kernels}
        rows.append({**part._asdict(), **measured, "covers": ", ".join(ranges), "note": note})
    return rows


def provenance_lines(shown: Mapping[str, Any]) -> list[str]:
    """Name and value of every entry; mappings as lists, numbers of them rounded, long values folded."""
    label = max(10, *map(len, shown)) + 1
    lines = []
    for name, value in shown.items():
        body = _flat(value) if isinstance(value, Mapping) else str(value)
        if name == "left_out":
            body = "; ".join(f"{count:,} {reason}" for reason, count in value.items())
        lines += textwrap.wrap(body, WIDTH, initial_indent=f"{name:<{label}}", subsequent_indent=" " * label) or [name]
    return lines


def _flat(value: Mapping[str, Any], prefix: str = "") -> str:
    parts = []
    for key, item in value.items():
        if isinstance(item, Mapping):
            parts.append(_flat(item, f"{prefix}{key} "))
        elif item != "":
            parts.append(f"{prefix}{key} {item:.4g}" if isinstance(item, float) else f"{prefix}{key} {item}")
    return ", ".join(parts)


def coverage_lines(rows: list[dict[str, Any]]) -> list[str]:
    """What was measured, operator by operator: points, how many settled, shapes and kernels."""
    lines = []
    for row in rows:
        formats = f"{row['dtype']} KV {row['kv_dtype']}" if row["kv_dtype"] else row["dtype"]
        settled = "no interval known" if row["settled"] is None else f"{row['settled']:.0%} settled"
        lines.append(f"{row['operator']} {formats}: {row['points']:,} points, {settled}")
        for text in filter(None, (row["covers"], f"by {row['kernels']}", row["note"])):
            lines += textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return lines


@dataclass(frozen=True)
class Step:
    """A decode step: every sequence with ``context`` tokens cached, verifying ``k`` drafts of ``method`` (0: none)."""

    model: str
    method: str = "none"
    k: int = 0
    tp: int = 1
    context: int = 1024
    dtype: str = "bf16"
    version: str = DEFAULT_VERSION
    temperature: float = EngineConfig.temperature


def compare_steps(first: OpenProfile, second: OpenProfile, step: Step) -> list[dict[str, Any]]:
    """Milliseconds of a decode step at several batch sizes, part by part, in two profiles, and shares in the first.

    None where a profile does not know the part (a whole-step fit knows no operators). Raises InputError: no such model
    or method, one that needs a draft model, or a degree that does not divide the model.
    """
    sides = [(opened, step_cost(opened, step)) for opened in (first, second)]
    rows = []
    for batch in BATCHES:
        one, other = (step_parts(opened, cost, step, batch) for opened, cost in sides)
        for part in one if len(one) >= len(other) else other:
            a, b = ((1e3 * side[part] if part in side else None) for side in (one, other))
            ratio = b / a if a and b is not None else None
            share = one[part] / one["device + host"] if part in one else None
            row = {"batch": batch, "part": part, "first_ms": a, "first_share": share, "second_ms": b, "ratio": ratio}
            rows.append(row)
    return rows


def agreement(first: OpenProfile, second: OpenProfile) -> list[dict[str, Any]]:
    """Points timed in both profiles (maybe none), by operator: how many intervals meet, how far apart medians are."""
    if first.folder is None or second.folder is None:
        return []
    both = first.table.merge(second.table, on=list(POINT), suffixes=("", "_other"))
    both = both[both[["low_s", "low_s_other"]].notna().all(axis=1)]
    meet = (both["low_s"] <= both["high_s_other"]) & (both["low_s_other"] <= both["high_s"])
    both = both.assign(meet=meet, apart=(both["seconds_other"] / both["seconds"] - 1.0).abs())
    return [
        {"operator": str(operator), "points": len(points), "intervals_meet": int(points["meet"].sum())}
        | {"median": float(points["apart"].median()), "p90": float(points["apart"].quantile(0.9))}
        for operator, points in both.groupby("operator")
    ]


def step_cost(opened: OpenProfile, step: Step, draft: ModelSpec | None = None) -> st.StepCost:
    """The step's cost under a profile, for up to the largest of `BATCHES` sequences; ``draft``: None: the usual one."""
    model = load_model(step.model)
    config = EngineConfig(
        version=step.version,
        **picked(model, "is_moe is_hybrid is_multimodal"),
        graphs_hold_prompts=graphs_hold_prompts(model, opened.hardware),
        method=get_method(step.method if step.k else "none"),
        num_speculative_tokens=step.k,
        tensor_parallel_size=step.tp,
        weight_dtype=step.dtype,
        temperature=step.temperature,
        max_model_len=model.max_position_embeddings,
        max_num_batched_tokens=MAX_ROWS,
        max_num_seqs=max(BATCHES),
    )
    return compile_step_cost(config, model, draft, opened.profile)


def step_parts(opened: OpenProfile, cost: st.StepCost, step: Step, batch: int) -> dict[str, float]:
    """Seconds of the parts of one step of ``batch`` sequences.

    Parts "target: ...", "draft: ...", "sample: ..." and "host: ..." add up to their whole; those besides kernels are
    the engine generation's. A whole-step fit knows no operators: its target holds lm_head and sampler.
    """
    features, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    st.decode_features(cost, batch, step.k, step.context, features)
    st.step_time(cost, features, out)
    target, draft, sample, host = (float(out[name]) for name in ("target_s", "draft_s", "sample_s", "host_s"))
    totals = {"device": target + draft + sample, "device + host": target + draft + sample + host}
    if not isinstance(opened.profile, RooflineProfile):
        return {"target": target, "draft": draft, "host": host, **totals}
    rows = int(features["tokens"])
    model, device = load_model(step.model), OperatorTables(opened.profile, step.tp, step.dtype)
    # The batches here are captured sizes, so rows are not padded.
    whole, at = cost.target[rows].sum(), np.array([rows])
    # In a step their sums never fall with the rows, as measured times do here and there: all parts in proportion.
    share = whole / device.model_pass(model, at).sum()
    matrices = (layer for layer in layers.linear_layers(model, device.tp) if layer.scope == "pass")
    linear = share * sum(device.linear(layer, at).sum() for layer in matrices if not layer.num_experts)
    collectives = share * float(device.all_reduces(model, at).sum())
    parts = {"target": target, "target: attention": target - whole - out["overhead_s"], "target: linear": linear}
    if step.tp > 1:
        parts["target: all-reduce"] = collectives
    rest = "experts, norms, activations" if model.is_moe else "norms, rotary, activations"
    parts[f"target: {rest}"] = whole - linear - collectives
    parts |= {f"target: {MODES[out['graph_mode']]}": out["overhead_s"], "draft": draft}
    if step.k:
        passes = out["draft_overhead_s"]
        parts |= {"draft: kernels or search": draft - passes, "draft: between kernels": passes}
    logits = np.array([int(features["logit_rows"])])
    head, choice = device.lm_head(model, logits).sum(), device.sampler(model, logits, 1 + step.k).sum()
    both = sample - out["verify_s"]
    parts |= {"lm_head and sampler": sample, "sample: lm_head": both * head / (head + choice)}
    parts["sample: sampler"] = both * choice / (head + choice)
    if step.k:
        parts["sample: verification"] = out["verify_s"]
    p = cost.params[0]
    parts |= {"host": host, "host: step": p["host_fixed_s"], "host: requests": batch * p["host_seq_s"]}
    if step.k and p["host_verify_seq_s"]:
        parts["host: verification"] = p["host_verify_s"] + batch * p["host_verify_seq_s"]
    return {name: float(value) for name, value in (parts | totals).items()}
