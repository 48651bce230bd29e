"""YAML's two parsers: libyaml's for what nests little, PyYAML's own for the rest and for what is wrong with it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import draftcast
from draftcast import yaml_text
from draftcast.errors import InputError
from draftcast.yaml_text import parse_yaml

ROOMS = Path(draftcast.__file__).parent
BUNDLED = sorted(path for room in ("kernels", "calibration", "scenarios") for path in (ROOMS / room).rglob("*.yaml"))


def without_libyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_text, "_FastLoader", yaml_text._Loader)


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: path.stem)
def test_both_parsers_read_every_bundled_file_alike(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = parse_yaml(path.read_text(), "f")
    without_libyaml(monkeypatch)
    assert parse_yaml(path.read_text(), "f") == fast
    assert fast


def test_a_merged_mapping_gives_what_is_not_said_beside_it() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}"
    assert parse_yaml(text, "f") == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}
    with pytest.raises(InputError, match="duplicate key"):
        parse_yaml(text.replace("y: 3", "y: 3, y: 4"), "f")


@pytest.mark.parametrize(
    "text",
    [
        "a: [1, 2",
        "a: 1\na: 2",
        "a: !!python/object:os.system x",
        "1: 2",
        "a:\n\t- b",
        "a: *gone",
        "a: \x00",
        "a: 0x" + "f" * 5000,
    ],
)
def test_what_is_wrong_reads_the_same_from_both(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError) as fast:
        parse_yaml(text, "f")
    without_libyaml(monkeypatch)
    with pytest.raises(InputError) as slow:
        parse_yaml(text, "f")
    assert str(fast.value) == str(slow.value)


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "[{a: "])
def test_a_text_that_nests_very_deep_is_refused(opening: str) -> None:
    """libyaml would end the whole process here, a user's session with it."""
    with pytest.raises(InputError, match="not valid YAML"):
        parse_yaml(opening * 100_000, "f")


def test_indentation_alone_nests_too() -> None:
    deep = "".join(" " * level + "a:\n" for level in range(1_200))
    with pytest.raises(InputError, match="not valid YAML"):
        parse_yaml(deep, "f")


@pytest.mark.parametrize("tag", ["!!set {a, b}", "!!binary YQ==", "!!timestamp 2001-01-01", "!!bool maybe", "!!int ''"])
def test_only_plain_data_is_built(tag: str) -> None:
    with pytest.raises(InputError, match="not valid YAML"):
        parse_yaml(f"a: {tag}", "f")


def test_aliases_are_counted_written_out() -> None:
    names = "abcdefghij"
    bomb = f"a: &a [{','.join('0' * 10)}]\n"
    for before, name in itertools.pairwise(names):
        bomb += f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
    with pytest.raises(InputError, match=r"f:4: not valid YAML: aliases stand for more than 10,000 values"):
        parse_yaml(bomb, "f")
    with pytest.raises(InputError, match="f:1: a: not valid YAML: an alias inside of what it stands for"):
        parse_yaml("a: &a [*a]", "f")
    assert parse_yaml("a: &a [1, 2]\nb: [*a, *a]", "f")["b"] == [[1, 2], [1, 2]]
    assert len(parse_yaml(f"a: [{','.join('0' * 30_000)}]", "f")["a"]) == 30_000  # no alias, no limit
