"""Rejection sampler in Triton: logits by pieces, the drafts of each sequence, weights of the row that ends it, a draw.

Only the row where a sequence ends (its recovered or bonus token) is read again, and with it that row of the draft's
distribution; the other rows of that are touched at the drafted tokens alone.
"""

from typing import Any

import triton
import triton.language as tl

from draftcast.kernels.operators.registry import Launch, Tensors
from draftcast.kernels.operators.triton.sampler import PIECE, piece_of, row_of, scan, scan_results, scores_of, token_of


@triton.jit
def _keep(
    tokens, counts, tops, norms, bests, logits, temperature, draft_tokens, num_drafts, draft_probs, uniforms, n,
    Q: tl.constexpr, SLOTS: tl.constexpr, PIECES: tl.constexpr, WIDTH: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """Drafts of one sequence that are kept; ``counts`` gets their number and one. SLOTS: Q as a power of two.

    DENSE: there are ``draft_probs``.
    """
    sequence = tl.program_id(0)
    drafts = tl.load(num_drafts + sequence)
    heat = tl.load(temperature + sequence)
    slot = tl.arange(0, SLOTS)
    tl.store(tokens + sequence * Q + slot, tl.full([SLOTS], -1, tl.int32), mask=slot < Q)
    # The stores below overwrite slots that another thread cleared.
    tl.debug_barrier()
    place = 0
    going = drafts > 0
    while going:
        top, norm, best, _ = row_of(tops, norms, bests, sequence * Q + place, PIECES, WIDTH)
        at = sequence * (Q - 1) + place
        draft = tl.load(draft_tokens + at)
        kept = draft == best
        if heat > 0.0:
            row = (sequence * Q + place).to(tl.int64)
            p = tl.exp(tl.load(logits + row * n + draft).to(tl.float32) / heat - top) / norm
            q = 1.0
            if DENSE:
                q = tl.load(draft_probs + at.to(tl.int64) * n + draft)
            kept = (tl.load(uniforms + at) * q < p) & (q > 0.0)
        if kept:
            tl.store(tokens + sequence * Q + place, draft)
            place += 1
        going = kept & (place < drafts)
    tl.store(counts + sequence, place + 1)


@triton.jit
def _weights_of(
    piece, sequence, place, top, norm, logits, temperature, draft_tokens, drafts, draft_probs, n,
    Q: tl.constexpr, PIECE: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """Weights of a piece of row ``place``: the target's less the draft's where a draft was rejected there."""
    score, token = scores_of(logits, temperature, sequence * Q + place, sequence, piece, n, PIECE)
    weight = tl.exp(score - top) / norm
    if place < drafts:
        at = sequence * (Q - 1) + place
        if DENSE:
            weight -= tl.load(draft_probs + at.to(tl.int64) * n + token, mask=token < n, other=0.0)
        else:
            weight -= (tl.load(draft_tokens + at) == token).to(tl.float32)
    return tl.maximum(weight, 0.0), token


@triton.jit
def _weigh(
    sums, counts, tops, norms, bests, logits, temperature, draft_tokens, num_drafts, draft_probs, n,
    Q: tl.constexpr, PIECES: tl.constexpr, WIDTH: tl.constexpr, PIECE: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """``sums`` [batch, PIECES]: the weight of every piece of the row that ends a sequence."""
    sequence = tl.program_id(0)
    piece = tl.program_id(1)
    if tl.load(temperature + sequence) > 0.0:
        place = tl.load(counts + sequence) - 1
        top, norm, _, _ = row_of(tops, norms, bests, sequence * Q + place, PIECES, WIDTH)
        drafts = tl.load(num_drafts + sequence)
        weight, _ = _weights_of(
            piece, sequence, place, top, norm, logits, temperature, draft_tokens, drafts, draft_probs, n, Q, PIECE,
            DENSE,
        )  # fmt: skip
        tl.store(sums + sequence * PIECES + piece, tl.sum(weight, 0))


@triton.jit
def _draw(
    tokens, sums, counts, tops, norms, bests, logits, temperature, draft_tokens, num_drafts, draft_probs,
    final_uniforms, n,
    Q: tl.constexpr, PIECES: tl.constexpr, WIDTH: tl.constexpr, PIECE: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """The recovered or bonus token of one sequence."""
    sequence = tl.program_id(0)
    place = tl.load(counts + sequence) - 1
    top, norm, best, _ = row_of(tops, norms, bests, sequence * Q + place, PIECES, WIDTH)
    if tl.load(temperature + sequence) > 0.0:
        index = tl.arange(0, WIDTH)
        of_piece = tl.load(sums + sequence * PIECES + index, mask=index < PIECES, other=0.0)
        piece, before, target = piece_of(of_piece, tl.load(final_uniforms + sequence), WIDTH)
        if piece < WIDTH:
            drafts = tl.load(num_drafts + sequence)
            weight, token = _weights_of(
                piece, sequence, place, top, norm, logits, temperature, draft_tokens, drafts, draft_probs, n, Q, PIECE,
                DENSE,
            )  # fmt: skip
            best = token_of(weight, token, before, target, n)
    tl.store(tokens + sequence * Q + place, best)


def prepare(inputs: Tensors, outputs: Tensors) -> Launch:
    """Launch over the inputs of `draftcast.kernels.operators.rejection`."""
    logits, temperature, draft_probs = inputs["logits"], inputs["temperature"], inputs["draft_probs"]
    batch, q, n = logits.shape
    tops, norms, bests, pieces, width = scan_results(logits)
    sums = tops.new_empty((batch, pieces))
    scanned = (tops, norms, bests, logits, temperature)
    drafted = (inputs["draft_tokens"], inputs["num_drafts"], draft_probs)
    tokens, counts = outputs["tokens"], outputs["counts"]
    sizes: dict[str, Any] = {"Q": q, "PIECES": pieces, "WIDTH": width, "DENSE": draft_probs is not None}

    def launch() -> None:
        scan[(batch * q, pieces)](*scanned, n, ROWS=q, PIECES=pieces, PIECE=PIECE, num_warps=8)
        _keep[(batch,)](
            tokens, counts, *scanned, *drafted, inputs["uniforms"], n,
            SLOTS=triton.next_power_of_2(q), **sizes, num_warps=1,
        )  # fmt: skip
        _weigh[(batch, pieces)](sums, counts, *scanned, *drafted, n, PIECE=PIECE, **sizes, num_warps=8)
        _draw[(batch,)](
            tokens, sums, counts, *scanned, *drafted, inputs["final_uniforms"], n, PIECE=PIECE, **sizes, num_warps=8
        )  # fmt: skip

    return launch
