"""Numbers on the command line."""

from __future__ import annotations

import pytest

from draftcast.errors import InputError
from draftcast.scenarios.schema.numbers import parse_values


def test_lists_and_ranges() -> None:
    assert parse_values("3,1,2,1", "--x") == [1.0, 2.0, 3.0]
    assert parse_values("1..20:3", "--x") == [1.0, 10.5, 20.0]
    assert parse_values("1..64:7log", "--x") == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    assert parse_values("0.5..1.5:2, 4", "--x") == [0.5, 1.5, 4.0]
    assert parse_values(".5..1.5:2", "--x") == [0.5, 1.5]


@pytest.mark.parametrize("text", ["", "a", "1..2", "1..2:1", "2..1:3", "0..3:4", "1..nan:3", "-1", "inf", "1..9:1001"])
def test_what_is_refused_names_the_option(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_values(text, "--rates")
    assert "--rates" in str(caught.value)
