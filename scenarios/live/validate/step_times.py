"""Step times of a live run beside the step cost's: each logged step's composition priced as the simulator prices it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from draftcast.calibration.engine_log.regression import Errors
from draftcast.calibration.live.composition import FEATURES, TimedRun, composed_steps, timed_run
from draftcast.scenarios.live.validate.question import Question
from draftcast.sim.cost import step_time as st

FloatArray = NDArray[np.float64]

# What has to be the same for two steps to be expected to take the same time; contexts grow by a token a step.
_COMPOSITION = ("steps", "seqs", "decode_tokens", "prefill_tokens", "draft_tokens")
_LEAST_NEIGHBOURS = 20


@dataclass(frozen=True)
class StepTimes:
    """Measured and predicted seconds of the same steps."""

    timed: TimedRun  # the run's steps; its points have ``seconds`` and ``predicted_s``
    errors: dict[str, Errors]  # of ``all`` points, of ``decode`` steps and of steps with ``prompts``
    # decode_excess, prompt_excess: share by which steps without and with prompts took longer than predicted, all their
    # time counted
    decode_excess: float
    prompt_excess: float

    @property
    def fitted_s(self) -> FloatArray:
        """What each of ``timed.steps`` should have taken."""
        return self.timed.steps["predicted_s"].to_numpy(np.float64)

    def summary(self) -> dict[str, Any]:
        """Plain data: errors, and quantiles of measured and predicted seconds a step."""
        points = self.timed.points
        steps = points["steps"].to_numpy(np.float64)
        each = {name: points[name].to_numpy(np.float64) / steps for name in ("seconds", "predicted_s")}
        quantiles = {f"p{q}": {name: float(np.percentile(s, q)) for name, s in each.items()} for q in (5, 50, 95)}
        means = {name: float(points[name].sum() / steps.sum()) for name in each}
        return {
            "clock": self.timed.clock,
            "points": len(points),
            "steps": int(steps.sum()),
            "errors": self.errors,
            "repeat_spread": repeat_spread(points),
            "step_s": {"mean": means, **quantiles},
            "decode_excess": self.decode_excess,
            "prompt_excess": self.prompt_excess,
            "left_out": self.timed.left_out,
        }


def step_times(question: Question) -> StepTimes | None:
    """The run's steps priced by the question's step cost; None where the run has no log.

    Raises:
        InputError: a log that does not belong to the run, or no step that can be timed.
    """
    if question.live.server_log is None:
        return None
    steps = composed_steps(question.live)
    predicted_s = priced(question.deployment.cost, steps)
    timed = timed_run(question.live, steps.assign(predicted_s=predicted_s), ("predicted_s",))
    points = timed.points
    prompts = (points["context_tokens"] > 0).to_numpy()
    errors = {
        name: Errors.of(points.loc[where, "predicted_s"].to_numpy(np.float64), points[where])
        for name, where in (("all", np.full(len(points), True)), ("decode", ~prompts), ("prompts", prompts))
    }
    return StepTimes(timed, errors, _excess(points[~prompts]), _excess(points[prompts]))


def priced(cost: st.StepCost, steps: pd.DataFrame) -> FloatArray:
    """Seconds of each step by the step cost; ``steps`` has `FEATURES`. The host hides where the engine says so."""
    f, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    table = steps[list(FEATURES)].to_numpy(np.float64)
    on_host = int(cost.params[0]["plan"]) == st.HOST_SEARCH
    seconds = np.empty(len(table))
    for row, features in enumerate(table):
        for name, value in zip(FEATURES, features, strict=True):
            f[name] = value
        f["propose_tokens"] = f["draft_kv"] if on_host else 0.0
        st.step_time(cost, f, out)
        seconds[row] = st.step_seconds(cost, out)
    return seconds


def repeat_spread(points: pd.DataFrame) -> tuple[float, float]:
    """Median and p90 of the relative difference of neighbouring steps of the same composition, over the root of two.

    The error of a forecast that knew the mean of every composition: how far the machine itself repeats a step. NaN
    where there are hardly any such neighbours.
    """
    alike = points[["source", *_COMPOSITION]]
    same = (alike == alike.shift()).all(axis=1).to_numpy()[1:]
    seconds = points["seconds"].to_numpy(np.float64)
    spread = np.abs(np.log(seconds[1:] / seconds[:-1]))[same] / np.sqrt(2.0)
    if len(spread) < _LEAST_NEIGHBOURS:
        return np.nan, np.nan
    median, p90 = np.quantile(spread, (0.5, 0.9))
    return float(median), float(p90)


def _excess(points: pd.DataFrame) -> float:
    predicted_s = float(points["predicted_s"].sum())
    return float(points["seconds"].sum()) / predicted_s - 1.0 if predicted_s > 0.0 else 0.0
