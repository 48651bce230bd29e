"""vLLM's iteration log: every form of the line, what stands around it, KV tokens and the clock."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from paths import DATA

from draftcast.calibration.engine_log.log import COLUMNS, read_engine_log
from draftcast.calibration.engine_log.steps import timed_steps, with_kv_tokens
from draftcast.errors import InputError

COUNTS = ("context_requests", "context_tokens", "generation_requests", "generation_tokens")


def line(step: int, context: str = "0/0", generation: str = "1/1", ms: float = 10.0, tail: str = "") -> str:
    """The message as vLLM words it; ``context`` and ``generation`` are requests/tokens."""
    (a, b), (c, d) = context.split("/"), generation.split("/")
    return (
        f"Iteration({step}): {a} context requests, {b} context tokens, {c} generation requests, "
        f"{d} generation tokens, iteration elapsed time: {ms:.2f} ms{tail}"
    )


def usage(percent: float) -> str:
    return f", GPU KV cache usage: {percent:.1f}%"


def text(stamp: str, message: str, process: str = "APIServer pid=7") -> str:
    return f"({process}) INFO {stamp} [loggers.py:199] {message}"


def put(folder: Path, *lines: str, name: str = "server.log") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


NEW = "Engine 000: " + line(7, "2/409", "3/12", 12.41, usage(3.2))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (text("11-21 07:34:27", NEW), {"resolution_s": 1.0, "kv_usage": 0.032}),
        (
            f"\x1b[0;36m(APIServer pid=1)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m11-21 07:34:27\x1b[0m "
            f"\x1b[90m[loggers.py:199]\x1b[0m {NEW}",
            {"resolution_s": 1.0, "kv_usage": 0.032},
        ),
        (
            '{"asctime": "2026-11-21 07:34:27,746", "levelname": "INFO", "name": "vllm.v1.metrics.loggers", '
            f'"processName": "MainProcess", "process": 10763, "message": "{NEW}", "vllm_process_name": "APIServer"}}',
            {"resolution_s": 0.001, "kv_usage": 0.032},
        ),
        (
            text("12-22 21:44:40", line(7, "2/409", "3/12", 12.41), "EngineCore_DP1 pid=20"),
            {"engine": 1, "kv_usage": math.nan, "resolution_s": 1.0},
        ),
        (
            f"2026-11-21T07:34:27.746123456Z stdout F {text('11-21 07:34:27', NEW)}",
            {"resolution_s": 1e-9},
        ),
        (f"1795246467.250000 {NEW}", {"resolution_s": 1e-6, "time_s": 1795246467.25}),
        (f"[rank0] no stamp at all {NEW}", {"time_s": math.nan, "resolution_s": math.nan}),
        (
            "Engine 003: " + line(7, "2/409", "3/12", 12.41, " (dummy)" + usage(0.0)),
            {"engine": 3, "dummy": True, "kv_usage": 0.0},
        ),
        (NEW + ", encoder inputs: 4, encoder output embeddings: 3520", {"encoder_inputs": 4, "kv_usage": 0.032}),
        (f"Processed prompts:  40%|####      | 4/10 [00:03<00:05]\r{NEW}", {"kv_usage": 0.032}),
    ],
    ids=["text", "colour", "json", "before-0.27", "container", "epoch", "bare", "dummy", "encoder", "progress-bar"],
)  # fmt: skip
def test_every_form_of_the_line(tmp_path: Path, written: str, expected: dict[str, float]) -> None:
    frame = read_engine_log(put(tmp_path, "INFO something else", written))
    assert list(frame.columns) == list(COLUMNS)
    (row,) = frame.to_dict("records")
    assert [row[name] for name in COUNTS] == [2, 409, 3, 12]
    assert (row["step"], row["line"], row["elapsed_s"]) == (7, 2, pytest.approx(0.01241))
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, nan_ok=True), name


def test_other_lines_and_torn_ones(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        *(text("11-21 07:00:00", "Engine 000: " + line(step, tail=usage(1.0))) for step in range(300)),
        "Traceback (most recent call last):",
        # Two processes wrote into one line, the second whole, the third cut short.
        f"{NEW}(APIServer pid=7) INFO 11-21 07:00:01 [loggers.py:199] Engine 000: {line(300, tail=usage(1.0))}",
        "Engine 000: Iteration(301): 0 context requ(EngineCore pid=9) WARNING x",
        text("11-21 07:00:01", "Engine 000: " + line(302, tail=", GPU KV cache usage: 1")),
    )
    frame = read_engine_log(path)
    assert frame.attrs["damaged_lines"] == 2
    assert frame["step"].tolist() == [*range(300), 300, 7]
    assert frame["run"].tolist() == [0] * 301 + [1]  # step 7 a second time: another life


def test_engines_and_restarts_are_told_apart(tmp_path: Path) -> None:
    one, other = "APIServer pid=7", "APIServer pid=8"
    path = put(
        tmp_path,
        text("11-21 07:00:00", "Engine 000: " + line(0), one),
        text("11-21 07:00:00", "Engine 001: " + line(0), one),
        text("11-21 07:00:00", "Engine 000: " + line(1), one),
        text("11-21 07:00:00", "Engine 000: " + line(0), other),  # another server in the same file
        text("11-21 07:00:09", "Engine 000: " + line(0), one),  # restarted
        text("11-21 07:00:09", "Engine 000: " + line(1), one),
    )
    frame = read_engine_log(path)
    assert frame.groupby("run")["engine"].first().tolist() == [0, 1, 0, 0]
    assert frame.groupby("run")["line"].apply(list).tolist() == [[1, 3], [2], [4], [5, 6]]


def test_several_front_ends_write_of_one_engine(tmp_path: Path) -> None:
    """Their lines may also come late."""
    steps = [0, 2, 1, 3]
    lines = [text("11-21 07:00:00", "Engine 000: " + line(s), f"ApiServer_{s % 2} pid={s % 2}") for s in steps]
    frame = read_engine_log(put(tmp_path, *lines))
    assert frame["run"].unique().tolist() == [0]
    assert frame["step"].tolist() == [0, 1, 2, 3]


def test_what_the_server_said_at_its_start(tmp_path: Path) -> None:
    speculative = "SpeculativeConfig(method='eagle3', model='x', num_spec_tokens=5), tokenizer"
    path = put(
        tmp_path,
        "Engine 000: " + line(0),
        "INFO non-default args: {'model': 'm', 'block_size': 32}",
        f"INFO Initializing a V1 LLM engine (v0.32.0) with config: model='m', speculative_config={speculative}='m', "
        "quantization=None, enforce_eager=True, aux",
        "INFO GPU KV cache size: 456,128 tokens, Maximum concurrency for 4,096 tokens per request: 7.81x",
        "Engine 000: " + line(1),
        "INFO non-default args: {'model': 'm'}",
        "INFO Initializing a V1 LLM engine (v0.33.0) with config: model='m', speculative_config=None, tokenizer='m'",
        "Engine 000: " + line(2),
    )
    rows = read_engine_log(path).set_index("step")
    facts = ["version", "method", "num_speculative_tokens", "block_size", "kv_capacity_tokens"]
    assert rows["model"].tolist() == ["", "m", "m"]
    assert rows.loc[0, facts].tolist()[:3] == ["", "?", 0]
    assert rows.loc[1, facts].tolist() == ["0.32.0", "eagle3", 5, 32.0, 456128.0]
    assert rows.loc[2, facts].tolist()[:3] == ["0.33.0", "", 0]
    assert rows.loc[2, ["block_size", "kv_capacity_tokens"]].isna().all()
    assert rows["enforce_eager"].tolist() == [pd.NA, True, pd.NA]


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        ([""], ["bad.log: no iteration line", "--enable-logging-iteration-details"]),
        (["hello", '{"a": 1}'], ["bad.log: no iteration line"]),
        (["x", "Iteration(3): 1 context"], ["bad.log:2: not a whole iteration line"]),
        ([line(0), "Iteration(a)", "x", "Iteration(b)"], ["bad.log:2: not an iteration line", "2 such lines beside 1"]),
        (["x", line(0, "3/2")], ["bad.log:2: 3 context requests cannot have 2 tokens"]),
        ([line(0, "0/5")], ["bad.log:1: 0 context requests cannot have 5 tokens"]),
        ([line(0, generation="4/0")], ["bad.log:1: 4 generation requests cannot have 0 tokens"]),
        ([line(0), line(1, tail=usage(100.1))], ["bad.log:2: KV cache usage = '100.1': must be at most 100 %"]),
    ],
)
def test_a_file_that_is_no_log_is_refused_by_file_and_line(tmp_path: Path, lines: list[str], parts: list[str]) -> None:
    with pytest.raises(InputError) as raised:
        read_engine_log(put(tmp_path, *lines, name="bad.log"))
    assert "\n" not in str(raised.value)
    for part in parts:
        assert part in str(raised.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(("\n".join(line(step) for step in range(200))).encode())
    (tmp_path / "cut.gz").write_bytes(whole[:-60])
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 40)
    for name, part in (("cut.gz", "damaged gzip"), ("binary", "no iteration line"), ("none", "no such file")):
        with pytest.raises(InputError, match=part) as raised:
            read_engine_log(tmp_path / name)
        assert name in str(raised.value)


def test_real_log() -> None:
    frame = read_engine_log(DATA / "engine_log_off.log.gz")
    assert frame.attrs["damaged_lines"] == 0
    assert frame["step"].tolist() == list(range(len(frame)))
    assert frame["run"].eq(0).all()
    assert frame["version"].unique().tolist() == ["0.32.0"]
    assert frame["kv_capacity_tokens"].unique().tolist() == [32000.0]
    assert frame["block_size"].unique().tolist() == [32.0]
    assert (frame["generation_tokens"] == frame["generation_requests"]).all()
    assert frame["resolution_s"].unique().tolist() == [0.001]
    drafting = read_engine_log(DATA / "engine_log_draft.log.gz")
    assert drafting["method"].unique().tolist() == ["draft_model"]
    assert drafting["num_speculative_tokens"].unique().tolist() == [3]
    assert drafting["enforce_eager"].all()
    assert (drafting["generation_tokens"] > drafting["generation_requests"]).mean() > 0.9


def served(tmp_path: Path, lines: list[str], capacity: int = 10_000, block_size: int = 1) -> pd.DataFrame:
    start = [f"non-default args: {{'block_size': {block_size}}}", f"GPU KV cache size: {capacity:,} tokens, Max"]
    return read_engine_log(put(tmp_path, *start, *lines))


def test_kv_tokens_are_those_before_the_step(tmp_path: Path) -> None:
    """Two prompts of 100, then 200 tokens; usage in blocks of one token: 1 % is 100 tokens."""
    lines = [
        line(0, "1/100", "0/0", tail=usage(1.0)),
        line(1, "1/200", "1/1", tail=usage(3.0)),
        line(2, generation="2/2", tail=usage(3.0)),
        line(3, generation="2/2", tail=usage(3.0)),
        line(5, generation="2/2", tail=usage(3.0)),
        line(6, generation="1/1", tail=usage(2.0)),
    ]
    kv = with_kv_tokens(served(tmp_path, lines))["kv_tokens"].to_numpy()
    # Steps 2 and 3: the usage says 300 twice, and the second has two tokens more: 299 and 301. Before step 5 a line is
    # missing; nothing says how many tokens there were.
    np.testing.assert_allclose(kv, [np.nan, 100.0, 299.0, 301.0, np.nan, 300.0])


def test_kv_tokens_knobs(tmp_path: Path) -> None:
    frame = served(tmp_path, [line(0, "1/100", "0/0", tail=usage(1.0)), line(1, tail=usage(1.0))], block_size=16)
    last = [
        with_kv_tokens(frame)["kv_tokens"].iloc[-1],
        with_kv_tokens(frame, kv_capacity_tokens=20_000)["kv_tokens"].iloc[-1],
        with_kv_tokens(frame, block_size=32)["kv_tokens"].iloc[-1],
        with_kv_tokens(frame.assign(kv_tokens=7.0))["kv_tokens"].iloc[-1],
    ]
    assert last == [100 - 7.5, 200 - 7.5, 100 - 15.5, 7.0]


def test_kv_tokens_under_asynchronous_scheduling(tmp_path: Path) -> None:
    """The usage then shows a prompt's blocks a line early: the next step is scheduled before this one is logged."""
    sync = [(0, 1, 0.0), (0, 1, 0.0), (1, 1, 5.0), (0, 2, 5.0), (0, 2, 5.0), (0, 2, 5.0)]
    early = [(0, 1, 0.0), (0, 1, 5.0), (1, 1, 5.0), (0, 2, 5.0), (0, 2, 5.0), (0, 2, 5.0)]
    found = []
    for steps in (sync, early):
        lines = [
            line(step, f"{new}/{500 * new}", f"{running}/{running}", tail=usage(used))
            for step, (new, running, used) in enumerate(steps)
        ]
        found.append(with_kv_tokens(served(tmp_path, lines))["kv_tokens"].iloc[2:4].tolist())
    assert found[0][0] == pytest.approx(1.0)
    assert found[1][0] == pytest.approx(1.0)
    assert found[0][1] == pytest.approx(found[1][1], abs=3.0)


def test_kv_tokens_of_the_real_log() -> None:
    """With one request at a time the log itself says how many there are: prompt and steps since it came."""
    frame = with_kv_tokens(read_engine_log(DATA / "engine_log_off.log.gz"))
    busy = (frame["context_requests"] + frame["generation_requests"] > 1).to_numpy()
    alone = frame.iloc[: int(np.argmax(busy))]
    exact, known = [], 0
    for new, context, generation in zip(
        alone["context_requests"], alone["context_tokens"], alone["generation_requests"], strict=True
    ):
        known = 0 if new else known
        exact.append(known)
        known += context + generation
    error = np.abs(alone["kv_tokens"].to_numpy() - np.array(exact))[1:]
    assert len(alone) > 100
    assert np.max(exact) > 300
    # Blocks of 32 tokens and 0.1 % of 32000: single lines are known to 16 + 16 tokens, stretches far better.
    assert np.median(error) < 4.0
    assert error.max() < 32.0


def decode(step: int, stamp: str, ms: float = 10.0) -> str:
    return text(stamp, "Engine 000: " + line(step, ms=ms, tail=usage(1.0)))


def test_only_steps_that_cannot_have_waited_are_timed(tmp_path: Path) -> None:
    lines = [
        *(decode(s, f"11-21 07:00:00.{100 + 10 * s:03d}000") for s in range(5)),
        # Idle: the next step has a prompt only, and nobody knows when it began.
        text("11-21 07:00:05.000000", "Engine 000: " + line(5, "1/300", "0/0", 40.0, usage(2.0))),
        decode(6, "11-21 07:00:05.011000"),
        decode(8, "11-21 07:00:05.033000"),  # a line is missing before it
        decode(9, "11-21 07:00:05.040000"),
        text("11-21 07:00:05.052000", "Engine 000: " + line(10, "0/0", "0/0", tail=" (dummy)")),
        text("11-21 07:00:05.062000", "Engine 000: " + line(11) + usage(1.0) + ", encoder inputs: 1, encoder"),
        decode(12, "11-21 07:00:05.070000"),
    ]
    timed = timed_steps(with_kv_tokens(served(tmp_path, lines)), "wall", warmup_steps=2)
    assert timed.frame["seconds"].tolist() == pytest.approx([0.01, 0.01, 0.01, 0.011, 0.007, 0.008], abs=1e-6)
    assert timed.left_out == {"warm-up": 2, "dummy": 1, "encoder ran": 1, "wall time not sure": 2}
    assert timed.elapsed_share == pytest.approx(0.06 / 0.056, rel=1e-4)
    every = timed_steps(with_kv_tokens(served(tmp_path, lines)), "elapsed", warmup_steps=0)
    assert len(every.frame) == 10
    assert every.frame["seconds"].max() == pytest.approx(0.04)


def test_coarse_stamps_make_blocks(tmp_path: Path) -> None:
    """Steps of 60 ms, stamps of whole seconds: a block begins and ends where the second changes."""
    lines = [decode(s, f"11-21 07:{int(0.06 * s) // 60:02d}:{int(0.06 * s) % 60:02d}", 59.0) for s in range(1, 400)]
    frame = with_kv_tokens(served(tmp_path, lines))
    blocks = timed_steps(frame, "wall", warmup_steps=0).frame
    assert (blocks["seconds"] >= 25 * 0.06).all()
    assert (blocks["seconds"] / blocks["steps"]).mean() == pytest.approx(0.06, rel=0.01)
    assert (blocks["rows"] == blocks["steps"]).all()
    np.testing.assert_allclose(blocks["elapsed_s"], 0.059 * blocks["steps"])
    # Twelve blocks are little; each step has its own figure, and it holds nearly all the time.
    assert timed_steps(frame, "auto").clock == "elapsed"
    # With the worker in the engine's process it does not, and the blocks are what there is.
    small = frame.assign(elapsed_s=1e-5)
    assert timed_steps(small, "auto").clock == "wall"
    assert timed_steps(frame.assign(time_s=np.nan, resolution_s=np.nan), "auto").clock == "elapsed"
    zero = timed_steps(frame.assign(elapsed_s=np.where(frame["step"] < 50, 0.0, 0.059)), "elapsed", warmup_steps=0)
    assert zero.left_out == {"elapsed rounds to 0": 49}


def test_clock_that_the_log_cannot_give_is_refused(tmp_path: Path) -> None:
    frame = with_kv_tokens(served(tmp_path, [line(s) for s in range(50)]))
    with pytest.raises(InputError, match=r"clock = 'wall': no step can be timed"):
        timed_steps(frame, "wall")
    with pytest.raises(InputError, match="must be one of auto, wall, elapsed"):
        timed_steps(frame, "sun")  # type: ignore[arg-type]
