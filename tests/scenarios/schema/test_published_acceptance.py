"""A scenario takes acceptance that others measured by its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftcast import InputError, load_scenario, simulate
from draftcast.errors import ScenarioError
from draftcast.scenarios.cli.main import app
from draftcast.scenarios.run.deployment import assumptions
from draftcast.scenarios.schema.load import dump_scenario

MT_BENCH = "llama-3.1-8b-instruct/eagle3/mt-bench"


def test_a_scenario_takes_it_by_name() -> None:
    few = ["workload.num_requests=100", "statistics.replications=1"]
    names = [f"{MT_BENCH}/redhatai", f"{MT_BENCH}/specforge"]
    both = [load_scenario(overrides=[*few, f"acceptance={{reference: {name}}}"]) for name in names]
    assert both[0].acceptance_of().mean_acceptance_length(3) == pytest.approx(2.6049)  # type: ignore[union-attr]
    assert both[1].acceptance_of().mean_acceptance_length(3) == pytest.approx(2.898)  # type: ignore[union-attr]
    outputs = [simulate(each).summary["figures"]["mean_acceptance_length"].mean for each in both]
    assert outputs[0] + 0.1 < outputs[1]
    (note,) = [note for note in assumptions(both[0]) if "acceptance" in note]
    assert "Llama-3.1-8B-Instruct and RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3 on MT-Bench" in note
    assert "beyond" not in note
    assert "another model" not in note
    other = assumptions(load_scenario(overrides=[*few, "acceptance={reference: qwen3-8b/eagle3/mt-bench/redhatai}"]))
    assert any("another model than Llama-3.1-8B, whose acceptance may differ" in note for note in other)
    longer = load_scenario(
        overrides=["engine.speculative_config.num_speculative_tokens=5", f"acceptance={{reference: {names[0]}}}"]
    )
    assert any("known for 3 drafts; beyond" in note for note in assumptions(longer))


def test_a_scenario_with_it_is_read_back(tmp_path: Path) -> None:
    scenario = load_scenario(overrides=[f"acceptance={{reference: {MT_BENCH}/redhatai}}"])
    (tmp_path / "scenario.yaml").write_text(dump_scenario(scenario))
    assert load_scenario(tmp_path / "scenario.yaml") == scenario


def test_a_name_beside_other_rates_is_refused() -> None:
    """The bundled scenario gives rates: a name alone would change nothing."""
    with pytest.raises(ScenarioError, match=r"acceptance\.rates.*are not those of .*specforge"):
        load_scenario(overrides=[f"acceptance.reference={MT_BENCH}/specforge"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llama-3.1-8b-instruct/eagle3/mt-bensch", f"{MT_BENCH}/"),
        ("nope", "a name that draftcast acceptance list shows"),
        ("3", "a name that draftcast acceptance list shows"),
        ("qwen3-8b/pard/mt-bench", "measured with method pard; the method is eagle3"),
    ],
)
def test_what_does_not_go_is_refused_by_key_and_value(name: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=r"acceptance\.reference = .*" + said):
        load_scenario(overrides=[f"acceptance={{reference: {name}}}"])


def test_the_list_shows_them() -> None:
    run = CliRunner().invoke(app, ["acceptance", "list", "qwen3-8b/eagle3", "--num-speculative-tokens", "3"])
    assert run.exit_code == 0
    assert "qwen3-8b/eagle3/mt-bench/redhatai" in run.output
    assert "2.26" in run.output
    assert isinstance(CliRunner().invoke(app, ["acceptance", "list", "no-such-model"]).exception, InputError)


def test_a_forecast_says_which_acceptance_has_no_effect() -> None:
    spec = "engine.speculative_config"
    synthetic = [f"{spec}.rejection_sample_method=synthetic", f"{spec}.synthetic_acceptance_length=2.4"]
    of_class = {"name": "chat", "share": 1.0, "acceptance": {"model": "constant", "alpha": 0.1}}
    none = "acceptance=null"
    for own in ([], [none, f"workload.classes=[{json.dumps(of_class)}]"]):
        (note,) = [note for note in assumptions(load_scenario(overrides=[*synthetic, *own])) if "acceptance" in note]
        assert note.startswith("acceptance has no effect: rejection_sample_method: synthetic")
    assert not any("acceptance" in note for note in assumptions(load_scenario(overrides=[*synthetic, none])))
