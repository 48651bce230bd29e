"""Mutated inputs of every kind that draftcast reads, and what may come of them: an answer, or one line and exit code 2.

``test_hostile_inputs.py`` runs some hundred of them; ``python tests/hostile_inputs.py 5000 --seed 1`` runs more, and
prints every input that gave a traceback, took too long or did not fit into a line.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import itertools
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from bench_results import BENCH
from paths import DATA, ROOT
from samples import LINES, SAMPLES, prometheus

from draftcast.calibration.live.imported_runs import import_bench_result
from draftcast.calibration.live.run_directory import JOURNAL, MANIFEST_KEYS, LiveRun, LiveRunWriter
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import load_profile
from draftcast.errors import InputError
from draftcast.kernels.model.catalog import load_model
from draftcast.scenarios.cli import main as cli
from draftcast.scenarios.cli.live import summary_line
from draftcast.scenarios.live.sweep import read_index
from draftcast.scenarios.run.measured_run import read_measured_run
from draftcast.scenarios.schema.load import embedded_scenarios, load_scenario
from draftcast.scenarios.show.validation_sweep_report import read_summary
from draftcast.scenarios.sweep.run import sweep
from draftcast.sim.workload.traces import TraceSpec, load_trace, read_trace

LIMIT_S = 60  # a reader that hangs, on a machine that is busy with something else
_LARGEST = 2_000_000
SMALL = ["--set", "workload.num_requests=5", "--set", "statistics.replications=1"]
# Values that some reader somewhere does not expect.
VALUES: tuple[str, ...] = (
    *("", "null", "true", "[]", "{}", "-1", "0", "1e308", "-1e308", "1e999", "NaN", "Infinity", "-Infinity", "1.5"),
    *(
        "9" * 5000,
        "9" * 400,
        "0x" + "f" * 5000,
        "9223372036854775808",
        "18446744073709551616",
        "-9223372036854775809",
        "1e18",
    ),
    *(
        '""',
        '"x"',
        '"' + "x" * 20_000 + '"',
        '"\\u0000"',
        '"\\ud800"',
        '"~nobody/x"',
        '"/dev/zero"',
        '"../../etc/passwd"',
    ),
    *("[" * 3000 + "]" * 3000, '{"a": ' * 2000 + "1" + "}" * 2000, "[[1, 2], [3]]", '{"a": 1}', "[null]", "\x1b[31m"),
    *("*a", "&a [*a]", "!!python/object:os.system x", "1:2:3", "2001-01-01", "1_0", "\ufeff", "%", "'", "2147483648"),
)


@dataclass(frozen=True)
class Target:
    """One kind of input: files that are read without fault, and who reads them.

    Attributes:
        files: by name, below the folder that ``act`` is given.
        act: reads them; a failure to do so must be an `InputError`, or the command's exit code 2.
        mutated: names of the files to be mutated; all when empty.
    """

    files: dict[str, bytes]
    act: Callable[[Path], object]
    mutated: tuple[str, ...] = ()


def command(*arguments: str) -> int:
    """A command line in this process, as `draftcast.scenarios.cli.main.main` runs it. Returns the exit code.

    Raises:
        AssertionError: bad input that is not told in one line, or by another exit code than 2.
    """
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            cli.app([*arguments], standalone_mode=False)
        except InputError as error:
            check(error)
            return 2
        except Exception as error:
            if type(error).__module__.startswith(("typer", "click")):  # its own usage errors: exit code 2
                return 2
            raise
    return 0


def check(error: InputError) -> None:
    """An error is one line that a terminal shows."""
    text = str(error)
    assert text.isprintable(), ascii(text)[:300]
    assert len(text) <= 2000, len(text)


def embedded(name: str) -> bytes:
    return embedded_scenarios()[name].encode()


def engine_log() -> bytes:
    data = gzip.decompress((ROOT / "tests/data/engine_log_off.log.gz").read_bytes())
    return b"".join(data.splitlines(keepends=True)[:150])


def live_run(folder: Path) -> None:
    run = LiveRun.read(folder)
    summary_line(run)
    read_measured_run(folder)


def made(build: Callable[[Path], object]) -> dict[str, bytes]:
    """The files that ``build`` leaves in a folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder)
        return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def swept(folder: Path) -> object:
    return sweep(load_scenario(overrides=SMALL[1::2]), {"k": [0]}, folder=folder / "sweep", workers=1)


def recorded(folder: Path) -> None:
    LiveRunWriter.create(folder / "run", scenario={"name": "x"})
    (folder / "run" / JOURNAL).write_text("".join(f"{json.dumps(line)}\n" for line in LINES))


def finished(folder: Path) -> None:
    recorded(folder)
    LiveRunWriter(folder / "run", dict(MANIFEST_KEYS)).finish()


def profile_folder() -> dict[str, bytes]:
    folder = DATA / "live_profile"
    return {name: (folder / name).read_bytes() for name in ("manifest.json", "profile.yaml")}


def index() -> bytes:
    cell = {"dir": "rate-1/off", "purpose": "validation", "mode": "off", "method": "none", "k": 0, "load_kind": "rate"}
    cell |= {"load": 1.0, "round": 0, "order": 0, "seed": 0, "complete": True, "incomplete_reason": ""}
    return json.dumps({"schema_version": 1, "kind": "live-sweep", "complete": True, "cells": [cell]}).encode()


def trace(folder: Path) -> None:
    table = read_trace(folder / "trace")
    table.check_integrity()
    load_trace(TraceSpec(path=str(folder / "trace")))


def argument(folder: Path, *before: str, after: str = "") -> int:
    """A command with the file's text as an argument."""
    return command(*before, after + (folder / "argument").read_text("utf-8", "replace").replace("\0", ""), *SMALL)


def with_argument(text: str, *before: str, after: str = "") -> Target:
    return Target({"argument": text.encode()}, lambda folder: argument(folder, *before, after=after))


CPU = ROOT / "calibration/hardware/cpu.yaml"
POLICIES = (
    "{name: goodput, parameters: {weight: 0.5, probe_interval_steps: 100}}",
    "{name: ema_tiers, parameters: {ema_alpha: 0.2, tiers: [{batch_size: 8, steps: 3}]}}",
    "{name: bandit, parameters: {epsilon: 0.1}}",
    "{name: slo_aware, parameters: {tpot_s: 0.05}}",
    "{name: adaptive_verification, parameters: {threshold: 0.3}}",
)
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
SERVE_COMMANDS = {
    "vllm": f'vllm serve {MODEL} -tp 1 --max-num-seqs 64 --compilation-config \'{{"cudagraph_mode": "FULL"}}\' '
    '--speculative-config \'{"method": "eagle3", "num_speculative_tokens": 2}\'',
    "sglang": 'cat > a.json <<\'EOF\'\n{"1": {"candidate_steps": [2]}, "8": {"candidate_steps": [1]}}\nEOF\n'
    f"SGLANG_SIMULATE_ACC_LEN=2.0 python -m sglang.launch_server --model-path {MODEL} --tp-size 2 --dp-size 2 "
    "--enable-dp-attention --page-size 16 --max-total-tokens 65536 --speculative-algorithm EAGLE3 "
    "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3 "
    "--speculative-adaptive --speculative-adaptive-config a.json",
    "trtllm": "cat > t.yaml <<'EOF'\nmax_batch_size: 64\nkv_cache_config: {tokens_per_block: 16}\n"
    "enable_attention_dp: false\nspeculative_config:\n  decoding_type: Eagle3\n  max_draft_len: 2\n"
    "  speculative_model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B\n  draft_len_schedule:\n    4: 2\n    16: 1\nEOF\n"
    f"trtllm-serve {MODEL} --extra_llm_api_options t.yaml",
}


def targets() -> dict[str, Target]:
    """Every kind of input, by name."""
    found = {
        f"scenario {name}": Target(
            {"scenario.yaml": embedded(name)},
            lambda folder: command("simulate", str(folder / "scenario.yaml"), *SMALL, "--json"),
        )
        for name in ("default", "ngram-code-editing", "closed-loop-classes")
    }
    found |= {f"trace {name}": Target({"trace": text.encode()}, trace) for name, text in SAMPLES.items()}
    found["trace gzip"] = Target({"trace": gzip.compress(SAMPLES["mooncake"].encode())}, trace)
    log = engine_log()
    found["engine log"] = Target(
        {"server.log": log}, lambda folder: command("calibrate", "--engine-log", str(folder / "server.log"), "--json")
    )
    found["engine log gzip"] = Target({"server.log": gzip.compress(log)}, found["engine log"].act)
    found["metrics"] = Target(
        {"metrics.txt": prometheus(200, 600, [150, 100, 50]).encode()},
        lambda folder: command("acceptance", "from-metrics", str(folder / "metrics.txt")),
    )
    found["bench result"] = Target(
        {"bench.json": json.dumps(BENCH).encode()},
        lambda folder: (import_bench_result(folder / "bench.json", folder / "run"), live_run(folder / "run")),
    )
    found["token log"] = Target(
        {"log.jsonl": SAMPLES["specdecode_bench"].encode()},
        lambda folder: command(
            *("acceptance", "measure", "--method", "ngram", "--tokens", str(folder / "log.jsonl")),
            *("--num-speculative-tokens", "3"),
        ),
    )
    found["live journal"] = Target(made(recorded), lambda folder: live_run(folder / "run"))
    found["live run"] = Target(made(finished), lambda folder: live_run(folder / "run"))
    found["live index"] = Target({"index.json": index()}, read_index)
    found["sweep"] = Target(made(swept), swept)
    for name in ("default", "h100-llama-3.1-8b-affine"):
        found[f"profile {name}"] = Target(
            {"p.yaml": (ROOT / f"calibration/profiles/{name}.yaml").read_bytes()},
            lambda folder: command("simulate", "default", "--set", f"profile={folder}/p.yaml", *SMALL),
        )
    found["profile folder"] = Target(profile_folder(), lambda folder: load_profile(folder, load_hardware("cpu")))
    found["profile table"] = Target(
        {name: (ROOT / "calibration/profiles/l40s" / name).read_bytes() for name in ("manifest.json", "profile.yaml")}
        | {"table.parquet": (ROOT / "calibration/profiles/l40s/table.parquet").read_bytes()},
        lambda folder: command("profile", "show", str(folder)),
    )
    found["hardware"] = Target({"h.yaml": CPU.read_bytes()}, lambda folder: load_hardware(folder / "h.yaml"))
    found["model"] = Target(
        {"config.json": (ROOT / "kernels/models/Llama-3.1-8B.json").read_bytes()},
        lambda folder: (load_model(folder), command("simulate", "default", "--set", f"engine.model={folder}", *SMALL)),
    )
    found["sweep report"] = Target(
        {"r.json": (ROOT / "scenarios/validation_results/cpu-2-cores.json").read_bytes()},
        lambda folder: read_summary((folder / "r.json").read_bytes(), "r.json"),
    )
    found |= {
        f"policy {text.split(',')[0]}": with_argument(text, "simulate", "default", "--set", after="policy=")
        for text in POLICIES
    }
    spec = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'
    found["--speculative-config"] = with_argument(spec, "simulate", "default", "--speculative-config")
    found["--set"] = with_argument("engine.max_num_seqs=128", "simulate", "default", "--set")
    for program, text in SERVE_COMMANDS.items():
        found[f"--serve-command {program}"] = with_argument(text, "simulate", "default", *SMALL, "--serve-command")
    found["--rates"] = with_argument("5..20:3", "simulate", "default", "--rates")
    found["--grid"] = Target(
        {"argument": b"k=0,1,3"},
        lambda folder: argument(folder, "sweep", "default", *SMALL, "--out", str(folder / "out"), "--grid"),
    )
    found["--slo"] = with_argument("ttft:p95<500ms;tpot:p95<30ms", "plan", "default", "--rate", "-1", "--slo")
    return found


def mutations(data: bytes, rng: random.Random) -> bytes:
    """``data`` with one to three things changed: bytes, lines, or values of what it holds."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        with contextlib.suppress(ValueError, RecursionError):  # what an earlier change made cannot be taken apart
            data = rng.choice((_bytes, _lines, _token, _token, _structure, _structure, _structure))(data, rng)[
                :_LARGEST
            ]
    return data


def _bytes(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    what = rng.randrange(5)
    if what == 0:
        return data[:at]
    if what == 1:
        return data[:at] + rng.randbytes(rng.choice((1, 4, 40))) + data[at + 4 :]
    if what == 2:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if what == 3:
        return data[:at] + data[at + rng.randrange(200) :]
    return data[:at] + data[at : at + 100] * rng.choice((2, 50)) + data[at:]


def _lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if not lines:
        return rng.choice(VALUES).encode("utf-8", "replace")
    at = rng.randrange(len(lines))
    what = rng.randrange(4)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines[at:at] = [lines[at]] * rng.choice((1, 1, 100))
    elif what == 2:
        other = rng.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at] = lines[at].rstrip(b"\n") * rng.choice((2, 1000)) + b"\n"
    return b"".join(lines)


def _token(data: bytes, rng: random.Random) -> bytes:
    """A number or word of a text becomes another value."""
    text = data.decode("latin-1")
    starts = [i for i in range(1, len(text)) if text[i].isalnum() and not text[i - 1].isalnum()]
    if not starts:
        return data
    at = rng.choice(starts)
    end = at
    while end < len(text) and (text[end].isalnum() or text[end] in "._-"):
        end += 1
    value = rng.choice(VALUES).encode("utf-8", "replace").decode("latin-1")
    return (text[:at] + value + text[end:]).encode("latin-1", "replace")


def _structure(data: bytes, rng: random.Random) -> bytes:
    """A value of a JSON document, a JSON line or a YAML document becomes another, or goes."""
    for load, dump in ((json.loads, json.dumps), (_first_line, None), (yaml.safe_load, _yaml)):
        try:
            document = load(data)
        except (ValueError, yaml.YAMLError, RecursionError, UnicodeDecodeError):
            continue
        if load is _first_line:
            lines = data.splitlines()
            at = rng.randrange(len(lines))
            lines[at] = _structure(lines[at], rng)
            return b"\n".join(lines) + b"\n"
        places = list(_places(document))
        if not places or dump is None:
            return _bytes(data, rng)
        holder, key = rng.choice(places)
        if rng.random() < 0.2:
            del holder[key]
        else:
            holder[key] = "@@hostile@@"
        value = rng.choice(VALUES)
        quoted = ('"@@hostile@@"', "'@@hostile@@'", "@@hostile@@")
        text = dump(document)
        for marked in quoted:
            text = text.replace(marked, value)
        return text.encode("utf-8", "replace")
    return _token(data, rng)


def _first_line(data: bytes) -> Any:
    lines = data.splitlines()
    if len(lines) < 2:
        raise ValueError
    return json.loads(lines[0])


def _yaml(document: Any) -> str:
    return yaml.safe_dump(document, sort_keys=False)


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(document, dict | list):
        items = list(document.items()) if isinstance(document, dict) else list(enumerate(document))
        for key, value in items:
            yield document, key
            yield from _places(value)


def run_one(target: Target, rng: random.Random) -> str:
    """A mutated input, read. Returns what is wrong with what came of it, and of which files; "" when nothing is.

    A case is cut off after `LIMIT_S` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        folder = Path(name)
        chosen = rng.choice(sorted(target.mutated or target.files))
        for file, data in target.files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(mutations(data, rng) if file == chosen else data)
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(LIMIT_S)
        try:
            target.act(folder)
        except InputError as error:
            check(error)
        except (Exception, SystemExit) as error:
            where = traceback.format_exc().strip().splitlines()
            frames = [line.strip() for line in where if "draftcast" in line or (str(ROOT) in line and "File" in line)]
            kept = Path(tempfile.gettempdir()) / "hostile-kept"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(folder, kept)
            return f"{type(error).__name__}: {str(error)[:200]!r} in {chosen}\n    " + "\n    ".join(frames[-4:])
        finally:
            signal.alarm(0)
    return ""


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {LIMIT_S} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="inputs in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds whose name holds this")
    asked = parser.parse_args()
    kinds = {name: target for name, target in targets().items() if asked.only in name}
    seen: dict[str, int] = {}
    slowest: dict[str, float] = {}
    for number, (name, target) in zip(range(asked.count), itertools.cycle(kinds.items()), strict=False):
        began_s = time.monotonic()
        wrong = run_one(target, random.Random(f"{asked.seed} {number}"))
        slowest[name] = max(slowest.get(name, 0.0), time.monotonic() - began_s)
        if wrong:
            key = "\n".join(wrong.splitlines()[-1:])
            seen[key] = seen.get(key, 0) + 1
            if seen[key] == 1:
                print(f"{name} #{number}: {wrong}", flush=True)
    print(f"{asked.count} inputs, {sum(seen.values())} wrong, {len(seen)} kinds; slowest:", file=sys.stderr)
    for name, took_s in sorted(slowest.items(), key=lambda item: -item[1])[:6]:
        print(f"  {took_s:5.1f} s {name}", file=sys.stderr)
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())
