"""The scenario file's schema, version 1: frozen pydantic models, and changes of a scenario that validate it anew.

What arrives and how much of it is accepted are records of the simulator (``sim/workload``, ``sim/acceptance``).
"""

from draftcast.scenarios.schema.engine import Engine, batch_defaults
from draftcast.scenarios.schema.load import members, to_mapping, with_rate, with_values, without_speculation
from draftcast.scenarios.schema.scenario import POLICIES, ROUTERS, PolicySpec, ReplicaGroup, Scenario
from draftcast.scenarios.schema.speculation import METHODS, SpeculativeConfig

__all__ = [
    "METHODS",
    "POLICIES",
    "ROUTERS",
    "Engine",
    "PolicySpec",
    "ReplicaGroup",
    "Scenario",
    "SpeculativeConfig",
    "batch_defaults",
    "members",
    "to_mapping",
    "with_rate",
    "with_values",
    "without_speculation",
]
