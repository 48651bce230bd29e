"""Nothing that a user can do changed or was lost since ``data/before.json`` was recorded: see ``before.py``."""

from __future__ import annotations

import before
import before_cases
import jsonschema
import pytest
from answer_schemas import command_of

from draftcast.scenarios.cli.main import schema_of


@pytest.mark.parametrize("section", list(before.SECTIONS))
def test_nothing_differs_from_before(section: str, collected: list[str] | None) -> None:
    tests = collected and [test for test in collected if not test.startswith(f"{before.LIVE_TESTS}/")]
    found = before.differences(section, tests)
    if section == "commands":
        assert before.ANSWERS
    for line, answer in before.ANSWERS.items():
        check = jsonschema.Draft202012Validator(schema_of(command_of(line)))
        found += [f"{line}: breaks its schema: {error.message[:200]}" for error in check.iter_errors(answer)]
    assert not found, f"{len(found)} differences:\n" + "\n".join(found)


def test_a_difference_is_named() -> None:
    was = {"simulate": {"exit": 0, "keys": ["a", "b"]}, "plan": {"exit": 0}}
    now = {"simulate": {"exit": 2, "keys": ["b", "c"]}, "sweep": {"exit": 0}}
    assert list(before.lost("commands", was, now)) == [
        "commands: simulate: exit: was 0, is 2",
        "commands: simulate: keys: lost: a",
        "commands: lost: plan",
    ]
    assert before.lost_tests({"test_a": ["1", "2"], "test_b": []}, {"test_a": ["2"]}) == [
        "tests: lost: test_a[1]",
        "tests: lost: test_b",
    ]


def test_every_command_is_run() -> None:
    """One that is added gets a line in `before_cases.COMMANDS`, once the restructuring is over."""
    lines = list(before_cases.COMMANDS)
    known = {option for option in before.recorded("surface")["options"] if ":" not in option}
    assert not [name for name in known if not any(line.startswith(f"{name} ") for line in lines)]
