"""A live run beside its forecast: figures with their errors, step times, and what the difference is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pandas as pd

from draftcast.calibration.live.run_directory import LiveRun
from draftcast.calibration.live.step_profile import FrontEndMeasurement, measure_front_end, run_digest
from draftcast.calibration.profile.spec import AffineProfile, FrontEnd
from draftcast.errors import InputError
from draftcast.scenarios.live.validate.figures import live_figures, live_requests
from draftcast.scenarios.live.validate.forecast import NOTHING, Assumptions, Replay, forecast
from draftcast.scenarios.live.validate.question import Question, measured_acceptance, question
from draftcast.scenarios.live.validate.step_times import StepTimes, step_times
from draftcast.scenarios.schema import Scenario
from draftcast.sim.output.metrics import summarise
from draftcast.sim.statistics.intervals import Estimate

CAUSES = ("acceptance", "step time", "client", "scheduling")
"""What a difference is put down to, in the order in which measured values replace forecast ones; the last is the rest:
what runs when, and chance."""
# Of a core; more work of others than this is no quiet machine.
_MANY_OTHERS = 0.1


@dataclass(frozen=True)
class Figure:
    """One figure: measured, forecast with its interval over the replications, and the forecast's relative error."""

    name: str
    measured: float
    forecast: Estimate

    @property
    def error(self) -> float:
        """(forecast - measured) / measured; NaN where that means nothing."""
        if not math.isfinite(self.measured) or self.measured == 0.0:
            return math.nan
        return self.forecast.mean / self.measured - 1.0


@dataclass(frozen=True)
class Validation:
    """What `validate` found."""

    question: Question
    figures: dict[str, Figure]  # by name, those that both sides have
    acceptance: str  # ``configured`` or ``measured``: which one the forecast took; "" without speculation
    front_end: FrontEnd  # the forecast's seconds between client and engine; their source is the profile's calibration
    # The same as measured in this very run, for the attribution; None without a log
    own_front_end: FrontEndMeasurement | None
    steps: StepTimes | None  # step times; None without a log
    replays: list[Replay] = field(repr=False)  # the forecast's replications
    live_requests: pd.DataFrame = field(repr=False)  # the run's requests in the columns of a simulation
    # By figure: measured minus forecast, by cause (`CAUSES`), each as a share of the measured value
    attribution: dict[str, dict[str, float]]
    notes: tuple[str, ...]  # what a reader must know

    def error_with_own_step_times(self, name: str) -> float:
        """The figure's error with this run's own acceptance, step times and front end; NaN where it is not known."""
        known = name in self.attribution and self.steps is not None
        return -self.attribution[name]["scheduling"] if known else math.nan


def validate(
    live: LiveRun,
    scenario: Scenario,
    *,
    profile: str | None = None,
    measured: bool = False,
    attribute: bool = True,
) -> Validation:
    """Forecast a recorded run and compare.

    Args:
        profile: instead of the scenario's.
        measured: take the acceptance that the server counted in this run, not the scenario's.
        attribute: say what the difference is made of (three more forecasts).

    Raises:
        InputError: the profile was fitted to this very run, or the run and the scenario do not go together.
    """
    asked = question(live, scenario, profile)
    used = asked.deployment.profile
    if isinstance(used, AffineProfile) and run_digest(live) in used.fitted_runs:
        message = "the profile was fitted to this very run; calibrate on other runs than are validated"
        raise InputError(message, file=str(live.folder), key="profile", value=used.name)
    front_end = _front_end(asked)
    speculates = asked.scenario.speculative_config is not None
    counts = live.manifest["acceptance"]
    has_counts = bool(counts and counts["num_drafts"])
    counted = measured_acceptance(live, asked.scenario) if speculates and (measured or has_counts) else None
    steps = step_times(asked)
    own = measure_front_end([steps.timed], [steps.fitted_s]) if steps is not None else None
    assumptions = Assumptions(acceptance=counted if measured else None, front_end=front_end)
    replays = forecast(asked, assumptions)
    estimates = summarise([each.figures for each in replays], asked.scenario.statistics.confidence)
    figures = {
        name: Figure(name, value, estimates[name])
        for name, value in live_figures(asked).items()
        if name in estimates and math.isfinite(value) and math.isfinite(estimates[name].mean)
    }
    attribution = {}
    if attribute:
        # Measured values replace forecast ones, one after the other.
        chain = [assumptions, replace(assumptions, acceptance=counted)]
        decode, prompt = (steps.decode_excess, steps.prompt_excess) if steps is not None else (0.0, 0.0)
        chain.append(replace(chain[-1], decode_excess=decode, prompt_excess=prompt))
        chain.append(replace(chain[-1], front_end=own.seconds if own is not None else front_end))
        means = [_means(replays)]
        for before, after in pairwise(chain):
            means.append(means[-1] if after == before else _means(forecast(asked, after)))
        attribution = {name: _shares(figure.measured, [m[name] for m in means]) for name, figure in figures.items()}
    return Validation(
        question=asked,
        figures=figures,
        acceptance="" if not speculates else "measured" if measured else "configured",
        front_end=front_end,
        own_front_end=own,
        steps=steps,
        replays=replays,
        live_requests=live_requests(asked),
        attribution=attribution,
        notes=_notes(asked, steps),
    )


def _front_end(asked: Question) -> FrontEnd:
    """The fit's, if it measured one; a profile of kernels has what the engine's generation takes into the engine."""
    if isinstance(asked.deployment.profile, AffineProfile):
        return asked.deployment.profile.front_end or NOTHING
    constants = asked.deployment.settings.generation.constants
    prompts_s = constants.front_end_token_s.value * float(asked.table.prompt_tokens.mean())
    return FrontEnd(constants.front_end_request_s.value + prompts_s, 0.0, 0.0, 0.0)


def _shares(measured: float, values: list[float]) -> dict[str, float]:
    """What each replacement changed, and what is left, as shares of the measured value."""
    if not math.isfinite(measured) or measured == 0.0:
        return dict.fromkeys(CAUSES, math.nan)
    ends = [*values, measured]
    return {cause: (after - before) / measured for cause, before, after in zip(CAUSES, values, ends[1:], strict=True)}


def _means(replays: list[Replay]) -> dict[str, float]:
    return dict(pd.DataFrame([each.figures for each in replays]).mean())


def _notes(asked: Question, steps: StepTimes | None) -> tuple[str, ...]:
    live, manifest = asked.live, asked.live.manifest
    notes = []
    if not live.complete:
        notes.append(f"the run is incomplete: {manifest['incomplete_reason']}")
    left_out = len(live.requests) - len(asked.table)
    if left_out:
        notes.append(f"{left_out} of {len(live.requests)} requests were not answered and are left out on both sides")
    if steps is None:
        notes.append("no server log: only what the client saw is compared, and step time is not told from scheduling")
    if not asked.from_server:
        notes.append("the server did not tell its configuration: the scenario's is taken")
    profile = asked.deployment.profile
    if not isinstance(profile, AffineProfile) or profile.front_end is None:
        notes.append(f"profile {profile.name} has no front end measured: the forecast's client is at the engine itself")
    late = manifest["client"].get("lateness_p99_s")
    if late is not None and late > 0.01:
        notes.append(f"the client sent late, by {late * 1e3:.0f} ms at p99; forecast and run begin at the sending")
    others = manifest["noise"].get("others_cores")
    if others is not None and others > _MANY_OTHERS:
        notes.append(f"other processes used {others:.2f} cores of the server's machine meanwhile")
    return tuple(notes)
