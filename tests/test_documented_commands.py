"""Every command line shown in README and docs is one that draftcast takes, and every command is shown somewhere.

Parsing only: what the commands answer is tested beside each of them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from draftcast.scenarios import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?:bash|console|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NO_JSON = {"dashboard"}


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


def test_every_command_is_documented() -> None:
    documented = {tuple(words[: len(path)]) for _, words in LINES for path in ALL}
    # Some are mentioned in a comment of another's line.
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    missing = [path for path in ALL if path not in documented and f"draftcast {' '.join(path)}" not in text]
    assert not missing


@pytest.mark.parametrize("path", sorted(ALL), ids=" ".join)
def test_every_command_has_json(path: tuple[str, ...]) -> None:
    if path[0] in NO_JSON:
        pytest.skip("starts a server: nothing to print")
    assert any("--json" in parameter.opts for parameter in ALL[path].params)
