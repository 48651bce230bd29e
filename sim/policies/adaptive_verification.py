"""Draft for all, verify the likeliest for as long as each adds to the batch's tokens per second: DSpark."""

from dataclasses import dataclass
from typing import Annotated

from numba import njit

from draftcast.sim.policies import forecast, selection
from draftcast.sim.policies.base import Allowed
from draftcast.sim.state.engine import EngineState

MORE = 1.0 + 1e-9  # throughput is more from this factor on: last digits of times differ between processors


@njit(cache=True)
def decide_adaptive_verification(s: EngineState, slot: int) -> None:
    k = s.config[0].max_drafts
    most = forecast.draft_levels(s, k)
    early_stop = s.policy.params[0] > 0.0
    n = selection.forecast_drafts(s, slot, most, not early_stop)
    if n == 0 or most == 0:
        return
    # Drafting is paid for already; the step's time then goes by the rows that are verified.
    order = s.policy.order
    row_s = s.policy.row_s
    if not early_stop:
        forecast.fill_profiled_seconds(s)
    rest_s = forecast.undrafted_seconds(s, slot, n, n * k, most) - row_s[n]
    host = forecast.host_terms(s)
    if not early_stop:
        rest_s, host = float(s.times[0].draft_s), (0.0, 0.0)
    first = selection.rank_drafts(s, slot, n, most)
    nodes = k / most
    best_tokens, best_s = float(n), forecast.with_host(rest_s + row_s[n], host)
    taken = lost = 0
    last = first + n * most
    while last > first and selection.lost_of(order[last - 1]) >= selection.SURE:
        last -= 1  # no chance, no gain: a text search found less than it was asked for
    ahead_s = row_s[n + int(nodes)]
    for levels in range(1, last - first + 1):
        lost += selection.lost_of(order[first + levels - 1])
        here_s = ahead_s
        if first + levels < last:
            ahead_s = row_s[n + (levels + 1 if k == most else int((levels + 1) * nodes))]
            if ahead_s <= here_s * MORE and not early_stop:
                continue  # one more draft takes no more time (CUDA-graph sizes)
        tokens = n + levels - lost * selection.TO_SHARE
        seconds = forecast.with_host(rest_s + here_s, host)
        if tokens * best_s > best_tokens * seconds * MORE:
            best_tokens, best_s, taken = tokens, seconds, levels
        elif early_stop:
            break
    if early_stop:
        entries = s.entries[slot]
        for at in range(first, first + taken):
            entries[order[selection.request_of(order[at])]].next_drafts += 1
    else:
        n = selection.forecast_drafts(s, slot, most, False)
        selection.pick_likeliest(s, slot, n, most, taken)
    selection.settle(s, slot, n, most)


@dataclass(frozen=True)
class AdaptiveVerification(selection.SelectingPolicy):
    """Every request drafts ``num_speculative_tokens``; the likeliest drafts are verified while throughput rises.

    Rule: take the drafts of the batch by falling survival (the product of the confidences up to each) and count a taken
    one's survival to the expected tokens, which start at one per request. Their number over the time of a step with as
    many rows is the throughput. The best point on the whole path is the number of drafts to verify, and the likeliest
    of them are (DSpark, arXiv 2607.05147; vLLM 0.32, ``v1/worker/gpu/spec_decode/adaptive_verification.py``).

    As shipped in vLLM, that number goes by the confidences of the round before (1 for a request without one), which the
    host has when it launches the step; which drafts they are goes by their own. Times are those of a table made at
    start-up (`fill_profiled_seconds`), without the host's. vLLM also counts the rows of prompts in the same step, which
    are not known here when the drafts are made.

    With ``early_stop`` it is the paper's algorithm 1: current confidences, the step cost's own times, and a stop before
    the first draft that does not raise the throughput, which makes the choice independent of drafts further on, hence
    lossless. Where the time jumps with the rows (CUDA-graph sizes) it may stop at once.
    """

    # At the first draft that does not raise throughput (algorithm 1), instead of weighing all.
    early_stop: Annotated[bool, Allowed("must be true or false", lambda value: isinstance(value, bool))] = False
    rule = decide_adaptive_verification
