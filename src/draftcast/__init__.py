"""draftcast: forecasts whether speculative decoding pays on an LLM serving cluster.

``draftcast.simulate(draftcast.load_scenario("default"))`` answers one question; the names below are the public ones.
They are imported when first used, so that importing one room does not import the others.
"""

from typing import TYPE_CHECKING

from draftcast.errors import DraftcastError, InputError
from draftcast.kernels.extras import lazily

if TYPE_CHECKING:
    from draftcast.scenarios.compare.comparison import compare, compare_scenarios, simulate
    from draftcast.scenarios.compare.policy_comparison import compare_policies
    from draftcast.scenarios.compare.recommend import recommend
    from draftcast.scenarios.cutover.search import CutoverQuestion, cutover
    from draftcast.scenarios.evidence.forecast import forecast_points
    from draftcast.scenarios.live.calibrate_to import calibrate_to
    from draftcast.scenarios.plan.question import PlanQuestion
    from draftcast.scenarios.plan.sizing import plan
    from draftcast.scenarios.run.simulate import RunResult
    from draftcast.scenarios.schema import Scenario
    from draftcast.scenarios.schema.load import load_scenario
    from draftcast.scenarios.sweep.run import sweep
    from draftcast.sim.policies.base import Policy

__version__ = "0.2.0"
__all__ = [
    "CutoverQuestion",
    "DraftcastError",
    "InputError",
    "PlanQuestion",
    "Policy",
    "RunResult",
    "Scenario",
    "__version__",
    "calibrate_to",
    "compare",
    "compare_policies",
    "compare_scenarios",
    "cutover",
    "forecast_points",
    "load_scenario",
    "plan",
    "recommend",
    "simulate",
    "sweep",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "CutoverQuestion": "draftcast.scenarios.cutover.search",
        "PlanQuestion": "draftcast.scenarios.plan.question",
        "Policy": "draftcast.sim.policies.base",
        "RunResult": "draftcast.scenarios.run.simulate",
        "Scenario": "draftcast.scenarios.schema",
        "calibrate_to": "draftcast.scenarios.live.calibrate_to",
        "compare": "draftcast.scenarios.compare.comparison",
        "compare_policies": "draftcast.scenarios.compare.policy_comparison",
        "compare_scenarios": "draftcast.scenarios.compare.comparison",
        "cutover": "draftcast.scenarios.cutover.search",
        "forecast_points": "draftcast.scenarios.evidence.forecast",
        "load_scenario": "draftcast.scenarios.schema.load",
        "plan": "draftcast.scenarios.plan.sizing",
        "recommend": "draftcast.scenarios.compare.recommend",
        "simulate": "draftcast.scenarios.compare.comparison",
        "sweep": "draftcast.scenarios.sweep.run",
    },
)
