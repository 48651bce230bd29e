"""Choices that touch several keys at once leave a valid scenario behind, and carry over what has a meaning there."""

from __future__ import annotations

import pytest

from draftcast.errors import ScenarioError
from draftcast.scenarios.run import choices
from draftcast.scenarios.run.workload_spec import acceptance_models
from draftcast.scenarios.schema import METHODS, Scenario
from draftcast.scenarios.schema.load import acceptance_places, load_scenario, to_mapping, with_values


def changed(scenario: Scenario, values: dict[str, object]) -> Scenario:
    return with_values(scenario, values)


@pytest.mark.parametrize(
    "method", [method for method in METHODS if method not in ("mlp_speculator", "arctic", "eagle_tree")]
)
@pytest.mark.parametrize("start", ["default", "ngram-code-editing"])
def test_every_method_follows_every_other(start: str, method: str) -> None:
    scenario = load_scenario(start)
    known = choices.acceptance_of_method(scenario, scenario, method)
    if method == scenario.method:
        assert known == {}
        return
    assert known is None
    with pytest.raises(ScenarioError, match=f"was given for {scenario.method}, and the method is now {method}"):
        changed(scenario, choices.with_method(scenario, method))
    found = changed(scenario, choices.with_method_as_given(scenario, method, "0.8, 0.6, 0.4, 0.2, 0.1"))
    assert (found.method, found.num_speculative_tokens) == (method, scenario.num_speculative_tokens)
    own = choices.acceptance_of_method(scenario, found, scenario.method)
    assert own is not None
    back = changed(found, choices.with_method(found, scenario.method) | own)
    assert (back.method, back.acceptance) == (scenario.method, scenario.acceptance)


def test_the_acceptance_of_a_method_is_asked_for_whatever_was_chosen_before() -> None:
    scenario = load_scenario()
    off = changed(scenario, choices.with_method(scenario, "off"))
    assert choices.acceptance_of_method(scenario, off, "ngram") is None
    assert choices.acceptance_of_method(scenario, off, "eagle3") == {"acceptance": to_mapping(scenario)["acceptance"]}
    assert choices.acceptance_of_method(scenario, off, "off") == {}
    prescribed = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
    synthetic = changed(scenario, {f"engine.speculative_config.{key}": value for key, value in prescribed.items()})
    assert choices.acceptance_of_method(scenario, synthetic, "eagle") == {}
    assert changed(synthetic, choices.with_method(synthetic, "eagle")).method == "eagle"


def test_every_class_gets_the_acceptance_that_is_given() -> None:
    scenario = load_scenario("closed-loop-classes")
    own = {"model": "constant", "alpha": 0.5}
    of_classes = changed(scenario, {f"workload.classes.{index}.acceptance": own for index in (0, 1)})
    found = changed(of_classes, choices.with_method_as_given(of_classes, "ngram", "0.3"))
    assert acceptance_places(to_mapping(found)) == [f"workload.classes.{index}.acceptance" for index in (0, 1)]
    assert [entry.acceptance.alpha for entry in found.workload.classes if entry.acceptance] == [0.3, 0.3]  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["", " , ", "high", "0.5, 0.7"])
def test_what_is_no_acceptance_is_refused(text: str) -> None:
    scenario = load_scenario()
    with pytest.raises(ScenarioError, match="acceptance"):
        changed(scenario, choices.with_method_as_given(scenario, "ngram", text))


def test_off_and_on_again() -> None:
    scenario = load_scenario()
    off = changed(scenario, choices.with_method(scenario, "off"))
    assert off.speculative_config is None
    again = changed(off, choices.with_method(off, "eagle3"))
    assert (again.method, again.num_speculative_tokens) == ("eagle3", choices.DEFAULT_K)
    with pytest.raises(ScenarioError, match="choose from off, draft_model"):
        choices.with_method(scenario, "magic")


def test_a_draft_model_shares_the_vocabulary() -> None:
    scenario = load_scenario()
    llamas = ["Llama-3.2-1B", "Llama-3.2-3B", "Llama-3.1-Minitron-4B"]
    assert choices.draft_models(scenario) == [*llamas, "Qwama-0.5B", "SmolLM3-3B"]
    found = choices.with_method(scenario, "draft_model")
    assert found["engine.speculative_config"]["model"] == "Llama-3.2-1B"
    # Command R's vocabulary is as large as Gemma 2's, and another.
    gemma = load_scenario(overrides=["engine.model=Gemma-2-27B"])
    assert choices.draft_models(gemma)[:2] == ["Gemma-2-2B", "Gemma-2-9B"]
    lonely = load_scenario(overrides=["engine.model=Solar-Open-100B"])
    with pytest.raises(ScenarioError, match="shares its vocabulary"):
        choices.with_method(lonely, "draft_model")


def test_another_target_drops_the_old_head() -> None:
    scenario = load_scenario()
    found = changed(scenario, choices.with_model(scenario, "Qwen3-8B"))
    assert found.engine.model == "Qwen3-8B"
    assert found.speculative_config is not None
    assert found.speculative_config.model is None
    drafted = changed(scenario, choices.with_method_as_given(scenario, "draft_model", "0.6"))
    assert choices.with_model(drafted, "Llama-3.1-70B") == {"engine.model": "Llama-3.1-70B"}


@pytest.mark.parametrize("model", choices.ACCEPTANCE_MODELS)
def test_another_acceptance_model_accepts_as_much(model: str) -> None:
    scenario = load_scenario()
    found = changed(scenario, choices.with_acceptance_model(scenario, model))
    before, after = (acceptance_models(each)[0].mean_acceptance_length(3) for each in (scenario, found))
    assert after == pytest.approx(before, rel=0.001)


def test_arrivals_keep_the_lengths_of_a_trace() -> None:
    scenario = load_scenario("azure-conversation")
    found = changed(scenario, choices.with_arrivals(scenario, "poisson", 2.0))
    assert found.workload.lengths is not None
    assert found.workload.lengths.path == "AzureLLMInferenceTrace_conv.csv"
    for process in choices.ARRIVALS:
        assert (
            changed(load_scenario(), choices.with_arrivals(scenario, process, 2.0)).workload.arrivals.process == process
        )
