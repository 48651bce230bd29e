"""What a validated sweep came to, without its runs: a few kilobytes that ship with draftcast and that a page can show.

Read from the JSON of a report (``sweep-validation.json``), from the summary that `to_json` wrote, or from what ships.
Keys that are not known are left alone: a report may come from a later version.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from draftcast.calibration.engine_log.regression import Errors
from draftcast.calibration.live.step_fit import errors_text
from draftcast.errors import InputError
from draftcast.files import parse_json
from draftcast.scenarios.show.validation_page import MISSED
from draftcast.scenarios.show.validation_report import CLOSED_LOOP_BARS, OPEN_LOOP_BARS, STEP_BARS

Table = list[list[str]]
"""The first row is the header."""
FOLDER, SUFFIX = "validation_results", ".json"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Bar(_Part):
    """How many of those held to a bar keep it, and the names of the others."""

    held: int
    of: int
    missed: tuple[str, ...]


class StepErrors(_Part):
    """As of ``Errors``; None: no point."""

    points: int
    median: float | None
    p90: float | None
    worst: float | None
    bias: float | None
    worst_point: str = ""

    @property
    def text(self) -> str:
        """In a line."""
        known: dict[str, Any] = {
            name: math.nan if value is None else value for name, value in self.model_dump().items()
        }
        return errors_text(Errors(**known))


class Steps(_Part):
    """Step time in a mode's judged runs, and how far the machine repeats a step itself (median, p90)."""

    errors: StepErrors
    repeat_spread: tuple[float | None, float | None]


class Continuation(_Part):
    """Tokens held against the known text."""

    checked_tokens: int
    wrong_tokens: int


class AcceptedSummary(_Part):
    """A mode's unconditional acceptance by draft position."""

    mode: str
    drafts: int
    measured: tuple[float | None, ...]
    forecast: tuple[float | None, ...]


class CutoverSummary(_Part):
    """Users at which a mode's gain crosses 1; None: beyond what was run.

    ``shown`` says all in words: measured, forecast and, in newer reports, low, high, forecast_low, forecast_high.
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
    shown: tuple[str, ...]

    @property
    def words(self) -> tuple[str, str, str, str, str, str]:
        """Measured, low, high, forecast, forecast_low, forecast_high."""
        measured, forecast, *bounds = self.shown
        if len(bounds) != 4:
            spans = ((self.low, self.high, measured), (self.forecast_low, self.forecast_high, forecast))
            bounds = [word for low, high, middle in spans for word in self._bounds(low, high, middle)]
        return (measured, bounds[0], bounds[1], forecast, bounds[2], bounds[3])

    def _bounds(self, low: float | None, high: float | None, middle: str) -> tuple[str, str]:
        """Where a report does not say beyond which end a bound lies: its own, unless the middle is beyond the other."""
        below, above = f"below {self.users[0]:g}", f"above {self.users[-1]:g}"
        under = above if middle.startswith("above") else below
        over = below if middle.startswith("below") else above
        return (under if low is None else f"{low:.3g}", over if high is None else f"{high:.3g}")


class EffectSummary(_Part):
    """Speculation's effect in one mode at one load; ``sign``: ``right``, ``WRONG`` or ``small``."""

    mode: str
    load_kind: str
    load: float
    measured: float | None
    low: float | None
    high: float | None
    forecast: float | None
    sign: str


class SweepSummary(_Part):
    """A validated sweep.

    Attributes:
        created_at: of the first judged run. machine: what the run recorded of it.
        calibrated_on: the runs behind the profile; they are not judged.
        runs: how many are judged.
        steps_slower: least and most that judged runs' steps were forecast longer than in the calibration, where the
            machine's speed was measured beside them.
        command: that made the sweep, where it was told.
    """

    draftcast_version: str
    created_at: str
    machine: dict[str, Any]
    server_version: str | None
    profile: str
    calibrated_on: tuple[str, ...]
    runs: int
    steps_slower: tuple[float, float] | None = None
    command: str = ""
    verdicts: dict[str, Bar]
    steps: dict[str, Steps]
    known_continuation: Continuation
    acceptance: tuple[AcceptedSummary, ...]
    cutovers: tuple[CutoverSummary, ...]
    effects: tuple[EffectSummary, ...]
    notes: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _of_report(cls, data: Any) -> Any:
        """A whole report says by its cells what a summary says in two numbers."""
        cells = data.get("cells") if isinstance(data, dict) else None
        if not isinstance(cells, list):
            return data
        slower = [cell["slowness"] for cell in cells if isinstance(cell, dict) and cell.get("slowness") is not None]
        return {**data, "runs": len(cells), "steps_slower": (min(slower), max(slower)) if slower else None}

    @property
    def held(self) -> int:
        """Checks that keep their bar."""
        return sum(bar.held for bar in self.verdicts.values())

    @property
    def of(self) -> int:
        """Checks that were made."""
        return sum(bar.of for bar in self.verdicts.values())

    def head(self) -> list[str]:
        """What was run on what, a sentence each."""
        machine = self.machine
        lines = [
            f"Measured {self.created_at[:10]} on {machine.get('processor') or 'an unnamed machine'}, "
            f"{machine.get('cores', '?')} cores, vLLM {self.server_version or '?'}: {self.runs} runs judged with a "
            f"profile of {len(self.calibrated_on)} others.",
            f"Of {self.of} checks {self.held} hold and {self.of - self.held} miss their bar.",
        ]
        return [*lines, speed_line(self.steps_slower)] if self.steps_slower is not None else lines

    def to_json(self) -> str:
        """What `read_summary` reads."""
        return self.model_dump_json(indent=1) + "\n"


def read_summary(text: str | bytes, file: str, command: str = "") -> SweepSummary:
    """A report or a summary as JSON.

    Args:
        file: named in errors.
        command: that made the sweep, where the file does not say.

    Raises:
        InputError: no JSON, or the first key that is missing or wrong.
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
    """The sweeps that ship with draftcast, by name."""
    folder = files("draftcast.scenarios").joinpath(FOLDER)
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(SUFFIX)), key=lambda entry: entry.name)
    return {entry.name.removesuffix(SUFFIX): read_summary(entry.read_text("utf-8"), entry.name) for entry in found}


def speed_line(steps_slower: tuple[float, float] | None) -> str:
    """At which speed of the machine runs were forecast; as of `SweepSummary.steps_slower`."""
    if steps_slower is None:
        return "Forecast at the speed the machine had in the calibration."
    low, high = steps_slower
    return (
        f"Forecast at the speed of the machine's cores as a probe beside each server read it: steps {low:.2f} to "
        f"{high:.2f} times as long as in the calibration."
    )


def bars_line() -> str:
    """What a forecast is held to."""
    names = {"mean_tpot_s": "mean TPOT", "mean_e2el_s": "mean E2E", "median_ttft_s": "median TTFT"}
    rates = ", ".join(f"{names[name]} within {bar:.0%}" for name, bar in OPEN_LOOP_BARS.items())
    return (
        f"Bars: step time within {STEP_BARS['median']:.0%} at the median and {STEP_BARS['p90']:.0%} at p90; at rates "
        f"below 80% of the capacity {rates}; in closed loops throughput within "
        f"{CLOSED_LOOP_BARS['output_throughput']:.0%}; the sign of effects above 5%; the cutover within one step of "
        "the users that were run, or 15%."
    )


def bar_rows(verdicts: Mapping[str, Bar]) -> Table:
    """A line for every bar: how many hold it, and who does not."""
    table = [["bar", "held", "missed by"]]
    for name, entry in verdicts.items():
        missed = f" {MISSED}" if entry.missed else ""
        table.append([name, f"{entry.held} of {entry.of}{missed}", ", ".join(entry.missed)])
    return table


def cutover_rows(cutovers: Sequence[CutoverSummary]) -> Table:
    """Measured and forecast cutover of every mode with their spreads."""
    table = [["mode", "measured users", "interval", "forecast users", "range", "within a step or 15 %"]]
    for each in cutovers:
        measured, low, high, forecast, least, most = each.words
        held = "yes" if each.within_bar else MISSED
        table.append([each.mode, measured, f"{low} to {high}", forecast, f"{least} to {most}", held])
    return table


def effect_rows(effects: Sequence[EffectSummary]) -> Table:
    """The effect at every load."""
    table = [["load", "mode", "measured", "interval", "forecast", "sign"]]
    for effect in sorted(effects, key=lambda each: (each.load_kind, each.load, each.mode)):
        load = load_text(effect.load_kind, effect.load)
        measured, low, high, forecast = map(_ratio, (effect.measured, effect.low, effect.high, effect.forecast))
        shown = [measured, f"{low} to {high}", forecast]
        table.append([load, effect.mode, *shown, MISSED if effect.sign == "WRONG" else effect.sign])
    return table


def step_rows(steps: Mapping[str, Steps]) -> Table:
    """Errors of step times by mode, and over all."""
    table = [["mode", "points", "errors", "the same step again: median, p90"]]
    for mode, each in steps.items():
        again = ", ".join("-" if value is None else f"{value:.1%}" for value in each.repeat_spread)
        table.append([mode, str(each.errors.points), each.errors.text, again])
    return table


def acceptance_rows(accepted: Sequence[AcceptedSummary]) -> Table:
    """Acceptance by draft position of every mode."""
    table = [["mode", "rounds with drafts", "measured", "forecast"]]
    for each in accepted:
        table.append([each.mode, str(each.drafts), _rates(each.measured), _rates(each.forecast)])
    return table


def load_text(kind: str, load: float) -> str:
    """``4 users`` or ``1.5 req/s``."""
    return f"{load:g} {'users' if kind == 'concurrency' else 'req/s'}"


def _rates(rates: Sequence[float | None]) -> str:
    return ", ".join(map(_ratio, rates))


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
