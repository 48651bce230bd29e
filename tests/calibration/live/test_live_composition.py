"""What a logged step held, from log and client together: hand-made lines, and a played run against the truth."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from draftcast.calibration.engine_log.log import read_engine_log
from draftcast.calibration.live.composition import compose, composed_steps
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.errors import InputError

START_UNIX_S = 1_795_000_000.0  # 2026-11-18 in UTC


def write_log(path: Path, steps: list[tuple[float, int, int, int, int]], zone_s: float = 0.0) -> Path:
    """Lines at seconds since the start: context requests, tokens, generation requests, tokens."""
    lines = []
    for number, (at, *counts) in enumerate(steps):
        stamp = pd.Timestamp(START_UNIX_S + zone_s + at, unit="s").strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
        lines.append(
            f"{stamp} Engine 000: Iteration({number}): {counts[0]} context requests, {counts[1]} context tokens, "
            f"{counts[2]} generation requests, {counts[3]} generation tokens, iteration elapsed time: 90.00 ms, "
            "CPU KV cache usage: 1.0%"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def client(rows: list[tuple[float, int, list[tuple[float, int]]]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Requests as (sent, prompt tokens, pieces)."""
    requests, chunks = [], []
    for number, (sent_s, prompt, pieces) in enumerate(rows):
        row = {"request_id": number, "sent_s": sent_s, "prompt_tokens": prompt}
        row |= {"first_token_s": pieces[0][0], "finish_s": pieces[-1][0], "output_tokens": sum(n for _, n in pieces)}
        requests.append(row)
        chunks += [(number, at, tokens) for at, tokens in pieces]
    return pd.DataFrame(requests), pd.DataFrame(chunks, columns=["request_id", "time_s", "tokens"])


@pytest.fixture
def small(tmp_path: Path) -> dict[str, Any]:
    """Two requests with k = 2: prompts of 10 and 30 tokens, the second in two chunks beside the first's decoding."""
    log = write_log(
        tmp_path / "server.log",
        [(1.0, 1, 10, 0, 0), (1.1, 1, 20, 1, 3), (1.2, 1, 10, 1, 3), (1.3, 0, 0, 2, 6), (1.4, 0, 0, 1, 3)],
    )
    first = [(1.002, 1), (1.102, 3), (1.202, 1), (1.303, 2)]
    requests, chunks = client([(0.9, 10, first), (1.05, 30, [(1.202, 1), (1.303, 1), (1.402, 3)])])
    config = {"method": "draft_model", "num_speculative_tokens": 2}
    return {"log": log, "requests": requests, "chunks": chunks, "config": config}


def composed(small: dict[str, Any], **changes: Any) -> pd.DataFrame:
    given = {**small, **changes}
    log = read_engine_log(given["log"])
    manifest = {"start_unix_s": START_UNIX_S, "speculative_config": given["config"]}
    return compose(log, LiveRun(Path(), manifest, given["requests"], given["chunks"]))


def test_steps_counted_by_hand(small: dict[str, Any]) -> None:
    steps = composed(small)
    # In the cache before each step: prompt and all but the last token of the answer so far.
    decode = [0, 10 + 1 - 1, 10 + 4 - 1, (10 + 5 - 1) + 30, 30 + 2 - 1]
    assert steps["decode_kv"].tolist() == [0, decode[1] + 3, decode[2] + 3, decode[3] + 6, decode[4] + 3]
    assert steps["decode_qkv"].tolist() == [0, 39, 48, 3 * 50, 102]
    assert steps["prefill_kv"].tolist() == [10, 20, 30, 0, 0]
    assert steps["prefill_qkv"].tolist() == [55, 210, 10 * 25.5, 0, 0]
    assert steps["kv_tokens"].tolist() == [0, 10, 13 + 20, 44, 31]
    assert steps["tokens"].tolist() == [10, 23, 13, 6, 3]
    # An unfinished prompt is sampled but drafts nothing.
    assert steps["logit_rows"].tolist() == [1, 4, 4, 6, 3]
    assert steps["draft_seqs"].tolist() == [1, 1, 2, 2, 1]
    assert steps["draft_tokens"].tolist() == [2, 2, 4, 4, 2]
    assert steps["draft_kv"].tolist() == [10, 13, 16 + 30, 50, 34]
    assert steps["busy"].tolist() == [False, True, True, True, True]
    assert steps["arrival_wait_s"].iloc[0] == pytest.approx(0.1)
    assert steps["arrival_wait_s"].iloc[1:].isna().all()


def test_without_drafts_and_with_a_schedule(small: dict[str, Any]) -> None:
    assert composed(small, config=None)[["draft_seqs", "draft_tokens", "draft_passes", "draft_kv"]].sum().sum() == 0
    schedule = {"num_speculative_tokens": 2, "num_speculative_tokens_per_batch_size": [[1, 1, 2], [2, 8, 0]]}
    assert composed(small, config=schedule)["draft_passes"].tolist() == [2, 2, 0, 0, 2]


def test_prompts_that_met_the_prefix_cache_end_where_prompts_end(small: dict[str, Any], tmp_path: Path) -> None:
    log = write_log(tmp_path / "hit.log", [(1.0, 1, 4, 0, 0), (1.1, 0, 0, 1, 1)])
    requests, chunks = client([(0.9, 10, [(1.002, 1), (1.102, 1)])])
    steps = composed(small, log=log, requests=requests, chunks=chunks, config=None)
    assert steps["prefill_kv"].tolist() == [10, 0]
    assert steps["prefill_qkv"].tolist() == [7 + 8 + 9 + 10, 0]


def test_a_waiting_prompt_makes_a_step_without_decoding_follow_at_once(small: dict[str, Any], tmp_path: Path) -> None:
    log = write_log(tmp_path / "wait.log", [(1.0, 1, 10, 0, 0), (1.5, 1, 10, 0, 0), (2.5, 1, 10, 0, 0)])
    rows = [(0.9, 10, [(1.002, 1)]), (0.91, 10, [(1.502, 1)]), (2.4, 10, [(2.502, 1)])]
    steps = composed(small, log=log, **dict(zip(("requests", "chunks"), client(rows), strict=True)))
    # The second was sent 90 ms before the first step ended: it may just have been on its way.
    assert steps["busy"].tolist() == [False, False, False]
    rows[1] = (0.85, 10, [(1.502, 1)])
    steps = composed(small, log=log, **dict(zip(("requests", "chunks"), client(rows), strict=True)))
    assert steps["busy"].tolist() == [False, True, False]


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "UTC"])
def test_local_stamps_and_those_of_a_server_in_utc(
    small: dict[str, Any], tmp_path: Path, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        reference = composed(small)["decode_kv"].tolist()
        shifted = write_log(tmp_path / "local.log", [(1.0, 1, 10, 0, 0)], zone_s=19800.0 if zone != "UTC" else 0.0)
        assert len(composed(small, log=shifted)) == 1
        assert len(reference) == 5
        elsewhere = write_log(tmp_path / "far.log", [(1.0, 1, 10, 0, 0)], zone_s=-36000.0)
        with pytest.raises(InputError, match=r"far\.log: no iteration line falls into the time of the run"):
            composed(small, log=elsewhere)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_log_without_stamps_is_refused(small: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "bare.log"
    path.write_text("\n".join(line.split(" ", 2)[2] for line in small["log"].read_text().splitlines()))
    with pytest.raises(InputError, match=r"no time stamps; start vLLM with --logging-config\.formatter json"):
        composed(small, log=path)


@pytest.mark.parametrize(("method", "k"), [(None, 0), ("draft_model", 3)])
def test_a_played_run_is_seen_as_it_was(played: Any, tmp_path: Path, method: str | None, k: int) -> None:
    profile = tmp_path / "true.yaml"
    profile.write_text(yaml.safe_dump(played.TRUE_PROFILE))
    scenario = played.question(profile, method, k, rate=1.5, requests=30, prompt=(32, 3000))
    scenario["engine"] |= {"max_model_len": 8192, "max_num_batched_tokens": 512}
    run = played.play(tmp_path / "run", scenario)
    steps, true = composed_steps(run), pd.read_parquet(tmp_path / "run" / "true_steps.parquet")
    assert len(steps) == len(true)
    for name in ("tokens", "seqs", "decode_seqs", "decode_tokens", "prefill_seqs", "prefill_tokens", "draft_seqs"):
        np.testing.assert_array_equal(steps[name], true[name], err_msg=name)
    for name in ("decode_kv", "decode_qkv", "prefill_kv", "prefill_qkv", "draft_kv"):
        np.testing.assert_allclose(steps[name], true[name], rtol=1e-9, err_msg=name)
