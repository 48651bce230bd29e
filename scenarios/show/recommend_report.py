"""Rankings as text: recommended settings with what to paste, and a comparison of policies."""

import json
import math

from rich.table import Table

from draftcast.errors import ScenarioError
from draftcast.scenarios.compare.candidate import longest_draft
from draftcast.scenarios.compare.policy_comparison import PolicyComparison
from draftcast.scenarios.compare.recommend import CandidateOutcome, Recommendation
from draftcast.scenarios.run.choices import OFF
from draftcast.scenarios.schema.speculation import MAX_SPECULATIVE_TOKENS
from draftcast.scenarios.show.tables import LOOKS, make_table, note_lines, show, title
from draftcast.sim.statistics.intervals import Estimate


def policies_table(answer: PolicyComparison) -> Table:
    """One row per policy, best first: the metric, the paired difference to the baseline, the gap to the oracle."""
    metric, factor = answer.metric, answer.metric.factor
    head = ["rank", "policy", f"{metric.short} {metric.unit}", f"minus {answer.baseline}"]
    rows = [[*head, "gap to oracle", "tokens per round", ""]]
    for standing in answer.standings:
        length = (standing.side.figures or {}).get("mean_acceptance_length")
        value = standing.side.predicted_figures.get(metric.figure, standing.value)
        place = [f"{standing.rank or '-'}{'=' if standing.ties else ''}", standing.label, show(value, factor)]
        side, words = standing.side, ["baseline"] if standing.label == answer.baseline else []
        if not side.has_figures:
            most = f": completes at most {show(side.predicted_capacity_rps)} req/s" if side.capacity is not None else ""
            words.insert(0, f"{side.state}{most if side.position != 'below' else ''}")
        intervals = _with_interval(standing.difference, "+.3g", factor), _with_interval(standing.gap, "+.1%")
        rows.append([*place, *intervals, show(length), ", ".join(words)])
    return make_table(rows, title=title(answer.scenario, with_policy=False))


def ranking_lines(answer: PolicyComparison) -> list[str]:
    """Who is best and with whom it ties, and what the columns mean."""
    first = [s.label for s in answer.standings if s.rank == 1 and s.side.has_figures]
    level = f"{answer.scenario.statistics.confidence:.0%}"
    tied = ", without a significant difference" if len(first) > 1 else ""
    has_off = any(standing.policy.name == "off" for standing in answer.standings)
    best = f"Best by {answer.metric.label}{tied}: {', '.join(first)}."
    ties = [f"{s.label} with {', '.join(s.ties)}" for s in answer.standings if s.ties]
    return [
        best if first else "No policy has figures for this load.",
        f"Ties (marked =): {'; '.join(ties)}." if ties else "No ties.",
        f"Differences and gaps: {level} intervals of sampling noise only, from "
        f"{answer.scenario.statistics.replications} replications on the same requests and draft tokens. Rank: one plus "
        "the number of policies that are significantly better (intervals hold jointly for all pairs), so a policy with "
        "a wide interval may stand above one with a better mean.",
        *(["off: makes no drafts but keeps the memory that speculation reserves."] if has_off else []),
        *note_lines(answer.notes),
    ]


def _with_interval(value: Estimate | None, form: str, factor: float = 1.0) -> str:
    if value is None:
        return "-"
    mean, low, high = (format(factor * number, form) for number in (value.mean, value.low, value.high))
    return mean if math.isnan(value.low) else f"{mean} [{low}, {high}]"


def candidates_table(answer: Recommendation) -> Table:
    """One row per candidate, best first; the gain over off in all and, with several loads, at each."""
    loads = answer.loads if len(answer.loads) > 1 else ()
    ratios = ("closed form", "MBSU", "tokens a round", "c") if any(answer.closed_forms.values()) else ()
    rows = [["setting", "gain over off", *(load.label for load in loads), *ratios, ""]]
    for outcome in answer.outcomes:
        verdicts = outcome.verdicts if loads else ()
        gains = [show(verdict.advantage) if verdict.advantage is not None else verdict.why for verdict in verdicts]
        gain = f"{show(outcome.gain)} x" if outcome.gain is not None else "-"
        form = answer.closed_forms[outcome.candidate.label]
        figures = (form.speedup, form.mbsu, form.block_efficiency, form.cost_ratio) if form is not None else ()
        shown = [f"{value:.3g}" for value in figures] or [""] * len(ratios)
        rows.append([outcome.candidate.label, gain, *gains, *shown, remark(answer, outcome)])
    return make_table(rows, caption=LOOKS["notes"]["closed form"] if ratios else "")


def answer_line(answer: Recommendation) -> str:
    """The recommendation in one sentence with its gain, its interval and the reason."""
    label, gain = answer.chosen.candidate.label, answer.chosen.gain
    if answer.is_undecided:
        return f"Undecided: {answer.reason}."
    if not answer.worth_it:
        return f"Leave speculation off: {answer.reason}."
    if gain is None:
        return f"Recommended: {label}; {answer.reason}.{_longer(answer)}"
    level = f"{gain.confidence:.0%} interval {gain.low:.3g} to {gain.high:.3g}"
    doubt = "" if gain.low > 1.0 else "; the interval includes no gain at all"
    return (
        f"Recommended: {label} ({answer.reason}). It improves {answer.metric.label} {gain.mean:.3g} times over off "
        f"({level}{doubt}).{_longer(answer)}"
    )


def _longer(answer: Recommendation) -> str:
    if (k := answer.largest_tried) is None:
        return ""
    hint = f" k = {k} is the largest tried, so a longer draft may gain more: "
    if longest_draft(answer.chosen.candidate.scenario, k + 1) <= k:
        return hint + f"acceptance has no rates beyond position {k}; give more of them."
    return hint + f"draftcast recommend --max-k {min(2 * k, MAX_SPECULATIVE_TOKENS)} tries more."


def paste_lines(answer: Recommendation, server: str) -> str:
    """What to paste into a shell for ``server``, one of `SERVERS`: notes as comments, files, the command."""
    lines = [f"# {note}" for note in answer.notes]
    if server == "vllm" and answer.speculative_config is not None:
        lines.append(f"# --speculative-config '{json.dumps(answer.speculative_config)}'")
    for name, command in answer.commands.items():
        if name.partition(" ")[0] == server:
            lines += [f"# {name}:"] if name != server else []
            lines.append(f"# {command}" if isinstance(command, ScenarioError) else command.text)
    return "\n".join(lines)


def remark(answer: Recommendation, outcome: CandidateOutcome) -> str:
    """What there is to say of a candidate, in a few words; often nothing."""
    is_recommended = outcome is answer.chosen and not answer.is_undecided
    words, verdict = ["recommended"] if is_recommended else [], outcome.verdicts[0]
    if len(answer.loads) == 1 and not verdict.on.has_figures:
        words.append(verdict.on.state)
    elif len(answer.loads) == 1 and outcome.gain is None:
        words.append(verdict.why)
    elif outcome.overloaded:
        words.append(f"overloaded at {outcome.overloaded} loads")
    elif outcome.gain is None and outcome.candidate.label != OFF:
        words.append("no load at which all settings that keep up have figures")
    return ", ".join(filter(None, words))
