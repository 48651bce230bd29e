"""draftcast: forecasts whether speculative decoding pays on an LLM serving cluster.

``draftcast.simulate(draftcast.load_scenario("default"))`` answers one question; the names below are the public ones.
They are imported when first used, so that importing one room does not import the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from draftcast.errors import DraftcastError, InputError

if TYPE_CHECKING:
    from draftcast.scenarios.compare.comparison import simulate
    from draftcast.scenarios.live.calibrate_to import calibrate_to
    from draftcast.scenarios.run.simulate import RunResult
    from draftcast.scenarios.schema import Scenario
    from draftcast.scenarios.schema.load import load_scenario

__version__ = "0.1.0"
__all__ = [
    "DraftcastError",
    "InputError",
    "RunResult",
    "Scenario",
    "__version__",
    "calibrate_to",
    "load_scenario",
    "simulate",
]

_LAZY = {
    "RunResult": "draftcast.scenarios.run.simulate",
    "Scenario": "draftcast.scenarios.schema",
    "calibrate_to": "draftcast.scenarios.live.calibrate_to",
    "load_scenario": "draftcast.scenarios.schema.load",
    "simulate": "draftcast.scenarios.compare.comparison",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
