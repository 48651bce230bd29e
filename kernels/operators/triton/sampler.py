"""Sampler in Triton: the logits are read once, by pieces of the vocabulary, then the piece that was drawn once more.

A row of 128 Ki logits would keep one multiprocessor busy for long; pieces fill the device from the first row on.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftcast.kernels.extras import torch
from draftcast.kernels.operators.registry import Launch, Tensors

PIECE = 4096
"""Logits a program: with eight warps two 16-byte loads of bf16 a thread."""


@triton.jit
def scores_of(logits, temperature, row, sequence, piece, n, PIECE: tl.constexpr):
    """Logits of a piece over the temperature (over 1 at temperature 0), and their token ids; -inf past the end."""
    token = piece * PIECE + tl.arange(0, PIECE)
    heat = tl.load(temperature + sequence)
    heat = tl.where(heat > 0.0, heat, 1.0)
    found = tl.load(logits + row.to(tl.int64) * n + token, mask=token < n, other=float("-inf")).to(tl.float32)
    return found / heat, token


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
    found = tl.min(tl.where(over, piece, WIDTH), 0)
    # Rounded up to the whole sum, a target is over every piece: it ends in the last.
    found = tl.where(found == WIDTH, tl.max(tl.where(weight > 0.0, piece, -1), 0), found)
    found = tl.where(found < 0, WIDTH, found)
    return found, tl.sum(tl.where(piece < found, weight, 0.0), 0), target


@triton.jit
def token_of(weight, token, before, target, n):
    """The first token whose cumulative weight exceeds the target, or the last that has a weight."""
    over = (before + tl.cumsum(weight, 0) > target) & (weight > 0.0)
    found = tl.min(tl.where(over, token, n), 0)
    return tl.where(found == n, tl.max(tl.where(weight > 0.0, token, 0), 0), found)


@triton.jit
def scan(
    tops, norms, bests, logits, temperature, n, ROWS: tl.constexpr, PIECES: tl.constexpr, PIECE: tl.constexpr
):  # fmt: skip
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
        scan[(m, pieces)](
            tops, norms, bests, logits, temperature, n, ROWS=1, PIECES=pieces, PIECE=PIECE, num_warps=8
        )  # fmt: skip
        _draw[(m,)](
            outputs["tokens"], tops, norms, bests, logits, temperature, inputs["uniforms"], n,
            PIECES=pieces, WIDTH=width, PIECE=PIECE, num_warps=8,
        )  # fmt: skip

    return launch
