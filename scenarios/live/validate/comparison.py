"""A live run beside its forecast: figures with their errors, step times, and what the difference is made of."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from draftcast.calibration.live.composition import FEATURES, TimedRun, composed_steps, timed_run
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.calibration.live.step_profile import FrontEndMeasurement, measure_front_end, run_digest
from draftcast.calibration.profile.roofline_fit import FitErrors
from draftcast.calibration.profile.spec import AffineProfile, FrontEnd
from draftcast.errors import InputError
from draftcast.files import picked
from draftcast.kernels.arrays import FloatArray
from draftcast.scenarios.live.validate.forecast import NOTHING, Assumptions, Replay, ReplayQuestion, forecast
from draftcast.scenarios.run.simulate import front_end_work_s
from draftcast.scenarios.schema import Scenario
from draftcast.sim.cost import step_time as st
from draftcast.sim.output.metrics import summarise
from draftcast.sim.statistics.intervals import Estimate

CAUSES = ("acceptance", "step time", "client", "scheduling")
"""What a difference is put down to, in the order in which measured values replace forecast ones; the last is the rest:
what runs when, and chance."""
_MANY_OTHERS = 0.1  # of a core; more work of others than this is no quiet machine
# What has to be the same for two steps to be expected to take the same time; contexts grow by a token a step.
_COMPOSITION = ("steps", "seqs", "decode_tokens", "prefill_tokens", "draft_tokens")
_LEAST_NEIGHBOURS = 20


@dataclass(frozen=True)
class StepTimes:
    """Measured and predicted seconds of the same steps."""

    timed: TimedRun  # the run's steps; its points have ``seconds`` and ``predicted_s``
    errors: dict[str, FitErrors]  # of ``all`` points, of ``decode`` steps and of steps with ``prompts``
    decode_excess: float  # share by which steps without prompts took longer than predicted, all their time counted
    prompt_excess: float  # the same of steps with prompts

    def summary(self) -> dict[str, Any]:
        """Plain data: errors, and quantiles of measured and predicted seconds a step."""
        points = self.timed.points
        steps = points["steps"].to_numpy(np.float64)
        per_step = {name: points[name].to_numpy(np.float64) / steps for name in ("seconds", "predicted_s")}
        quantiles = {f"p{q}": {name: float(np.percentile(s, q)) for name, s in per_step.items()} for q in (5, 50, 95)}
        return {
            **picked(self, "errors decode_excess prompt_excess"),
            **picked(self.timed, "clock left_out"),
            "points": len(points),
            "steps": int(steps.sum()),
            "repeat_spread": repeat_spread(points),
            "step_s": {"mean": {name: float(points[name].sum() / steps.sum()) for name in per_step}, **quantiles},
        }


def step_times(question: ReplayQuestion) -> StepTimes | None:
    """The run's steps, priced; None without a log. Raises InputError: another run's log, or no step with a time."""
    if question.live.server_log is None:
        return None
    steps = composed_steps(question.live)
    predicted_s = priced(question.deployment.cost, steps)
    timed = timed_run(question.live, steps.assign(predicted_s=predicted_s), ("predicted_s",))
    points = timed.points
    prompts = (points["context_tokens"] > 0).to_numpy()
    errors = {
        name: FitErrors.of(points.loc[where, "predicted_s"].to_numpy(np.float64), points[where])
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

    The error of a forecast that knew the mean of every composition; NaN where there are hardly any such neighbours.
    """
    alike = points[["source", *_COMPOSITION]]
    same = (alike == alike.shift()).all(axis=1).to_numpy()[1:]
    seconds = points["seconds"].to_numpy(np.float64)
    spread = np.abs(np.log(seconds[1:] / seconds[:-1]))[same] / np.sqrt(2.0)
    if len(spread) < _LEAST_NEIGHBOURS:
        return math.nan, math.nan
    median, p90 = np.quantile(spread, (0.5, 0.9))
    return float(median), float(p90)


def _excess(points: pd.DataFrame) -> float:
    predicted_s = float(points["predicted_s"].sum())
    return float(points["seconds"].sum()) / predicted_s - 1.0 if predicted_s > 0.0 else 0.0


@dataclass(frozen=True)
class Figure:
    """One figure: measured, forecast with its interval over the replications, and the forecast's relative error."""

    name: str
    measured: float
    forecast: Estimate

    @property
    def error(self) -> float:
        """(forecast - measured) / measured; NaN where 0 was measured."""
        return self.forecast.mean / (self.measured or math.nan) - 1.0


@dataclass(frozen=True)
class Validation:
    question: ReplayQuestion
    figures: dict[str, Figure]  # by name, those that both sides have
    acceptance: str  # ``configured`` or ``measured``: which one the forecast took; "" without speculation
    front_end: FrontEnd  # the forecast's seconds between client and engine, from the profile's calibration
    own_front_end: FrontEndMeasurement | None  # measured in this very run, for the attribution; None without a log
    steps: StepTimes | None  # None without a log
    replays: list[Replay] = field(repr=False)  # the forecast's replications
    # By figure: measured minus forecast, by cause (`CAUSES`), each as a share of the measured value
    attribution: dict[str, dict[str, float]]
    notes: tuple[str, ...]  # what a reader must know

    def error_with_own_step_times(self, name: str) -> float:
        """The figure's error with this run's own acceptance, step times and front end; NaN where it is not known."""
        is_attributed = name in self.attribution and self.steps is not None
        return -self.attribution[name]["scheduling"] if is_attributed else math.nan


def validate(
    live: LiveRun, scenario: Scenario, *, profile: str | None = None, measured: bool = False, attribute: bool = True
) -> Validation:
    """Forecast a recorded run and compare.

    Args:
        profile: instead of the scenario's.
        measured: take the acceptance that the server counted in this run, not the scenario's.
        attribute: say what the difference is made of (three more forecasts).

    Raises InputError: the profile was fitted to this very run, or the run and the scenario do not go together.
    """
    question = ReplayQuestion.of(live, scenario, profile)
    used = question.deployment.profile
    if isinstance(used, AffineProfile):
        if run_digest(live) in used.fitted_runs:
            message = "the profile was fitted to this very run; calibrate on other runs than are validated"
            raise InputError(message, file=str(live.folder), key="profile", value=used.name)
        front_end = used.front_end or NOTHING
    else:  # a profile of kernels: what the engine's generation takes into the engine
        work_s = front_end_work_s(question.deployment, question.table.prompt_tokens)
        front_end = FrontEnd(float(work_s.mean()), 0.0, 0.0, 0.0)
    speculates = question.scenario.speculative_config is not None
    counts = live.manifest["acceptance"] or {"num_drafts": 0}
    counted = question.measured_acceptance() if speculates and (measured or counts["num_drafts"]) else None
    steps = step_times(question)
    own_front_end = None
    if steps is not None:
        own_front_end = measure_front_end([steps.timed], [steps.timed.steps["predicted_s"].to_numpy(np.float64)])
    assumptions = Assumptions(acceptance=counted if measured else None, front_end=front_end)
    replays = forecast(question, assumptions)
    estimates = summarise([replay.figures for replay in replays], question.scenario.statistics.confidence)
    figures = {
        name: Figure(name, value, estimates[name])
        for name, value in question.figures().items()
        if name in estimates and math.isfinite(value) and math.isfinite(estimates[name].mean)
    }
    attribution = {}
    if attribute:
        excess = picked(steps, "decode_excess prompt_excess") if steps is not None else {}
        measured_front_end = {"front_end": own_front_end.seconds if own_front_end is not None else front_end}
        replayed, means = replays, []
        for change in ({}, {"acceptance": counted}, excess, measured_front_end):
            before, assumptions = assumptions, replace(assumptions, **change)
            replayed = forecast(question, assumptions) if assumptions != before else replayed
            means.append(pd.DataFrame([replay.figures for replay in replayed]).mean())
        for name, figure in figures.items():
            changes = np.diff([*(mean[name] for mean in means), figure.measured]) / (figure.measured or math.nan)
            attribution[name] = dict(zip(CAUSES, changes.tolist(), strict=True))
    return Validation(
        question=question,
        figures=figures,
        acceptance="" if not speculates else "measured" if measured else "configured",
        front_end=front_end,
        own_front_end=own_front_end,
        steps=steps,
        replays=replays,
        attribution=attribution,
        notes=_notes(question, steps),
    )


def _notes(question: ReplayQuestion, steps: StepTimes | None) -> tuple[str, ...]:
    live, manifest = question.live, question.live.manifest
    profile, left_out = question.deployment.profile, len(live.requests) - len(question.table)
    late_s = manifest["client"].get("lateness_p99_s") or 0.0
    others = manifest["noise"].get("others_cores") or 0.0
    at_engine = isinstance(profile, AffineProfile) and profile.front_end is None
    notes = {
        f"the run is incomplete: {manifest['incomplete_reason']}": not live.complete,
        f"{left_out} of {len(live.requests)} requests were not answered and are left out on both sides": left_out > 0,
        "no server log: only what the client saw is compared, and step time is not told from scheduling": steps is None,
        "the server did not tell its configuration: the scenario's is taken": not question.from_server,
        f"profile {profile.name} has no front end measured: the forecast's client is at the engine itself": at_engine,
        f"the client sent late, by {late_s * 1e3:.0f} ms at p99; forecast and run begin at the sending": late_s > 0.01,
        f"other processes used {others:.2f} cores of the server's machine meanwhile": others > _MANY_OTHERS,
    }
    return tuple(note for note, holds in notes.items() if holds)
