"""What rules ask about the step to come: levels of a round, and how long a decode step would take."""

from numba import njit

from draftcast.sim.cost.step_time import fill_decode, fill_times
from draftcast.sim.state.engine import EngineState

PROFILED_CONTEXT = 8192  # vLLM 0.32: VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN


@njit(cache=True, forceinline=True)
def draft_levels(s: EngineState, drafts: int) -> int:
    """Drafts one after the other in a round of ``drafts``: of a tree its levels, of which a path holds one each."""
    c = s.config[0]
    if c.tree_depth == 0:
        return drafts
    return int(min(-(-drafts * c.tree_depth // max(c.max_drafts, 1)), drafts))


@njit(cache=True)
def device_seconds(
    s: EngineState, seqs: int, verified: float, drafting: int, made: int, passes: int, context: float
) -> float:
    """Device seconds of a decode step of ``seqs`` requests that verifies drafts and makes new ones.

    Args:
        s: the engine; its features and times serve as scratch space, which `commit` fills anew.
        seqs: requests, each with one row besides its drafts.
        verified: draft rows of all requests together.
        drafting: requests for which drafts are made.
        made: drafts made for all of them together.
        passes: the most drafts made for one request; of a tree its levels.
        context: tokens in the KV cache before the step, of all requests together; drafts count as spread evenly.
    """
    c = s.config[0]
    f = s.features[0]
    t = s.times[0]
    rows = seqs + verified
    kv = context + rows
    mean_kv = kv / seqs
    fill_decode(f, c.window_kind, float(c.sliding_window), float(seqs), rows, kv, mean_kv)
    if made > 0:
        f.draft_seqs = drafting
        f.draft_tokens = made
        f.draft_passes = passes
        f.draft_kv = drafting * mean_kv
        if c.proposes_on_host:
            f.propose_tokens = f.draft_kv
    fill_times(s.cost, f, 1.0, t)
    return float(t.draft_s + t.target_s + t.sample_s)


@njit(cache=True, forceinline=True)
def host_terms(s: EngineState) -> tuple[float, float]:
    """The host's part in the step last asked for, as `with_host` takes it: seconds to add, and the least there are."""
    host_s = float(s.times[0].host_s)
    if s.cost.params[0].host_hides and s.config[0].async_scheduling:
        return 0.0, host_s
    return host_s, 0.0


@njit(cache=True, forceinline=True)
def with_host(device_s: float, host: tuple[float, float]) -> float:
    """Seconds of a step whose device takes ``device_s``: host time hides behind it where it may."""
    seconds = device_s + host[0]
    return seconds if seconds > host[1] else host[1]


@njit(cache=True)
def undrafted_seconds(s: EngineState, slot: int, drafting: int, made: int, passes: int) -> float:
    """Device seconds of a decode step of the drafting requests that verifies no drafts; fills ``policy.row_s`` too."""
    fill_row_seconds(s)
    entries = s.entries[slot]
    context = 0.0
    for j in range(s.batch[slot].size):
        if not entries[j].is_chunk:
            context += entries[j].computed + entries[j].tokens
    return device_seconds(s, drafting, 0.0, drafting, made, passes, context)


@njit(cache=True)
def fill_row_seconds(s: EngineState) -> None:
    """Fill ``policy.row_s`` once: linear layers to sampler by rows, CUDA-graph padding in them."""
    row_s = s.policy.row_s
    if row_s[0] == row_s[0]:
        return
    cost = s.cost
    p = cost.params[0]
    for rows in range(row_s.size):
        if p.affine:
            row_s[rows] = p.fit_target.row_s * rows
            continue
        i = min(rows, cost.target.shape[0] - 1)
        j = min(rows, cost.logits.shape[0] - 1)
        row_s[rows] = (cost.target[i] + cost.logits[j]).sum()


@njit(cache=True)
def _profiled_seconds(s: EngineState, rows: int) -> float:
    c = s.config[0]
    seqs = min(rows, c.max_num_seqs)
    per_seq = -(-rows // seqs)
    context = max(min(PROFILED_CONTEXT, c.max_model_len - per_seq), 0)
    device_seconds(s, seqs, float(rows - seqs), 0, 0, 0, float(seqs * context))
    return float(s.times[0].target_s)


@njit(cache=True)
def fill_profiled_seconds(s: EngineState) -> None:
    """Fill ``policy.row_s`` once with what vLLM 0.32 times at start-up to weigh drafts: the target's pass by rows.

    Rows are spread over as many requests as there may be, each with ``PROFILED_CONTEXT`` tokens. Numbers of rows that
    are padded to one CUDA graph take equally long. Beyond the captured sizes 1.5, 2, 4, 8 ... times the largest are
    timed, with straight lines between them. More rows never take less time.
    """
    row_s = s.policy.row_s
    if row_s[0] == row_s[0]:
        return
    table = s.cost.target
    last = row_s.size - 1
    captured = min(int(s.cost.params[0].cuda_graph_rows), last, table.shape[0] - 1)
    exact = captured if captured > 0 else last  # without graphs nothing is padded
    row_s[0] = 0.0
    for rows in range(exact, 0, -1):
        padded_alike = rows < captured and abs(table[rows].sum() / table[rows + 1].sum() - 1.0) < 1e-9
        row_s[rows] = row_s[rows + 1] if padded_alike else _profiled_seconds(s, rows)
    before, size = exact, exact + exact // 2
    before_s = _profiled_seconds(s, size) if exact < last else 0.0  # vLLM draws no line across the last graph
    while before < last:
        size_s = _profiled_seconds(s, size)
        for rows in range(before + 1, min(size, last) + 1):
            row_s[rows] = before_s + (size_s - before_s) * (rows - before) / (size - before)
        before, before_s, size = size, size_s, size * 2 if before > exact else exact * 2
    for rows in range(1, last + 1):
        row_s[rows] = max(row_s[rows], row_s[rows - 1])
