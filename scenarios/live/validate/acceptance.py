"""The acceptance a server measured, as a scenario's acceptance section."""

from __future__ import annotations

from typing import Any

from draftcast.calibration.engine_log.fit import SEARCHES
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.errors import InputError
from draftcast.scenarios.schema import Scenario


def measured_acceptance(live: LiveRun, scenario: Scenario) -> dict[str, Any]:
    """Rates by draft position; for a text search also how often it found something to draft.

    The counters say in how many rounds there was a draft. Rounds without one are what is left of the answers' tokens
    when first tokens and accepted drafts are taken out. How matches cluster is not counted: that stays the scenario's.

    Raises:
        InputError: the run has no counts, or no draft.
    """
    counts = live.manifest["acceptance"]
    if not counts or not counts["num_drafts"]:
        message = "the server's counters show no drafts; take the scenario's acceptance"
        raise InputError(message, file=str(live.folder), key="acceptance")
    drafts = counts["num_drafts"]
    # Counters of one step may be caught half updated: rates above 1 or rising by a hair are none.
    rates: list[float] = []
    for count in counts["per_position"]:
        rates.append(min(count / drafts, rates[-1] if rates else 1.0))
    if scenario.method not in SEARCHES:
        return {"model": "per_position", "rates": rates}
    answered = live.requests[live.requests["output_tokens"] > 0]
    rounds = int(answered["output_tokens"].sum()) - len(answered) - counts["num_accepted_tokens"]
    matched = min(drafts / max(rounds, drafts), 1.0)
    own = scenario.acceptance_of()
    persistence = getattr(own, "persistence", 0.0)
    return {"model": "ngram", "match_probability": matched, "rates": rates, "persistence": persistence}
