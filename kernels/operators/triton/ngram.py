"""N-gram search in Triton: every chunk of every text finds its best place, a second kernel takes the best and drafts.

Best is the longest match, then the earliest place: one int64 key, match length above, tokens from the place to the end
of the padded row below, so that a maximum decides both.
"""

import triton
import triton.language as tl

from draftcast.kernels.operators.registry import Launch, Tensors

CHUNK = 1024


@triton.jit
def _search(best, tokens, lengths, context, MAX_N: tl.constexpr, CHUNK: tl.constexpr):
    """``best`` int64 [batch, chunks]: key of the best place of one chunk of one text; 0 without any match."""
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    text = tokens + row.to(tl.int64) * context
    length = tl.load(lengths + row)
    place = chunk * CHUNK + tl.arange(0, CHUNK)
    alive = (place >= 1) & (place < length)
    run = tl.zeros([CHUNK], tl.int32)
    back = 1
    # Most texts hold the last token rarely and the last two hardly ever: few chunks go on to MAX_N.
    while (back <= MAX_N) & (tl.max(alive.to(tl.int32), 0) > 0):
        newest = tl.load(text + length - back, mask=back <= length, other=0)
        before = tl.load(text + place - back, mask=alive & (place >= back), other=0)
        alive = alive & (place >= back) & (before == newest)
        run += alive.to(tl.int32)
        back += 1
    key = tl.where(run > 0, run.to(tl.int64) * (context + 1) + (context - place), 0)
    tl.store(best + row * tl.num_programs(1) + chunk, tl.max(key, 0))


@triton.jit
def _draft(
    drafts, counts, best, tokens, lengths, context, chunks, max_model_len,
    K: tl.constexpr, MIN_N: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Drafts of one text from the best keys of its chunks."""
    row = tl.program_id(0)
    chunk = tl.arange(0, CHUNKS)
    key = tl.max(tl.load(best + row * chunks + chunk, mask=chunk < chunks, other=0), 0)
    run = key // (context + 1)
    start = context - key % (context + 1)
    length = tl.load(lengths + row)
    count = tl.minimum(tl.minimum(K, max_model_len - length), length - start)
    count = tl.where(run >= MIN_N, tl.maximum(count, 0), 0)
    slot = tl.arange(0, WIDTH)
    token = tl.load(tokens + row.to(tl.int64) * context + start + slot, mask=slot < count, other=-1)
    tl.store(drafts + row * K + slot, token, mask=slot < K)
    tl.store(counts + row, count.to(tl.int32))


def prepare(inputs: Tensors, outputs: Tensors) -> Launch:
    """Launch over `draftcast.kernels.search.ngram.draw_inputs`."""
    tokens, lengths = inputs["tokens"], inputs["lengths"]
    batch, context = tokens.shape
    chunks = max(triton.cdiv(context, CHUNK), 1)
    best = lengths.new_empty((batch, chunks)).long()

    def launch() -> None:
        _search[(batch, chunks)](best, tokens, lengths, context, inputs["max_n"], CHUNK, num_warps=4)
        _draft[(batch,)](
            outputs["drafts"], outputs["counts"], best, tokens, lengths, context, chunks, inputs["max_model_len"],
            inputs["k"], inputs["min_n"], triton.next_power_of_2(inputs["k"]), triton.next_power_of_2(chunks),
            num_warps=1,
        )  # fmt: skip

    return launch
