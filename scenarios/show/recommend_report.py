"""A recommendation for people: the table of candidates, the sentence above it, what to paste."""

from __future__ import annotations

import json

from rich.table import Table

from draftcast.scenarios.compare.recommend import OFF, Outcome, Recommendation, longest_draft
from draftcast.scenarios.schema.speculation import MAX_SPECULATIVE_TOKENS
from draftcast.scenarios.show.tables import show


def candidates_table(answer: Recommendation) -> Table:
    """One row per candidate, best first; the gain over off in all and, with several loads, at each."""
    table = Table()
    table.add_column("setting")
    table.add_column("gain over off", justify="right")
    several = len(answer.loads) > 1
    for load in answer.loads if several else ():
        table.add_column(load.label, justify="right")
    table.add_column("")
    for outcome in answer.outcomes:
        each = [_at_load(outcome, index) for index in range(len(answer.loads))] if several else []
        gain = show(outcome.gain) + " x" if outcome.gain is not None else "-"
        table.add_row(outcome.candidate.label, gain, *each, remark(answer, outcome))
    return table


def answer_line(answer: Recommendation) -> str:
    """The recommendation in one sentence with its gain, its interval and the reason."""
    chosen = answer.chosen
    if not answer.worth_it:
        return f"Leave speculation off: {answer.reason}."
    if chosen.gain is None:
        return f"Recommended: {chosen.candidate.label}; {answer.reason}.{_longer(answer)}"
    gain = chosen.gain
    level = f"{gain.confidence:.0%} interval {gain.low:.3g} to {gain.high:.3g}"
    doubt = "" if gain.low > 1.0 else "; the interval does not exclude that it gains nothing"
    return (
        f"Recommended: {chosen.candidate.label}. {answer.metric.label} improves {gain.mean:.3g} x over off ({level}): "
        f"{answer.reason}{doubt}.{_longer(answer)}"
    )


def _longer(answer: Recommendation) -> str:
    """That a longer draft might gain more, where the best is the longest tried."""
    k = answer.largest_tried
    if k is None:
        return ""
    said = f" k = {k} is the largest tried, so a longer draft may gain more: "
    if longest_draft(answer.chosen.candidate.scenario, k + 1) <= k:
        return said + f"acceptance has no rates beyond position {k}; give more of them."
    return said + f"draftcast recommend --max-k {min(2 * k, MAX_SPECULATIVE_TOKENS)} tries more."


def paste_lines(answer: Recommendation, server: str) -> str:
    """What to paste for ``server`` (vllm or sglang), after what to know of it as a shell's comments."""
    notes = [f"# {note}" for note in answer.notes]
    if server == "sglang":
        return "\n".join([*notes, answer.sglang]) if answer.sglang else f"SGLang: {answer.sglang_reason}"
    if answer.speculative_config is None:
        return "\n".join([*notes, *filter(None, [answer.vllm])])
    return "\n".join([*notes, f"--speculative-config '{json.dumps(answer.speculative_config)}'", answer.vllm])


def _at_load(outcome: Outcome, index: int) -> str:
    verdict = outcome.verdicts[index]
    return show(verdict.advantage) if verdict.advantage is not None else verdict.why


def remark(answer: Recommendation, outcome: Outcome) -> str:
    """What there is to say of a candidate, in a few words; often nothing."""
    words = []
    if outcome is answer.chosen:
        words.append("recommended")
    if len(answer.loads) == 1 and not outcome.verdicts[0].on.has_figures:
        words.append(outcome.verdicts[0].on.state)
    elif len(answer.loads) == 1 and outcome.gain is None:
        words.append(outcome.verdicts[0].why)
    elif outcome.overloaded:
        words.append(f"overloaded at {outcome.overloaded} loads")
    elif outcome.gain is None and outcome.candidate.label != OFF:
        words.append("no load at which all that keep up have figures")
    return ", ".join(words)
