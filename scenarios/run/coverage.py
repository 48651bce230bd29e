"""How far a result rests on measurements: what of a scenario a profile has timed, and how much device time that is.

`coverage_of` shows the shapes a deployment runs among the shapes that were timed. A profile predicts each operator from
a measurement of that very shape, from measured neighbours, or beyond what was measured; the engine adds up device
seconds by these origins, and `fidelity` makes them the badge a reader sees.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from draftcast.calibration.profile.measured import MeasuredTimes, of_nearest_heads
from draftcast.calibration.profile.spec import RooflineProfile
from draftcast.calibration.profile.table import read_points
from draftcast.errors import HardwareError
from draftcast.kernels.operators.attention import layer_shape
from draftcast.kernels.operators.sparse import sparse_decode_shape
from draftcast.kernels.work.layers import linear_layers, lm_head
from draftcast.scenarios.run.deployment import Deployment
from draftcast.scenarios.schema import Scenario
from draftcast.sim.statistics.intervals import Estimate

OriginWord = Literal["measured", "interpolated", "extrapolated"]
ORIGINS: tuple[OriginWord, ...] = ("measured", "interpolated", "extrapolated")
# A third of the device time on weaker ground is too much to hide behind the better word.
TOLERATED = 1 / 3


@dataclass(frozen=True)
class Layer:
    """A matrix of the model on one rank."""

    name: str
    k: int
    n: int
    measured: bool  # its very shape is in the table, for some number of rows
    inside: bool  # its shape lies between measured ones


@dataclass(frozen=True)
class Coverage:
    """What was measured, and what the scenario asks."""

    matrices: pd.DataFrame  # measured (k, n) of dense layers, a row each, with ``rows_low`` and ``rows_high``
    layers: tuple[Layer, ...]  # the model's own matrices
    # By phase, "decode" and "prefill", measured points (``batch``, ``q``, ``context``) of the nearest heads
    attention: dict[str, pd.DataFrame]
    # Ranges of a run as (low, high): ``batch`` and ``context`` of decodes, ``chunk`` of prompts
    asked: dict[str, tuple[float, float]]


def coverage_of(scenario: Scenario, deployment: Deployment, requests: pd.DataFrame) -> Coverage:
    """The coverage map of a scenario; ``requests`` of a run say which lengths it meets.

    Raises:
        HardwareError: the profile has no measured table.
    """
    profile, engine, model = deployment.profile, scenario.engine, deployment.model
    measured = profile.measured if isinstance(profile, RooflineProfile) else None
    if measured is None:
        raise HardwareError("holds no measured table", key="profile", value=profile.name)
    dtype = "bf16" if engine.weight_dtype == "fp16" else engine.weight_dtype
    points = read_points(measured.table, "linear", dtype=dtype)
    shapes = points.groupby(["k", "n"])["m"].agg(rows_low="min", rows_high="max").reset_index()
    tp = engine.tensor_parallel_size
    dense = [*(layer for layer in linear_layers(model, tp) if not layer.num_experts), lm_head(model, tp)]
    layers = tuple(_layer(layer.name, layer.k, layer.n, shapes) for layer in dense)
    attention = _attention(deployment, measured, engine.kv_dtype, tp)
    return Coverage(shapes, layers, attention, _asked(deployment, requests))


def _layer(name: str, k: int, n: int, shapes: pd.DataFrame) -> Layer:
    measured = bool(((shapes["k"] == k) & (shapes["n"] == n)).any())
    inside = len(shapes) > 0 and all(
        shapes[axis].min() <= value <= shapes[axis].max() for axis, value in (("k", k), ("n", n))
    )
    return Layer(name, k, n, measured, inside)


def _attention(deployment: Deployment, measured: MeasuredTimes, kv_dtype: str, tp: int) -> dict[str, pd.DataFrame]:
    """Points of these heads, else of those measured that the profile takes for them."""
    model = deployment.model
    kv = "bf16" if kv_dtype == "fp16" else kv_dtype
    points = {}
    for phase in ("decode", "prefill"):
        operator, heads = layer_shape(model, phase, tp)
        if model.has_latent_indexer and phase == "decode":
            operator, heads = "dsa_decode", sparse_decode_shape(model, tp)
        rows = read_points(measured.table, operator, dtype="bf16", kv_dtype=kv, window=0)
        if len(rows):
            _, rows = of_nearest_heads(rows, heads)
        points[phase] = rows[["batch", "q", "context"]].drop_duplicates()
    return points


def _asked(deployment: Deployment, requests: pd.DataFrame) -> dict[str, tuple[float, float]]:
    done: Any = requests.dropna(subset=["finish_s"])
    if done.empty:
        done = requests
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

    # ``extrapolated`` when more than a third of the device time is; else ``measured`` when at least two thirds are;
    # else ``interpolated``
    word: OriginWord
    shares: Mapping[OriginWord, float]  # by origin; they add up to 1

    def __str__(self) -> str:
        return f"{self.word} · {self.shares['extrapolated']:.0%} of device time extrapolated"


def fidelity(runs: Sequence[Mapping[str, Estimate]]) -> Fidelity | None:
    """Of the figures of the runs that are shown together, the worst; None when no device time was spent."""
    known = [
        {word: figures[f"share_device_time_{word}"].mean for word in ORIGINS}
        for figures in runs
        if all(_is_known(figures.get(f"share_device_time_{word}")) for word in ORIGINS)
    ]
    if not known:
        return None
    shares = max(known, key=lambda each: each["extrapolated"])
    word: OriginWord = "interpolated"
    if shares["extrapolated"] > TOLERATED:
        word = "extrapolated"
    elif shares["measured"] >= 1 - TOLERATED:
        word = "measured"
    return Fidelity(word, shares)


def _is_known(estimate: Estimate | None) -> bool:
    return estimate is not None and math.isfinite(estimate.mean)
