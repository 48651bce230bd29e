"""Rows of the corpus: every shared one is shipped, and bad ones are refused by file, line and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftcast.errors import ScenarioError
from draftcast.scenarios.evidence.point import parse_points, points

SHARED = Path(__file__).parents[4] / "shared" / "data" / "evidence"
ROW: dict[str, Any] = {
    "id": "one",
    "source": "a page",
    "url": "",
    "date": "2026",
    "tier": "A",
    "engine": "vllm",
    "engine_version": "0.20.0",
    "spec": {"method": "eagle3", "k": 2},
    "load": {"kind": "concurrency", "value": 8},
    "metric": "tpot_ms",
    "off": 7.0,
    "on": 6.0,
}


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")
def test_every_shared_row_is_shipped() -> None:
    shipped = {point.id: point for point in points()}
    shared = points(*sorted(SHARED.glob("*.jsonl")))
    assert shared
    for point in shared:
        assert shipped[point.id] == point


def test_the_early_results_are_rows() -> None:
    early = {point.id: point for point in points()}
    assert early["blog-draft-model-sharegpt-qps1"].speedup == 1.5
    assert early["blog-ngram-cnn-high"].speedup == 0.556
    assert early["opt-2.7b-opt-125m"].speedup == 1.35
    assert early["arctic-lstm-k3"].ratio_range == (2.05, 2.45)
    assert early["arctic-lstm-k3-over-ngram"].off_spec.method == "ngram"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"tier": "D"}, "tier"),
        ({"off": -1.0}, "off"),
        ({"load": {"kind": "sometimes"}}, "load.kind"),
        ({"spec": {"method": "eagle3", "k": -2}}, "spec.k"),
        ({"acceptance": {"rate": 1.5}}, "acceptance.rate"),
        ({"metric": "latency"}, "metric"),
        ({"source": None}, "source"),
        ({"off": None, "on": None}, "off"),
        ({"spec": {"method": "none"}}, "spec.method"),
        ({"assumed": {"weather": "fine"}}, "assumed"),
        ({"metric": "speedup"}, "metric"),
        ({"input_token": 3}, "input_token"),
    ],
)
def test_a_bad_row_is_refused_by_file_line_and_field(change: dict[str, Any], key: str) -> None:
    text = "\n".join([json.dumps(ROW), "", json.dumps({**ROW, "id": "two", **change})])
    with pytest.raises(ScenarioError) as caught:
        parse_points([("mine.jsonl", text)])
    assert caught.value.file == "mine.jsonl:3"
    assert caught.value.key == key


def test_an_id_stands_once_and_a_line_is_json() -> None:
    line = json.dumps(ROW)
    with pytest.raises(ScenarioError, match="id of another row"):
        parse_points([("mine.jsonl", f"{line}\n{line}")])
    with pytest.raises(ScenarioError, match=r"mine.jsonl:2.*not valid JSON"):
        parse_points([("mine.jsonl", f"{line}\n{{")])


def test_a_speedup_above_one_is_better_in_every_metric() -> None:
    latency, throughput = parse_points(
        [("m", "\n".join(json.dumps({**ROW, **each}) for each in ({}, {"id": "two", "metric": "output_tok_s"})))]
    )
    assert latency.speedup == pytest.approx(7 / 6)
    assert throughput.speedup == pytest.approx(6 / 7)
