"""How far a result rests on measurements: what of a scenario a profile has timed, and how much device time that is.

`coverage_of` shows the shapes a deployment runs among those that were timed. Each operator is measured at that very
shape, interpolated or extrapolated; `fidelity` makes of the device seconds of each origin the badge a reader sees.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from draftcast.calibration.profile.measured import measured_dtype, of_nearest_heads
from draftcast.calibration.profile.roofline import Origin
from draftcast.calibration.profile.spec import RooflineProfile
from draftcast.calibration.profile.table import read_points
from draftcast.errors import HardwareError
from draftcast.files import picked
from draftcast.kernels.operators.attention import layer_shape
from draftcast.kernels.operators.sparse import sparse_decode_shape
from draftcast.kernels.work.layers import linear_layers, lm_head
from draftcast.scenarios.run.deployment import Deployment
from draftcast.scenarios.schema import Scenario
from draftcast.sim.statistics.intervals import Estimate

ORIGINS = tuple(origin.label for origin in Origin)
# A third of the device time on weaker ground is too much to hide behind the better word.
TOLERATED = 1 / 3


@dataclass(frozen=True)
class Coverage:
    """What was measured, and what the scenario asks."""

    matrices: pd.DataFrame  # measured (k, n) of dense layers, a row each, with ``rows_low`` and ``rows_high``
    # The model's own matrices on one rank: name, k, n; measured: the very shape is in the table, for some number of
    # rows; inside: it lies between measured ones
    layers: pd.DataFrame
    attention: dict[str, pd.DataFrame]  # "decode" and "prefill": ``batch``, ``q``, ``context`` of the nearest heads
    asked: dict[str, tuple[float, float]]  # ranges of ``batch`` and ``context`` of decodes, ``chunk`` of prompts


def coverage_of(scenario: Scenario, deployment: Deployment, requests: pd.DataFrame) -> Coverage:
    """The coverage of the requests of a scenario's run. Raises HardwareError: the profile has no measured table."""
    profile, engine, model = deployment.profile, scenario.engine, deployment.model
    measured = profile.measured if isinstance(profile, RooflineProfile) and profile.is_timed else None
    if measured is None:
        raise HardwareError("holds no measured table", key="profile", value=profile.name)
    points = read_points(measured.table, "linear", dtype=measured_dtype(engine.weight_dtype))
    shapes = points.groupby(["k", "n"])["m"].agg(rows_low="min", rows_high="max").reset_index()
    tp = engine.tensor_parallel_size
    dense = [*(layer for layer in linear_layers(model, tp) if not layer.num_experts), lm_head(model, tp)]
    layers = pd.DataFrame([picked(layer, "name k n") for layer in dense])
    needed, timed = layers[["k", "n"]], shapes[["k", "n"]]
    layers["measured"] = pd.MultiIndex.from_frame(needed).isin(pd.MultiIndex.from_frame(timed))
    layers["inside"] = (needed.ge(timed.min()) & needed.le(timed.max())).all(axis=1)
    attention = {}
    for phase in ("decode", "prefill"):
        operator, heads = layer_shape(model, phase, tp)
        if model.has_latent_indexer and phase == "decode":
            operator, heads = "dsa_decode", sparse_decode_shape(model, tp)
        kv_dtype = measured_dtype(deployment.settings.kv_dtype)
        rows = read_points(measured.table, operator, dtype="bf16", kv_dtype=kv_dtype, window=0)
        if len(rows):
            _, rows = of_nearest_heads(rows, heads)
        attention[phase] = rows[["batch", "q", "context"]].drop_duplicates()
    return Coverage(shapes, layers, attention, _asked(deployment, requests))


def _asked(deployment: Deployment, requests: pd.DataFrame) -> dict[str, tuple[float, float]]:
    finished = requests.dropna(subset=["finish_s"])
    done = requests if finished.empty else finished
    events = np.sort(done["first_scheduled_s"].to_numpy(np.float64))
    ends = np.sort(done["finish_s"].to_numpy(np.float64))
    running = np.searchsorted(events, events, side="right") - np.searchsorted(ends, events, side="right")
    most = float(min(running.max(initial=1), deployment.settings.max_num_seqs))
    prompt, total = done["prompt_tokens"], done["prompt_tokens"] + done["output_tokens"]
    chunk = min(float(prompt.max()), float(deployment.settings.max_num_batched_tokens))
    return {
        "batch": (1.0, max(most, 1.0)),
        "context": (float(prompt.min()), float(total.max())),
        "chunk": (float(min(prompt.min(), chunk)), chunk),
    }


@dataclass(frozen=True)
class Fidelity:
    """Shares of the device time by origin, of the run that rests on extrapolation most."""

    word: str  # ``extrapolated`` (more than a third), else ``measured`` (at least two thirds), else ``interpolated``
    shares: Mapping[str, float]  # by origin; they add up to 1

    def __str__(self) -> str:
        return f"{self.word} · {self.shares['extrapolated']:.0%} of device time extrapolated"


def fidelity(runs: Sequence[Mapping[str, Estimate]]) -> Fidelity | None:
    """Of the figures of the runs that are shown together, the worst; None when no device time was spent."""
    names = {word: f"share_device_time_{word}" for word in ORIGINS}
    by_run = [{word: figures[name].mean for word, name in names.items() if name in figures} for figures in runs]
    complete = [shares for shares in by_run if len(shares) == len(names) and all(map(math.isfinite, shares.values()))]
    if not complete:
        return None
    shares = max(complete, key=lambda shares: shares["extrapolated"])
    extrapolates, is_measured = shares["extrapolated"] > TOLERATED, shares["measured"] >= 1 - TOLERATED
    return Fidelity("extrapolated" if extrapolates else "measured" if is_measured else "interpolated", shares)
