"""Acceptance from vLLM's counters: Prometheus text and bench JSON, sums, differences, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from samples import prometheus
from typer.testing import CliRunner

from draftcast.calibration.acceptance.metrics import read_metrics
from draftcast.errors import InputError
from draftcast.scenarios.cli import main as cli
from draftcast.sim.acceptance.chain import Chain


def bench(**changed: Any) -> dict[str, Any]:
    """The keys ``vllm bench serve --save-result`` writes beside its own."""
    return {
        "backend": "vllm",
        "spec_decode_acceptance_rate": 50.0,
        "spec_decode_acceptance_length": 2.5,
        "spec_decode_num_drafts": 200,
        "spec_decode_draft_tokens": 600,
        "spec_decode_accepted_tokens": 300,
        "spec_decode_per_position_acceptance_rates": [0.75, 0.5, 0.25],
        **changed,
    }


def put(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_rates_since_the_server_started(tmp_path: Path) -> None:
    found = read_metrics(put(tmp_path, "metrics", prometheus(200, 600, [150, 100, 50])))
    assert found.rates == (0.75, 0.5, 0.25)
    assert (found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens) == (200, 600, 300)
    assert found.mean_acceptance_length == 2.5
    assert found.report()["draft_acceptance_rate"] == 0.5


def test_engines_add_up(tmp_path: Path) -> None:
    text = prometheus(100, 300, [80, 50, 30]) + prometheus(100, 300, [70, 50, 20], engine=1)
    assert read_metrics(put(tmp_path, "metrics", text)).rates == (0.75, 0.5, 0.25)


def test_two_snapshots_give_the_difference(tmp_path: Path) -> None:
    before = put(tmp_path, "before", prometheus(1000, 3000, [100, 20, 10]))
    after = put(tmp_path, "after", prometheus(1200, 3600, [250, 120, 60]))
    found = read_metrics(after, before)
    assert found.rates == (0.75, 0.5, 0.25)
    assert (found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens) == (200, 600, 300)


def test_a_range_query_gives_what_was_counted_in_it(tmp_path: Path) -> None:
    """``/api/v1/query_range`` of Prometheus' HTTP API: a matrix of [second, "value"]; a restart begins at 0 again."""
    counted = {"drafts": (50, 150), "draft_tokens": (150, 450), "accepted_tokens": (75, 225)}
    series = [({"__name__": f"vllm:spec_decode_num_{name}_total"}, values) for name, values in counted.items()]
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    for position, values in enumerate([(38, 112), (25, 75), (12, 38)]):
        series.append(({"__name__": name, "position": str(position)}, values))
    result = [
        {
            "metric": metric | {"model_name": "m"},
            "values": [[0, "7"], [60, str(7 + first)], [120, "0"], [180, str(rest)]],
        }
        for metric, (first, rest) in series
    ]
    text = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})
    found = read_metrics(put(tmp_path, "range.json", text))
    assert (found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens) == (200, 600, 300)
    assert found.rates == (0.75, 0.5, 0.25)


def test_large_counters_are_written_with_exponents_and_a_time_may_follow(tmp_path: Path) -> None:
    text = prometheus(2e6, 6e6, [1.5e6, 1e6, 5e5]).replace(" 2000000.0\n", " 2e+06 1763600000000\n")
    assert read_metrics(put(tmp_path, "metrics", text)).num_drafts == 2_000_000


def test_a_scrape_in_mid_step_is_forgiven(tmp_path: Path) -> None:
    assert read_metrics(put(tmp_path, "metrics", prometheus(1000, 2000, [1001, 1002]))).rates == (1.0, 1.0)


def test_bench_result(tmp_path: Path) -> None:
    found = read_metrics(put(tmp_path, "bench.json", json.dumps(bench())))
    assert found == read_metrics(put(tmp_path, "metrics", prometheus(200, 600, [150, 100, 50])))
    assert found.mean_acceptance_length == bench()["spec_decode_acceptance_length"]


GOOD = prometheus(200, 600, [150, 100, 50])


def without(name: str) -> str:
    return "".join(line for line in GOOD.splitlines(keepends=True) if not line.startswith(f"vllm:spec_decode_{name}"))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["vllm:spec_decode_num_drafts_total", "not found"]),
        (without("num_draft_tokens_total"), ["vllm:spec_decode_num_draft_tokens_total", "not found"]),
        (without("num_accepted_tokens_per_pos"), ["num_accepted_tokens_per_pos_total", "found none"]),
        (GOOD.replace('position="1"', 'position="5"'), ["per_pos_total", "found 0, 2, 5"]),
        (GOOD.replace('position="1"', 'place="1"'), [":9:", "per_pos_total", "label position"]),
        (GOOD.replace("} 200.0", "} many"), [":4:", "num_drafts_total = 'many'", "whole number"]),
        (GOOD.replace("} 200.0", "} -200.0"), [":4:", "whole number, 0 or more"]),
        (GOOD.replace("} 200.0", "} NaN"), [":4:", "whole number, 0 or more"]),
        (GOOD.replace("} 200.0", "}"), [":4:", "not a sample"]),
        (GOOD.replace('{engine="0"', "{engine=0"), [":4:", "labels cannot be read"]),
        (prometheus(0, 0, [0, 0]), ["num_drafts_total = 0", "no round with a draft"]),
        (prometheus(100, 300, [50, 70, 10]), ["never rise", "position 1"]),
        (prometheus(100, 300, [150, 70, 10]), ["never rise", "position 0"]),
        (GOOD.replace("num_accepted_tokens_total{", "num_accepted_tokens_total{a=\"b\",").replace("} 300.0", "} 900.0"),
         ["must add up to", "900"]),
        (GOOD + prometheus(1, 3, [1, 0, 0], model='model_name="b"'), ["model_name", "several models"]),
        (json.dumps([bench()]), ["must be the JSON object"]),
        (json.dumps(bench()) + "\n" + json.dumps(bench()), ["not valid JSON: Extra data"]),
        ("{", ["not valid JSON"]),
        (json.dumps({"backend": "vllm"}), ["spec_decode_num_drafts", "not found"]),
        (json.dumps(bench(spec_decode_num_drafts=0)), ["spec_decode_num_drafts = 0", "no round"]),
        (json.dumps(bench(spec_decode_draft_tokens="9")), ["spec_decode_draft_tokens = '9'"]),
        (json.dumps(bench(spec_decode_per_position_acceptance_rates=[])), ["per_position_acceptance_rates = []"]),
        (json.dumps(bench(spec_decode_per_position_acceptance_rates=[0.5, 0.75, 0.25])), ["never rise"]),
        (json.dumps(bench(spec_decode_per_position_acceptance_rates=[0.5, 0.5, 0.25])), ["must add up"]),
    ],
)  # fmt: skip
def test_bad_files_are_refused_by_file_line_and_metric(tmp_path: Path, text: str, parts: list[str]) -> None:
    with pytest.raises(InputError) as raised:
        read_metrics(put(tmp_path, "metrics.txt", text))
    for part in ("metrics.txt", *parts):
        assert part in str(raised.value)


@pytest.mark.parametrize(
    ("before", "parts"),
    [
        (prometheus(300, 600, [150, 100, 50]), ["after", "num_drafts_total", "went down from 300 to 200"]),
        (prometheus(100, 300, [10, 5, 60]), ['position="2"', "went down from 60 to 50"]),
        (prometheus(100, 300, [10, 5]), ["2 positions before, 3 after"]),
        (prometheus(100, 300, [10, 5, 1], model='model_name="b"'), ["different models"]),
        (GOOD, ["no round with a draft"]),
        (json.dumps(bench()), ["before", "must be Prometheus text"]),
        ("", ["before", "num_drafts_total", "not found"]),
    ],
)
def test_snapshots_that_do_not_belong_together(tmp_path: Path, before: str, parts: list[str]) -> None:
    with pytest.raises(InputError) as raised:
        read_metrics(put(tmp_path, "after", GOOD), put(tmp_path, "before", before))
    for part in parts:
        assert part in str(raised.value)


def test_bench_result_takes_no_earlier_snapshot(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leave --before out"):
        read_metrics(put(tmp_path, "b.json", json.dumps(bench())), put(tmp_path, "before", GOOD))


def from_metrics(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["acceptance", "from-metrics", *arguments], catch_exceptions=True)


def test_command_writes_a_section_that_a_scenario_takes(tmp_path: Path) -> None:
    path, out = put(tmp_path, "metrics", GOOD), tmp_path / "acceptance.yaml"
    done = from_metrics(str(path), "--json", "--out", str(out))
    assert done.exit_code == 0, done.output
    section = yaml.safe_load(out.read_text())
    assert section == json.loads(done.stdout)["acceptance"]
    assert Chain(**{**section, "rates": tuple(section["rates"])}).rates == (0.75, 0.5, 0.25)
    text = from_metrics(str(path))
    assert text.exit_code == 0
    assert re.search(r"mean acceptance length +2\.5000", text.stdout)
    assert yaml.safe_load(text.stdout[text.stdout.index("acceptance:") :]) == {"acceptance": section}


def test_command_refuses_bad_input(tmp_path: Path) -> None:
    done = from_metrics(str(tmp_path / "none"))
    assert isinstance(done.exception, InputError)
    assert "no such file" in str(done.exception)
    path = put(tmp_path, "metrics", GOOD)
    done = from_metrics(str(path), "--out", str(path))
    assert "already exists" in str(done.exception)


def sglang(rounds: int, generated: int, requests: int, length: float = 2.5, rate: float = 0.5) -> str:
    labels = 'model_name="m",tp_rank="0"'
    return (
        f"# TYPE sglang:spec_accept_length gauge\nsglang:spec_accept_length{{{labels}}} {length}\n"
        f"sglang:spec_accept_rate{{{labels}}} {rate}\nsglang:spec_verify_calls_total{{{labels}}} {rounds}.0\n"
        f'sglang:generation_tokens_total{{{labels},is_streaming="true"}} {generated - 100}.0\n'
        f'sglang:generation_tokens_total{{{labels},is_streaming="false"}} 100.0\n'
        f"sglang:num_requests_total{{{labels}}} {requests}.0\n"
    )


def test_sglang_counts_tokens_of_its_verifications(tmp_path: Path) -> None:
    """Drafts of (2.5 - 1) / 0.5 = 3 tokens; 1,760 tokens of 10 requests in 1,000 rounds are 750 accepted."""
    after = put(tmp_path, "after", sglang(1000, 1760, 10))
    found = read_metrics(after)
    assert (found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens) == (1000, 3000, 750)
    assert sum(found.rates) == pytest.approx(0.75)
    assert found.rates[2] / found.rates[1] == pytest.approx(found.rates[0])
    later = read_metrics(put(tmp_path, "later", sglang(1500, 3260, 10)), after)
    assert (later.num_drafts, later.num_accepted_tokens) == (500, 1000)
    assert from_metrics(str(after), "--out", str(tmp_path / "o.yaml")).exit_code == 0
    assert "SGLang counts no positions" in (tmp_path / "o.yaml").read_text()


def test_trtllm_sums_its_iterations(tmp_path: Path) -> None:
    def step(rounds: int, drafted: int, accepted: int) -> dict[str, Any]:
        stats = {"numRequestsWithDraftTokens": rounds, "numDraftTokens": drafted, "numAcceptedTokens": accepted}
        return {"iter": 1, "specDecodingStats": {**stats, "acceptanceLength": 1.0}}

    steps = [step(4, 12, 6), {"iter": 2, "specDecodingStats": None}, step(6, 18, 9), step(5, 0, 0)]
    for text in (json.dumps(steps), "\n".join(json.dumps(each) for each in steps)):
        found = read_metrics(put(tmp_path, "m.json", text))
        assert (found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens) == (10, 30, 15)
        assert sum(found.rates) == pytest.approx(1.5)
        assert found.server == "TensorRT-LLM"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (sglang(0, 1760, 10), "no round with a draft"),
        (sglang(1000, 9000, 10), "must be 0 to 3 a round"),
        (sglang(1000, 1760, 10).replace("sglang:num_requests_total", "x"), "sglang:num_requests_total: not found"),
        (json.dumps([{"specDecodingStats": {"numDraftTokens": -1}}]), "whole numbers"),
        (json.dumps([{"specDecodingStats": None}]), "no round with a draft"),
    ],
)
def test_bad_files_of_other_servers_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_metrics(put(tmp_path, "metrics.txt", text))
