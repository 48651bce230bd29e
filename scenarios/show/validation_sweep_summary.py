"""A validated sweep without its runs: a few kilobytes that ship with draftcast and that a page can show.

Read from the JSON of a report (``sweep-validation.json``), from a summary, or from what ships.
Unknown keys are ignored: a report may come from a later version.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ValidationError, model_validator

from draftcast.errors import InputError
from draftcast.files import parse_json
from draftcast.scenarios.live.validate.sweep import Accepted, ModeSteps
from draftcast.scenarios.show.tables import MISSED
from draftcast.scenarios.show.validation_report import CLOSED_LOOP_BARS, OPEN_LOOP_BARS, STEP_BARS

Table = list[list[str]]
"""The first row is the header."""
STEP_TIME = "step_time"


def _with_nan(value: Any) -> Any:
    """JSON has no NaN: null in its place."""
    if isinstance(value, Mapping):
        return {key: _with_nan(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_with_nan(item) for item in value]
    return math.nan if value is None else value


class Bar(BaseModel, frozen=True):
    """How many of those held to a bar keep it, and the names of the others."""

    held: int
    of: int
    missed: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.held} of {self.of}"


class Continuation(BaseModel, frozen=True):
    checked_tokens: int
    wrong_tokens: int


class CutoverSummary(BaseModel, frozen=True):
    """Users at which a mode's gain crosses 1; None: beyond what was run.

    ``shown`` says all in words: measured, forecast, low, high, forecast_low, forecast_high.
    """

    mode: str
    measured: float | None
    low: float | None
    high: float | None
    forecast: float | None
    forecast_low: float | None
    forecast_high: float | None
    users: tuple[float, ...]
    within_bar: bool
    shown: tuple[str, str, str, str, str, str]


class EffectSummary(BaseModel, frozen=True):
    """Speculation's effect in one mode at one load; ``sign``: ``right``, ``WRONG`` or ``small``."""

    mode: str
    load_kind: str
    load: float
    measured: float | None
    low: float | None
    high: float | None
    forecast: float | None
    sign: str


class SweepSummary(BaseModel, frozen=True):
    draftcast_version: str
    created_at: str  # of the first judged run
    machine: dict[str, Any]  # what that run recorded of it
    server_version: str | None
    profile: str
    calibrated_on: tuple[str, ...]  # the runs behind the profile, which are not judged
    runs: int  # how many are judged
    command: str = ""  # that made the sweep, where it is known
    verdicts: dict[str, Bar]  # forecasts held to their bars, and ``step_time``, the accuracy of the step times
    # The figures forecast with what was measured in each run; absent in reports of an earlier version.
    verdicts_with_own_step_times: dict[str, Bar] = {}
    steps: Annotated[dict[str, ModeSteps], BeforeValidator(_with_nan)]
    known_continuation: Continuation
    acceptance: Annotated[tuple[Accepted, ...], BeforeValidator(_with_nan)]
    cutovers: tuple[CutoverSummary, ...]
    effects: tuple[EffectSummary, ...]
    notes: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _of_report(cls, data: Any) -> Any:
        """A whole report holds the runs themselves, a summary their number."""
        return {**data, "runs": len(data["cells"])} if isinstance(data.get("cells"), list) else data

    @property
    def held(self) -> int:
        """Checks of forecasts that keep their bar; step times are counted by themselves."""
        return sum(bar.held for name, bar in self.verdicts.items() if name != STEP_TIME)

    @property
    def of(self) -> int:
        return sum(bar.of for name, bar in self.verdicts.items() if name != STEP_TIME)

    def head(self) -> list[str]:
        processor, cores = self.machine.get("processor") or "an unnamed machine", self.machine.get("cores", "?")
        lines = [
            f"Measured {self.created_at[:10]} on {processor}, {cores} cores, vLLM {self.server_version or '?'}: "
            f"{self.runs} runs judged with a profile of {len(self.calibrated_on)} others.",
            f"Of {self.of} checks {self.held} hold and {self.of - self.held} miss their bar.",
        ]
        if modes := self.verdicts.get(STEP_TIME):
            lines.append(f"Accuracy of the step times: {modes.held} of {modes.of} modes hold their bar.")
        if bars := self.verdicts_with_own_step_times.values():
            held, of = sum(bar.held for bar in bars), sum(bar.of for bar in bars)
            lines.append(f"Accuracy with the run's own step times: {held} of {of} checks hold.")
        return lines

    def tables(self) -> dict[str, Table]:
        """Title and rows of each table: bars, cutovers, step times, effects, acceptance."""
        bars = [["bar", "held", "missed by", "held with the run's own step times"]]
        for name, bar in self.verdicts.items():
            held, own = f"{bar}{f' {MISSED}' if bar.missed else ''}", self.verdicts_with_own_step_times.get(name, "")
            title = "accuracy of the step times" if name == STEP_TIME else name
            bars.append([title, held, ", ".join(bar.missed), str(own)])
        cutovers = [["mode", "measured users", "interval", "forecast users", "range", "within a step or 15 %"]]
        for cutover in self.cutovers:
            measured, forecast, low, high, least, most = cutover.shown
            held = "yes" if cutover.within_bar else MISSED
            cutovers.append([cutover.mode, measured, f"{low} to {high}", forecast, f"{least} to {most}", held])
        effects = [["load", "mode", "measured", "interval", "forecast", "sign"]]
        for effect in sorted(self.effects, key=lambda effect: (effect.load_kind, effect.load, effect.mode)):
            measured, low, high, forecast = map(_ratio, (effect.measured, effect.low, effect.high, effect.forecast))
            sign = MISSED if effect.sign == "WRONG" else effect.sign
            load = load_text(effect.load_kind, effect.load)
            effects.append([load, effect.mode, measured, f"{low} to {high}", forecast, sign])
        steps = [["mode", "points", "errors", "the same step again: median, p90"]]
        for mode, times in self.steps.items():
            again = ", ".join("-" if math.isnan(value) else f"{value:.1%}" for value in times.repeat_spread)
            steps.append([mode, str(times.errors.points), str(times.errors), again])
        acceptance = [["mode", "rounds with drafts", "measured", "forecast"]]
        for accepted in self.acceptance:
            rates = [", ".join(map(_ratio, rates)) for rates in (accepted.measured, accepted.forecast)]
            acceptance.append([accepted.mode, str(accepted.drafts), *rates])
        return {
            "Bars": bars,
            "Cutover: users at which the throughput gain crosses 1": cutovers,
            "Accuracy of the step times, in runs that took no part in the fit": steps,
            "Effect of speculation (throughput gain in closed loops, E2E latency off / on at rates)": effects,
            "Acceptance by draft position, all runs of a mode together": acceptance,
        }


def read_summary(text: str | bytes, file: str, command: str = "") -> SweepSummary:
    """A report or a summary as JSON; ``command`` made the sweep, where ``file`` does not say.

    Raises InputError: no JSON, or the first key that is missing or wrong.
    """
    data = parse_json(text, file)
    if not isinstance(data, dict):
        raise InputError("must be the report or the summary of a live sweep", file=file)
    try:
        return SweepSummary.model_validate({**data, "command": command} if command else data)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(first["msg"].lower(), file=file, key=".".join(map(str, first["loc"]))) from None


def shipped_summaries() -> dict[str, SweepSummary]:
    shipped = sorted((Path(__file__).parents[1] / "validation_results").glob("*.json"))
    return {path.stem: read_summary(path.read_bytes(), path.name) for path in shipped}


def bars_line() -> str:
    names = {"mean_tpot_s": "mean TPOT", "mean_e2el_s": "mean E2E", "median_ttft_s": "median TTFT"}
    rates = ", ".join(f"{names[name]} within {bar:.0%}" for name, bar in OPEN_LOOP_BARS.items())
    return (
        f"Bars: step time within {STEP_BARS['median']:.0%} at the median and {STEP_BARS['p90']:.0%} at p90; at rates "
        f"below 80% of the capacity {rates}; in closed loops throughput within "
        f"{CLOSED_LOOP_BARS['output_throughput']:.0%}; the sign of effects above 5%; the cutover within one step of "
        "the users that were run, or 15%."
    )


def load_text(kind: str, load: float) -> str:
    """``4 users`` or ``1.5 req/s``."""
    return f"{load:g} {'users' if kind == 'concurrency' else 'req/s'}"


def _ratio(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"
