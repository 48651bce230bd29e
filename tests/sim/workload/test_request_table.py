"""RequestTable: integrity and its operations on a table small enough to do by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from draftcast.errors import TraceError
from draftcast.sim.workload.request_table import RequestTable


def table() -> RequestTable:
    """Four requests 1 s apart; 2-token hash blocks; acceptance as long as the output plus position 0."""
    return RequestTable.from_columns(
        [4, 2, 6, 1],
        [3, 1, 2, 5],
        [0.0, 1.0, 2.0, 3.0],
        hash_ids=np.array([7, 8, 7, 7, 9, 10]),
        hash_offsets=np.array([0, 2, 3, 6, 6]),
        hash_block_tokens=2,
        acceptance_lengths=np.array([0, 1, 2, 3, 0, 1, 0, 4, 5, 0, 1, 1, 1, 1, 1], dtype=np.uint8),
        acceptance_offsets=np.array([0, 4, 6, 9, 15]),
        source_lines=np.array([2, 3, 4, 5]),
    )


def test_from_columns_sorts_and_fills() -> None:
    t = RequestTable.from_columns([1, 2, 3], [4, 5, 6], [2.0, 1.0, 2.0], source_lines=np.array([10, 11, 12]))
    assert t.arrival_s.tolist() == [1.0, 2.0, 2.0]
    assert t.prompt_tokens.tolist() == [2, 1, 3]  # ties keep their order
    assert t.source_lines is not None
    assert t.source_lines.tolist() == [11, 10, 12]
    assert not RequestTable.from_columns([1], [1]).has_arrivals
    t.check_integrity()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arrival_s": np.array([0.0, 2.0, 1.0, 3.0])}, "decrease"),
        ({"arrival_s": np.array([0.0, 1.0, 2.0, np.nan])}, "finite"),
        ({"arrival_s": np.array([-1.0, 1.0, 2.0, 3.0])}, "negative"),
        ({"prompt_tokens": np.array([4, 2, 0, 1], dtype=np.int32)}, "prompt_tokens"),
        ({"output_tokens": np.array([3, 1, 2, 0], dtype=np.int32)}, "output_tokens"),
        ({"output_tokens": np.array([3, 1, 2, 5])}, "dtype"),
        ({"priority": np.zeros(3, dtype=np.int32)}, "shape"),
        ({"class_id": np.array([0, 0, 1, 0], dtype=np.int16)}, "class_id"),
        ({"hash_block_tokens": 0}, "hash"),
        ({"hash_block_tokens": 4}, "more hashes"),
        ({"hash_offsets": np.array([0, 2, 3, 5, 5])}, "span"),
        ({"acceptance_offsets": None}, "acceptance"),
        ({"output_tokens": np.array([9, 1, 2, 5], dtype=np.int32)}, "shorter than the output"),
    ],
)
def test_check_integrity_finds_it(change: dict[str, object], message: str) -> None:
    t = table()
    t.check_integrity()
    with pytest.raises(AssertionError, match=message):
        replace(t, **change).check_integrity()  # type: ignore[arg-type]


def test_take_and_slice_carry_the_ragged_columns() -> None:
    t = table().take([2, 3, 3])
    t.check_integrity()
    assert t.prompt_tokens.tolist() == [6, 1, 1]
    assert t.hash_ids is not None
    assert t.hash_offsets is not None
    assert t.hash_ids.tolist() == [7, 9, 10]
    assert t.hash_offsets.tolist() == [0, 3, 3, 3]
    assert t.acceptance_lengths is not None
    assert t.acceptance_lengths.tolist() == [0, 4, 5, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1]
    assert table().slice(1, 3).prompt_tokens.tolist() == [2, 6]
    assert len(table().slice(4, 9)) == 0
    table().slice(4, 9).check_integrity()


def test_clip_time_and_lengths() -> None:
    t = table().keep((table().arrival_s >= 1.0) & (table().arrival_s < 3.0)).shift_to_zero()
    assert t.arrival_s.tolist() == [0.0, 1.0]
    assert t.prompt_tokens.tolist() == [2, 6]
    assert table().mean_gap_s == 1.0
    short = table().clip_lengths(max_prompt_tokens=3, max_output_tokens=2)
    short.check_integrity()
    assert short.prompt_tokens.tolist() == [3, 2, 3, 1]
    assert short.output_tokens.tolist() == [2, 1, 2, 2]
    assert short.hash_offsets is not None
    assert np.diff(short.hash_offsets).tolist() == [2, 1, 2, 0]  # the third prompt lost a block


def test_sample_is_nested_and_keeps_times() -> None:
    t = RequestTable.from_columns(np.arange(1, 1001), np.ones(1000), np.arange(1000) * 2.0)
    small, large = t.sample(50, seed=3), t.sample(200, seed=3)
    assert len(small) == 50
    assert set(small.prompt_tokens) < set(large.prompt_tokens)
    assert (large.arrival_s == (large.prompt_tokens - 1) * 2.0).all()
    assert (t.sample(50, seed=4).prompt_tokens != small.prompt_tokens).any()
    assert t.sample(1000, seed=0).prompt_tokens.tolist() == t.prompt_tokens.tolist()
    for n in (0, 1001):
        with pytest.raises(TraceError, match="sample_requests"):
            t.sample(n, seed=0)
