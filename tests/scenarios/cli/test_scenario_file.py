"""``init`` and ``schema``: what a scenario file may hold, from the schema; and what the shell completes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import before
import jsonschema
import pytest
import yaml
from answer_schemas import command_of, infer
from typer.testing import CliRunner

from draftcast.calibration.live.run_directory import LiveRun
from draftcast.errors import InputError
from draftcast.scenarios.cli import main as cli
from draftcast.scenarios.cli.live import print_run
from draftcast.scenarios.cli.main import schema_of
from draftcast.scenarios.cli.options import complete_device, complete_key, complete_scenario
from draftcast.scenarios.schema.changes import commented_scenario, scenario_keys
from draftcast.scenarios.schema.load import embedded_scenarios, load_scenario, scenario_hash


def test_init_writes_the_default_and_overwrites_nothing(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    done = CliRunner().invoke(cli.app, ["init", str(path)])
    assert done.exit_code == 0, done.output
    assert load_scenario(path) == load_scenario("default")
    assert "# GPUs that share every layer.\n  # tensor_parallel_size: 1\n" in path.read_text()
    again = CliRunner().invoke(cli.app, ["init", str(path)])
    assert isinstance(again.exception, InputError)
    assert "already exists" in str(again.exception)
    assert CliRunner().invoke(cli.app, ["init", "-"]).stdout == path.read_text()
    both = CliRunner().invoke(cli.app, ["init", "-", "--json"])
    assert "standard output takes the scenario or --json" in str(both.exception)


def test_every_key_behind_a_comment_holds_its_default(tmp_path: Path) -> None:
    text = commented_scenario()
    path = tmp_path / "all.yaml"
    every = re.sub(r"^( *)# (?!null:)([a-z_]+: )", r"\1\2", text, flags=re.MULTILINE)
    assert every.count("\n  # ") < text.count("\n  # ") - 25
    path.write_text(every)
    one, other = load_scenario(path), load_scenario("default")
    ours = one.model_copy(update={"engine": one.engine.model_copy(update={"speculative_config": None})})
    theirs = other.model_copy(update={"engine": other.engine.model_copy(update={"speculative_config": None})})
    assert scenario_hash(ours) == scenario_hash(theirs)
    assert one.num_speculative_tokens == other.num_speculative_tokens


def test_the_schema_takes_every_embedded_scenario_and_no_other_key() -> None:
    done = CliRunner().invoke(cli.app, ["schema"])
    schema = json.loads(done.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    for name, text in embedded_scenarios().items():
        assert not list(check.iter_errors(yaml.safe_load(text))), name
    data = yaml.safe_load(embedded_scenarios()["default"])
    assert list(check.iter_errors(data | {"colour": "red"}))
    data["engine"]["tensor_parallel_size"] = 0
    assert list(check.iter_errors(data))
    assert schema["$defs"]["Engine"]["properties"]["tensor_parallel_size"]["description"]


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ("cluster.router", ["least_loaded"], "fastest"),
        ("engine.dtype", ["bfloat16"], "bf17"),
        ("engine.speculative_config.method", ["mtp", "deepseek_mtp", None], "eagle4"),
        ("policy.name", ["goodput", "package.module:Own"], "good"),
        ("hardware", ["h200", "H100", "devices/own.yaml"], ""),
    ],
)
def test_the_schema_lists_the_names_of_closed_lists(key: str, right: list[str | None], wrong: str) -> None:
    check = jsonschema.Draft202012Validator(schema_of(""))
    *sections, name = key.split(".")
    for value, is_right in [*((value, True) for value in right), (wrong, False)]:
        data = section = yaml.safe_load(embedded_scenarios()["default"])
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
        assert check.is_valid(data) == is_right, value


def valid(line: str) -> bool:
    done = CliRunner().invoke(cli.app, shlex.split(line))
    return jsonschema.Draft202012Validator(schema_of(command_of(line))).is_valid(json.loads(done.stdout))


@pytest.mark.parametrize(
    "line",
    [
        "models --json",
        "acceptance list llama --json",
        "profile compare h100-sxm b200 --json",
        "simulate default --set workload.num_requests=50 --replications 1 --compare-off --json",
        "simulate default --set workload.num_requests=50 --speculative-config null --json",
    ],
)
def test_an_answer_is_what_its_schema_says(line: str) -> None:
    """Of other arguments than those that the schemas were inferred from; `test_before` checks those."""
    assert valid(line)


def test_what_a_live_run_prints_is_what_its_schema_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tarfile.open(before.RUNS) as archive:
        archive.extractall(tmp_path, filter="data")
    check = jsonschema.Draft202012Validator(schema_of("live run"))
    folders = sorted(path.parent for path in tmp_path.glob("*/*/manifest.json"))
    assert len(folders) == 8
    for folder in folders:
        print_run(LiveRun.read(folder), True)
        data = json.loads(capsys.readouterr().out)
        assert check.is_valid(data), folder
        assert not check.is_valid(data | {"manifest": None})


def test_schemas_are_inferred_from_what_answers_share() -> None:
    found = infer([{"a": 1, "b": [None, 2.5]}, {"a": None, "b": [], "c": "x"}, {"a": 3, "b": [7]}])
    numbers = {"type": ["number", "null"]}
    assert found["properties"] == {"a": numbers, "b": {"type": "array", "items": numbers}, "c": {"type": "string"}}
    assert found["required"] == ["a", "b"]
    assert infer([{"h100-sxm": {"x": True}}])["additionalProperties"]["properties"] == {"x": {"type": "boolean"}}
    with pytest.raises(InputError, match="choose from"):
        schema_of("nothing")


def test_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deployed.yaml").write_text("")
    assert complete_scenario("de") == ["default", "deployed.yaml"]
    assert complete_device("h100-sxm,h20-") == ["h100-sxm,h20-141g"]
    assert complete_device("h100-sxm,h200") == ["h100-sxm,h200", "h100-sxm,h200-nvl"]
    assert complete_key("engine.block") == ["engine.block_size="]
    assert complete_key("hardware=h100-s") == ["hardware=h100-sxm"]
    assert "engine.model=Qwen3-8B" in complete_key("engine.model=Qwen3")
    assert complete_key("engine.block_size=") == []
    keys = list(scenario_keys())
    assert {"engine.speculative_config.method", "workload.arrivals.request_rate_rps", "slo.ttft_ms"} <= set(keys)


def test_the_shell_completes_a_command_line() -> None:
    environment = os.environ | {"_DRAFTCAST_COMPLETE": "complete_bash", "COMP_CWORD": "4"}
    environment["COMP_WORDS"] = "draftcast simulate default --set engine.watermark"
    program = str(Path(sys.executable).with_name("draftcast"))
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["engine.watermark="], done.stderr


@pytest.mark.parametrize("command", [command.__name__ for command in cli.COMMANDS])
def test_help_shows_an_example(command: str) -> None:
    shown = CliRunner().invoke(cli.app, [command, "--help"]).stdout
    assert f"Example: draftcast {command}" in shown
