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

from draftcast.calibration.live.composition import FEATURES
from draftcast.calibration.live.run_directory import SERVER_LOG, LiveRun, LiveRunWriter
from draftcast.calibration.profile.spec import FrontEnd
from draftcast.scenarios.run.deployment import deploy
from draftcast.scenarios.run.workload_spec import acceptance_models, workload_spec
from draftcast.scenarios.schema.load import load_scenario, to_mapping
from draftcast.sim.acceptance.compile import compile_acceptance
from draftcast.sim.cluster.cluster import ClosedLoop, Cluster
from draftcast.sim.cluster.routers import ROUTERS
from draftcast.sim.engine.replica import Replica, request_rows
from draftcast.sim.state.engine import STOP_OUTPUT
from draftcast.sim.workload.arrivals import ClosedLoopArrivals
from draftcast.sim.workload.build_requests import build_requests

START_UNIX_S = 1_795_000_000.25
TRUE_PROFILE: dict[str, Any] = {
    "schema_version": 1,
    "kind": "affine",
    "name": "made-up",
    "model": "testbed-250m",
    "hardware": "cpu",
    "tp": 1,
    "dtype": "fp32",
    "enforce_eager": True,
    "date": "2026-11-21",
    "source": "made up for tests: a curve as of a CPU, everything a profile can hold is there",
    "fitted_sequences": [1, 64],
    "target": {
        "fixed_s": 0.020,
        "row_s": 0.0,
        "rows": [[1, 0.0], [2, 0.010], [8, 0.014], [32, 0.06], [256, 0.35]],
        "kv_token_s": 2e-6,
        "sequence_s": 3e-4,
        "prefill_query_kv_s": 1e-7,
    },
    "draft": {
        "fixed_s": 0.0,
        "pass_s": 0.002,
        "row_s": 2e-5,
        "draft_token_s": 1e-4,
        "kv_token_s": 0.0,
        "methods": {"draft_model": "interpolated"},
    },
    "ngram": {
        "fraction_of_target": 0.0,
        "step_s": 0.0005,
        "sequence_s": 1e-4,
        "token_s": 0.0,
        "methods": {"ngram": "interpolated"},
    },
    "overhead_s": 0.001,
    "front_end": {"request_s": 0.002, "output_s": 0.001, "output_sequence_s": 0.0001, "turnaround_s": 0.0005},
}
"""The step time that played servers have."""
QUICK = FrontEnd(request_s=0.002, output_s=0.001, output_sequence_s=0.0001, turnaround_s=0.0005)
# Of every step's time the part that vLLM's own figure leaves out.
_OUTSIDE_ELAPSED_S = 0.001


def question(profile: Path, method: str | None = None, k: int = 3, **changes: Any) -> dict[str, Any]:
    """A scenario of the made-up server.

    Args:
        profile: file of `TRUE_PROFILE`.
        method: None, ``draft_model`` or ``ngram``.
        changes: ``rate`` or ``users``, ``requests``, ``prompt``: smallest and largest prompt, ``output``: the same.
    """
    arrivals: dict[str, Any] = {"process": "poisson", "request_rate_rps": changes.get("rate", 1.2)}
    if "users" in changes:
        arrivals = {"process": "closed_loop", "concurrency": changes["users"]}
    lengths = {"prompt_tokens": changes.get("prompt", (32, 200)), "output_tokens": changes.get("output", (16, 96))}
    scenario: dict[str, Any] = {
        "schema_version": 1,
        "name": "played",
        "hardware": "cpu",
        "profile": str(profile),
        "engine": {
            "model": "testbed-250M",
            "dtype": "float32",
            "max_model_len": 2048,
            "max_num_seqs": 64,
            "max_num_batched_tokens": 2048,
            "block_size": 32,
            "num_gpu_blocks": 2000,
            "enforce_eager": True,
            "async_scheduling": False,
            "enable_prefix_caching": False,
        },
        "workload": {
            "arrivals": arrivals,
            "num_requests": changes.get("requests", 60),
            "lengths": {
                name: {"distribution": "uniform", "low": low, "high": high} for name, (low, high) in lengths.items()
            },
        },
        "slo": {"ttft_ms": 300, "tpot_ms": 60},
        "statistics": {"replications": 3},
    }
    if method == "draft_model":
        spec = {"method": method, "model": "testbed-250M", "num_speculative_tokens": k}
        scenario["acceptance"] = {"model": "per_position", "rates": [0.7, 0.5, 0.35, 0.2, 0.1][:k]}
        scenario["engine"]["speculative_config"] = spec
    elif method == "ngram":
        scenario["engine"]["speculative_config"] = {"method": method, "num_speculative_tokens": k}
        scenario["acceptance"] = {"model": "ngram", "match_probability": 0.6, "alpha": 0.7}
    return scenario


@dataclasses.dataclass
class _Step:
    end_s: float
    elapsed_s: float
    context: tuple[int, int]  # requests, tokens
    generation: tuple[int, int]
    used_blocks: int
    features: Any  # as the step cost took them; of the step itself only where scheduling is synchronous


class _Watched(Replica):
    """A replica that is always run one step at a time, and what each step did."""

    def __init__(self, *args: Any, noise: float, excess: tuple[float, float], noise_seed: int) -> None:
        super().__init__(*args)
        self.seen: list[_Step] = []
        self.pieces: list[tuple[int, float, int, int]] = []  # request, end of the step, tokens, outputs of the step
        self._noise = noise
        self._excess = excess
        self._random = np.random.default_rng(noise_seed)

    def advance(self, until_s: float, *, stop_on_finish: bool = False, stop_on_output: bool = False) -> int:
        assert not stop_on_output
        while True:
            jitter = math.exp(self._noise * self._random.standard_normal()) if self._noise else 1.0
            params = self.state.cost.params
            excess = [(1.0 + share) * jitter - 1.0 for share in self._excess]
            params[0]["decode_excess"], params[0]["prompt_excess"] = excess
            before = int(self.state.engine[0]["step"]) - int(self.state.engine[0]["in_flight"])
            tokens = self.state.requests["tokens"].copy()
            reason = super().advance(until_s, stop_on_finish=stop_on_finish, stop_on_output=True)
            e = self.state.engine[0]
            if int(e["step"]) - int(e["in_flight"]) > before:
                self._watch(tokens)
            if reason != STOP_OUTPUT:
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
                self.config.num_gpu_blocks - 1 - int(s.engine[0]["free_blocks"]),
                s.features[0].copy(),
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
    loop = spec.arrivals if isinstance(spec.arrivals, ClosedLoopArrivals) else None
    if loop is None:
        table = dataclasses.replace(table, arrival_s=sent_s + front_end.request_s)
    else:
        # The pause has to be known before the batch is.
        front_end = dataclasses.replace(front_end, output_sequence_s=0.0)
        pause_s = front_end.request_s + front_end.output_s + front_end.turnaround_s
        loop = loop.model_copy(update={"think_time_s": pause_s, "think_time_distribution": "constant"})
    models = acceptance_models(real)
    k = real.num_speculative_tokens
    replica = _Watched(
        deployment.settings,
        request_rows(table),
        table,
        deployment.policy,
        deployment.cost._replace(params=deployment.cost.params.copy()),
        compile_acceptance(models, table.class_id, seed, k),
        noise=noise,
        excess=(decode_excess, prompt_excess),
        noise_seed=seed,
    )
    clients = ClosedLoop(loop.concurrency, loop.draw_think_s(seed, len(table))) if loop is not None else None
    Cluster([replica], table, ROUTERS["round_robin"](table, 1, seed), clients).run()
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
            "class": "default",
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
    drafts = int(rows["rounds"].sum())
    accepted = replica.state.rounds_by_accepted.sum(axis=0)
    per_position = accepted[::-1].cumsum()[::-1][1:].tolist()
    counted = {
        "num_drafts": drafts,
        "num_draft_tokens": int(rows["draft_tokens"].sum()),
        "num_accepted_tokens": int(rows["accepted"].sum()),
        "per_position": per_position,
    }
    true = {name: [float(step.features[name]) for step in replica.seen] for name in FEATURES}
    pd.DataFrame(true).to_parquet(folder / "true_steps.parquet")
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
    )
    return writer.finish("", (requests, pieces.sort_values("time_s", kind="stable")))


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
