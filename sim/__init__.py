"""Simulated time: the engine step, the replica, the cluster, workload, acceptance, policies, metrics.

Public names are imported when first used, so that importing one of them does not compile or load the others.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from draftcast.kernels.extras import lazily
from draftcast.sim.compiled.cache import drop_stale_code

if TYPE_CHECKING:
    from draftcast.sim.cluster.cluster import ClosedLoop, Cluster
    from draftcast.sim.cost.engine_config import EngineConfig
    from draftcast.sim.engine.replica import Replica
    from draftcast.sim.policies.base import Policy
    from draftcast.sim.policies.batch import Batch, Decision
    from draftcast.sim.workload.request_table import RequestTable

__all__ = ["Batch", "ClosedLoop", "Cluster", "Decision", "EngineConfig", "Policy", "Replica", "RequestTable"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Batch": "draftcast.sim.policies.batch",
        "ClosedLoop": "draftcast.sim.cluster.cluster",
        "Cluster": "draftcast.sim.cluster.cluster",
        "Decision": "draftcast.sim.policies.batch",
        "EngineConfig": "draftcast.sim.cost.engine_config",
        "Policy": "draftcast.sim.policies.base",
        "Replica": "draftcast.sim.engine.replica",
        "RequestTable": "draftcast.sim.workload.request_table",
    },
)

drop_stale_code(Path(__file__).parents[1])
