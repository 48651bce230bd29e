"""The attention grid: nodes, holes, edges; and its compiled twin in the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from draftcast.calibration.profile.interpolation import MAX_NODES, AttentionGrid, FloatArray
from draftcast.calibration.profile.roofline import Origin
from draftcast.sim.cost import attention_time as at
from draftcast.sim.cost import step_time as st

QS, BATCHES, CONTEXTS = (1.0, 4.0, 8.0), (1.0, 16.0, 64.0), (128.0, 1024.0, 8192.0)


def fitted(a: FloatArray, b: FloatArray, c: FloatArray) -> FloatArray:
    """Decode: 3 us, 1 ns a query-context pair, 10 ns a context token, p = 1."""
    return np.asarray(3e-6 + 1e-9 * a * b * c + 1e-8 * b * c)


def grid(keep: FloatArray | None = None, factor: float = 1.25) -> AttentionGrid:
    points = np.asarray([(a, b, c) for a in QS for b in BATCHES for c in CONTEXTS])
    if keep is not None:
        points = points[keep]
    return AttentionGrid.from_points(points, factor * fitted(*points.T), fitted)


def inside(of: AttentionGrid, *node: FloatArray) -> bool:
    """Whether a point lies inside the grid, and its neighbours that have a weight are all measured."""
    at = np.concatenate(node)
    within = all(axis[0] <= value <= axis[-1] for axis, value in zip(of.axes, at, strict=True))
    logs, clamped = tuple(map(np.log, of.axes)), [np.clip(x, a[0], a[-1]) for x, a in zip(at, of.axes, strict=True)]
    measured = RegularGridInterpolator(logs, of.measured.astype(np.float64))(np.log(clamped))
    return bool(within and measured[0] > 1.0 - 1e-9)


def test_nodes_come_back_and_lie_inside() -> None:
    node = np.asarray([4.0]), np.asarray([16.0]), np.asarray([1024.0])
    log_s = grid().log_seconds(*node)
    assert np.exp(log_s[0]) == pytest.approx(1.25 * float(fitted(*np.asarray([4.0, 16.0, 1024.0]))), rel=1e-12)
    assert inside(grid(), *node)


def test_between_nodes_it_is_the_geometric_mean_of_the_corners() -> None:
    node = np.asarray([1.0]), np.asarray([4.0]), np.asarray([128.0])
    log_s = grid().log_seconds(*node)
    corners = [float(fitted(np.asarray(1.0), np.asarray(b), np.asarray(128.0))) * 1.25 for b in (1.0, 16.0)]
    assert np.exp(log_s[0]) == pytest.approx(np.sqrt(corners[0] * corners[1]), rel=1e-12)
    assert inside(grid(), *node)


def test_a_hole_between_measured_nodes_is_filled_by_the_ratio_to_the_roofline() -> None:
    keep = np.ones(27, dtype=bool)
    keep[13] = False  # the middle node
    filled = grid(keep)
    node = np.asarray([4.0]), np.asarray([16.0]), np.asarray([1024.0])
    log_s = filled.log_seconds(*node)
    assert np.exp(log_s[0]) == pytest.approx(1.25 * float(fitted(*np.asarray([4.0, 16.0, 1024.0]))), rel=1e-9)
    assert inside(filled, *node)


def test_a_corner_without_neighbours_on_both_sides_is_not_measured() -> None:
    keep = np.ones(27, dtype=bool)
    keep[26] = False
    cut = grid(keep)
    assert not cut.measured[2, 2, 2]
    assert cut.measured.sum() == 26
    assert np.exp(cut.log_s[2, 2, 2]) == pytest.approx(1.25 * float(fitted(*np.asarray([8.0, 64.0, 8192.0]))), rel=1e-9)
    assert not inside(cut, np.asarray([8.0]), np.asarray([64.0]), np.asarray([8000.0]))


def test_outside_is_clamped_and_said() -> None:
    whole = grid()
    beyond, edge = (tuple(map(np.asarray, ([q], [64.0], [8192.0]))) for q in (16.0, 8.0))
    assert whole.log_seconds(*beyond)[0] == whole.log_seconds(*edge)[0]
    assert inside(whole, *edge)
    assert not inside(whole, *beyond)


def test_stretched_nodes_follow_the_roofline_and_are_not_measured() -> None:
    longer = grid().stretched(np.asarray([2.0, 8.0, 16.0, 32.0]), fitted)
    assert list(longer.axes[0]) == [1.0, 4.0, 8.0, 16.0, 32.0]
    node = np.asarray([16.0]), np.asarray([16.0]), np.asarray([1024.0])
    log_s = longer.log_seconds(*node)
    assert np.exp(log_s[0]) == pytest.approx(1.25 * float(fitted(*(float(x[0]) * np.ones(1) for x in node))[0]))
    assert not inside(longer, *node)
    assert longer.measured[:3].all()


def test_long_axes_are_thinned_with_both_ends_kept() -> None:
    points = np.asarray([(1.0, 1.0, float(c)) for c in range(16, 16 + 3 * MAX_NODES)])
    thin = AttentionGrid.from_points(points, fitted(*points.T), fitted)
    assert len(thin.axes[2]) == MAX_NODES
    assert (thin.axes[2][0], thin.axes[2][-1]) == (16.0, 15.0 + 3 * MAX_NODES)


def kind(prefill: bool = False, with_grid: bool = True) -> Any:
    record = st.empty_record(at.ATTENTION)
    record["t0_s"], record["qkv_s"], record["kv_s"], record["p"] = 3e-6, 1e-9, 1e-8, 1.0
    record["layers"], record["origin"] = 1, Origin.EXTRAPOLATED
    record["is_prefill"], record["grid"] = prefill, 0 if with_grid else -1
    return record


def compiled(record: Any, flat: FloatArray, q: float, seqs: float, context: float) -> tuple[float, FloatArray]:
    out = st.empty_record(st.TIMES)
    qkv, kv = q * seqs * context, seqs * context
    seconds = at.attention_seconds(record, flat, at.sums_of(flat, qkv, kv, q * seqs, seqs), 1.0, out)
    return seconds, out["by_origin_s"]


def test_the_compiled_twin_interpolates_as_the_grid_does() -> None:
    whole = grid()
    flat = at.flat_grid(whole, 1)
    rng = np.random.default_rng(3)
    for _ in range(300):
        q, seqs, context = np.exp(rng.uniform(np.log([1, 1, 128]), np.log([8, 64, 8192])))
        log_s = whole.log_seconds(np.asarray([q]), np.asarray([seqs]), np.asarray([context]))
        seconds, origins = compiled(kind(), flat, q, seqs, context)
        assert seconds == pytest.approx(np.exp(log_s[0]), rel=1e-9)
        assert origins[int(Origin.INTERPOLATED)] == seconds == origins.sum()


@pytest.mark.parametrize(("q", "seqs", "context"), [(16, 32, 512), (2, 256, 512), (2, 32, 64), (2, 32, 65536)])
def test_beyond_the_grid_the_roofline_stretches_its_edge(q: float, seqs: float, context: float) -> None:
    seconds, origins = compiled(kind(), at.flat_grid(grid(), 1), q, seqs, context)
    clamped = (min(q, 8.0), min(seqs, 64.0), min(max(context, 128.0), 8192.0))
    edge, _ = compiled(kind(), at.flat_grid(grid(), 1), *clamped)
    ratio = fitted(*np.asarray([q, seqs, context])) / fitted(*np.asarray(clamped))
    assert seconds == pytest.approx(edge * ratio, rel=1e-9)
    assert origins[int(Origin.EXTRAPOLATED)] == seconds


def test_a_node_is_itself_whatever_its_neighbours_are() -> None:
    axes = (np.asarray([1.0, 3.0, 7.0]), np.asarray([1.0, 5.0, 41.0]), np.asarray([100.0, 333.0, 1900.0]))
    points = np.asarray(np.meshgrid(*axes, indexing="ij")).reshape(3, -1).T
    for at_node, point in enumerate(points):
        log_s = np.log(np.arange(1.0, 28.0)).reshape(3, 3, 3)
        alone = (np.arange(27) == at_node).reshape(3, 3, 3)
        flat = at.flat_grid(AttentionGrid(axes, log_s, alone), 1)
        seconds, origins = compiled(kind(), flat, *point)
        assert seconds == pytest.approx(at_node + 1.0, rel=1e-12)
        assert origins[int(Origin.INTERPOLATED)] == seconds


def test_layers_multiply() -> None:
    once, _ = compiled(kind(), at.flat_grid(grid(), 1), 1, 8, 512)
    assert compiled(kind(), at.flat_grid(grid(), 32), 1, 8, 512)[0] == pytest.approx(32 * once, rel=1e-12)


def test_without_a_grid_the_roofline_speaks() -> None:
    seconds, origins = compiled(kind(with_grid=False), np.zeros(1), 4, 16, 1000)
    assert seconds == pytest.approx(float(fitted(*np.asarray([4.0, 16.0, 1000.0]))), rel=1e-12)
    assert origins[int(Origin.EXTRAPOLATED)] == seconds


def test_ragged_prefill_counts_its_own_pairs() -> None:
    # Two chunks of 100 and 1900 tokens attend to more pairs than two of 1000.
    points = np.asarray([(r, b, c) for r in (1.0, 4.0) for b in (1.0, 4.0) for c in (64.0, 4096.0)])
    whole = AttentionGrid.from_points(
        points, np.asarray([1e-6 * b * r * c for r, b, c in points]), lambda r, b, c: 1e-6 * b * r * c
    )
    flat = at.flat_grid(whole, 1)

    def prefill(chunks: tuple[int, ...]) -> float:
        pairs = sum(c * (c + 1) / 2 for c in chunks)
        tokens, count = sum(chunks), len(chunks)
        sums = at.sums_of(flat, pairs, tokens, tokens, count)
        out = st.empty_record(st.TIMES)
        return at.attention_seconds(kind(prefill=True), flat, sums, 1.0, out)

    def roofline(chunks: tuple[int, ...]) -> float:
        return 3e-6 + 1e-9 * sum(c * (c + 1) / 2 for c in chunks) + 1e-8 * sum(chunks)

    assert prefill((100, 1900)) / prefill((1000, 1000)) == pytest.approx(
        roofline((100, 1900)) / roofline((1000, 1000)), rel=1e-9
    )
