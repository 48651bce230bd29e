"""What one scenario changes in another: a round trip through few keys, and the command that asks the same."""

from __future__ import annotations

import shlex

import numpy as np
import pytest

from draftcast.errors import ScenarioError
from draftcast.scenarios.schema.changes import assignments, changed_keys, command_line, value_text
from draftcast.scenarios.schema.load import embedded_scenarios, load_scenario, scenario_hash, with_values

ASKED = {
    "engine.speculative_config.num_speculative_tokens=2": {"engine.speculative_config.num_speculative_tokens": 2},
    "acceptance={model: constant, alpha: 0.7}": {"acceptance": {"model": "constant", "alpha": 0.7}},
    "engine.speculative_config=null": {"engine.speculative_config": None},
    "slo={ttft_ms: 200, tpot_ms: 1e-5}": {"slo": {"ttft_ms": 200.0, "tpot_ms": 1e-05, "attainment": 0.99}},
    'name="3"': {"name": "3"},
    "policy={name: goodput, parameters: {smoothing: null}}": {
        "policy": {"name": "goodput", "parameters": {"smoothing": None}}
    },
    "workload.arrivals.request_rate_rps=12": {"workload.arrivals.request_rate_rps": 12.0},
    "statistics.seed=0": {},
    "engine.model=Qwen3-8B": {"engine.model": "Qwen3-8B"},
}


@pytest.mark.parametrize(("override", "changes"), ASKED.items())
def test_the_changed_keys_alone(override: str, changes: dict[str, object]) -> None:
    base, asked = load_scenario(), load_scenario(overrides=[override])
    assert changed_keys(base, asked) == changes
    assert load_scenario(overrides=assignments(changes)) == asked


@pytest.mark.parametrize("base", embedded_scenarios())
@pytest.mark.parametrize("other", embedded_scenarios())
def test_any_scenario_is_a_change_of_any_other(base: str, other: str) -> None:
    asked = load_scenario(other)
    changes = changed_keys(load_scenario(base), asked)
    assert (changes == {}) == (base == other)
    assert scenario_hash(load_scenario(base, overrides=assignments(changes))) == scenario_hash(asked)


@pytest.mark.parametrize(
    ("value", "text"),
    [("h200", "h200"), ("3", '"3"'), ("", '""'), ("a: b", '"a: b"'), (2.0, "2"), (0.25, "0.25"), (None, "null")],
)
def test_values_as_text(value: object, text: str) -> None:
    assert value_text(value) == text


def test_the_command_is_quoted_for_a_shell() -> None:
    changes = {"name": "it's", "acceptance": {"model": "constant", "alpha": 0.5}}
    words = shlex.split(command_line("simulate", "default", changes, "--json"))
    assert words[:3] == ["draftcast", "simulate", "default"]
    assert words[4:7:2] == assignments(changes)
    assert words[-1] == "--json"


def test_another_methods_acceptance_is_given_even_where_it_is_the_same() -> None:
    base = load_scenario(overrides=["acceptance={model: constant, alpha: 0.5}"])
    asked = with_values(base, {"engine.speculative_config.method": "eagle", "acceptance.alpha": 0.5})
    changes = changed_keys(base, asked)
    assert changes["acceptance"] == {"model": "constant", "alpha": 0.5}
    assert with_values(base, changes) == asked


def test_a_bad_change_names_its_key() -> None:
    with pytest.raises(ScenarioError, match=r"--set: engine\.max_num_seqs = 0: must be at least 1"):
        load_scenario(overrides=assignments({"engine.max_num_seqs": 0}))


def test_numbers_of_numpy_are_numbers() -> None:
    scenario = load_scenario()
    assert scenario.with_(k=np.int64(2), seed=np.int64(3)) == scenario.with_(k=2, seed=3)
    assert scenario.with_(policy="goodput").with_(policy=None) == scenario
    assert load_scenario(overrides="statistics.seed=3") == scenario.with_(seed=3)
