"""``y = x @ w^T`` in Triton: bf16, fp8 (e4m3) and fp32, from one row to thousands.

Up to a few dozen rows the weights' bytes are the time, so what counts is how many of them are in flight: small tiles,
several stages, and k split over programs when there are too few tiles for the device (split-K). The program that
finishes a tile last adds up its parts in a fixed order, so one launch is enough and results are reproducible.
"""

from functools import partial

import triton
import triton.language as tl

from draftcast.kernels.extras import torch
from draftcast.kernels.operators.registry import Launch, Tensors
from draftcast.kernels.operators.triton.device import MatrixTiles, dot_type, fewest_splits, processors

GROUPED_ROW_TILES = 8
"""Row tiles that walk along the columns together, so that weights are read from the L2 cache by all but the first."""
MIN_SPLIT_STEPS = 4  # Steps along k below which a split is only its own start and end.
MAX_SPLITS = 32


def tile_plan(m: int, n: int, element_bytes: int, processors: int) -> MatrixTiles:
    """Tiles for ``m`` rows and ``n`` columns.

    To 128 rows, weight-bound: 8 or 16 KiB of weights a stage and two programs to a multiprocessor, so that 50 KiB or
    more are in flight where bandwidth times latency (4.8 TB/s, under 1 us) asks for about 35. Above, compute-bound:
    the tile whose rounds over the device multiply fewest padded elements; a small one does less a second (its operands
    come from shared memory more often), which the assumed rates of the three stand for.
    """
    if element_bytes == 4:
        return MatrixTiles(16, 64, 32, 4, 4, 2) if m <= 16 else MatrixTiles(64, 64, 32, 4, 3, 2)
    wide = 2 // element_bytes
    if m <= 128:
        rows = next(rows for rows in (16, 32, 64, 128) if m <= rows)
        return MatrixTiles(rows, 64, (128 if rows <= 32 else 64) * wide, 4, 4, 2)
    shapes = ((128, 256, 1.0, 1), (128, 128, 0.85, 1), (64, 128, 0.65, 2))

    def cost(shape: tuple[int, int, float, int]) -> float:
        rows, columns, rate, resident = shape
        rounds = triton.cdiv(triton.cdiv(m, rows) * triton.cdiv(n, columns), processors * resident)
        return float(rounds * rows * columns * resident / rate)

    rows, columns, _, resident = min(shapes, key=cost)
    return MatrixTiles(rows, columns, 64 * wide, 4 if rows == 64 else 8, 3 if columns == 256 else 4, resident)


def split_count(m: int, n: int, k: int, element_bytes: int, plan: MatrixTiles, processors: int) -> int:
    """Splits of k: the fewest within a tenth of the least time.

    Time goes as rounds of resident programs times the steps of each, two of them for its start and end. The parts, 4
    bytes an element of ``y`` and split, stay under a quarter of the weights' bytes.
    """
    tiles = triton.cdiv(m, plan.rows) * triton.cdiv(n, plan.columns)
    steps = triton.cdiv(k, plan.depth)
    most = max(min(steps // MIN_SPLIT_STEPS, k * element_bytes // (16 * m), MAX_SPLITS), 1)
    slots = processors * plan.resident
    time = [triton.cdiv(tiles * splits, slots) * (triton.cdiv(steps, splits) + 2) for splits in range(1, most + 1)]
    return fewest_splits(time)


@triton.jit
def _linear(
    y, x, w, x_scale, w_scale, parts, arrived, m, n, k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr,
    EVEN: tl.constexpr, QUANTISED: tl.constexpr, PRECISION: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One tile of ``y`` [m, n] over one split of k.

    ``parts`` [tiles, SPLITS, ROWS, COLUMNS] and ``arrived`` [tiles], zero before and after, are used when SPLITS > 1.
    EVEN: k is a multiple of DEPTH.
    """
    tile = tl.program_id(0)
    split = tl.program_id(1)
    row_tiles = tl.cdiv(m, ROWS)
    column_tiles = tl.cdiv(n, COLUMNS)
    group = tile // (GROUP * column_tiles)
    group_rows = tl.minimum(row_tiles - group * GROUP, GROUP)
    within = tile % (GROUP * column_tiles)
    row = (group * GROUP + within % group_rows) * ROWS + tl.arange(0, ROWS)
    column = within // group_rows * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, DEPTH)
    mine = (row < m)[:, None]
    wanted = (column < n)[:, None]
    xs = x + row.to(tl.int64)[:, None] * k + inner[None, :]
    ws = w + column.to(tl.int64)[:, None] * k + inner[None, :]
    steps = tl.cdiv(tl.cdiv(k, DEPTH), SPLITS)
    low = split * steps * DEPTH
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(low, tl.minimum(low + steps * DEPTH, k), DEPTH):
        if EVEN:
            a = tl.load(xs + start, mask=mine, other=0.0)
            b = tl.load(ws + start, mask=wanted, other=0.0)
        else:
            left = (start + inner < k)[None, :]
            a = tl.load(xs + start, mask=mine & left, other=0.0)
            b = tl.load(ws + start, mask=wanted & left, other=0.0)
        acc = tl.dot(a.to(DOT), tl.trans(b.to(DOT)), acc, input_precision=PRECISION)
    if SPLITS > 1:
        within = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        part = parts + tile.to(tl.int64) * (SPLITS * ROWS * COLUMNS) + within
        tl.store(part + split * (ROWS * COLUMNS), acc)
        # All threads' stores before the one thread's release.
        tl.debug_barrier()
        if tl.atomic_add(arrived + tile, 1, sem="acq_rel") != SPLITS - 1:
            return
        tl.store(arrived + tile, 0)
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        for other in range(SPLITS):
            # Written by other multiprocessors: not from this one's L1 cache.
            acc += tl.load(part + other * (ROWS * COLUMNS), cache_modifier=".cg")
    if QUANTISED:
        acc = acc * (tl.load(x_scale) * tl.load(w_scale))
    where = y + row.to(tl.int64)[:, None] * n + column[None, :]
    tl.store(where, acc.to(y.dtype.element_ty), mask=mine & (column < n)[None, :])


def prepare(inputs: Tensors, outputs: Tensors, *, plan: MatrixTiles | None = None, splits: int | None = None) -> Launch:
    """Launch over the inputs of `draftcast.kernels.operators.linear`; ``plan`` and ``splits`` may be given."""
    x, w, y = inputs["x"], inputs["w"], outputs["y"]
    (m, k), n, size = x.shape, len(w), x.element_size()
    plan = plan or tile_plan(m, n, size, processors(x))
    splits = splits or split_count(m, n, k, size, plan, processors(x))
    tiles = triton.cdiv(m, plan.rows) * triton.cdiv(n, plan.columns)
    parts = torch.empty(tiles * splits * plan.rows * plan.columns if splits > 1 else 1, device=x.device)
    arrived = torch.zeros(tiles, dtype=torch.int32, device=x.device)
    return partial(
        _linear[(tiles, splits)],
        y, x, w, inputs["x_scale"], inputs["w_scale"], parts, arrived, m, n, k,
        ROWS=plan.rows, COLUMNS=plan.columns, DEPTH=plan.depth, GROUP=GROUPED_ROW_TILES, SPLITS=splits,
        EVEN=k % plan.depth == 0, QUANTISED=inputs["x_scale"] is not None, PRECISION="ieee", DOT=dot_type(size),
        num_warps=plan.num_warps, num_stages=plan.num_stages,
    )  # fmt: skip
