"""The public names, as a notebook uses them."""

from __future__ import annotations

from pathlib import Path

import pytest

import draftcast
from draftcast.errors import InputError, ScenarioError

SMALL = draftcast.load_scenario("default", overrides=["workload.num_requests=200", "statistics.replications=2"])


def test_a_copy_with_other_values() -> None:
    changed = SMALL.with_(k=2, rate=12, tp=2, **{"engine.block_size": 32})
    assert (changed.num_speculative_tokens, changed.rate_rps) == (2, 12)
    assert (changed.engine.tensor_parallel_size, changed.engine.block_size) == (2, 32)
    assert SMALL.with_(k=0).speculative_config is None
    with pytest.raises(ScenarioError, match="no_such_key"):
        SMALL.with_(no_such_key=1)


def test_a_result_shows_itself_and_is_saved(tmp_path: Path) -> None:
    result = draftcast.simulate(SMALL)
    frame = result.frame()
    assert frame.loc["mean_e2el_s", "mean"] == result.summary["figures"]["mean_e2el_s"].mean
    assert list(frame) == ["mean", "low", "high"]
    assert repr(result).startswith("RunResult(steady: mean E2E ")
    # Its throughput, which of a run that did not settle is not its load.
    assert f" s, completing {result.summary['figures']['request_throughput'].mean:.3g} requests/s" in repr(result)
    assert len(repr(result)) < 100
    assert "mean_tpot_s" in result._repr_html_()
    again = draftcast.RunResult.load(result.save(tmp_path / "run"))
    assert again.frame().equals(frame)
    assert again.requests.equals(result.requests)
    assert (again.state, again.replications, again.steps) == (result.state, result.replications, None)
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"replications"', '"runs"'))
    with pytest.raises(InputError, match="no run of this version"):
        draftcast.RunResult.load(tmp_path / "run")


def test_results_draw_themselves() -> None:
    result = draftcast.simulate(SMALL)
    assert [trace.xaxis for trace in result.plot().data] == ["x", "x2", "x3"]
    compared = draftcast.compare(SMALL, [10, 20])
    assert compared.plot().data
    with pytest.raises(InputError):
        draftcast.compare(SMALL, [10]).plot()


def test_two_scenarios_side_by_side() -> None:
    found = draftcast.compare_scenarios(SMALL, SMALL.with_(k=0))
    assert found["mean_e2el_s"].verdict == "better"
    assert found["mean_e2el_s"].difference.high < 0
    # Nine of ten drafts are rejected and the loss is small: sampling noise alone would be sure of it.
    poor = SMALL.with_(k=1, **{"acceptance.rates": [0.06]})
    for sides in ((poor, poor.with_(k=0)), (poor.with_(k=0), poor)):
        latency = draftcast.compare_scenarios(*sides)["mean_e2el_s"]
        assert latency.difference.low * latency.difference.high > 0
        assert latency.verdict == "cannot tell"
    exact = poor.with_(**{"statistics.model_error": "none"})
    assert draftcast.compare_scenarios(exact, exact.with_(k=0))["mean_e2el_s"].verdict == "worse"
    same = draftcast.compare_scenarios(SMALL, SMALL)
    assert {each.difference.mean for each in same.values()} == {0.0}
    with pytest.raises(ScenarioError, match=r"statistics.replications = 3: is 2 in one scenario"):
        draftcast.compare_scenarios(SMALL, SMALL.with_(**{"statistics.replications": 3}))
    timed = SMALL.with_(**{"workload.num_requests": None, "workload.duration_s": 10.0})
    assert draftcast.compare_scenarios(timed, timed.with_(rate=12.0))
    busy = timed.with_(rate=55.0, **{"workload.duration_s": 30.0})
    with pytest.raises(
        InputError, match=r"warmup = \d+: a run of \d+ requests can leave out at most \d+; compare runs"
    ):
        draftcast.compare_scenarios(timed, busy)
