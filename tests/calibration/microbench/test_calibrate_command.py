"""``draftcast calibrate``: one source at a time, and every option that belongs to another is refused in one line."""

from __future__ import annotations

import inspect
import json
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from draftcast.errors import InputError
from draftcast.scenarios.cli import calibrate as calibrate_command
from draftcast.scenarios.cli.main import app
from draftcast.scenarios.cli.options import option_groups

SOURCES = {
    "--device": ["--device", "cpu", "--out", "there"],
    "--engine-log": ["--engine-log", "server.log"],
    "--import": ["--import", "vidur", "--hardware", "a100-80g", "--out", "there"],
}
FUNCTIONS = {
    "--device": calibrate_command.calibrate_device,
    "--engine-log": calibrate_command.calibrate_engine_log,
    "--import": calibrate_command.calibrate_import,
}
VALUES: dict[str, list[str]] = {
    "model": ["--model", "Llama-3.1-8B"],
    "hardware": ["--hardware", "l40s"],
    "tp": ["--tp", "2"],
    "dtype": ["--dtype", "fp8"],
    "kv_dtype": ["--kv-dtype", "fp8"],
    "name": ["--name", "mine"],
    "out": ["--out", "elsewhere"],
    "seed": ["--seed", "3"],
    "budget": ["--budget", "2h"],
    "operators": ["--operators", "linear"],
    "max_rows": ["--max-rows", "16"],
    "threads": ["--threads", "1"],
    "speculative_log": ["--speculative-log", "drafting.log"],
    "method": ["--method", "eagle"],
    "clock": ["--clock", "wall"],
    "warmup_steps": ["--warmup-steps", "3"],
    "held_out": ["--held-out", "0.5"],
    "bootstrap": ["--bootstrap", "7"],
    "kv_capacity_tokens": ["--kv-capacity-tokens", "1000"],
    "block_size": ["--block-size", "32"],
    "system": ["--system", "a100_sxm"],
    "as_json": ["--json"],
    "path": ["some/folder"],
}


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["calibrate", *arguments])
    assert isinstance(result.exception, InputError), result.output
    message = str(result.exception)
    assert "\n" not in message
    return message


def test_every_option_is_listed_here_and_belongs_to_a_source() -> None:
    options = set(inspect.signature(option_groups(calibrate_command.calibrate)).parameters)
    assert options - {"context", "device", "engine_log", "import_from"} == set(VALUES)
    assert set().union(*calibrate_command.OPTIONS.values()) == set(VALUES)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("option", VALUES)
def test_an_option_reaches_its_source_or_is_refused(
    source: str, option: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No option is ignored: either the source's function gets another value than without it, or one line says no."""
    monkeypatch.chdir(tmp_path)
    seen: list[dict[str, Any]] = []
    function = FUNCTIONS[source]

    def spy(*given: Any) -> None:
        arguments = inspect.signature(function).bind(*given).arguments
        groups = [vars(arguments.pop(name)) for name in list(arguments) if is_dataclass(arguments[name])]
        seen.append({key: value for group in [arguments, *groups] for key, value in group.items()})

    monkeypatch.setattr(inspect.getmodule(function), function.__name__, spy)
    if option not in calibrate_command.OPTIONS[source]:
        name = "path" if option == "path" else VALUES[option][0]
        message = refused(*SOURCES[source], *VALUES[option])
        assert message.startswith(f"{name}: ")
        assert message.endswith(f"does not go with {source}")
        assert not seen
        return
    for arguments in (SOURCES[source], [*SOURCES[source], *VALUES[option]]):
        done = CliRunner().invoke(app, ["calibrate", *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    before, after = seen
    assert before.keys() == after.keys()
    assert {key for key in before if before[key] != after[key]} == {option}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "exactly one of --device (what to time), --engine-log (a log of vLLM), --import (whose timings) is need"),
        (["--device", "cpu", "--import", "vidur"], "is needed, not --device and --import"),
        (["--device", "cpu", "--engine-log", "a", "--out", "b"], "is needed, not --device and --engine-log"),
        (["--device", "cpu"], "--out: required with --device"),
        (["--import", "vidur", "x", "--hardware", "l40s"], "--out: required with --import"),
        (["--import", "vidur", "x", "--out", "y"], "--hardware: required with --import"),
        (["--import", "vidur", "--out", "y", "--hardware", "l40s"], "path: the path of vidur's files is needed"),
        (["--import", "vidur", "x", "--out", "y", "--hardware", "no-such"], "hardware = 'no-such'"),
        (["--import", "llmservingsim", "x", "--out", "y", "--hardware", "l40s"], "model: llmservingsim's files name"),
        (
            ["--import", "vidur", "x", "--out", "y", "--hardware", "l40s", "--tp", "2"],
            "tp: vidur does not take it",
        ),
        (["--import", "vidur", "x", "--out", "y", "--tp", "1", "--tp", "2"], "--tp: '1 2': only one with --import"),
        (["--engine-log", "a", "--model", "x", "--model", "y"], "--model: 'x y': only one with --engine-log"),
        (["--engine-log", "no-such-file"], "no-such-file: no such file"),
        (["--engine-log", "a", "--out", "b", "--model", "m"], "--hardware: required with --out"),
        (["--engine-log", "a", "--out", "b", "--hardware", "h100-sxm"], "--model: required with --out"),
        (["--import", "llmservingsim", "x", "--out", "y", "--hardware", "l40s", "--dtype", "xyz"], "dtype = 'xyz'"),
    ],
)  # fmt: skip
def test_wrong_combinations_are_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(*arguments)
    assert not list(tmp_path.iterdir())


def mlp_file(folder: Path) -> Path:
    """A folder with Vidur's mlp.csv: one layer of a small model at a few token counts."""
    layers = ("emb", "attn_pre_proj", "attn_rope", "attn_post_proj", "mlp_up_proj", "mlp_act", "mlp_down_proj")
    rows = [
        {"n_head": 32, "n_kv_head": 8, "n_embd": 4096, "n_expanded_embd": 14336, "vocab_size": 128256,
         "use_gated_mlp": True, "num_tokens": tokens, "num_tensor_parallel_workers": 1}
        | {f"time_stats.{layer}.median": 0.1 + tokens / 1000 for layer in layers}
        for tokens in (1, 64, 512, 4096)
    ]  # fmt: skip
    folder.mkdir()
    pd.DataFrame(rows).to_csv(folder / "mlp.csv", index=False)
    return folder


def test_an_import_is_written_shown_and_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = mlp_file(tmp_path / "profiling")
    arguments = ["--import", "vidur", str(source), "--hardware", "a100-80g"]
    text = CliRunner().invoke(app, ["calibrate", *arguments, "--out", "one"], catch_exceptions=False).stdout
    assert "written: one" in text
    assert "linear" in text
    done = CliRunner().invoke(app, ["calibrate", *arguments, "--out", "two", "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert found["written"] == "two"
    assert {row["operator"]: row["points"] for row in found["operators"]} == {
        "all_reduce": 137, "embedding": 4, "linear": 16, "rotary": 4, "swiglu": 4
    }  # fmt: skip
    manifest = json.loads((tmp_path / "two" / "manifest.json").read_text())
    assert manifest["command"] == "draftcast calibrate --import vidur profiling --hardware a100-80g --out two"
    shown = CliRunner().invoke(app, ["profile", "show", "two"], catch_exceptions=False).stdout
    assert "imported from a compute profile of Vidur" in shown
    assert "exists already: give a new folder" in refused(*arguments, "--out", "two")
