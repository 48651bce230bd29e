"""Draft-length policies against each other: paired differences, ranking with ties, and the gap to the oracle.

Every policy runs in the same engine, loaded and reserved for the scenario's ``num_speculative_tokens``, on the same
arrivals, lengths and draft tokens (common random numbers), and all leave out the same warm-up.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from draftcast.errors import InputError, ScenarioError
from draftcast.files import picked
from draftcast.scenarios.compare.candidate import SCHEDULE, SPEC, speculative_values
from draftcast.scenarios.compare.metric import Metric, metric_named
from draftcast.scenarios.compare.verdict import Side, side
from draftcast.scenarios.run.deployment import assumptions, deployments_of
from draftcast.scenarios.run.simulate import simulate_together
from draftcast.scenarios.schema import Scenario, with_values
from draftcast.scenarios.schema.scenario import POLICIES
from draftcast.sim.progress import Progress, part_of, parts_of
from draftcast.sim.statistics.intervals import Estimate, paired_difference, paired_ratio
from draftcast.yaml_text import parse_yaml

ORACLE = "oracle"
PLACE = "--policies"
_INNERMOST = re.compile(r"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|{[^()\[\]{}]*}")  # a pair of brackets without any inside


@dataclass(frozen=True)
class PolicyCandidate:
    """A policy by registered name or import path, with its parameters; ``batch_schedule`` takes ``schedule``."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """As it is written on the command line."""
        arguments = ", ".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.name}({arguments})" if arguments else self.name


@dataclass(frozen=True)
class RankedPolicy:
    """One policy among the others."""

    policy: PolicyCandidate  # name and parameters as asked
    side: Side  # its simulation and where the load stands towards its capacity
    value: Estimate | None  # the metric; None where it is undefined or the figures do not hold for the load
    difference: Estimate | None  # the metric less the baseline's, paired; None for the baseline
    # How much worse than the oracle, as a share of the oracle's value (0.1: ten per cent more latency, or less
    # goodput), paired; None for the oracle. Below 0 where it beats the oracle, which only sees one step ahead.
    gap: Estimate | None
    # 1 and one more for every policy that is significantly better; an overloaded policy stands behind every policy that
    # keeps up. None where it is at its capacity or not settled, or overloaded where such a one may be better.
    rank: int | None
    ties: tuple[str, ...]  # labels of the policies that cannot be told from this one

    @property
    def label(self) -> str:
        return self.policy.label


@dataclass(frozen=True)
class PolicyPair:
    """Two policies: the metric of ``first`` less that of ``second``, paired by replication.

    ``difference`` has the scenario's confidence for this pair alone. ``better`` (a label, or None: a tie) comes from
    intervals that hold for all pairs together (Bonferroni), and from who keeps up with the load. Of token goodput all
    that keep up with an open loop tie: each completes what arrives.
    """

    first: str
    second: str
    difference: Estimate | None
    better: str | None


@dataclass(frozen=True)
class PolicyComparison:
    """The policies, best first, and every pair of them."""

    scenario: Scenario
    metric: Metric
    baseline: str
    standings: tuple[RankedPolicy, ...]
    pairs: tuple[PolicyPair, ...]
    no_oracle: str = ""  # why the oracle does not run

    @property
    def notes(self) -> tuple[str, ...]:
        missing = (f"no oracle to compare with: {self.no_oracle}",) if self.no_oracle else ()
        return (*assumptions(self.scenario), *missing)

    def summary(self) -> dict[str, Any]:
        return {
            "metric": self.metric.name,
            **picked(self.metric, "figure less_is_better"),
            **picked(self, "baseline notes"),
            "confidence": self.scenario.statistics.confidence,
            "policies": [
                {
                    "policy": standing.label,
                    **picked(standing.policy, "name parameters"),
                    **picked(standing.side, "state capacity_rps predicted_capacity_rps figures predicted_figures"),
                    **picked(standing, "rank value difference"),
                    "tied_with": standing.ties,
                    "gap_to_oracle": standing.gap,
                }
                for standing in self.standings
            ],
            "pairs": [vars(pair) for pair in self.pairs],
        }


def compare_policies(
    scenario: Scenario,
    policies: str | Sequence[str | PolicyCandidate] = (),
    *,
    metric: str = "e2e",
    progress: Progress | None = None,
) -> PolicyComparison:
    """Simulate ``scenario`` under each policy on the same requests and rank them.

    Args:
        scenario: with a ``speculative_config``; its own policy is compared only if it is named.
        policies: names, ``name(parameter=value, ...)`` or import paths (a class of a notebook is ``__main__:Half``),
            or one text with commas between them; the first is the baseline of the differences. Empty:
            `applicable_policies`. The oracle always runs too.
        metric: of `draftcast.scenarios.compare.metric.METRICS`.

    Raises:
        InputError: no speculation, an unknown policy, parameter or metric, a policy named twice, fewer than two
            policies or replications, or a metric that the scenario does not have (SLO goodput without an SLO).
    """
    chosen = metric_named(metric)
    if scenario.speculative_config is None:
        raise InputError("the scenario has no speculation, so no policy decides anything", key=SPEC)
    if scenario.statistics.replications < 2:
        message = "must be at least 2: without a spread no difference can be told from chance"
        raise InputError(message, key="statistics.replications", value=scenario.statistics.replications)
    items = ([policies] if policies else []) if isinstance(policies, str) else policies
    named = ([item] if isinstance(item, PolicyCandidate) else parse_policies(item) for item in items)
    compared = list(itertools.chain(*named)) or applicable_policies(scenario)
    labels = [policy.label for policy in compared]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError("named twice", file=PLACE, value=label)
    variants, no_oracle = [], ""
    for policy in compared:  # refused before the first second is simulated
        try:
            variants.append(with_policy(scenario, policy))
            deployments_of(variants[-1])
        except ScenarioError as error:
            key = (error.key or "").replace(f"{SPEC}.{SCHEDULE}", "policy.parameters.schedule")  # as `with_policy` does
            if not key.startswith("policy"):
                raise
            raise error.at(file=PLACE, key=key) from None
    if ORACLE not in labels:
        oracle = with_policy(scenario, PolicyCandidate(ORACLE))
        try:
            deployments_of(oracle)
        except ScenarioError as error:
            no_oracle = error.message
        else:
            compared.append(PolicyCandidate(ORACLE))
            variants.append(oracle)
    if len(compared) < 2:
        message = f"needs a second policy, as the oracle cannot run here: {no_oracle}"
        raise InputError(message, file=PLACE, value=labels[0])
    both = list(zip(variants, simulate_together(variants, progress=part_of(progress, 0, 2)), strict=True))
    sides = [side(*pair, progress=part) for pair, part in parts_of(part_of(progress, 1, 2), both)]
    return _rank(scenario, chosen, compared, sides, no_oracle)


def applicable_policies(scenario: Scenario) -> list[PolicyCandidate]:
    """``fixed`` and each built-in policy that the engine runs and whose schedule, confidence or TPOT is given."""
    policies = [PolicyCandidate("fixed")]
    for policy in map(PolicyCandidate, (name for name in POLICIES if name != "fixed")):
        with suppress(ScenarioError):
            deployments_of(with_policy(scenario, policy))
            policies.append(policy)
    return policies


def with_policy(scenario: Scenario, policy: PolicyCandidate) -> Scenario:
    """The scenario under one policy. A schedule is vLLM's key: it goes there, and away for every other policy."""
    config = speculative_values(scenario)
    parameters = dict(policy.parameters)
    if policy.name == "batch_schedule" and "schedule" in parameters:
        config[SCHEDULE] = parameters.pop("schedule")
    elif policy.name not in ("batch_schedule", "off"):
        config.pop(SCHEDULE, None)
    return with_values(scenario, {SPEC: config, "policy": {"name": policy.name, "parameters": parameters}})


def _rank(
    scenario: Scenario, metric: Metric, policies: Sequence[PolicyCandidate], sides: Sequence[Side], no_oracle: str = ""
) -> PolicyComparison:
    confidence = scenario.statistics.confidence
    labels = [policy.label for policy in policies]
    # By replication; empty without figures for the load, or where the metric is undefined in one of them.
    values = [metric.values(side.run.replications) if side.run and side.has_figures else [] for side in sides]
    if not any(values) and any(side.has_figures for side in sides):
        raise InputError(f"the runs have no {metric.label}", key="metric", value=metric.name)
    for_all = 1.0 - (1.0 - confidence) / math.comb(len(sides), 2)
    pairs, losers, tied = [], list[str](), set[tuple[str, str]]()
    for a, b in itertools.combinations(range(len(sides)), 2):
        names = labels[a], labels[b]
        better = _better((sides[a], sides[b]), (values[a], values[b]), metric, for_all)
        winner, loser = names if better == 1 else names[::-1]
        if better:
            losers.append(loser)
        elif better == 0:
            tied |= {names, names[::-1]}
        pairs.append(PolicyPair(*names, _difference(values[a], values[b], confidence), winner if better else None))
    best = values[labels.index(ORACLE)] if ORACLE in labels else []
    all_told = all(map(_is_ranked, sides)) or any(values)
    standings = [
        RankedPolicy(
            policy=policy,
            side=side,
            value=side.figures[metric.figure] if side.figures is not None and measured else None,
            difference=_difference(measured, values[0], confidence) if policy.label != labels[0] else None,
            gap=_gap(measured, best, metric, confidence) if policy.label != ORACLE else None,
            rank=1 + losers.count(policy.label) if side.has_figures or (_is_ranked(side) and all_told) else None,
            ties=tuple(other for other in labels if (policy.label, other) in tied),
        )
        for policy, side, measured in zip(policies, sides, values, strict=True)
    ]

    def order(standing: RankedPolicy) -> tuple[float, ...]:
        mean = standing.value.mean if standing.value is not None else math.nan
        worse = math.inf if math.isnan(mean) else mean if metric.less_is_better else -mean
        return (math.inf if standing.rank is None else standing.rank, worse)

    return PolicyComparison(scenario, metric, labels[0], tuple(sorted(standings, key=order)), tuple(pairs), no_oracle)


def _difference(first: Sequence[float], second: Sequence[float], confidence: float) -> Estimate | None:
    return paired_difference(first, second, confidence) if first and second else None


def _gap(values: Sequence[float], oracle: Sequence[float], metric: Metric, confidence: float) -> Estimate | None:
    if not values or not oracle or not any(oracle):
        return None
    ratio = paired_ratio(values, oracle, confidence)
    beyond = replace(ratio, mean=ratio.mean - 1.0, low=ratio.low - 1.0, high=ratio.high - 1.0)
    return beyond.scaled(1.0 if metric.less_is_better else -1.0)


def _is_ranked(side: Side) -> bool:
    """Whether the load tells where the policy stands: it keeps up, or it does not."""
    return side.has_figures or side.state == "overloaded"


def _better(
    sides: tuple[Side, Side], values: tuple[Sequence[float], Sequence[float]], metric: Metric, confidence: float
) -> int | None:
    """1: the first is better, -1: the second, 0: they cannot be told apart; None where one of them has no rank."""
    first, second = sides
    if not (_is_ranked(first) and _is_ranked(second)):
        return None
    if first.has_figures != second.has_figures:
        return 1 if first.has_figures else -1
    if metric.is_throughput and first.completes_what_arrives:
        return 0
    change = _difference(*values, confidence)
    if change is None:
        return 0
    sign = int(change.low > 0) - int(change.high < 0)
    return -sign if metric.less_is_better else sign


def parse_policies(text: str) -> list[PolicyCandidate]:
    """Names, each with parameters in brackets if any, between commas. Raises InputError: it does not look like that."""
    if not isinstance(text, str):
        raise InputError("must be a name, of a class of your own module:Class", file=PLACE, value=text)
    policies = []
    for written in _split(text):
        name, bracket, rest = written.partition("(")
        if not name.strip() or (bracket and not rest.endswith(")")):
            raise InputError("must be NAME or NAME(KEY=VALUE, ...), separated by commas", file=PLACE, value=written)
        parameters: dict[str, Any] = {}
        for part in _split(rest[:-1]) if rest[:-1].strip() else ():
            key, equals, value = part.partition("=")
            key = key.strip()
            if not equals or not key or not value.strip():
                raise InputError("parameters must look like KEY=VALUE", file=PLACE, value=written)
            if key in parameters:
                raise InputError(f"gives {key} twice", file=PLACE, value=written)
            parameters[key] = parse_yaml(value, f"{PLACE} {name.strip()} {key}")
        policies.append(PolicyCandidate(name.strip(), parameters))
    return policies


def _split(text: str) -> list[str]:
    """Parts between the commas that stand in no brackets."""
    outside = text
    while pair := _INNERMOST.search(outside):
        outside = outside.replace(pair[0], "_" * len(pair[0]))
    if re.search(r"[()\[\]{}]", outside):
        raise InputError("brackets do not match", file=PLACE, value=text)
    commas = [-1, *(comma.start() for comma in re.finditer(",", outside)), len(text)]
    return [text[before + 1 : after].strip() for before, after in itertools.pairwise(commas)]
