"""All-reduce between two processes over 127.0.0.1."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from draftcast.errors import HardwareError
from draftcast.kernels.operators import all_reduce
from draftcast.kernels.operators.registry import operator

ALL_REDUCE = operator("all_reduce")
TORCH = ALL_REDUCE.implementations["torch"]


@pytest.fixture(scope="module", autouse=True)
def _no_process_stays() -> Iterator[None]:
    yield
    ALL_REDUCE.close()


def made(message_bytes: int, dtype: str = "fp32", seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return ALL_REDUCE.make_inputs({"message_bytes": message_bytes, "ranks": 2}, dtype, "", "cpu", generator)


def prepared(inputs: dict[str, Any]) -> tuple[Any, torch.Tensor]:
    outputs = ALL_REDUCE.make_outputs(inputs)
    outputs["sum"].fill_(torch.nan)
    return TORCH.prepare(inputs, outputs), outputs["sum"]


@pytest.mark.parametrize("dtype", ALL_REDUCE.dtypes)
@pytest.mark.parametrize("message_bytes", [4, 12, 4096, 1_000_004])
def test_every_rank_is_in_the_sum(message_bytes: int, dtype: str) -> None:
    """Again and again: a launch leaves the messages as they are. bf16 sums of two are rounded once."""
    inputs = made(message_bytes, dtype)
    launch, found = prepared(inputs)
    for _ in range(20):
        launch()
        expected = ALL_REDUCE.reference(inputs)["sum"]
        torch.testing.assert_close(found.double(), expected, rtol=2**-8 if dtype == "bf16" else 1e-6, atol=1e-6)
        found.fill_(torch.nan)


def test_equal_messages_are_one_preparation_and_others_replace_it() -> None:
    inputs = made(64)
    first, out = prepared(inputs)
    copied, other_out = prepared({"messages": inputs["messages"].clone()})
    for launch in (first, copied, first):
        launch()
    assert torch.equal(out, other_out)
    replaced, new = prepared(made(64, seed=1))
    replaced()
    assert not torch.equal(new, out)
    with pytest.raises(RuntimeError, match="another all-reduce was prepared"):
        first()


def test_a_rank_that_is_gone_is_an_error_and_the_next_starts_anew() -> None:
    launch, _ = prepared(made(64))
    launch()
    old = all_reduce.rank_group(2, "cpu")
    old._processes[0].kill()
    old._processes[0].join()
    with pytest.raises(RuntimeError):
        launch()
    inputs = made(64, seed=2)
    launch, found = prepared(inputs)
    launch()
    assert all_reduce.rank_group(2, "cpu") is not old
    torch.testing.assert_close(found.double(), ALL_REDUCE.reference(inputs)["sum"], rtol=1e-6, atol=1e-6)


def test_a_team_that_cannot_be_formed_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, children: Callable[[], list[int]]
) -> None:
    seen: list[int] = []

    def refused(*_: object) -> None:
        seen.extend(children())
        raise RuntimeError("no connection")

    monkeypatch.setattr(all_reduce, "_process_group", refused)
    with pytest.raises(RuntimeError, match="no connection"):
        all_reduce.RankGroup(3, "cpu")
    assert len(seen) == 2
    assert not children()


def test_a_rank_that_cannot_start_is_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, children: Callable[[], list[int]]
) -> None:
    """A spawned process imports the main module first, which may fail where this one's does not."""
    main = ModuleType("__main__")
    main.__file__ = str(tmp_path / "main.py")
    Path(main.__file__).write_text("raise SystemExit('no main')")
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(RuntimeError, match="rank 1 of the all-reduce ended as it started"):
        all_reduce.RankGroup(2, "cpu")
    assert not children()


def test_what_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(ranks: int, device: str = "cpu") -> str:
        return TORCH.supports({"message_bytes": 8, "ranks": ranks}, "fp32", "", device)

    assert reason(1) == "an all-reduce needs two ranks"
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert reason(2) == ""
    assert reason(3) == "3 ranks need as many cores; there are 2"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert reason(2, "cuda") == "2 ranks need as many GPUs; there are 1"


@pytest.mark.parametrize("message_bytes", [0, 6])
def test_a_message_is_whole_elements(message_bytes: int) -> None:
    with pytest.raises(HardwareError, match=f"message_bytes = {message_bytes}: must be a positive multiple of 4"):
        made(message_bytes)
