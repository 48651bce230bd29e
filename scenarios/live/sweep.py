"""The same loads on real servers with speculation off and on: where does it stop paying, measured.

A *cell* is one load on one server: a live run in a folder of its own. Cells are interleaved so that a machine that
drifts (heat, neighbours) hits all alike. *Together*: all servers are up, one at a time has work, and each load is run
on every server before the next load; for machines that hold them all, such as a CPU. *In turn*: each server is started,
runs every load and is stopped, in several rounds of alternating order; for a GPU that holds one.

The same load has the same requests on every server (common random numbers); different loads have different prompts, so
that no prefix cache knows them. Closed loops come first: rates that are not given follow from what they reached.
*Calibration* cells are closed loops of other lengths, to fit step times on other runs than those they are judged by.

``index.json`` is rewritten after every cell; the same command goes on where it was stopped.
"""

import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from draftcast.calibration.live.checkpoint import draft_folder
from draftcast.calibration.live.continuation import DraftLayout
from draftcast.calibration.live.run_directory import LiveRun, LiveRunWriter, is_live_run
from draftcast.calibration.live.server import EngineServer, RunningServer
from draftcast.errors import InputError, LiveError, ScenarioError
from draftcast.files import is_inside, made, picked, read_json, write_text
from draftcast.kernels.extras import require
from draftcast.scenarios.compare.candidate import method_values, speculative_values
from draftcast.scenarios.live import run as live
from draftcast.scenarios.live.run import LiveOptions, LiveProgress, live_requests, server_flags
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import scenario_hash, with_values

OFF = "off"
CONCURRENCIES = (1, 2, 4, 8, 16, 32)
# Of what the closed loop with the most users reached without speculation.
RATE_SHARES = (0.3, 0.45, 0.6, 0.75, 0.9)
INDEX = "index.json"
KIND, SCHEMA_VERSION = "live-sweep", 1
# What every cell of an index has.
_CELL_KEYS: dict[str, Any] = {
    **dict.fromkeys(("dir", "purpose", "mode", "load_kind", "incomplete_reason"), str),
    **dict.fromkeys(("round", "order", "complete"), int),
    "load": int | float,
}
_KINDS = ("calibration", "concurrency", "rate")
_FASTEST_TOKENS_PER_S = 500.0  # requests are made for no more than this many tokens a second from one user
_FEWEST = 8  # requests of an open-loop cell, on average


@dataclass(frozen=True)
class SweepPlan:
    # Draft lengths of the scenario's own method; on a testbed each has its draft beside the scenario's
    ks: tuple[int, ...] = (1, 3, 5)
    # Other methods, ``{"speculative_config": ..., "acceptance": ...}`` each
    alternatives: tuple[Mapping[str, Any], ...] = ()
    concurrencies: tuple[int, ...] = CONCURRENCIES  # closed loops
    # Open loops; None: `RATE_SHARES` of the largest closed loop's throughput without speculation
    rates_rps: tuple[float, ...] | None = None
    calibration_concurrencies: tuple[int, ...] = ()  # closed loops for calibration; none: no such cells
    # Their ``workload.lengths``, which should be others than the scenario's
    calibration_lengths: Mapping[str, Any] | None = None
    cell_s: float = 15.0  # seconds in which a cell sends requests; it ends when they are answered
    rounds: int = 1  # how often every cell is run
    in_turn: bool = False  # one server at a time


def modes_of(scenario: Scenario, plan: SweepPlan) -> dict[str, Scenario]:
    """Off, the scenario's method at every draft length, and the alternatives, by a short name for folders.

    Raises:
        ScenarioError: the scenario does not speculate, an acceptance that does not cover a length.
        InputError: two modes of one name.
    """
    if scenario.speculative_config is None:
        raise ScenarioError("a sweep compares with it", key="engine.speculative_config", value=None)
    changes: list[dict[str, Any]] = []
    for k in plan.ks:
        config = {**speculative_values(scenario), "num_speculative_tokens": k}
        if config.get("model") is not None and DraftLayout.read(Path(config["model"])) is not None:
            # A testbed's draft is built for its k.
            config["model"] = str(Path(config["model"]).parent / draft_folder(k))
        changes.append({"engine.speculative_config": config})
    changes += [method_values(alternative, "--candidate") for alternative in plan.alternatives]
    modes = {OFF: with_values(scenario, {"engine.speculative_config": None, "policy": None})}
    for values in changes:
        mode = with_values(scenario, {**values, "policy": None})
        name = f"{mode.method}-k{mode.num_speculative_tokens}"
        if name in modes:
            raise InputError(f"two of the modes are {name}", file="--candidate")
        modes[name] = mode
    return modes


@dataclass(frozen=True)
class _Cell:
    mode: str
    kind: str  # one of _KINDS
    load: float
    round: int

    @property
    def load_kind(self) -> str:
        return "rate" if self.kind == "rate" else "concurrency"

    @property
    def folder(self) -> str:
        return f"{self.kind}-{self.load:g}/{self.mode}" + (f"-{self.round}" if self.round else "")


def live_sweep(
    scenario: Scenario,
    out: Path,
    plan: SweepPlan = SweepPlan(),  # frozen
    options: LiveOptions = LiveOptions(),  # noqa: B008  # frozen
    progress: LiveProgress = LiveProgress(),  # noqa: B008  # frozen
) -> dict[str, Any]:
    """Run every cell that ``out`` does not hold yet; returns the index.

    The index: schema_version, kind, complete, scenario_hash, plan, rates_rps, created_unix_s, cells: list of {dir
    (below ``out``), purpose (calibration or validation), mode, method, k, load_kind (rate or concurrency), load (req/s
    or users), round, order, seed, complete, incomplete_reason}.

    Raises:
        InputError: the scenario or the plan cannot be run; ``out`` holds another sweep.
        LiveError: a server did not start or died, or the disk refuses; every cell until then is kept.
    """
    modes = modes_of(scenario, plan)
    lengths = [{}, {"workload.lengths": dict(plan.calibration_lengths)}] if plan.calibration_lengths else [{}]
    for mode in modes.values():
        server_flags(mode, options)
        for values in lengths:
            variant = with_values(mode, values)
            live.live_prompts(variant, live_requests(variant, 0), 0)
    require("live", "aiohttp", place="draftcast live sweep")
    with closing(_Sweep(out, scenario, plan, options, progress, modes)) as sweep:
        (sweep.run_in_turn if plan.in_turn else sweep.run_together)()
    sweep.index["complete"] = all(entry["complete"] for entry in sweep.index["cells"])
    sweep.write()
    return sweep.index


@dataclass
class _Sweep:
    out: Path
    scenario: Scenario
    plan: SweepPlan
    options: LiveOptions
    progress: LiveProgress
    modes: dict[str, Scenario]

    def __post_init__(self) -> None:
        header = {
            "schema_version": SCHEMA_VERSION,
            "kind": KIND,
            "scenario_hash": scenario_hash(self.scenario),
            "modes": list(self.modes),
            "plan": json.loads(json.dumps(asdict(self.plan))),
        }
        self.index = {**header, "complete": False, "created_unix_s": time.time(), "rates_rps": None, "cells": []}
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            self.index = read_index(self.out)
            for key, value in header.items():
                if self.index.get(key) != value:
                    message = "holds another sweep; repeat the command that began it, or name another folder"
                    raise InputError(message, file=str(self.out), key=key, value=self.index.get(key))
        self._running = ExitStack()
        self._endpoints: dict[str, RunningServer] = {}
        self.write()

    def loads(self, kind: str) -> list[float]:
        """The loads of a kind; rates are worked out when the closed loops without speculation are done."""
        if kind != "rate":
            of_plan = self.plan.calibration_concurrencies if kind == "calibration" else self.plan.concurrencies
            return [float(users) for users in of_plan]
        if self.index["rates_rps"] is None:
            self.index["rates_rps"] = list(self.plan.rates_rps) if self.plan.rates_rps is not None else self._rates()
            self.write()
        return list(self.index["rates_rps"])

    def run_together(self) -> None:
        """Each load on every server, beginning with another server each time."""
        names = list(self.modes)
        for turn in range(self.plan.rounds):
            for kind, load in self._spread():
                first = (self.loads(kind).index(load) + turn) % len(names)
                for name in names[first:] + names[:first]:
                    self._run(_Cell(name, kind, load, turn))

    def _spread(self) -> Iterator[tuple[str, float]]:
        """Every kind and load, calibration evenly among the others: a machine that drifts is met by both alike."""
        rates = RATE_SHARES if self.plan.rates_rps is None else self.plan.rates_rps
        judged = len(self.plan.concurrencies) + len(rates)
        waiting = self.loads("calibration")
        count = len(waiting)
        loads = ((kind, load) for kind in ("concurrency", "rate") for load in self.loads(kind))
        for done, kind_and_load in enumerate(loads):
            while waiting and (count - len(waiting)) * judged <= done * count:
                yield "calibration", waiting.pop(0)
            yield kind_and_load
        yield from (("calibration", load) for load in waiting)

    def run_in_turn(self) -> None:
        """Each server every load; every second round in the opposite order."""
        for turn in range(self.plan.rounds):
            back = -1 if turn % 2 else 1
            for name in list(self.modes)[::back]:
                for kind in _KINDS:
                    for load in self.loads(kind)[::back]:
                        self._run(_Cell(name, kind, load, turn))
                self.close()

    def _run(self, cell: _Cell) -> None:
        entries = {entry["dir"]: entry for entry in self.index["cells"]}
        if entries.pop(cell.folder, {}).get("complete"):
            return
        folder = self.out / cell.folder
        if folder.exists() and not is_live_run(folder) and any(folder.iterdir()):
            raise InputError("is not a live run; name another folder for the sweep", file=str(folder))
        shutil.rmtree(folder, ignore_errors=True)
        mode = self.modes[cell.mode]
        # The same for every mode of a load and a round, and no other.
        number = len(_KINDS) * self.loads(cell.kind).index(cell.load) + _KINDS.index(cell.kind)
        seed = self.scenario.statistics.seed * 1_000_003 + 1000 * cell.round + number
        is_first = cell.mode not in self._endpoints
        endpoint = self._endpoint(cell.mode)
        self.progress.say(f"{cell.kind} {cell.load:g}, {cell.mode}{f', round {cell.round}' if cell.round else ''}")
        # At a low rate a cell takes longer: a handful of requests is the least that says anything.
        send_for_s = max(self.plan.cell_s, _FEWEST / cell.load if cell.load_kind == "rate" else 0.0)
        run = live.record_scenario(
            self._at_load(mode, cell, send_for_s),
            endpoint,
            LiveRunWriter.create(folder),
            replace(self.options, send_for_s=send_for_s),
            seed=seed,
            warm=is_first,
            progress=self.progress,
        )
        entry = {
            "dir": cell.folder,
            "purpose": "calibration" if cell.kind == "calibration" else "validation",
            **picked(cell, "mode load_kind load round"),
            "method": mode.method,
            "k": mode.num_speculative_tokens,
            "order": max((other["order"] for other in entries.values()), default=-1) + 1,
            "seed": seed,
            "complete": run.complete,
            "incomplete_reason": run.manifest["incomplete_reason"],
        }
        self.index["cells"] = [*entries.values(), entry]
        self.write()
        if trouble := endpoint.trouble():
            raise LiveError(f"{folder}: {trouble}")

    def _endpoint(self, name: str) -> RunningServer:
        if name not in self._endpoints:
            flags = server_flags(self.modes[name], self.options)
            logs = made(self.out / "servers", LiveError)
            number = sum(1 for _ in logs.glob(f"{name}-*.log"))
            server = self._running.enter_context(EngineServer.start(flags, logs / f"{name}-{number}.log"))
            self.progress.say(server.shown)
            server.wait_ready(self.options.start_timeout_s, self.progress.waiting)
            self._endpoints[name] = RunningServer.of(server.url, server.log, server)
        return self._endpoints[name]

    def close(self) -> None:
        self._endpoints.clear()
        self._running.close()

    def _at_load(self, scenario: Scenario, cell: _Cell, send_for_s: float) -> Scenario:
        """The scenario under a cell's load, with requests for as long as it sends."""
        if cell.kind == "calibration" and self.plan.calibration_lengths is not None:
            scenario = with_values(scenario, {"workload.lengths": dict(self.plan.calibration_lengths)})
        if cell.load_kind == "rate":
            arrivals: dict[str, Any] = {"process": "poisson", "request_rate_rps": cell.load}
            # Three standard deviations more than come on average; what is due later is not sent.
            mean = cell.load * send_for_s
            count = math.ceil(mean + 3 * math.sqrt(mean) + 5)
        else:
            arrivals = {"process": "closed_loop", "concurrency": int(cell.load)}
            mean_output = float(live_requests(scenario, scenario.statistics.seed).output_tokens.mean())
            count = math.ceil(cell.load * max(1.0, send_for_s * _FASTEST_TOKENS_PER_S / mean_output))
        values = {"workload.arrivals": arrivals, "workload.num_requests": count, "workload.duration_s": None}
        return with_values(scenario, values)

    def _rates(self) -> list[float]:
        """Request rates from what the largest closed loop reached without speculation."""
        if not self.plan.concurrencies:
            raise InputError("rates follow from closed loops; give --rates, or --concurrency", file="--rates")
        folder = self.out / _Cell(OFF, "concurrency", float(max(self.plan.concurrencies)), 0).folder
        cell_s = self.plan.cell_s
        answered = int((LiveRun.read(folder).requests["finish_s"] <= cell_s).sum())
        if not answered:
            raise LiveError(f"{folder}: no request was answered in {cell_s:g} s; give --rates, or longer cells")
        return [float(f"{share * answered / cell_s:.3g}") for share in RATE_SHARES]

    def write(self) -> None:
        write_text(made(self.out, LiveError) / INDEX, json.dumps(self.index, indent=1) + "\n", LiveError)


def read_index(out: Path) -> dict[str, Any]:
    """The index of a sweep, see `live_sweep`. Raises InputError: there is none, or one of another version."""
    path = out / INDEX
    index = read_json(path)
    if index.get("kind") != KIND or index.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"not the index of a live sweep, version {SCHEMA_VERSION}", file=str(path))
    cells = index.get("cells")
    entries: list[Any] = cells if isinstance(cells, list) else [None]
    for entry in entries:
        typed = isinstance(entry, dict) and all(isinstance(entry.get(key), kind) for key, kind in _CELL_KEYS.items())
        if not typed or not is_inside(entry["dir"]):
            message = f"damaged: every cell needs {', '.join(_CELL_KEYS)}, and dir must be a folder inside of this one"
            raise InputError(message, file=str(path), key="cells", value=entry)
    return index
