"""Makes the machine code of the engine and its policies, which each process of a fresh clone would make for itself."""

from __future__ import annotations

from draftcast import load_scenario, simulate
from draftcast.sim.policies import BUILT_IN

# What some policies need, in a run that is as short as one can be.
SCENARIO = (
    "workload.num_requests=20",
    "statistics.replications=1",
    "slo.tpot_ms=30",
    "acceptance={model: chain, alpha: 0.7, confidence_discrimination: 0.5}",
)

if __name__ == "__main__":
    for name in BUILT_IN:
        if name != "batch_schedule":  # needs a schedule; its rule is that of `fixed`
            simulate(load_scenario(overrides=[*SCENARIO, f"policy={{name: {name}}}"]))
