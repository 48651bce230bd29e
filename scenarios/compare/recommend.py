"""Which speculative setting to give the engine: off, a fixed draft length, a schedule by batch size, another method.

Every candidate is simulated on the same requests and tokens at every load; the winner is the one with the largest mean
gain over off, a simpler one where the two cannot be told apart.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from draftcast.errors import InputError, ScenarioError
from draftcast.files import picked
from draftcast.scenarios.compare import serve_command
from draftcast.scenarios.compare.candidate import MAX_K, NEGLIGIBLE, Candidate, candidates
from draftcast.scenarios.compare.limits import ClosedForm, break_even, cliffs, closed_form
from draftcast.scenarios.compare.metric import Metric, check_slo, metric_named
from draftcast.scenarios.compare.verdict import SIGNS, Verdict, decide, judge, side
from draftcast.scenarios.run.choices import OFF
from draftcast.scenarios.run.deployment import assumptions
from draftcast.scenarios.run.fluid import FluidModel
from draftcast.scenarios.run.simulate import measure, serve
from draftcast.scenarios.schema import Scenario, members
from draftcast.scenarios.schema.changes import changed
from draftcast.scenarios.schema.scenario import GIVE_A_METHOD
from draftcast.scenarios.schema.speculation import MAX_SPECULATIVE_TOKENS
from draftcast.sim.progress import Progress, part_of, parts_of
from draftcast.sim.statistics.intervals import Estimate, replication_interval
from draftcast.yaml_text import yaml_beside

_GROUPS = "cluster.groups"
_SENTENCES: dict[str, str] = yaml_beside(__file__, "sentences.yaml")["recommend"]


@dataclass(frozen=True)
class ComparedLoad:
    """One load: short names or dotted keys of `changed`, none for the scenario as it is."""

    label: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class CandidateOutcome:
    """A candidate at every load."""

    candidate: Candidate
    verdicts: tuple[Verdict, ...]  # against off, one per load
    # Factor over off with its prediction interval, geometric mean over the loads at which all that keep up as often as
    # the best does are comparable; None where there is no such load
    gain: Estimate | None
    logs: tuple[float, ...]  # natural logarithm of the simulated factor, one per replication

    @property
    def overloaded(self) -> int:
        """Loads above its capacity."""
        return sum(verdict.on.state == "overloaded" for verdict in self.verdicts)

    @property
    def keeps_up_nowhere(self) -> bool:
        """Whether every load is above its capacity, so that it has no gain."""
        return self.overloaded == len(self.verdicts) and self.gain is None

    @property
    def gains(self) -> tuple[Estimate | None, ...]:
        """The factor over off, load by load; None where one side has no figures."""
        return tuple(verdict.advantage for verdict in self.verdicts)


@dataclass(frozen=True)
class Recommendation:
    """The answer, best first in ``outcomes``; ``chosen`` may be a simpler one (see ``reason``). ``commands`` hold what
    starts it on each server, or why it cannot run there; ``notes`` what the forecast assumes of it."""

    scenario: Scenario
    metric: Metric
    loads: tuple[ComparedLoad, ...]
    outcomes: tuple[CandidateOutcome, ...]
    closed_forms: Mapping[str, ClosedForm | None]  # by the candidate's label
    chosen: CandidateOutcome
    reason: str
    speculative_config: dict[str, Any] | None
    commands: Mapping[str, serve_command.ServerCommand | ScenarioError]  # or ``vllm of cluster.groups.0``
    notes: tuple[str, ...]

    @property
    def worth_it(self) -> bool:
        return self.chosen.candidate.label != OFF

    @property
    def is_undecided(self) -> bool:
        """Whether nothing tells the settings apart: no gain, and no load that one side alone keeps up with."""
        decided = any(verdict.word in SIGNS for outcome in self.outcomes for verdict in outcome.verdicts)
        gained = any(outcome.gain is not None for outcome in self.outcomes)
        return not (decided or gained or self.chosen.keeps_up_nowhere)

    @property
    def largest_tried(self) -> int | None:
        """The recommended k where no larger one of its method was tried, though one could be; else None."""
        chosen = self.chosen.candidate.scenario
        scenarios = [outcome.candidate.scenario for outcome in self.outcomes]
        tried = {variant.num_speculative_tokens for variant in scenarios if variant.method == chosen.method}
        spec = chosen.speculative_config
        schedule = spec.num_speculative_tokens_per_batch_size if spec is not None else None
        k = max(k for _, _, k in schedule) if schedule else chosen.num_speculative_tokens
        return k if self.worth_it and max(tried) <= k < MAX_SPECULATIVE_TOKENS else None

    def summary(self) -> dict[str, Any]:
        labels = [load.label for load in self.loads]
        return {
            "recommended": self.chosen.candidate.label,
            **picked(self, "worth_it is_undecided reason speculative_config notes"),
            "metric": self.metric.name,
            "gain": self.chosen.gain,
            "largest_tried": self.largest_tried is not None,
            "commands": {
                server: {"refused": str(command)} if isinstance(command, ScenarioError) else command.summary()
                for server, command in self.commands.items()
            },
            "candidates": [
                {
                    "setting": outcome.candidate.label,
                    "gain": outcome.gain,
                    "gain_by_load": dict(zip(labels, outcome.gains, strict=True)),
                    "closed_form": self.closed_forms[outcome.candidate.label],
                    "overloaded_loads": outcome.overloaded,
                    "verdicts": dict(zip(labels, (verdict.word for verdict in outcome.verdicts), strict=True)),
                    "figures": dict(zip(labels, (verdict.on.figures for verdict in outcome.verdicts), strict=True)),
                }
                for outcome in self.outcomes
            ],
        }


def recommend(
    scenario: Scenario,
    *,
    metric: str = "e2e",
    loads: Sequence[ComparedLoad] = (),
    alternatives: Sequence[Mapping[str, Any]] = (),
    max_k: int = MAX_K,
    progress: Progress | None = None,
) -> Recommendation:
    """The best setting for the load, against off.

    Args:
        scenario: with a ``speculative_config``: its method at every draft length that its acceptance covers, and
            schedules by batch size, are the candidates. Groups without a config of their own take each of them.
        metric: of `METRICS`.
        loads: loads at which they are compared; none: the scenario's own load.
        alternatives: further methods, each ``{"speculative_config": {...}, "acceptance": {...}}``.
        max_k: largest draft length tried if the acceptance covers any length.

    Raises:
        InputError: no speculation to try, an unknown metric, fewer than two replications, a bad alternative
            or load.
    """
    groups = scenario.cluster.groups
    if groups and all("speculative_config" in group.engine for group in groups):
        raise ScenarioError("all have a speculative_config of their own: leave out what is to be chosen", key=_GROUPS)
    chosen_metric = metric_named(metric)
    check_slo(metric, scenario)
    if scenario.speculative_config is None and not alternatives:
        message = f"the scenario has no speculation to recommend: {GIVE_A_METHOD}"
        raise InputError(message, key="engine.speculative_config")
    if scenario.statistics.replications < 2:
        message = "must be at least 2: without a spread no gain can be told from chance"
        raise InputError(message, key="statistics.replications", value=scenario.statistics.replications)
    loads = tuple(loads) or (ComparedLoad("as given", {}),)
    if not all(isinstance(load, ComparedLoad) for load in loads):
        raise InputError("must be ComparedLoad, each with a label and its keys", key="loads", value=loads)
    for load in loads:  # one that cannot be is refused before any is simulated
        if choices := sorted(load.values.keys() & {"k", "method", "policy", "acceptance"}):
            raise InputError("a load cannot set what is to be recommended", key="loads", value=", ".join(choices))
        changed(scenario, load.values)
    settings = candidates(scenario, alternatives, max_k)
    by_load = [_verdicts(settings, load, chosen_metric, part) for load, part in parts_of(progress, loads)]
    return _answer(scenario, chosen_metric, loads, _ranked(settings, list(zip(*by_load, strict=True))))


def _verdicts(
    settings: Sequence[Candidate], load: ComparedLoad, metric: Metric, progress: Progress | None
) -> list[Verdict]:
    """Every candidate against off (the first) at one load, each pair measured as `simulate` measures it."""
    variants = [changed(candidate.scenario, load.values) for candidate in settings]
    served = [serve(variant, progress=part) for variant, part in parts_of(part_of(progress, 0, 2), variants)]
    (alone,) = measure(served[:1])
    (first, *later), half = variants, part_of(progress, 1, 2)
    itself = side(first, alone, progress=part_of(half, 0, len(variants)))
    verdicts = [decide(metric, itself, itself, first.statistics.confidence)]
    for index, variant in enumerate(later, 1):
        run, off = measure([served[index], served[0]], [None, alone])
        verdicts.append(judge(variant, run, off, metric, progress=part_of(half, index, len(variants))))
    return verdicts


def _ranked(settings: Sequence[Candidate], verdicts: Sequence[tuple[Verdict, ...]]) -> list[CandidateOutcome]:
    """Outcomes, best first: fewest loads without figures, then the largest mean gain over what can be compared."""
    # A load counts where off (the first) and all others that have figures as often as the best have them. Off itself
    # has no advantage where it meets an SLO for no request; it is what others are compared with.
    least_behind, loads = min(map(_behind, verdicts)), range(len(verdicts[0]))
    others = [by_load for by_load in verdicts[1:] if _behind(by_load) == least_behind]
    shared = [index for index in loads if all(by_load[index].advantage is not None for by_load in others)]
    outcomes = []
    for candidate, by_load in zip(settings, verdicts, strict=True):
        advantages = [advantage for index in shared if (advantage := by_load[index].advantage) is not None]
        if not advantages or len(advantages) < len(shared):
            outcomes.append(CandidateOutcome(candidate, by_load, None, ()))
            continue
        logs = np.mean([by_load[index].probe.indices for index in shared], axis=0)
        # Bounds are means too: the errors of step times and acceptance are the same at every load.
        with np.errstate(divide="ignore"):
            factors = np.log([(advantage.mean, advantage.low, advantage.high) for advantage in advantages])
        mean, low, high = np.exp(factors.mean(axis=0)).tolist()
        gain = replace(advantages[0], mean=mean).within(low, high)
        outcomes.append(CandidateOutcome(candidate, by_load, gain, tuple(logs.tolist())))

    def rank(outcome: CandidateOutcome) -> tuple[float, ...]:
        gain = outcome.gain.mean if outcome.gain is not None else -math.inf
        completed = sum(rate.mean for v in outcome.verdicts if (rate := v.on.capacity_rps) is not None)
        return (_behind(outcome.verdicts), -gain, _loss(outcome.verdicts), -completed, outcome.candidate.effort)

    return sorted(outcomes, key=rank)


def _behind(verdicts: Sequence[Verdict]) -> int:
    """Loads that a setting cannot take, or of which its run says nothing."""
    return sum(not verdict.on.has_figures for verdict in verdicts)


def _loss(verdicts: Sequence[Verdict]) -> float:
    """The metric's logarithm, summed over the loads, less is better; ranks what off cannot be compared with."""
    total = 0.0
    for verdict in verdicts:
        figures, metric = verdict.on.figures, verdict.metric
        value = figures[metric.figure].mean if figures is not None else math.nan
        total += (1.0 if metric.less_is_better else -1.0) * math.log(value) if value > 0 else math.inf
    return total


def _answer(
    scenario: Scenario, metric: Metric, loads: tuple[ComparedLoad, ...], outcomes: Sequence[CandidateOutcome]
) -> Recommendation:
    best = outcomes[0]
    off = next(outcome for outcome in outcomes if outcome.candidate.label == OFF)
    chosen, reason = _simplest(best, off, outcomes, scenario.statistics.confidence)
    if chosen.keeps_up_nowhere:
        most, without = (outcome.verdicts[-1].on.predicted_capacity_rps for outcome in (chosen, off))
        reason = "no setting keeps up with the load; this one completes the most"
        if most is not None:  # without a single rate there is no capacity
            reason += f", {most} req/s" + (f"; off {without}" if chosen is not off else "")
    elif off.overloaded > chosen.overloaded:
        reason = f"keeps up at {off.overloaded - chosen.overloaded} of {len(loads)} loads where off is overloaded"
    elif best.gain is None and len(loads) == 1:
        word, why = best.verdicts[0].word, best.verdicts[0].why
        reason = f"{word}, {why}" if word == "too close to call" and why else why or reason
    tuned = chosen.candidate.scenario
    best_of_method = {outcome.candidate.scenario.method: outcome.candidate.scenario for outcome in reversed(outcomes)}
    assumed = dict.fromkeys(note for variant in (tuned, *best_of_method.values()) for note in assumptions(variant))
    notes = (*_not_tried(scenario), *serve_command.class_notes(tuned), *assumed)
    loaded = changed(tuned, loads[-1].values)
    places = [f" of {_GROUPS}.{index}" for index in range(len(scenario.cluster.groups))] or [""]
    commands = {
        f"{server}{place}": _command(member, server, loaded if place == "" else None)
        for server in serve_command.SERVERS
        for place, member in zip(places, members(tuned), strict=True)
    }
    vllm_runs_it = all(isinstance(commands[f"vllm{place}"], serve_command.ServerCommand) for place in places)
    config = serve_command.speculative_config_json(tuned) if vllm_runs_it else None
    forms = {outcome.candidate.label: closed_form(outcome.candidate.scenario) for outcome in outcomes}
    notes += cliffs(changed(tuned, load.values) for load in loads)
    return Recommendation(scenario, metric, loads, tuple(outcomes), forms, chosen, reason, config, commands, notes)


def _not_tried(scenario: Scenario) -> tuple[str, ...]:
    """What the scenario has and no candidate: a policy, and groups of their own speculation beside others without."""
    notes = []
    if scenario.policy is not None and scenario.policy.name not in ("fixed", "batch_schedule"):
        notes.append(_SENTENCES["other_policy"].format(policy=scenario.policy.name))
    if any(group.engine.get("speculative_config") for group in scenario.cluster.groups):
        notes.append("off is off in every group, so gains include those of groups with speculation of their own")
    return tuple(notes)


def _command(scenario: Scenario, server: str, loaded: Scenario | None) -> serve_command.ServerCommand | ScenarioError:
    """``loaded``: at the last load; None: of what a replica gets of it nothing is known."""
    spec = scenario.speculative_config
    try:
        command = serve_command.server_command(scenario, server)
    except ScenarioError as error:
        return error
    if spec is None or spec.synthetic_rates is not None:
        return command
    rates = FluidModel.of(scenario).traffic.of_drafted(scenario).unconditional(spec.k).tolist()
    notes = (*command.notes, serve_command.bench_note(server, rates, is_tree=spec.tree is not None))
    if server == "trtllm" and loaded is not None:
        notes += (_SENTENCES["ends_drafting"].format(threshold=max(0.0, min(1.0, break_even(loaded)))),)
    return replace(command, notes=notes)


def _simplest(
    best: CandidateOutcome, off: CandidateOutcome, outcomes: Sequence[CandidateOutcome], confidence: float
) -> tuple[CandidateOutcome, str]:
    """The least elaborate setting that is worse than the best by nothing that counts, and why it was taken."""
    if best.gain is None:
        # Off, unless the best keeps up where off does not, or meets an SLO that off meets for no request.
        words = {verdict.word for verdict in best.verdicts}
        if best.overloaded == off.overloaded and "pays" in words and "costs" not in words:
            return best, "no request meets the SLO without speculation"
        chosen = off if off.overloaded <= best.overloaded == 0 else best
        return chosen, "no load has figures with and without speculation"
    simpler = [outcome for outcome in outcomes if outcome.candidate.effort < best.candidate.effort]
    for outcome in sorted(simpler, key=lambda outcome: outcome.candidate.effort):
        if outcome.gain is None or outcome.overloaded > best.overloaded:
            continue
        behind = replication_interval(np.subtract(best.logs, outcome.logs), confidence)
        # Off is taken only if drafting may gain nothing at all; a fixed length whenever a schedule gains too little.
        off_is_as_good = behind.low <= 0.0 or best.gain.low <= 1.0
        if outcome.candidate.effort == 0 and off_is_as_good:
            return outcome, f"{best.candidate.label} is not significantly better"
        if behind.mean < NEGLIGIBLE and outcome.candidate.effort:
            return outcome, f"{best.candidate.label} gains less than {NEGLIGIBLE:.1%} over it"
    return best, "no draft length beats it" if best is off else "the largest mean gain"
