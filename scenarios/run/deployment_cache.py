"""Deployments kept: resolving one takes as long as simulating some hundred requests on it.

What shapes no engine (load, lengths, seed, replicas) is no part of the question, nor are files by place: an edited file
is another question.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Any

from draftcast.scenarios.run.deployment import Deployment, deploy
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import to_mapping
from draftcast.scenarios.schema.references import put_checksums

MOST_KEPT = 16
_NOT_DEPLOYED = ("name", "description", "cluster", "statistics")
_LOAD = ("arrivals", "lengths", "num_requests", "duration_s")
_kept: OrderedDict[str, Deployment] = OrderedDict()
_lock = Lock()


def engine_key(data: Mapping[str, Any]) -> str:
    """Text that is equal for scenarios (as mappings) that differ in their load and statistics only."""
    rest = {name: part for name, part in data.items() if name not in _NOT_DEPLOYED}
    rest["workload"] = {name: part for name, part in data["workload"].items() if name not in _LOAD}
    return json.dumps(rest, sort_keys=True)


def cached_deployment(scenario: Scenario) -> Deployment:
    """`deploy`, or what it gave for the same engine on the same files; errors as there."""
    data = to_mapping(scenario)
    put_checksums(data)
    key = engine_key(data)
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    found = deploy(scenario)
    with _lock:
        _kept[key] = found
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return found
