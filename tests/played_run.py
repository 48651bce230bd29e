"""A live run that the simulator plays: what a perfect server, log and client would leave in a run directory.

Not a test: `conftest.py` hands out `play`. The engine is the simulator's own, watched step by step; log lines, pieces
and counters are written from what it did. What the "server" does otherwise than a forecast expects (longer steps,
another acceptance, a slower front end, a noisy machine) is said by the arguments.
"""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from draftcast.calibration.live.run_directory import (
    METRICS_AFTER,
    SERVER_LOG,
    LiveRun,
    LiveRunWriter,
)
from draftcast.calibration.profile import FrontEnd
from draftcast.scenarios.deployment import deploy
from draftcast.scenarios.load import load_scenario, to_mapping
from draftcast.scenarios.workload_spec import acceptance_models, workload_spec
from draftcast.sim.acceptance import Constant, compile_acceptance
from draftcast.sim.arrivals import ClosedLoop
from draftcast.sim.cluster import Cluster
from draftcast.sim.engine.replica import Replica, request_rows
from draftcast.sim.engine.state import STOP_MAX_STEPS
from draftcast.sim.policies import python_hook
from draftcast.sim.routers import make_router
from draftcast.sim.step_time import P_DECODE_EXCESS, P_PROMPT_EXCESS
from draftcast.sim.workload import build_requests

START_UNIX_S = 1_795_000_000.25
QUICK = FrontEnd(request_s=0.002, output_s=0.001, output_sequence_s=0.0001, turnaround_s=0.0005)
# Of every step's time the part that vLLM's own figure leaves out.
_OUTSIDE_ELAPSED_S = 0.001


@dataclasses.dataclass
class _Step:
    end_s: float
    elapsed_s: float
    context: tuple[int, int]  # requests, tokens
    generation: tuple[int, int]
    used_blocks: int


class _Watched(Replica):
    """A replica that is always run one step at a time, and what each step did."""

    def __init__(self, *args: Any, noise: float, excess: tuple[float, float], seed: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[_Step] = []
        self.pieces: list[tuple[int, float, int, int]] = []  # request, end of the step, tokens, outputs of the step
        self._noise = noise
        self._excess = excess
        self._random = np.random.default_rng(seed)

    def advance(self, until_s: float, *, stop_on_finish: bool = False, max_steps: int = -1) -> int:
        assert max_steps == -1
        while True:
            jitter = math.exp(self._noise * self._random.standard_normal()) if self._noise else 1.0
            params = self.state.cost.params
            params[[P_DECODE_EXCESS, P_PROMPT_EXCESS]] = [(1.0 + share) * jitter - 1.0 for share in self._excess]
            before = int(self.state.engine[0]["step"]) - int(self.state.engine[0]["in_flight"])
            tokens = self.state.requests["tokens"].copy()
            reason = super().advance(until_s, stop_on_finish=stop_on_finish, max_steps=1)
            e = self.state.engine[0]
            if int(e["step"]) - int(e["in_flight"]) > before:
                self._watch(tokens)
            if reason != STOP_MAX_STEPS:
                return reason

    def _watch(self, tokens_before: Any) -> None:
        s = self.state
        slot = int(s.engine[0]["first_batch"]) ^ 1  # collected just now, not overwritten yet
        batch, end_s = s.batch[slot], float(s.engine[0]["host_s"])
        entries = s.entries[slot][: batch["size"]]
        decodes = entries["tokens"] == 1 + entries["drafts"]
        busy_s = float(batch["host_s"] + batch["draft_s"] + batch["target_s"])
        self.seen.append(
            _Step(
                end_s,
                max(busy_s - _OUTSIDE_ELAPSED_S, 0.0),
                (int((~decodes).sum()), int(entries["tokens"][~decodes].sum())),
                (int(decodes.sum()), int(entries["tokens"][decodes].sum())),
                self.settings.num_gpu_blocks - 1 - int(s.engine[0]["free_blocks"]),
            )
        )
        made = s.requests["tokens"] - tokens_before
        for request in np.flatnonzero(made):
            self.pieces.append((int(request), end_s, int(made[request]), int(batch["size"])))


def play(
    folder: Path,
    scenario: dict[str, Any],
    *,
    front_end: FrontEnd = QUICK,
    decode_excess: float = 0.0,
    prompt_excess: float = 0.0,
    acceptance: dict[str, Any] | None = None,
    engine: dict[str, Any] | None = None,
    noise: float = 0.0,
    log: bool = True,
    seed: int = 0,
) -> LiveRun:
    """Play ``scenario`` and write what a live run would have left in ``folder``.

    Args:
        front_end: seconds between client and engine.
        decode_excess, prompt_excess: share by which steps last longer than the scenario's profile says.
        acceptance: what the server really accepts; None: the scenario's.
        engine: engine keys in which the server really differs from what the manifest tells.
        noise: standard deviation of the logarithm of each step's time.
        log: whether there is a server log.
        seed: of lengths, arrivals, acceptance and noise.
    """
    told = load_scenario(scenario)
    real = load_scenario(
        {
            **scenario,
            **({"acceptance": acceptance} if acceptance is not None else {}),
            "engine": {**scenario["engine"], **(engine or {})},
        }
    )
    spec, deployment = workload_spec(real), deploy(real)
    table = build_requests(spec, seed, None, deployment.settings.max_model_len)
    sent_s = table.arrival_s
    loop = spec.arrivals if isinstance(spec.arrivals, ClosedLoop) else None
    if loop is None:
        table = dataclasses.replace(table, arrival_s=sent_s + front_end.request_s)
    else:
        pause_s = front_end.request_s + front_end.output_s + front_end.turnaround_s
        loop = dataclasses.replace(loop, think_time_s=dataclasses.replace(loop.think_time_s, mean_s=pause_s))
        loop = dataclasses.replace(loop, think_time_s=dataclasses.replace(loop.think_time_s, distribution="constant"))
    models = list(acceptance_models(real)) or [Constant(alpha=0.0)] * len(table.class_names)
    k = real.num_speculative_tokens
    policy = deployment.policy
    replica = _Watched(
        deployment.settings,
        request_rows(table),
        table,
        policy.compile(deployment.settings.num_speculative_tokens, deployment.settings.max_num_seqs),
        deployment.cost._replace(params=deployment.cost.params.copy()),
        compile_acceptance(models, table.class_id, seed, k),
        decide=python_hook(policy),
        noise=noise,
        excess=(decode_excess, prompt_excess),
        seed=seed,
    )
    Cluster([replica], table, make_router("round_robin", table, 1, seed), loop, seed).run()
    return _write(folder, told, replica, front_end, deployment.settings, log, seed)


def _write(
    folder: Path, scenario: Any, replica: _Watched, front_end: FrontEnd, settings: Any, log: bool, seed: int
) -> LiveRun:
    rows = replica.state.requests
    pieces = pd.DataFrame(replica.pieces, columns=["request_id", "end_s", "tokens", "outputs"])
    pieces["time_s"] = pieces["end_s"] + front_end.output_s + front_end.output_sequence_s * pieces["outputs"]
    sent_s = rows["arrival_s"] - front_end.request_s
    seen = pieces.groupby("request_id")["time_s"].agg(["min", "max"]).reindex(range(rows.size))
    requests = pd.DataFrame(
        {
            "request_id": np.arange(rows.size),
            "class": [replica_class for replica_class in ["default"] * rows.size],
            "due_s": sent_s,
            "sent_s": sent_s,
            "first_token_s": seen["min"].to_numpy(),
            "finish_s": seen["max"].to_numpy(),
            "prompt_tokens": rows["prompt"],
            "output_tokens_wanted": rows["max_tokens"],
            "output_tokens": rows["tokens"] - rows["prompt"],
            "error": "",
            "wrong_tokens": -1,
        }
    )
    told = scenario.engine
    spec = to_mapping(scenario)["engine"]["speculative_config"]
    writer = LiveRunWriter.create(folder)
    writer.write_tables(requests, pieces[["request_id", "time_s", "tokens"]].sort_values("time_s", kind="stable"))
    drafts = int(rows["rounds"].sum())
    accepted = replica.state.rounds_by_accepted.sum(axis=0)
    per_position = accepted[::-1].cumsum()[::-1][1:].tolist()
    counted = {
        "num_drafts": drafts,
        "num_draft_tokens": int(rows["draft_tokens"].sum()),
        "num_accepted_tokens": int(rows["accepted"].sum()),
        "per_position": per_position,
    }
    writer.write_text(METRICS_AFTER, "")
    if log:
        (folder / SERVER_LOG).write_text(_log(replica, settings, spec), encoding="utf-8")
    writer.update(
        name=scenario.name,
        scenario=to_mapping(scenario),
        seed=seed,
        speculative_config=spec,
        server={
            "command": [],
            "url": "",
            "version": "0.32.0",
            "log": log,
            "config": {
                "num_gpu_blocks": settings.num_gpu_blocks,
                "block_size": settings.block_size,
                "max_num_batched_tokens": told.max_num_batched_tokens or settings.max_num_batched_tokens,
                "max_num_seqs": told.max_num_seqs or settings.max_num_seqs,
                "max_model_len": settings.max_model_len,
                "async_scheduling": settings.async_scheduling,
                "enable_prefix_caching": settings.enable_prefix_caching,
                "enforce_eager": told.enforce_eager,
            },
        },
        client={"lateness_p50_s": 0.0, "lateness_p99_s": 0.0, "lateness_max_s": 0.0},
        start_unix_s=START_UNIX_S,
        acceptance=counted if drafts else None,
        complete=True,
        incomplete_reason="",
    )
    return LiveRun.read(folder)


def _log(replica: _Watched, settings: Any, spec: dict[str, Any] | None) -> str:
    config = "None"
    if spec is not None:
        config = f"SpeculativeConfig(method='{spec.get('method')}', num_spec_tokens={spec['num_speculative_tokens']})"
    blocks = settings.num_gpu_blocks - 1
    lines = [
        f"Initializing a V1 LLM engine (v0.32.0) with config: speculative_config={config}, enforce_eager=True",
        f"CPU KV cache size: {blocks * settings.block_size:,} tokens",
    ]
    for number, step in enumerate(replica.seen):
        stamp = datetime.fromtimestamp(math.floor((START_UNIX_S + step.end_s) * 1e3) / 1e3)
        message = (
            f"Engine 000: Iteration({number}): {step.context[0]} context requests, {step.context[1]} context tokens, "
            f"{step.generation[0]} generation requests, {step.generation[1]} generation tokens, iteration elapsed "
            f"time: {step.elapsed_s * 1e3:.2f} ms, CPU KV cache usage: {100 * step.used_blocks / blocks:.1f}%"
        )
        shown = stamp.strftime("%Y-%m-%d %H:%M:%S") + f",{stamp.microsecond // 1000:03d}"
        lines.append(json.dumps({"asctime": shown, "process": 1, "message": message}))
    return "\n".join(lines) + "\n"
