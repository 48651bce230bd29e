"""``draftcast calibrate``: what its options change, what it refuses, and a real run that is killed and goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from draftcast.calibration.microbench import device, runner
from draftcast.calibration.profile.load import read_manifest
from draftcast.calibration.profile.table import load_table
from draftcast.errors import InputError
from draftcast.scenarios.cli.main import app

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}


@pytest.fixture(name="tiny")
def tiny_fixture(tmp_path: Path) -> str:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return str(path)


Command = Callable[..., SimpleNamespace]


@pytest.fixture(name="command")
def command_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: str) -> Command:
    """The command with measuring left out: what it would measure and write, and where."""
    threads = torch.get_num_threads()

    def run(*options: str) -> SimpleNamespace:
        seen = SimpleNamespace()

        class Spy:
            def __init__(self, folder: Path, found: Any, plan: Any, kernels: Any, **more: Any) -> None:
                seen.folder, seen.settings, seen.device, seen.plan = folder, plan.settings, found, plan
                seen.kernels, seen.budget_s = kernels, more["budget_s"]

            def __enter__(self) -> Spy:
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def measure(self) -> None:
                pass

            def write(self, name: str, hardware: Any, command: list[str]) -> None:
                seen.name, seen.hardware, seen.command = name, hardware.name, command
                raise typer.Exit

        monkeypatch.setattr(runner, "Calibration", Spy)
        given = {"--device": "cpu", "--out": str(tmp_path / "out"), "--model": tiny}
        given |= dict(zip(options[::2], options[1::2], strict=True))
        done = CliRunner().invoke(
            app, ["calibrate", *(part for pair in given.items() for part in pair)], standalone_mode=False
        )
        torch.set_num_threads(threads)
        if isinstance(done.exception, InputError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return seen

    return run


def shapes(seen: SimpleNamespace, operator: str) -> list[dict[str, int]]:
    return [dict(point.shape) for point in seen.plan.points if point.operator == operator]


def test_defaults_on_the_cpu(command: Command, tmp_path: Path) -> None:
    seen = command()
    assert (seen.settings.dtypes, seen.settings.kv_dtypes, seen.settings.tps) == (("bf16",), ("bf16",), (1,))
    assert seen.settings.max_rows == max(shape["m"] for shape in shapes(seen, "linear")) == 512
    assert seen.budget_s == 600.0
    assert (seen.name, seen.hardware, seen.folder) == ("out", "cpu", tmp_path / "out")
    assert seen.device.threads == seen.device.cores
    assert {point.implementation for point in seen.plan.points} == {"torch"}


def test_every_option_changes_what_is_measured_or_written(command: Command, tmp_path: Path) -> None:
    base = command()
    assert command("--model", "testbed-250M").settings.names == ("testbed-250M",)
    assert {shape["k"] for shape in shapes(command("--tp", "2"), "linear")} != {
        shape["k"] for shape in shapes(base, "linear")
    }
    assert shapes(command("--tp", "2"), "all_reduce")
    assert {point.dtype for point in command("--dtype", "fp32").plan.points} == {"fp32", "int32"}, "int32: token ids"
    cached = command("--dtype", "bf16", "--kv-dtype", "fp32")
    assert {point.kv_dtype for point in cached.plan.points if "attention" in point.operator} <= {"fp32"}
    assert cached.settings.kv_dtypes == ("fp32",)
    assert {point.operator for point in command("--operators", "rotary, linear").plan.points} == {"linear", "rotary"}
    assert {point.operator for point in command("--operators", "ngram").plan.points} == {"ngram"}
    assert max(shape["m"] for shape in shapes(command("--max-rows", "40"), "linear")) == 40
    assert command("--threads", "1").device.threads == 1
    assert [command("--budget", text).budget_s for text in ("90s", "1.5m", "2h")] == [90.0, 90.0, 7200.0]
    assert command("--name", "mine").name == "mine"
    assert command("--hardware", "h200").hardware == "h200"
    assert command("--seed", "7").settings.seed == 7
    assert command("--out", str(tmp_path / "there")).folder == tmp_path / "there"


def test_the_testbed_is_the_default_on_the_cpu(command: Command, tmp_path: Path) -> None:
    command()  # puts the spy in place
    done = CliRunner().invoke(
        app, ["calibrate", "--device", "cpu", "--out", str(tmp_path / "out")], standalone_mode=False
    )
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--budget", "ten"), "--budget: 'ten': "),
        (("--budget", "0s"), "--budget: '0s': "),
        (("--operators", "linear,conv"), "--operators: 'conv': unknown; known: linear"),
        (("--dtype", "fp4"), "--dtype: 'fp4': unknown; known: fp32, bf16, fp8"),
        (("--kv-dtype", "int3"), "--kv-dtype: 'int3'"),
        (("--max-rows", "0"), "--max-rows: 0"),
        (("--model", "no-such-model"), "no-such-model"),
        (("--hardware", "no-such-device"), "no-such-device"),
        (("--threads", "0"), "threads = 0"),
        (("--tp", "3"), "tensor_parallel_size = 3"),
        (("--operators", "dsa_decode"), "--operators: 'dsa_decode': unknown; known: linear"),
    ],
)
def test_bad_options_are_refused_in_one_line(command: Command, options: tuple[str, str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        command(*options)
    assert message in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_device_that_is_not_there(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(InputError, match="no CUDA device"):
        command("--device", "cuda")


def test_a_gpu_is_not_timed_through_tritons_interpreter(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(InputError, match="TRITON_INTERPRET = 1: interpreted kernels"):
        command("--device", "cuda")
    assert command("--device", "cpu").device.kind == "cpu"


def test_on_cuda_both_cache_formats_graphs_and_many_rows(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = device.Device("cuda", "NVIDIA H200", 1, 1, 50 << 20, 140 << 30)
    monkeypatch.setattr(device, "find_device", lambda _kind, _threads: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    seen = command("--device", "cuda", "--model", "Llama-3.1-8B")
    assert seen.hardware == "h200"
    assert seen.settings.kv_dtypes == ("bf16", "fp8")
    assert {point.graph for point in seen.plan.points} == {True, False}
    assert {point.implementation for point in seen.plan.points} == {"torch", "triton"}
    assert max(shape["m"] for shape in shapes(seen, "linear")) == 8192


def test_control_c_says_how_to_go_on(command: Command, tmp_path: Path) -> None:
    command()  # puts the spy in place

    def interrupted(_self: object) -> None:
        raise KeyboardInterrupt

    runner.Calibration.measure = interrupted  # type: ignore[method-assign]  # the spy's
    done = CliRunner().invoke(app, ["calibrate", "--device", "cpu", "--out", str(tmp_path / "out")])
    assert done.exit_code == 130
    assert "the same command continues from here" in done.stderr


# Beside other tests the machine is never quiet, and a burst would wait for that in vain.
UNWAITING = """
from draftcast.calibration.microbench import runner
from draftcast.scenarios.cli.main import main

runner._WAIT_S = runner._TRY_S = 0.0
main()
"""


class Run:
    """``draftcast calibrate`` in a process of its own, over a tiny model."""

    def __init__(self, folder: Path, model: str) -> None:
        self.journal = folder / "journal.jsonl"
        options = ["--model", model, "--operators", "linear,rmsnorm", "--max-rows", "1", "--threads", "1"]
        self.command = [sys.executable, "-c", UNWAITING, "calibrate", "--device", "cpu", "--out", str(folder)]
        self.command += [*options, "--budget"]

    def start(self, budget: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*self.command, budget], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def lines(self, kind: str) -> list[dict[str, Any]]:
        text = self.journal.read_text() if self.journal.exists() else ""
        whole = [json.loads(line) for line in text.splitlines(keepends=True)[1:] if line.endswith("\n")]
        return [line for line in whole if line["kind"] == kind]

    def kill_after(self, bursts: int) -> None:
        """Start with plenty of time and kill once the journal holds more than ``bursts`` bursts."""
        process = self.start("1h")
        deadline = time.monotonic() + 600  # of a machine that does other things too
        while len(self.lines("burst")) <= bursts and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_run_killed_in_the_middle_goes_on_where_it_stopped(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "profile", tiny)
    run.kill_after(6)
    kept = run.lines("burst")
    assert len(kept) >= 7 > len({line["point"] for line in kept}) == 5
    assert not (tmp_path / "profile" / "table.parquet").exists()

    # What the kill cut in two is measured again, nothing else.
    with run.journal.open("ab") as file:
        file.write(b'{"kind": "burst", "point": "linear/bf16')
    run.kill_after(len(kept))
    bursts = run.lines("burst")
    assert bursts[: len(kept)] == kept
    assert len(bursts) > len(kept)
    visits = [(line["point"], line["visit"]) for line in bursts]
    assert len(set(visits)) == len(visits), "a visit was made twice"
    names = [line["name"] for line in run.lines("rate")]
    assert len(set(names)) == len(names)

    # No time is left, so what was measured is written: here, where torch is loaded.
    threads = torch.get_num_threads()
    monkeypatch.setattr("sys.argv", ["draftcast", *run.command[3:], "1s"])
    last = CliRunner().invoke(app, sys.argv[1:])
    torch.set_num_threads(threads)
    assert last.exit_code == 0, last.output
    assert re.search(r"note: the calibration took \d+ s, more than its budget of 1 s$", last.stderr, re.MULTILINE)
    assert run.lines("burst")[: len(bursts)] == bursts

    table = load_table(tmp_path / "profile" / "table.parquet")
    layers = [(64, 128), (64, 64), (64, 256), (128, 64)]
    linear = table.query("operator == 'linear'")
    assert set(zip(linear["k"], linear["n"], linear["m"], strict=True)) == {(*kn, 1) for kn in layers}
    assert list(table.query("operator == 'rmsnorm'")["m"]) == [1]
    manifest = read_manifest(tmp_path / "profile")
    assert manifest.name == "profile"
    assert manifest.command.startswith("draftcast calibrate --device cpu --out ")
    assert f"written: {tmp_path / 'profile'}" in last.stdout

    other = CliRunner().invoke(app, [*run.command[3:], "9s", "--seed", "1"])
    torch.set_num_threads(threads)
    assert isinstance(other.exception, InputError)
    assert "seed = 0" in str(other.exception)
