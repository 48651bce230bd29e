"""The scenario file's schema, version 1: frozen pydantic models.

What arrives and how much of it is accepted are records of the simulator (``sim/workload``, ``sim/acceptance``).
"""

from draftcast.scenarios.schema.engine import BatchDefaults, Engine, batch_defaults
from draftcast.scenarios.schema.scenario import POLICIES, ROUTERS, Cluster, Group, Policy, Scenario, Statistics
from draftcast.scenarios.schema.speculation import METHODS, SpeculativeConfig
from draftcast.sim.workload.arrivals import ClosedLoopArrivals
from draftcast.sim.workload.workload import RequestClass, Slo, Workload

__all__ = [
    "METHODS",
    "POLICIES",
    "ROUTERS",
    "BatchDefaults",
    "ClosedLoopArrivals",
    "Cluster",
    "Engine",
    "Group",
    "Policy",
    "RequestClass",
    "Scenario",
    "Slo",
    "SpeculativeConfig",
    "Statistics",
    "Workload",
    "batch_defaults",
]
