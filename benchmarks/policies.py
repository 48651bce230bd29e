"""Speed of the policies: engine steps per second of every built-in one and of a Python policy.

    python benchmarks/policies.py [--sequences 40] [--rounds 20]

One replica with so many sequences running, k=3, paging, no arrivals in between; CPU time, best of several rounds,
policies taking turns. Machines are shared and noisy, so a minimal compiled loop over as many sequences
(benchmarks/engine.py) runs in turn and the ratio to it stands beside. The bars: 200,000 steps/s compiled, 20,000 with a
policy in Python.
"""

import json
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import typer
from engine import least_in_turn, minimal_step_s, served

from draftcast.scenarios.run.deployment import deploy
from draftcast.scenarios.run.workload_spec import workload_spec
from draftcast.scenarios.schema.load import load_scenario
from draftcast.sim.policies import BUILT_IN
from draftcast.sim.policies.base import Policy
from draftcast.sim.policies.batch import Batch
from draftcast.sim.policies.registry import load_policy
from draftcast.sim.workload.build_requests import build_requests

BAR, PYTHON_BAR = 200_000, 20_000
REQUESTS = 5_000
# What a policy cannot do without, and what makes another one of it.
REQUIRED: dict[str, dict[str, Any]] = {
    "batch_schedule": {"schedule": [[1, 16, 3], [17, 64, 2]]},
    "slo_aware": {"tpot_s": 0.02},
}
VARIANTS: dict[str, dict[str, Any]] = {"bandit": {"algorithm": "ucb"}, "adaptive_verification": {"early_stop": True}}


class ByBatch(Policy):
    """A decision of one number, from what every policy sees."""

    def decide(self, batch: Batch) -> int:
        return batch.k if batch.num_seqs < 64 and batch.kv_usage < 0.9 else 1


class ByRequest(Policy):
    """A decision for each request, from its own past."""

    def decide(self, batch: Batch) -> Any:
        return np.where(batch.acceptance < 0.3, 1, batch.k)


def main(sequences: int = 40, rounds: int = 20) -> None:
    overrides = [
        f"engine.max_num_seqs={sequences}",
        "engine.enable_prefix_caching=false",
        "workload.arrivals={process: deterministic, request_rate_rps: 1000000}",
        f"workload.num_requests={REQUESTS}",
        "acceptance.confidence_discrimination=0.5",
        "policy.name=off",  # lengths vary: the engine that every policy but `fixed` runs in
    ]
    scenario = load_scenario("default", overrides=overrides)
    deployment = deploy(scenario)
    table = build_requests(workload_spec(scenario), 0, None, deployment.settings.max_model_len)
    built_in = {}
    for name in BUILT_IN:
        built_in[name] = load_policy(name, **REQUIRED.get(name, {}))
        for key, value in VARIANTS.get(name, {}).items():
            built_in[f"{name}({key}={value})"] = load_policy(name, **{key: value})
    user: dict[str, Policy] = {"python, one length": ByBatch(), "python, by request": ByRequest()}

    def step_s(policy: Policy) -> float:
        return served(scenario, replace(deployment, policy=policy), table, time.process_time)[1]

    loops = {"minimal loop": partial(minimal_step_s, sequences, time.process_time)}
    loops |= {label: partial(step_s, policy) for label, policy in (built_in | user).items()}
    best = least_in_turn(loops, rounds)
    minimal_s = best.pop("minimal loop")
    print(f"{'policy':<42}{'steps/s':>12}{'bar':>10}{'of bar':>9}{'minimal loop / it':>20}")
    for label, seconds in best.items():
        bar = PYTHON_BAR if label in user else BAR
        print(f"{label:<42}{1 / seconds:>12,.0f}{bar:>10,}{1 / seconds / bar:>9.2f}{seconds / minimal_s:>20.2f}")
    print(f"{'minimal loop':<42}{1 / minimal_s:>12,.0f}")
    rates = {label: round(1 / seconds) for label, seconds in best.items()}
    slowest = min(rates[label] for label in built_in)
    print(json.dumps({"sequences": sequences, "steps_per_s": rates, "minimal_steps_per_s": round(1 / minimal_s),
                      "slowest_built_in": slowest, "slowest_python": min(rates[label] for label in user)}))  # fmt: skip


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
