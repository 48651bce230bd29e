"""Two profiles beside each other: a decode step operator by operator, and the points that both have timed."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from draftcast.calibration.profile.engines import DEFAULT_VERSION
from draftcast.calibration.profile.spec import RooflineProfile
from draftcast.calibration.profile.table import POINT
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.work import layers
from draftcast.scenarios.show.profile_view import OpenProfile
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.methods import get_method
from draftcast.sim.cost.operator_tables import OperatorTables
from draftcast.sim.cost.step_cost import compile_step_cost

BATCHES = (1, 8, 64, 128, 256)
MODES = ("eager launches", "launches without a graph", "piecewise graphs", "full graph")
MAX_ROWS = 8192


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


def compare(first: OpenProfile, second: OpenProfile, step: Step) -> list[dict[str, Any]]:
    """Milliseconds of a decode step at several batch sizes, part by part, in two profiles, and shares in the first.

    One row a batch size and part; None where a profile does not know the part (a whole-step fit knows no operators).

    Raises:
        InputError: no such model or method, one that needs a draft model, or a degree that does not divide the model.
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
    """Points timed in both profiles, by operator: do their intervals meet, and how far apart are the medians?

    Rows: operator, points, intervals_meet (count), median and p90 of the relative difference. Empty where one of them
    holds no table, or they have no timed point in common.
    """
    if first.folder is None or second.folder is None:
        return []
    both = first.table.frame.merge(second.table.frame, on=list(POINT), suffixes=("", "_other"))
    both = both[both[["low_s", "low_s_other"]].notna().all(axis=1)]
    meet = (both["low_s"] <= both["high_s_other"]) & (both["low_s_other"] <= both["high_s"])
    both = both.assign(meet=meet, apart=(both["seconds_other"] / both["seconds"] - 1.0).abs())
    return [
        {"operator": str(operator), "points": len(own), "intervals_meet": int(own["meet"].sum())}
        | {"median": float(own["apart"].median()), "p90": float(own["apart"].quantile(0.9))}
        for operator, own in both.groupby("operator")
    ]


def step_cost(opened: OpenProfile, step: Step) -> st.StepCost:
    """The step's cost under a profile, for up to the largest of `BATCHES` sequences."""
    model = load_model(step.model)
    config = EngineConfig(
        version=step.version,
        is_moe=model.is_moe,
        method=get_method(step.method if step.k else "none"),
        num_speculative_tokens=step.k,
        tensor_parallel_size=step.tp,
        weight_dtype=step.dtype,
        max_model_len=model.max_position_embeddings,
        max_num_batched_tokens=MAX_ROWS,
        max_num_seqs=max(BATCHES),
    )
    return compile_step_cost(config, model, None, opened.profile, opened.hardware)


def step_parts(opened: OpenProfile, cost: st.StepCost, step: Step, batch: int) -> dict[str, float]:
    """Seconds of the parts of one step of ``batch`` sequences.

    Parts "target: ...", "draft: ...", "sample: ..." and "host: ..." add up to their whole; those besides kernels are
    the engine generation's. A whole-step fit knows no operators: its target holds lm_head and sampler.
    """
    features, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    st.decode_features(cost, batch, step.k, step.context, features)
    st.step_time(cost, features, out)
    parts, draft, host = {"target": out["target_s"]}, {"draft": out["draft_s"]}, {"host": out["host_s"]}
    sampler: dict[str, float] = {}
    if isinstance(opened.profile, RooflineProfile):
        rows = int(features["tokens"])
        model, device = load_model(step.model), OperatorTables(opened.profile, step.tp, step.dtype)
        whole = cost.target[rows].sum()
        # The batches here are captured sizes, so rows are not padded.
        matrices = (layer for layer in layers.linear_layers(model, device.tp) if layer.scope == "pass")
        linear = sum(device.linear(layer, np.array([rows])).sum() for layer in matrices if not layer.num_experts)
        collectives = float(device.all_reduces(model, np.array([rows])).sum())
        parts["target: attention"] = out["target_s"] - whole - out["overhead_s"]
        parts["target: linear"] = linear
        if step.tp > 1:
            parts["target: all-reduce"] = collectives
        rest = "experts, norms, activations" if model.is_moe else "norms, rotary, activations"
        parts[f"target: {rest}"] = whole - linear - collectives
        parts[f"target: {MODES[out['graph_mode']]}"] = out["overhead_s"]
        if step.k:
            passes = out["draft_overhead_s"]
            draft |= {"draft: kernels or search": out["draft_s"] - passes, "draft: between kernels": passes}
        host |= {"host: step": cost.params[0]["host_fixed_s"], "host: requests": batch * cost.params[0]["host_seq_s"]}
        head = device.lm_head(model, np.array([int(features["logit_rows"])])).sum()
        sampler = {"lm_head and sampler": out["sample_s"], "sample: lm_head": head}
        sampler["sample: sampler"] = out["sample_s"] - head - out["verify_s"]
        if step.k:
            sampler["sample: verification"] = out["verify_s"]
    parts |= draft | sampler | host
    parts["device"] = out["target_s"] + out["draft_s"] + out["sample_s"]
    parts["device + host"] = parts["device"] + out["host_s"]
    return {name: float(value) for name, value in parts.items()}
