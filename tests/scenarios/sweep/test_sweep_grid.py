"""The grid of a sweep: its syntax, what the short names change, and the Pareto front."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftcast.errors import InputError, ScenarioError
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.changes import SHORT, SPECIAL, changed
from draftcast.scenarios.schema.load import load_scenario, to_mapping, with_values
from draftcast.scenarios.sweep.grid import SweepAxis, axis_of, grid_points, parse_axis
from draftcast.scenarios.sweep.result import pareto_front


@pytest.fixture(scope="module")
def base() -> Scenario:
    return load_scenario("default")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("rate=1..20:3", (1.0, 10.5, 20.0)),
        ("rate=1..100:3log", (1.0, 10.0, 100.0)),
        ("k=0,1,3,5", (0, 1, 3, 5)),
        ("k=0..3", (0, 1, 2, 3)),
        ("k=0..3,7", (0, 1, 2, 3, 7)),
        # Whole numbers where the key takes no others; what rounds to the same is there once.
        ("concurrency=1..64:4log", (1, 4, 16, 64)),
        ("concurrency=1..3:9", (1, 2, 3)),
        ("batch=100..200:3", (100, 150, 200)),
        ("engine.max_num_batched_tokens=1000..1001:2", (1000, 1001)),
        ("engine.gpu_memory_utilization=0.5..0.9:3", (0.5, 0.7, 0.9)),
        ("hardware=h100-sxm, h200", ("h100-sxm", "h200")),
        ("method=off,eagle3", ("off", "eagle3")),
        ("engine.kv_cache_dtype=auto,fp8", ("auto", "fp8")),
        ("engine.enforce_eager=true,false", (True, False)),
        ("engine.speculative_config=[null, {method: ngram, num_speculative_tokens: 2}]",
         (None, {"method": "ngram", "num_speculative_tokens": 2})),
        ("statistics.seed=1234567..1234570", (1234567, 1234568, 1234569, 1234570)),
    ],
)  # fmt: skip
def test_axes(base: Scenario, text: str, values: tuple[Any, ...]) -> None:
    axis = parse_axis(text, base)
    assert axis.values == values
    assert [type(value) for value in axis.values] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rate", "must look like"),
        ("=1", "must look like"),
        ("rate=", "must look like"),
        ("rate=2..1:3", "must rise"),
        ("rate=1..2:1", "2 to 100000 points"),
        ("rate=0..2:3log", "starts above 0"),
        ("rate=0.5..2", "whole ends"),
        ("rate=a..2:3", "must be LOW..HIGH"),
        ("rate=1..inf:3", "finite"),
        ("rate=[1, 2", "not valid YAML"),
        ("rate=[]", "at least one value"),
    ],
)
def test_a_bad_axis_is_one_line_that_names_the_option(base: Scenario, text: str, said: str) -> None:
    with pytest.raises(InputError, match="--grid") as caught:
        parse_axis(text, base)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# Every short name, a value and where it shows.
CHANGES: dict[str, tuple[Any, str, Any]] = {
    "rate": (3.0, "workload.arrivals.request_rate_rps", 3.0),
    "concurrency": (7, "workload.arrivals", None),
    "acceptance": (
        0.5,
        "acceptance",
        {
            "model": "constant",
            "alpha": 0.5,
            "confidence_discrimination": None,
            "relative_error": None,
            "num_rounds": None,
        },
    ),
    "method": ("eagle", "engine.speculative_config.method", "eagle"),
    "k": (2, "engine.speculative_config.num_speculative_tokens", 2),
    "policy": ("goodput", "policy.name", "goodput"),
    "tp": (2, "engine.tensor_parallel_size", 2),
    "batch": (64, "engine.max_num_seqs", 64),
    "model": ("Qwen3-8B", "engine.model", "Qwen3-8B"),
    "replicas": (2, "cluster.replicas", 2),
    "router": ("random", "cluster.router", "random"),
    "hardware": ("h200", "hardware", "h200"),
    "profile": ("default", "profile", "default"),
    "prompt_tokens": (100, "workload.lengths.prompt_tokens", {"distribution": "constant", "value": 100}),
    "output_tokens": (50, "workload.lengths.output_tokens", {"distribution": "constant", "value": 50}),
    "requests": (10, "workload.num_requests", 10),
    "seed": (9, "statistics.seed", 9),
}


def test_every_short_name_changes_its_key_and_nothing_else(base: Scenario) -> None:
    assert set(CHANGES) == {*SHORT, *SPECIAL}
    for name, (value, key, shown) in CHANGES.items():
        # Another method takes acceptance of its own.
        same = {"acceptance.rates": [0.661, 0.377, 0.216]} if name == "method" else {}
        other = changed(base, {name: value, **same})
        data, untouched = to_mapping(other), to_mapping(base)
        for level in key.split(".")[:-1]:
            data, untouched = data[level], untouched[level] or {}
        last = key.rpartition(".")[2]
        if shown is not None:
            assert data[last] == shown, name
        assert data.pop(last) != untouched.pop(last, None), name
        assert data == untouched or name == "policy", name
    loop = changed(base, {"concurrency": 7}).workload.arrivals
    assert (loop.process, loop.concurrency) == ("closed_loop", 7)  # type: ignore[union-attr]


def test_off_needs_nothing_else_and_k_0_is_off(base: Scenario) -> None:
    for values in ({"k": 0}, {"method": "off"}, {"method": None, "k": 3}, {"method": "off", "acceptance": 0.5}):
        assert changed(base, values).speculative_config is None
    off = changed(base, {"k": 0})
    with pytest.raises(ScenarioError, match="there is no engine"):
        changed(off, {"k": 2})


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"rate": 10, "concurrency": 4}, "rate"),
        ({"rate": 10, "workload.arrivals.request_rate_rps": 4}, "workload.arrivals.request_rate_rps"),
        ({"rate": 10, "workload.arrivals.time_scale": 2}, "workload.arrivals.time_scale"),
        ({"k": 2, "engine.speculative_config.num_speculative_tokens": 1}, "engine.*num_speculative_tokens"),
        ({"policy": "off", "policy.name": "fixed"}, "policy.name"),
        ({"acceptance.concentration": 9, "acceptance": 0.5}, "acceptance.concentration"),
        ({"method": "off", "engine.speculative_config.method": "ngram"}, "engine.speculative_config.method"),
    ],
)
def test_a_value_that_another_one_replaces_is_refused(base: Scenario, values: dict[str, Any], key: str) -> None:
    with pytest.raises(ScenarioError, match=f"^{key} = .*has no effect together with"):
        changed(base, values)


def test_what_a_short_name_leaves_as_it_is_goes_with_it(base: Scenario) -> None:
    arrivals = {"process": "gamma", "request_rate_rps": 1.0, "burstiness": 2.0}
    kept = changed(base, {"rate": 10.0, "workload.arrivals": arrivals}).workload.arrivals
    assert (kept.request_rate_rps, kept.burstiness) == (10.0, 2.0)  # type: ignore[union-attr]
    loop = with_values(base, {"workload.arrivals": {"process": "closed_loop", "concurrency": 1}})
    kept = changed(loop, {"concurrency": 4, "workload.arrivals.think_time_s": 3.0}).workload.arrivals
    assert (kept.concurrency, kept.think_time_s) == (4, 3.0)  # type: ignore[union-attr]


def test_another_method_takes_acceptance_of_its_own(base: Scenario) -> None:
    points = grid_points(base, [SweepAxis("method", ("off", "eagle3", "ngram"))])
    assert [point.scenario is None for point in points] == [False, False, True]
    assert "was given for eagle3, and the method is now ngram" in points[2].error
    for key in ("method", "engine.speculative_config.method"):
        found = changed(base, {key: "ngram", "acceptance": 0.5})
        assert (found.method, found.acceptance.alpha) == ("ngram", 0.5)  # type: ignore[union-attr]


def test_acceptance_keeps_the_kind_of_model_that_knows_more(base: Scenario) -> None:
    ngram = load_scenario("ngram-code-editing")
    kept = changed(ngram, {"acceptance": 0.4}).acceptance
    assert kept is not None
    assert kept.model_dump(exclude_none=True) == {
        "model": "ngram", "match_probability": 0.547, "alpha": 0.4,
    }  # fmt: skip
    beta = with_values(base, {"acceptance": {"model": "beta", "mean": 0.6, "concentration": 3.0}})
    kept = changed(beta, {"acceptance": 0.4}).acceptance
    assert kept is not None
    assert kept.model_dump(exclude_none=True) == {"model": "chain", "alpha": 0.4, "concentration": 3.0}
    shape, searches = {"tree_width": 3, "max_tree_nodes": 9}, {"match_probability": 0.4, "persistence": 0.5}
    drafts = {"method": "ngram", "num_speculative_tokens": 2, **shape}
    tree = {"engine.version": "sglang 0.5", "engine.speculative_config": drafts}
    tree["acceptance"] = {"model": "tree", "rates": [0.6, 0.4], **shape, **searches}
    kept = changed(with_values(base, tree), {"acceptance": 0.4}).acceptance
    assert kept is not None
    assert kept.model_dump(exclude_none=True) == {"model": "tree", "alpha": 0.4, **searches}
    sure = with_values(base, {"acceptance.confidence_discrimination": 0.3})
    kept = changed(sure, {"acceptance": 0.4}).acceptance
    assert kept is not None
    own = {"model": "constant", "alpha": 0.4, "confidence_discrimination": 0.3}
    assert kept.model_dump(exclude_none=True) == own


def test_an_acceptance_that_would_have_no_effect_is_refused(base: Scenario) -> None:
    synthetic = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
    spec = {"method": "eagle3", "num_speculative_tokens": 3, **synthetic}
    with pytest.raises(ScenarioError, match="no effect"):
        changed(with_values(base, {"engine.speculative_config": spec}), {"acceptance": 0.5})
    own = {"name": "chat", "share": 1.0, "acceptance": {"model": "constant", "alpha": 0.1}}
    with pytest.raises(ScenarioError, match="class chat has its own"):
        changed(with_values(base, {"workload.classes": [own]}), {"acceptance": 0.5})


def test_points_that_cannot_be_asked_stay_with_their_reason(base: Scenario) -> None:
    points = grid_points(base, [SweepAxis("rate", (1.0, 2.0)), SweepAxis("k", (3, 65))])
    assert [dict(point.values) for point in points] == [
        {"rate": 1.0, "k": 3}, {"rate": 1.0, "k": 65}, {"rate": 2.0, "k": 3}, {"rate": 2.0, "k": 65},
    ]  # fmt: skip
    assert [point.scenario is None for point in points] == [False, True, False, True]
    assert "must be at most 64" in points[1].error


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ([SweepAxis("enigne.block_size", (1, 2))], "no point of the grid.*unknown key"),
        ([SweepAxis("tp", (1,)), SweepAxis("engine.tensor_parallel_size", (2,))], "given twice"),
        ([SweepAxis("seed", tuple(range(1000))), SweepAxis("rate", tuple(range(1, 1000)))], "more than 100000"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(base: Scenario, axes: list[SweepAxis], said: str) -> None:
    with pytest.raises(InputError, match=said):
        grid_points(base, axes)


def test_pareto_front() -> None:
    points = [(1, 9), (2, 8), (2, 7), (3, 8), (5, 1), (4, 1), (5, 1), (6, float("nan")), (3, 8)]
    # One replication: every difference counts.
    front = pareto_front([([first], [second]) for first, second in points], 0.95)
    assert [points[index] for index in front] == [(1, 9), (3, 8), (5, 1), (5, 1), (3, 8)]
    assert pareto_front([], 0.95) == []


def test_the_pareto_front_does_not_reward_chance() -> None:
    # As fast, and more tokens by chance: the interval of the difference holds 0, so neither beats the other.
    level, lucky = ([1.0, 1.0, 1.0], [10.0, 10.0, 10.0]), ([1.0, 1.0, 1.0], [10.1, 9.9, 10.2])
    assert pareto_front([level, lucky], 0.95) == [0, 1]
    surely = ([1.0, 1.0, 1.0], [10.1, 10.11, 10.12])
    assert pareto_front([level, surely], 0.95) == [1]


def test_a_grid_takes_arrays_and_texts_and_names_what_it_does_not_take() -> None:
    scenario = load_scenario()
    assert axis_of("k", np.arange(3), scenario) == SweepAxis("k", (0, 1, 2)) == axis_of("k", "0..2", scenario)
    assert {type(value) for value in axis_of("k", np.arange(3), scenario).values} == {int}
    for values, said in (([], "at least one value"), (10, "rate = 10: must be a list")):
        with pytest.raises(InputError, match=said):
            axis_of("rate", values, scenario)
