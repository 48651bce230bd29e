"""Every command line shown in README and docs is one that draftcast takes, every command is shown somewhere, and
README's list is run as it stands, in a folder with the files that it names."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from paths import ROOT
from typer.testing import CliRunner

from draftcast.scenarios.cli import main as cli
from draftcast.scenarios.cli.options import OPTIONS

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?:bash|console|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NO_JSON = {"dashboard", "serve", "schema"}
# They need a server of vLLM (tests/live runs them), ten minutes (test_calibrate_run.py), or never end (test_server.py
# runs those of serve).
NOT_HERE = {"live", "validate", "calibrate", "dashboard", "serve"}


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def shown(page: Path) -> Iterator[list[str]]:
    """Words after ``draftcast`` of every line of a shell block; comments and what a pipe does with it left out."""
    for block in BLOCK.findall(page.read_text("utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            words = words[1:] if words[:1] == ["$"] else words
            if words[:1] != ["draftcast"]:
                continue
            end = next((i for i, word in enumerate(words) if word in ("|", ">", "&&", ";", "&")), len(words))
            yield words[1:end]


GROUP: Any = typer.main.get_command(cli.app)
ALL = dict(commands(GROUP))
LINES = [(page.relative_to(ROOT), words) for page in PAGES for words in shown(page)]


@pytest.mark.parametrize(("page", "words"), LINES, ids=[f"{page} {' '.join(words)}"[:90] for page, words in LINES])
def test_a_documented_line_parses(page: Path, words: list[str]) -> None:
    if words[:1] and words[0].startswith("-"):
        assert words[0] in ("--help", "--version")
        return
    path: tuple[str, ...] = ()
    rest = list(words)
    while rest and path not in ALL:
        path, rest = (*path, rest[0]), rest[1:]
    assert path in ALL, f"{page}: no command {' '.join(words)}"
    if "--help" not in rest:
        ALL[path].make_context(" ".join(path), rest)


def test_every_option_has_its_text_and_every_text_its_option() -> None:
    given = {(option.name, option.help) for command in ALL.values() for option in command.params}
    assert [name for name, text in given if not text and name != "help"] == []
    looks = [(name, look) for rows in OPTIONS.values() for name, look in rows.items()]
    rows = {(name, look if isinstance(look, str) else look["help"]) for name, look in looks}
    assert rows - given == set()


def named_files(folder: Path) -> None:
    """What README's lines read: scenarios, a trace, a log of tokens, a server's counters, a bench result.

    A file ``default`` stands in for the embedded scenario, which has more and longer requests.
    """
    scenario = yaml.safe_load((ROOT / "scenarios/files/default.yaml").read_text("utf-8"))
    scenario["workload"]["num_requests"] = 400
    scenario["workload"]["lengths"] = {"prompt_tokens": 64, "output_tokens": {"distribution": "geometric", "mean": 16}}
    for name in ("my.yaml", "default"):
        (folder / name).write_text(yaml.safe_dump(scenario))
    rows = [f"2023-11-16 18:{i // 60:02d}:{i % 60:02d}.0000000,{200 + 7 * i},{20 + i % 90}" for i in range(600)]
    (folder / "AzureLLMInferenceTrace_conv.csv").write_text(
        "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows])
    )
    record = {"prompt_token_ids": [1, 2, 3, 4, 5, 1, 2], "generated_token_ids": [3, 4, 5, 9, 1, 2, 3, 4]}
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for _ in range(20)))
    off = {"completed": 80, "max_concurrency": 8, "duration": 25.0, "mean_tpot_ms": 8.0, "mean_ttft_ms": 30.0}
    off |= {"total_input_tokens": 18_000, "total_output_tokens": 16_000}
    (folder / "off.json").write_text(json.dumps(off))
    counts = {"drafts": 100, "draft_tokens": 200, "accepted_tokens": 110}
    (folder / "metrics.txt").write_text(
        "".join(f'vllm:spec_decode_num_{name}_total{{engine="0"}} {count}.0\n' for name, count in counts.items())
        + "".join(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{i}"}} {count}.0\n'
            for i, count in enumerate((70, 40))
        )
    )


README = dict.fromkeys(tuple(words) for page, words in LINES if page.name == "README.md")
RUN = [list(words) for words in README if words[0] not in NOT_HERE]


@pytest.mark.usefixtures("rough_capacity", "sweeps_here")
@pytest.mark.parametrize("words", RUN, ids=[" ".join(words)[:90] for words in RUN])
def test_readme_line_runs(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.app, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    # 4: one load of the line is beyond what the server holds, which is an answer.
    assert done.exit_code in ((0, 4) if words[0] == "simulate" else (0,)), done.output
    assert done.stdout.strip()
    if "--out" in words:
        assert (tmp_path / words[words.index("--out") + 1]).exists()


def test_every_command_is_documented() -> None:
    documented = {tuple(words[: len(path)]) for _, words in LINES for path in ALL}
    # Some are mentioned in a comment of another's line.
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    missing = [path for path in ALL if path not in documented and f"draftcast {' '.join(path)}" not in text]
    assert not missing


@pytest.mark.parametrize("path", sorted(ALL), ids=" ".join)
def test_every_command_has_json(path: tuple[str, ...]) -> None:
    if path[0] in NO_JSON:
        pytest.skip("starts a server, or prints nothing but JSON")
    assert any("--json" in parameter.opts for parameter in ALL[path].params)
