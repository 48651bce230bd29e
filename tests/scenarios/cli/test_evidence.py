"""``draftcast evidence``: its filters, its answers and the former name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftcast.errors import InputError
from draftcast.scenarios.cli.evidence import PointFilter
from draftcast.scenarios.cli.main import app


def test_every_filter_narrows_the_points() -> None:
    everything = len(PointFilter().points())
    for chosen, holds in (
        (PointFilter(model="qwen3-8b"), lambda p: "qwen3-8b" in p.model.lower()),
        (PointFilter(device="h100"), lambda p: "h100" in p.gpu.lower()),
        (PointFilter(method="ngram"), lambda p: p.spec.method == "ngram"),
        (PointFilter(method="none"), lambda p: not p.spec.is_on),
        (PointFilter(engine="sglang"), lambda p: p.engine.split(" (")[0] == "sglang"),
        (PointFilter(load="burst"), lambda p: p.load.kind == "burst"),
        (PointFilter(tier="a,b"), lambda p: p.tier in "AB"),
        (PointFilter(source="SpecForge"), lambda p: "SpecForge" in p.source),
    ):
        found = chosen.points()
        assert 0 < len(found) < everything
        assert all(holds(point) for point in found)
    with pytest.raises(InputError, match="no point has --model gpt-9"):
        PointFilter(model="gpt-9").points()
    with pytest.raises(InputError, match=r"no point has --device H100, --tier Z; --tier: A, B, C$"):
        PointFilter(device="H100", tier="Z").points()


@pytest.mark.parametrize("command", ["evidence", "published"])
def test_measured_stands_beside_forecast(command: str, tmp_path: Path) -> None:
    picture = tmp_path / "evidence.html"
    chosen = ["--source", "PR 16937", "--method", "eagle"]
    answer = CliRunner().invoke(app, [command, *chosen, "--json", "--plot", str(picture)])
    assert answer.exit_code == 0
    points = json.loads(answer.stdout)["points"]
    assert [point["id"] for point in points] == [f"vllm-pr-16937-eagle-k{k}" for k in (2, 4, 7)]
    for point in points:
        assert point["measured"]["off"] == 133.0
        assert point["forecast"]["off"] > 0
        assert point["error"]["speedup"] == pytest.approx(
            point["forecast"]["speedup"] / point["measured"]["speedup"] - 1
        )
        assert point["source"] == "vLLM PR 16937"
        assert point["tier"] == "C"
    assert picture.stat().st_size > 0


def test_the_table_names_the_reasons() -> None:
    answer = CliRunner().invoke(app, ["evidence", "--source", "wtdcode"])
    assert answer.exit_code == 0
    assert "input_tokens: not given" in answer.stdout
    assert "0 of 1 points" in answer.stdout
