"""The policy that knows the future, to measure the others against."""

from dataclasses import dataclass

from numba import njit

from draftcast.sim.acceptance.compiled import accepted_drafts, proposed_drafts
from draftcast.sim.policies.base import Policy, arrays
from draftcast.sim.policies.forecast import device_seconds, draft_levels, fill_row_seconds, host_terms, with_host
from draftcast.sim.state.engine import EngineState, PolicyArrays


@njit(cache=True)
def decide_oracle(s: EngineState, slot: int) -> None:
    """First by numbers: for every number of draft passes, how many levels in all are worth their rows. Then by request.

    ``policy.order[j]`` counts requests with at least j useful levels; ``policy.scratch[rows]`` is the least of
    ``policy.row_s`` from there on.
    """
    row_s = s.policy.row_s
    least_s = s.policy.scratch
    at_least = s.policy.order
    if row_s[0] != row_s[0]:
        fill_row_seconds(s)
        least_s[-1] = row_s[-1]
        for rows in range(row_s.size - 2, -1, -1):
            least_s[rows] = min(row_s[rows], least_s[rows + 1])
    k = s.config[0].max_drafts
    most = draft_levels(s, k)
    nodes = k / max(most, 1)  # rows of a level; a tree's last one may be cut
    at_least[: most + 1] = 0
    seqs = 0
    context = 0.0
    entries = s.entries[slot]
    for j in range(s.batch[slot].size):
        x = entries[j]
        r = s.requests[x.request]
        left = min(r.prompt + r.max_tokens, s.config[0].max_model_len) - r.prompt - r.future
        x.next_drafts = -1
        if x.is_chunk or left <= 0:
            continue
        # Levels that yield a token the request still wants.
        levels = draft_levels(s, proposed_drafts(s.acceptance, x.request, r.future, k))
        x.next_drafts = min(accepted_drafts(s.acceptance, x.request, r.future, levels), left - 1)
        seqs += 1
        context += x.computed + x.tokens
        at_least[x.next_drafts] += 1
    for level in range(most - 1, -1, -1):
        at_least[level] += at_least[level + 1]

    best_tokens, best_s = 0.0, 1.0
    best_passes = best_levels = 0
    useful = 0
    for passes in range(most + 1 if seqs > 0 else 0):
        useful += at_least[passes] if passes > 0 else 0
        drafting = at_least[1] if passes > 0 else 0
        rows = int(useful * nodes)
        device_s = device_seconds(s, int(seqs), float(rows), int(drafting), rows, passes, context)
        host = host_terms(s)
        seconds = with_host(device_s, host)
        tokens = float(seqs + useful)
        if tokens * best_s > best_tokens * seconds:
            best_tokens, best_s, best_passes, best_levels = tokens, seconds, passes, useful
        # Other numbers of levels for the same passes: fewer may stay below a CUDA-graph size, more may reach one at
        # which measured kernels are faster. What does not go by rows alone changes little with them.
        rest_s = device_s - row_s[seqs + rows]
        other = -1
        other_tokens, other_s = best_tokens, best_s
        # The first number whose tokens win if its rows take as little time as any; those before it never do.
        least = with_host(rest_s + least_s[seqs], host)
        levels = max(int(other_tokens * least / other_s) - seqs, 0) if other_s > 0.0 else 0
        while levels <= seqs * passes:
            at = seqs + int(levels * nodes)
            # Beyond the useful ones tokens grow no more: not worth a look unless less time is still to come.
            least = with_host(rest_s + least_s[at], host)
            if levels > useful and (seqs + useful) * other_s <= other_tokens * least:
                break
            seconds = with_host(rest_s + row_s[at], host)
            tokens = float(seqs + min(levels, useful))
            if tokens * other_s > other_tokens * seconds and levels != useful:
                other, other_tokens, other_s = levels, tokens, seconds
            levels += 1
        if other >= 0:
            drafting = min(max(drafting, -(-other // max(passes, 1))), other)
            rows = int(other * nodes)
            other_s = device_seconds(s, int(seqs), float(rows), int(drafting), rows, int(min(passes, other)), context)
            other_s = with_host(other_s, host_terms(s))
            if other_tokens * best_s > best_tokens * other_s:
                best_tokens, best_s, best_passes, best_levels = other_tokens, other_s, passes, other
        # As many for every request: in vain for some, but such a batch replays a full CUDA graph.
        if seqs * passes > useful:
            even = int(seqs * passes * nodes)
            even_s = device_seconds(s, int(seqs), float(even), int(seqs), even, passes, context)
            even_s = with_host(even_s, host_terms(s))
            if (seqs + useful) * best_s > best_tokens * even_s:
                best_tokens, best_s = float(seqs + useful), even_s
                best_passes, best_levels = passes, int(seqs * passes)
    _hand_out(s, slot, int(best_passes), int(best_levels), most)


@njit(cache=True)
def _hand_out(s: EngineState, slot: int, passes: int, levels: int, most: int) -> None:
    """Give each request its useful levels up to ``passes``; take from or add to the last to reach ``levels`` in all."""
    size = s.batch[slot].size
    entries = s.entries[slot]
    k = s.config[0].max_drafts
    useful = 0
    for j in range(size):
        useful += max(min(entries[j].next_drafts, passes), 0)
    surplus = max(useful - levels, 0)
    missing = max(levels - useful, 0)
    for j in range(size - 1, -1, -1):
        x = entries[j]
        levels_here = max(min(x.next_drafts, passes), 0)
        taken = min(levels_here, surplus)
        surplus -= taken
        added = 0
        if x.next_drafts >= 0:
            added = min(passes - levels_here, missing)
            missing -= added
        drafts = levels_here - taken + added
        if k != most:  # a tree's levels hold several drafts
            drafts = drafts * k // max(most, 1)
        x.next_drafts = x.drafted = drafts


@dataclass(frozen=True)
class Oracle(Policy):
    """Knows which drafts of every request will be accepted, and takes the most tokens per second of the next step.

    Rule: let the requests that will decode next verify d_i drafts each. Their step yields ``sum(1 + min(d_i, a_i))``
    tokens, a_i being what would be accepted (and is still wanted before the request ends), and takes the draft passes
    for max(d_i), the target pass over ``sum(1 + d_i)`` rows with its CUDA-graph padding, sampler and host. Every number
    of passes 0..k and every number of rows is weighed, more drafts than will be accepted too: batches of equal rows a
    request replay full CUDA graphs. Ties go to fewer drafts.

    It bounds the tokens per second of that one step as far as step time goes by the counts of drafts alone: contexts
    enter by their sum, prefill that joins is not foreseen, and attention is taken to change little where rows are added
    or given up for a CUDA-graph size. It does not bound a whole run: the best next step may leave worse ones behind, so
    another policy can come out ahead over many steps, in practice by little.
    """

    rule = decide_oracle

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        rows = max_num_seqs * (1 + k)
        return arrays(scratch=rows + 1, order=k + 1, rows=rows)
