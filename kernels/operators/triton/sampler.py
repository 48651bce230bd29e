"""Sampler in Triton: the logits are read once, by pieces of the vocabulary, then the piece that was drawn once more.

A row of 128 Ki logits would keep one multiprocessor busy for long; pieces fill the device from the first row on.

Rejection sampler in Triton: logits by pieces, the drafts of each sequence, weights of the row that ends it, a draw.

Only the row where a sequence ends (its recovered or bonus token) is read again, and with it that row of the draft's
distribution; the other rows of that are touched at the drafted tokens alone.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from draftcast.kernels.extras import torch
from draftcast.kernels.operators.registry import Launch, Tensors

PIECE = 4096  # Logits a program: with eight warps two 16-byte loads of bf16 a thread.


@triton.jit
def scores_of(logits, temperature, row, sequence, piece, n, PIECE: tl.constexpr):
    """Logits of a piece over the temperature (over 1 at temperature 0), and their token ids; -inf past the end."""
    token = piece * PIECE + tl.arange(0, PIECE)
    heat = tl.load(temperature + sequence)
    heat = tl.where(heat > 0.0, heat, 1.0)
    score = tl.load(logits + row.to(tl.int64) * n + token, mask=token < n, other=float("-inf")).to(tl.float32)
    return score / heat, token


@triton.jit
def row_of(tops, norms, bests, row, PIECES: tl.constexpr, WIDTH: tl.constexpr):
    """Largest score of a row, sum of its weights against that, the likeliest token, and the weight of every piece."""
    piece = tl.arange(0, WIDTH)
    of_piece = tl.load(tops + row * PIECES + piece, mask=piece < PIECES, other=float("-inf"))
    top = tl.max(of_piece, 0)
    norm = tl.load(norms + row * PIECES + piece, mask=piece < PIECES, other=0.0)
    weight = tl.where(norm > 0.0, norm * tl.exp(of_piece - top), 0.0)
    best = tl.load(bests + row * PIECES + tl.argmax(of_piece, 0, tie_break_left=True))
    return top, tl.sum(weight, 0), best, weight


@triton.jit
def piece_of(weight, uniform, WIDTH: tl.constexpr):
    """The piece in which a draw ends (WIDTH: none, all weights are 0), the weight before it and the target weight."""
    piece = tl.arange(0, WIDTH)
    target = uniform * tl.sum(weight, 0)
    over = (tl.cumsum(weight, 0) > target) & (weight > 0.0)
    drawn = tl.min(tl.where(over, piece, WIDTH), 0)
    # Rounded up to the whole sum, a target is over every piece: it ends in the last.
    drawn = tl.where(drawn == WIDTH, tl.max(tl.where(weight > 0.0, piece, -1), 0), drawn)
    drawn = tl.where(drawn < 0, WIDTH, drawn)
    return drawn, tl.sum(tl.where(piece < drawn, weight, 0.0), 0), target


@triton.jit
def token_of(weight, token, before, target, n):
    """The first token whose cumulative weight exceeds the target, or the last that has a weight."""
    over = (before + tl.cumsum(weight, 0) > target) & (weight > 0.0)
    drawn = tl.min(tl.where(over, token, n), 0)
    return tl.where(drawn == n, tl.max(tl.where(weight > 0.0, token, 0), 0), drawn)


@triton.jit
def scan(tops, norms, bests, logits, temperature, n, ROWS: tl.constexpr, PIECES: tl.constexpr, PIECE: tl.constexpr):
    """Of one piece of one row: the largest score, the sum of weights against it, the first token that has it.

    ROWS: rows of logits that share a temperature.
    """
    row = tl.program_id(0)
    piece = tl.program_id(1)
    score, token = scores_of(logits, temperature, row, row // ROWS, piece, n, PIECE)
    top = tl.max(score, 0)
    weight = tl.where(score > float("-inf"), tl.exp(score - top), 0.0)
    where = row * PIECES + piece
    tl.store(tops + where, top)
    tl.store(norms + where, tl.sum(weight, 0))
    tl.store(bests + where, tl.min(tl.where((score == top) & (token < n), token, n), 0))


@triton.jit
def _draw(
    tokens, tops, norms, bests, logits, temperature, uniforms, n,
    PIECES: tl.constexpr, WIDTH: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """The token of one row. WIDTH: PIECES as a power of two."""
    row = tl.program_id(0)
    top, _, best, weights = row_of(tops, norms, bests, row, PIECES, WIDTH)
    piece, before, target = piece_of(weights, tl.load(uniforms + row), WIDTH)
    if (tl.load(temperature + row) > 0.0) & (piece < WIDTH):
        score, token = scores_of(logits, temperature, row, row, piece, n, PIECE)
        best = token_of(tl.exp(score - top), token, before, target, n)
    tl.store(tokens + row, best)


def scan_results(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, int]:
    """Space for tops, norms and bests of ``scan``, each [rows, pieces]; pieces, and these as a power of two."""
    n = logits.shape[-1]
    rows, pieces = logits.numel() // n, triton.cdiv(n, PIECE)
    tops, norms = torch.empty((2, rows, pieces), device=logits.device)
    bests = torch.empty((rows, pieces), dtype=torch.int32, device=logits.device)
    return tops, norms, bests, pieces, triton.next_power_of_2(pieces)


def prepare(inputs: Tensors, outputs: Tensors) -> Launch:
    """Launch over the inputs of `draftcast.kernels.operators.sampler`."""
    logits, temperature = inputs["logits"], inputs["temperature"]
    m, n = logits.shape
    tops, norms, bests, pieces, width = scan_results(logits)

    def launch() -> None:
        scan[(m, pieces)](tops, norms, bests, logits, temperature, n, ROWS=1, PIECES=pieces, PIECE=PIECE, num_warps=8)
        _draw[(m,)](
            outputs["tokens"], tops, norms, bests, logits, temperature, inputs["uniforms"], n,
            PIECES=pieces, WIDTH=width, PIECE=PIECE, num_warps=8,
        )  # fmt: skip

    return launch


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
def _draw_last(
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


def prepare_rejection(inputs: Tensors, outputs: Tensors) -> Launch:
    """Launch over the inputs of the rejection sampler, see `draftcast.kernels.operators.sampler`."""
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
        _draw_last[(batch,)](
            tokens, sums, counts, *scanned, *drafted, inputs["final_uniforms"], n, PIECE=PIECE, **sizes, num_warps=8
        )  # fmt: skip

    return launch
