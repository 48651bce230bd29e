"""Makes the machine code of the engine and its policies, which each process of a fresh clone would make for itself."""

from __future__ import annotations

import multiprocessing

from draftcast import load_scenario, simulate
from draftcast.sim.policies import BUILT_IN

# What some policies need, in a run that is as short as one can be.
SCENARIO = (
    "workload.num_requests=20",
    "statistics.replications=1",
    "slo.tpot_ms=30",
    "acceptance={model: chain, alpha: 0.7, confidence_discrimination: 0.5}",
)


def run(policy: str) -> None:
    simulate(load_scenario(overrides=[*SCENARIO, f"policy={{name: {policy}}}"]))


if __name__ == "__main__":
    first, *others = (name for name in BUILT_IN if name != "batch_schedule")  # whose rule is that of `fixed`
    run(first)  # the engine, which the others share
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(run, others, chunksize=1)
