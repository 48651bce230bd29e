"""What a live sweep runs: its modes (off, draft lengths, other methods) and its loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftcast.calibration.live.checkpoint import draft_folder
from draftcast.calibration.live.continuation import DraftLayout
from draftcast.errors import InputError, ScenarioError
from draftcast.scenarios.compare.recommend import speculative_values
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import with_values

OFF = "off"
CONCURRENCIES = (1, 2, 4, 8, 16, 32)
# Of what the closed loop with the most users reached without speculation.
RATE_SHARES = (0.3, 0.45, 0.6, 0.75, 0.9)


@dataclass(frozen=True)
class Mode:
    """One way to run the server.

    Attributes:
        name: short, unique; names folders.
        scenario: with this mode's speculation.
    """

    name: str
    scenario: Scenario

    @property
    def method(self) -> str:
        return self.scenario.method

    @property
    def k(self) -> int:
        return self.scenario.num_speculative_tokens


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep runs.

    Attributes:
        ks: draft lengths of the scenario's own method; on a testbed each has its draft beside the scenario's.
        alternatives: other methods, ``{"speculative_config": ..., "acceptance": ...}`` each.
        concurrencies: closed loops.
        rates_rps: open loops; None: `RATE_SHARES` of the largest closed loop's throughput without speculation.
        calibration_concurrencies: closed loops for calibration; none: no such cells.
        calibration_lengths: their ``workload.lengths``, which should be others than the scenario's.
        cell_s: seconds in which a cell sends requests; it ends when they are answered.
        rounds: how often every cell is run.
        in_turn: one server at a time.
    """

    ks: tuple[int, ...] = (1, 3, 5)
    alternatives: tuple[Mapping[str, Any], ...] = ()
    concurrencies: tuple[int, ...] = CONCURRENCIES
    rates_rps: tuple[float, ...] | None = None
    calibration_concurrencies: tuple[int, ...] = ()
    calibration_lengths: Mapping[str, Any] | None = None
    cell_s: float = 15.0
    rounds: int = 1
    in_turn: bool = False


def modes_of(scenario: Scenario, plan: SweepPlan) -> tuple[Mode, ...]:
    """Off, the scenario's method at every draft length, and the alternatives.

    Raises:
        ScenarioError: the scenario does not speculate, an acceptance that does not cover a length.
        InputError: two modes of one name.
    """
    if scenario.speculative_config is None:
        raise ScenarioError("a sweep compares with it", key="engine.speculative_config", value=None)
    found = [Mode(OFF, with_values(scenario, {"engine.speculative_config": None, "policy": None}))]
    for k in plan.ks:
        config = {**speculative_values(scenario), "num_speculative_tokens": k}
        if config.get("model") is not None:
            beside = Path(config["model"]).parent / draft_folder(k)
            if DraftLayout.read(Path(config["model"])) is not None:
                config["model"] = str(beside)  # a testbed's draft is built for its k
        found.append(_mode(with_values(scenario, {"engine.speculative_config": config, "policy": None})))
    for alternative in plan.alternatives:
        values = {"engine.speculative_config": alternative.get("speculative_config"), "policy": None}
        if alternative.get("acceptance") is not None:
            values["acceptance"] = alternative["acceptance"]
        if alternative.get("speculative_config") is None or set(alternative) - {"speculative_config", "acceptance"}:
            raise InputError('must be {"speculative_config": {...}, "acceptance": {...}}', file="--candidate")
        found.append(_mode(with_values(scenario, values)))
    names = [mode.name for mode in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"two of the modes are {twice}", file="--candidate")
    return tuple(found)


def _mode(scenario: Scenario) -> Mode:
    return Mode(f"{scenario.method}-k{scenario.num_speculative_tokens}", scenario)
