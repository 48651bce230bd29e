"""Whether an SLO is met, which of its bounds is the tightest, and whether the server could meet it at any load.

A server with nothing else to do is as fast as it gets: what a request misses there no replica and no lower load will
mend. That run is the scenario's own requests, far apart.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from draftcast.scenarios.compare.verdict import Side
from draftcast.scenarios.run.choices import replaced_arrivals
from draftcast.scenarios.run.simulate import RunResult
from draftcast.scenarios.schema import Scenario, with_values
from draftcast.sim.output.results import RequestColumns
from draftcast.yaml_text import yaml_beside

BOUNDS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2el_ms": "E2E latency"}
_SENTENCES: dict[str, str] = yaml_beside(__file__, "sentences.yaml")["slo"]
SLO_IS_OPEN = "The errors of step times and acceptance could reverse this."
# Requests of the idle run: enough for the share of a bound at the usual attainments, and quick.
IDLE_REQUESTS = 400


@dataclass(frozen=True)
class SloBound:
    """One bound of one class's SLO, and how the run stands to it."""

    class_name: str | None  # None where there is one class only
    key: str  # of `BOUNDS`
    limit_ms: float
    attainment: float  # share of the requests that must meet the SLO
    met: float  # share of the measured requests within this bound; NaN when none was measured
    reached_ms: float  # the latency that the asked share of the requests stays within

    @property
    def label(self) -> str:
        whose = f" of {self.class_name}" if self.class_name else ""
        return f"{BOUNDS[self.key]}{whose} within {self.limit_ms:g} ms"


@dataclass(frozen=True)
class SloAnswer:
    """What the SLO comes to at a load."""

    met: bool  # all classes attain their SLO as often as it asks
    feasible: bool | None  # whether an idle server attains it; None when that was not asked because it is met
    tightest: SloBound  # of the class that is furthest from its SLO the bound that the fewest requests meet
    idle: SloBound | None  # the same bound on an idle server
    is_open: bool = False  # as of `Side.slo_is_open`

    @property
    def sentence(self) -> str:
        bound, word = self.tightest, "met" if self.met else "missed"
        if not self.met and self.feasible is False and self.idle is not None:
            bound, word = self.idle, "infeasible"
        share = "none" if bound.met == 0 else f"{bound.met:.1%}"
        needed = f"{bound.reached_ms:,.0f} ms" if bound.reached_ms >= 100 else f"{bound.reached_ms:.3g} ms"
        attained_by = f"{self.tightest.attainment:.0%} of requests"
        sentence = _SENTENCES[word].format(bound=bound.label, kept=share, asked=attained_by, needed=needed)
        return f"{sentence} {SLO_IS_OPEN}" if self.is_open else sentence


def idle_scenario(scenario: Scenario) -> Scenario:
    """The scenario's requests one at a time on one replica: a single client, no waiting."""
    values = {
        **replaced_arrivals(scenario, {"process": "closed_loop", "concurrency": 1}),
        "workload.num_requests": min(scenario.workload.num_requests or IDLE_REQUESTS, IDLE_REQUESTS),
        "workload.duration_s": None,
        "cluster.replicas": 1,
        "statistics.replications": 1,
        "statistics.warmup": "none",
    }
    return with_values(scenario, values)


def slo_answer(scenario: Scenario, side: Side, idle: RunResult | None = None) -> SloAnswer | None:
    """Where a setting stands to the SLO; None without SLO or figures. ``idle``: a run of `idle_scenario`, if asked."""
    run = side.run
    if run is None or run.slo_met is None or not side.has_figures or not scenario.slos:
        return None
    feasible = idle.slo_met is not False if idle is not None else None
    alone = _tightest(scenario, idle) if idle is not None else None
    return SloAnswer(run.slo_met, feasible, _tightest(scenario, run), alone, side.slo_is_open)


def _tightest(scenario: Scenario, run: RunResult) -> SloBound:
    """Of the measured requests that finished, all replications together; a TPOT of one token is 0."""
    requests, bounds, slos = measured_requests(run), list[SloBound](), scenario.slos
    used = {name: of_limits for name, of_limits in run.slo_use.items() if name in slos}
    spare = {name: float(np.mean(of_limits <= 1.0)) - slos[name].attainment for name, of_limits in used.items()}
    least = min(spare.values(), default=None)  # None: the run does not tell, and all classes are looked at
    for name, slo in slos.items():
        if spare.get(name) != least:
            continue
        whose = name if len(scenario.request_classes) > 1 else None
        c = RequestColumns.of(requests[(requests["class"] == name) & requests["finish_s"].notna()])
        tpot_s = np.where(c.output > 1, c.tpot_s, 0.0)
        for key, values in {"ttft_ms": 1e3 * c.ttft_s, "tpot_ms": 1e3 * tpot_s, "e2el_ms": 1e3 * c.e2el_s}.items():
            limit = getattr(slo, key)
            if limit is not None:
                met = float(np.mean(values <= limit)) if values.size else math.nan
                reached = float(np.quantile(values, slo.attainment)) if values.size else math.nan
                bounds.append(SloBound(whose, key, limit, slo.attainment, met, reached))
    # The smallest share met beyond what is asked, then the latency that is furthest beyond its limit.
    return min(bounds, key=lambda bound: (bound.met - bound.attainment, -bound.reached_ms / bound.limit_ms))


def measured_requests(run: RunResult) -> pd.DataFrame:
    """Rows of the requests that each replication's latencies are of: those after its warm-up."""
    first = run.requests["replication"].map(dict(enumerate(run.summary["warmup_requests"])))
    return run.requests[run.requests["request"] >= first]
