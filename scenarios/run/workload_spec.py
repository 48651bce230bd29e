"""From a scenario's words to the simulator's: the workload, the acceptance model and the SLO of every class.

Class i of the workload has acceptance model i. A scenario without classes has the one class ``default``.
"""

from __future__ import annotations

import itertools
from typing import Any

from draftcast.errors import ScenarioError
from draftcast.scenarios.schema import (
    Lengths,
    RequestClass,
    Scenario,
    SpeculativeConfig,
    TreeAcceptance,
    workload,
)
from draftcast.scenarios.schema.speculation import DEFAULT_TREE
from draftcast.sim.acceptance import AcceptanceModel, build_acceptance, rates_in_another_tree, tree_rates
from draftcast.sim.output.slo import Slo
from draftcast.sim.workload import arrivals, lengths
from draftcast.sim.workload.spec import RequestClass as SimulatedClass
from draftcast.sim.workload.spec import WorkloadSpec
from draftcast.sim.workload.traces import TraceSpec

DEFAULT_CLASS = RequestClass(name="default", share=1.0)


def request_classes(scenario: Scenario) -> tuple[RequestClass, ...]:
    """The scenario's classes, in the order of their ids."""
    return scenario.workload.classes or (DEFAULT_CLASS,)


def workload_spec(scenario: Scenario) -> WorkloadSpec:
    """What ``draftcast.sim.workload.spec.build_requests`` takes.

    Raises:
        ScenarioError: a value that the simulator refuses.
    """
    asked = scenario.workload
    return WorkloadSpec(
        arrivals=_arrivals(scenario),
        classes=tuple(_class(scenario, index, entry) for index, entry in enumerate(request_classes(scenario))),
        num_requests=asked.num_requests,
        duration_s=asked.duration_s,
        trace=_arrival_trace(scenario),
        max_model_len_action=asked.max_model_len_action,
    )


def acceptance_models(scenario: Scenario) -> tuple[AcceptanceModel, ...]:
    """The acceptance model of each class, in the order of their ids; empty without speculation."""
    models = []
    for index, entry in enumerate(request_classes(scenario)):
        model = scenario.acceptance_of(entry.name)
        if model is None:
            return ()
        key = f"workload.classes.{index}.acceptance" if entry.acceptance is not None else "acceptance"
        not_rates = {"model", "path", "record", "confidence_discrimination"}
        parameters = model.model_dump(exclude=not_rates, exclude_none=True)
        if isinstance(model, TreeAcceptance) and scenario.speculative_config is not None:
            parameters = _tree(model, scenario.speculative_config)
        models.append(build_acceptance(model.model, parameters, key=key))
    return tuple(models)


def confidences(scenario: Scenario) -> tuple[float | None, ...]:
    """How much each class's draft knows of its own acceptance, in the order of their ids; None: not given."""
    models = [scenario.acceptance_of(entry.name) for entry in request_classes(scenario)]
    return tuple(model.confidence_discrimination if model is not None else None for model in models)


def _tree(model: TreeAcceptance, spec: SpeculativeConfig) -> dict[str, Any]:
    """Parameters of the simulator's tree model, for the shape of the tree that is simulated."""
    if model.rates is not None:
        measured = (model.tree_width or DEFAULT_TREE[0], model.max_tree_nodes or DEFAULT_TREE[1])
        return {"rates": rates_in_another_tree(model.rates, measured, spec.tree_shape, spec.k)}
    if model.widths is not None:
        return {"alpha": model.alpha, "widths": model.widths}
    return {"rates": tuple(tree_rates(model.alpha or 0.0, spec.k, *spec.tree_shape).tolist())}


def slos(scenario: Scenario) -> dict[str, Slo]:
    """The SLO of each class that has one, by class name."""
    found = {entry.name: scenario.slo_of(entry.name) for entry in request_classes(scenario)}
    return {
        name: Slo(ttft_ms=slo.ttft_ms, tpot_ms=slo.tpot_ms, e2el_ms=slo.e2el_ms)
        for name, slo in found.items()
        if slo is not None
    }


def _arrivals(scenario: Scenario) -> arrivals.ArrivalSpec:
    asked = scenario.workload.arrivals
    if isinstance(asked, workload.TraceArrivals):
        return arrivals.TraceArrivals(time_scale=asked.time_scale, rate_rps=asked.request_rate_rps)
    if isinstance(asked, workload.ClosedLoopArrivals):
        think = arrivals.ThinkTime(asked.think_time_distribution, asked.think_time_s)
        return arrivals.ClosedLoop(asked.concurrency, think)
    if isinstance(asked, workload.PiecewiseArrivals):
        ends = itertools.accumulate(segment.duration_s for segment in asked.segments)
        pairs = zip(ends, asked.segments, strict=True)
        segments = tuple(arrivals.RateSegment(end, segment.request_rate_rps) for end, segment in pairs)
        return arrivals.PiecewiseRate(segments, repeat=True)
    if isinstance(asked, workload.GammaArrivals):
        return arrivals.Gamma(asked.request_rate_rps, asked.burstiness)
    if isinstance(asked, workload.DeterministicArrivals):
        return arrivals.Deterministic(asked.request_rate_rps)
    return arrivals.Poisson(asked.request_rate_rps)


def _arrival_trace(scenario: Scenario) -> TraceSpec | None:
    asked = scenario.workload.arrivals
    if not isinstance(asked, workload.TraceArrivals):
        return None
    return TraceSpec(
        path=asked.path,
        format=asked.format,
        acceptance=_record(scenario, None),
        start_s=asked.start_s,
        stop_s=asked.stop_s,
        sample_requests=asked.sample_requests,
        sample_seed=asked.sample_seed,
        max_prompt_tokens=asked.max_prompt_tokens,
        max_output_tokens=asked.max_output_tokens,
    )


def _class(scenario: Scenario, index: int, entry: RequestClass) -> SimulatedClass:
    asked = entry.lengths or scenario.workload.lengths
    prompt, output = _lengths(scenario, entry, asked)
    acceptance = scenario.acceptance_of(entry.name)
    recorded = None
    if acceptance is not None and acceptance.model == "trace" and acceptance.path is not None:
        recorded = TraceSpec(acceptance.path, acceptance=acceptance.record)
    return SimulatedClass(
        prompt_tokens=prompt,
        output_tokens=output,
        name=entry.name,
        share=entry.share,
        priority=entry.priority,
        acceptance=index,
        acceptance_trace=recorded,
    )


def _lengths(
    scenario: Scenario, entry: RequestClass, asked: Lengths | None
) -> tuple[lengths.LengthSpec, lengths.LengthSpec]:
    """Prompt and output; both from the arrivals' trace when nothing is asked."""
    if asked is None:
        return lengths.Empirical(), lengths.Empirical()
    if asked.path is not None:
        trace = TraceSpec(asked.path, asked.format, _record(scenario, entry.name))
        return lengths.Empirical(trace, asked.order), lengths.Empirical(trace, asked.order)
    return _tokens(asked.prompt_tokens, "prompt_tokens"), _tokens(asked.output_tokens, "output_tokens")


def _tokens(asked: Any, key: str) -> lengths.LengthSpec:
    if isinstance(asked, workload.ConstantTokens):
        return lengths.Fixed(asked.value)
    if isinstance(asked, workload.UniformTokens):
        return lengths.Uniform(asked.low, asked.high)
    if isinstance(asked, workload.EmpiricalTokens):
        return lengths.Discrete(asked.values, asked.weights)
    bounds = {"min_tokens": asked.min, "max_tokens": asked.max}
    if isinstance(asked, workload.LognormalTokens):
        return lengths.LogNormal(mean_tokens=asked.mean, cv=asked.std / asked.mean, **bounds)
    if isinstance(asked, workload.GammaTokens):
        return lengths.Gamma(asked.mean, asked.std / asked.mean, **bounds)
    if isinstance(asked, workload.ExponentialTokens):
        return lengths.Exponential(asked.mean, **bounds)
    if isinstance(asked, workload.GeometricTokens):
        return lengths.Geometric(asked.mean, **bounds)
    raise ScenarioError("unknown distribution", key=f"workload.lengths.{key}")


def _record(scenario: Scenario, class_name: str | None) -> str:
    """Which recorded acceptance to read along with the requests of a file (also with speculation off)."""
    own = {entry.name: entry.acceptance for entry in scenario.workload.classes}
    acceptance = own.get(class_name or "") or scenario.acceptance
    return acceptance.record if acceptance is not None and acceptance.model == "trace" else "acc_eagle"
