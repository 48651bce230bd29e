"""``vllm bench serve`` against ``draftcast serve`` measures what ``draftcast simulate`` forecasts for its requests.

The server's clock goes slower than real, so that the delays of shared cores are small beside a step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_server import simulated_server

from draftcast import load_scenario, simulate
from draftcast.calibration.live.checkpoint import TARGET, write_testbed
from draftcast.kernels.model.catalog import load_model

pytestmark = pytest.mark.live

SPEED = 0.05
LOADS_RPS = (12.0, 24.0, 36.0)
REQUESTS, PROMPT, OUTPUT = 30, 1000, 100
TPOT, TTFT = 0.02, 0.05


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("testbed")
    fields = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 1, "num_key_value_heads": 1}
    fields |= {"head_dim": 64, "intermediate_size": 64, "vocab_size": 8000}
    target = replace(load_model("testbed-250M"), **fields)
    write_testbed(folder, target, target, (0.5,), (1,))
    return folder / TARGET


def bench(url: str, model: str, tokenizer: Path, rate_rps: float, folder: Path) -> dict[str, Any]:
    """The result of vLLM's own client, whose file it leaves in ``folder``."""
    from vllm.benchmarks.serve import add_cli_args, main_async
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser: argparse.ArgumentParser = FlexibleArgumentParser()
    add_cli_args(parser)
    flags: dict[str, Any] = {"backend": "vllm", "base-url": url, "model": model, "tokenizer": tokenizer, "seed": 3}
    flags |= {"dataset-name": "random", "random-input-len": PROMPT, "random-output-len": OUTPUT}
    flags |= {"random-range-ratio": 0.5, "num-prompts": REQUESTS, "request-rate": rate_rps}
    flags |= {"result-dir": folder, "result-filename": "bench.json"}
    words = [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
    arguments = parser.parse_args([*words, "--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"])
    asyncio.run(main_async(arguments))
    found: dict[str, Any] = json.loads((folder / "bench.json").read_text())
    return found


def figures(measured: dict[str, Any], forecast: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    """(name, measured, forecast) in simulated time."""
    for name in ("tpot", "ttft", "e2el"):
        if f"mean_{name}_ms" in measured:
            yield f"mean_{name}_ms", measured[f"mean_{name}_ms"] * SPEED, 1e3 * forecast[f"mean_{name}_s"].mean
    if "spec_decode_num_drafts" in measured:
        yield "acceptance length", measured["spec_decode_acceptance_length"], forecast["mean_acceptance_length"].mean
        for position, rate in enumerate(measured["spec_decode_per_position_acceptance_rates"]):
            yield f"acceptance at {position}", rate, forecast[f"acceptance_rate_position_{position}"].mean


@pytest.mark.parametrize("rate_rps", LOADS_RPS)
@pytest.mark.parametrize("speculation", ["off", "on"])
def test_vllm_bench_measures_the_forecast(tokenizer: Path, tmp_path: Path, speculation: str, rate_rps: float) -> None:
    off = ["engine.speculative_config=null"] if speculation == "off" else []
    flags = [word for change in off for word in ("--set", change)]
    with simulated_server("default", "--speed", str(SPEED), "--tokenizer", str(tokenizer), *flags) as server:
        model = server.get("/v1/models")["data"][0]["id"]
        measured = bench(server.url, model, tokenizer, rate_rps * SPEED, tmp_path)
    assert measured["completed"] == REQUESTS
    arrivals = {"process": "trace", "path": str(tmp_path / "bench.json"), "time_scale": SPEED}
    load = [f"workload.arrivals={json.dumps(arrivals)}", "workload.lengths=null", "statistics.warmup=none"]
    asked = load_scenario(
        "default", overrides=[*off, *load, f"workload.num_requests={REQUESTS}", "statistics.replications=1"]
    )
    run = simulate(asked)
    assert run.requests["output_tokens"].sum() == measured["total_output_tokens"]
    print(f"\n{speculation}, {rate_rps:g} req/s:")
    errors = {}
    for name, value, expected in figures(measured, run.summary["figures"]):
        errors[name] = value / expected - 1.0
        print(f"  {name}: measured {value:.4g}, forecast {expected:.4g}, {errors[name]:+.2%}")
    assert abs(errors["mean_tpot_ms"]) < TPOT
    assert abs(errors["mean_ttft_ms"]) < TTFT
    assert all(abs(error) < TPOT for name, error in errors.items() if name.startswith("acceptance"))
    assert len(errors) == (6 if speculation == "on" else 2)
