"""A live run beside its forecast: figures with their errors, step times, and what the difference is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from draftcast.calibration.live.core_speed import CoreSpeed
from draftcast.calibration.live.front_end import FrontEndMeasurement, measure_front_end
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.calibration.live.step_profile import run_digest
from draftcast.calibration.profile.load import AffineProfile, CoreResponse, FrontEnd
from draftcast.errors import InputError
from draftcast.scenarios.live.validate.acceptance import measured_acceptance
from draftcast.scenarios.live.validate.figures import live_figures, live_requests
from draftcast.scenarios.live.validate.forecast import NOTHING, Assumptions, Played, forecast
from draftcast.scenarios.live.validate.question import Question, question
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
    """What `validate` found.

    Attributes:
        figures: by name, those that both sides have.
        acceptance: ``configured`` or ``measured``: which one the forecast took; "" without speculation.
        front_end: the forecast's seconds between client and engine; their source is the profile's calibration.
        own_front_end: the same as measured in this very run, for the attribution; None without a log.
        slowness: how many times longer than the profile's the forecast's steps are, because the probe beside the server
            read the cores as that much slower; None: at the profile's own speed.
        steps: step times; None without a log.
        played: the forecast's replications.
        live_requests: the run's requests in the columns of a simulation.
        attribution: by figure: measured minus forecast, by cause (`CAUSES`), each as a share of the measured value.
        notes: what a reader must know.
    """

    question: Question
    figures: dict[str, Figure]
    acceptance: str
    front_end: FrontEnd
    own_front_end: FrontEndMeasurement | None
    slowness: float | None
    steps: StepTimes | None
    played: list[Played] = field(repr=False)
    live_requests: pd.DataFrame = field(repr=False)
    attribution: dict[str, dict[str, float]]
    notes: tuple[str, ...]


def validate(
    live: LiveRun,
    scenario: Scenario,
    *,
    profile: str | None = None,
    measured: bool = False,
    core_speed: bool = True,
    attribute: bool = True,
) -> Validation:
    """Forecast a recorded run and compare.

    Args:
        profile: instead of the scenario's.
        measured: take the acceptance that the server counted in this run, not the scenario's.
        core_speed: take steps as long as they are at the speed this machine's cores had during the run, as the probe
            beside the server read it, where run and profile know it; False: at the speed of the calibration.
        attribute: say what the difference is made of (three more forecasts).

    Raises:
        InputError: the profile was fitted to this very run, or the run and the scenario do not go together.
    """
    asked = question(live, scenario, profile)
    _refuse_own_profile(asked)
    front_end = _front_end(asked)
    speculates = asked.scenario.speculative_config is not None
    counted = measured_acceptance(live, asked.scenario) if speculates and (measured or _counted(live)) else None
    configured = counted if measured else None
    response = _core_response(asked) if core_speed else {}
    slowness = _slowness(live, response)
    steps = step_times(asked, response)
    seen = live_figures(asked)
    played = forecast(asked, Assumptions(acceptance=configured, front_end=front_end, slowness=slowness or 1.0))
    figures = _figures(seen, played, asked.scenario.statistics.confidence)
    own = measure_front_end([steps.timed], [steps.fitted_s]) if steps is not None else None
    attribution = {}
    if attribute:
        chain = _chain(counted, steps, own, front_end, slowness or 1.0)
        means = [_means(played), *(_means(forecast(asked, each)) for each in chain)]
        attribution = {name: _shares(figure.measured, [m[name] for m in means]) for name, figure in figures.items()}
    return Validation(
        question=asked,
        figures=figures,
        acceptance="" if not speculates else "measured" if measured else "configured",
        front_end=front_end,
        own_front_end=own,
        slowness=slowness,
        steps=steps,
        played=played,
        live_requests=live_requests(asked),
        attribution=attribution,
        notes=_notes(asked, steps),
    )


def _refuse_own_profile(asked: Question) -> None:
    """A forecast of a run by a profile that was fitted to it would prove nothing."""
    profile = asked.deployment.profile
    fitted = profile.fitted_runs if isinstance(profile, AffineProfile) else {}
    if run_digest(asked.live) in fitted:
        message = "the profile was fitted to this very run; calibrate on other runs than are validated"
        raise InputError(message, file=str(asked.live.folder), key="profile", value=profile.name)


def _front_end(asked: Question) -> FrontEnd:
    profile = asked.deployment.profile
    found = profile.front_end if isinstance(profile, AffineProfile) else None
    return found or NOTHING


def _core_response(asked: Question) -> Mapping[str, CoreResponse]:
    profile = asked.deployment.profile
    return profile.core_speed if isinstance(profile, AffineProfile) else {}


def _slowness(live: LiveRun, response: Mapping[str, CoreResponse]) -> float | None:
    """How many times longer than the profile's the run's steps were made by the cores; None where that is not known."""
    speed = CoreSpeed.of(live) if response else None
    if speed is None:
        return None
    requests = live.requests
    return speed.factor(response, float(requests["sent_s"].min()), float(requests["finish_s"].max()))


def _counted(live: LiveRun) -> bool:
    counts = live.manifest["acceptance"]
    return bool(counts and counts["num_drafts"])


def _chain(
    counted: dict[str, Any] | None,
    steps: StepTimes | None,
    own: FrontEndMeasurement | None,
    front_end: FrontEnd,
    slowness: float,
) -> list[Assumptions]:
    """The forecast with the measured acceptance, then also step times, then also the client's seconds."""
    excess = (steps.decode_excess, steps.prompt_excess) if steps is not None else (0.0, 0.0)
    return [
        Assumptions(counted, front_end=front_end, slowness=slowness),
        Assumptions(counted, *excess, front_end=front_end, slowness=slowness),
        Assumptions(counted, *excess, front_end=own.seconds if own is not None else front_end, slowness=slowness),
    ]


def _shares(measured: float, values: list[float]) -> dict[str, float]:
    """What each replacement changed, and what is left, as shares of the measured value."""
    if not math.isfinite(measured) or measured == 0.0:
        return dict.fromkeys(CAUSES, math.nan)
    ends = [*values, measured]
    return {cause: (after - before) / measured for cause, before, after in zip(CAUSES, values, ends[1:], strict=True)}


def _means(played: list[Played]) -> dict[str, float]:
    frame = pd.DataFrame([each.figures for each in played])
    return {str(name): float(value) for name, value in frame.mean().items()}


def _figures(seen: dict[str, float], played: list[Played], confidence: float) -> dict[str, Figure]:
    estimates = summarise([each.figures for each in played], confidence)
    return {
        name: Figure(name, value, estimates[name])
        for name, value in seen.items()
        if name in estimates and math.isfinite(value) and math.isfinite(estimates[name].mean)
    }


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
