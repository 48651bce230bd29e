"""What the errors of step times and acceptance do to an advantage: closed forms, and every key turns the output."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from draftcast import InputError, load_scenario, simulate
from draftcast.scenarios.compare.metric import METRICS
from draftcast.scenarios.compare.model_error import (
    SPREADS,
    Prediction,
    RelativeErrors,
    Response,
    RunAtBounds,
    SloUse,
    model_error,
    predicted,
    response,
    setting_error,
    stratum_of,
)
from draftcast.scenarios.compare.slo_answer import slo_answer
from draftcast.scenarios.compare.verdict import Side, Verdict, decide, side
from draftcast.scenarios.run.deployment import cached_deployment
from draftcast.scenarios.run.fluid import FluidModel
from draftcast.scenarios.run.simulate import simulate_together
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import with_values, without_speculation
from draftcast.scenarios.show.run_report import status_line
from draftcast.sim.statistics.crossing import Probe
from draftcast.sim.statistics.intervals import Estimate

EXACT = {"statistics.model_error": "none"}
CLOSED = {"workload.arrivals": {"process": "closed_loop", "concurrency": 4}}
NORMAL_95 = 1.959964


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario(overrides=["workload.num_requests=200", "statistics.replications=2"])


def with_errors(scenario: Scenario, step: float = 0.0, speculation: float = 0.0, acceptance: float = 0.0) -> Response:
    known = response(scenario)
    assert known is not None
    return Response(RelativeErrors("stated", step, speculation, acceptance), known.fluids, known.rate_rps)


def predicted_figures_of(scenario: Scenario) -> dict[str, Estimate]:
    return side(scenario, simulate(scenario)).predicted_figures


def width(estimate: Estimate | None) -> float:
    assert estimate is not None
    return math.log(estimate.high / estimate.low) / 2


def advantage_of(times: float, noise: float = 1e-6) -> Probe:
    return Probe(0.0, (times * (1 + noise), times * (1 - noise)), (1.0, 1.0))


@pytest.mark.parametrize("errors", [{"speculation": 0.1}, {"acceptance": 0.1}])
def test_at_a_fixed_number_of_clients_the_interval_is_that_of_the_speculation_alone(
    scenario: Scenario, errors: dict[str, float]
) -> None:
    closed = with_values(scenario, CLOSED)
    found = with_errors(closed, step=0.3, **errors).predict(advantage_of(2.0), 0.95)
    assert width(found.advantage) == pytest.approx(NORMAL_95 * 0.1, rel=0.02)
    assert found.sign == 1
    assert found.dominant == ("model" if "speculation" in errors else "acceptance")


def test_without_errors_chance_is_what_is_left(scenario: Scenario) -> None:
    probe = Probe(0.0, (1.1, 1.3, 1.2), (1.0, 1.0, 1.0))
    found = with_errors(scenario).predict(probe, 0.95)
    chance = probe.advantage(0.95)
    assert chance is not None
    assert width(found.advantage) == pytest.approx(width(chance), rel=0.03)
    assert found.dominant == "chance"


def test_an_even_advantage_has_even_odds(scenario: Scenario) -> None:
    assert with_errors(scenario, 0.05, 0.1).predict(advantage_of(1.0), 0.95).probability == pytest.approx(0.5, abs=0.02)


def test_an_error_of_every_step_matters_only_where_the_load_bends_the_latency(scenario: Scenario) -> None:
    low, high = (
        with_errors(with_values(scenario, {"workload.arrivals.request_rate_rps": rate}), step=0.1)
        for rate in (1.0, 50.0)
    )
    assert width(low.predict(advantage_of(2.0), 0.95).advantage) < 0.02
    assert width(high.predict(advantage_of(2.0), 0.95).advantage) > 0.1


def test_a_draw_beyond_one_side_s_capacity_decides_by_itself(scenario: Scenario) -> None:
    near = with_errors(with_values(scenario, {"workload.arrivals.request_rate_rps": 60.0}), step=0.01, speculation=0.2)
    found = near.predict(advantage_of(3.0), 0.95, (62.0, 90.0))
    assert found.advantage is not None
    assert found.advantage.low == 0.0  # speculation is overloaded in more than 2.5 % of the draws
    assert found.sign == 0
    lost = near.predict(advantage_of(3.0), 0.95, (40.0, 45.0))
    assert lost.advantage is None
    assert lost.overloaded > 0.5


def test_an_open_loop_s_throughput_is_what_arrives_up_to_capacities_of_uncertain_size(scenario: Scenario) -> None:
    goodput = METRICS["token_goodput"]
    errors = with_errors(scenario, step=0.05, speculation=0.1)
    capacities = (60.0, 80.0)
    assert not errors.reaches(goodput, (60.0, None))
    assert errors.reaches(goodput, capacities)

    def found(rate: float, times: float) -> Prediction:
        return dataclasses.replace(errors, rate_rps=rate).predict(advantage_of(times, 1e-9), 0.95, capacities, goodput)

    # Far below both capacities no error changes what is completed.
    low = found(30.0, 1.0)
    assert (low.probability, low.sign, width(low.advantage)) == (0.5, 0, 0.0)
    # Beyond both the ratio of the capacities, of which the error of speculation alone is left.
    beyond = found(200.0, 0.75)
    assert width(beyond.advantage) == pytest.approx(NORMAL_95 * 0.1, rel=0.02)
    assert (beyond.sign, beyond.probability < 0.01) == (-1, True)
    # At the capacity with speculation it is either too small or does not matter.
    at = found(60.0, 1.0)
    assert at.advantage is not None
    assert at.advantage.high == pytest.approx(1.0)
    assert (at.sign, at.probability) == (0, pytest.approx(0.25, abs=0.02))


@pytest.mark.parametrize("load", [CLOSED, {"workload.arrivals.request_rate_rps": 0.5}])
def test_slo_goodput_goes_by_what_requests_use_of_their_limits(scenario: Scenario, load: dict[str, object]) -> None:
    goodput = METRICS["slo_goodput"]
    errors = with_errors(with_values(scenario, load), step=0.1)
    assert errors.reaches(goodput, (None, None))
    half, nearly = np.full(50, 0.5), np.full(50, 0.95)

    def found(on: np.ndarray, off: np.ndarray) -> Prediction:
        use = SloUse.of({"all": on}, {"all": off}, errors.rate_rps)
        return errors.predict(advantage_of(1.0, noise=0.0), 0.95, metric=goodput, use=use)

    # Without speculation times may be 5 % longer, of which a normal error of 10 % exceeds 30 %: then nothing is within
    # the limits, of which a hundredth stands for none; with speculation all still is.
    near = found(half, nearly)
    assert near.advantage is not None
    assert (near.advantage.mean, near.advantage.high) == (pytest.approx(1.0), pytest.approx(100.0))
    assert near.advantage.low >= 1.0 - 1e-9
    assert near.probability == pytest.approx(0.304 + 0.696 / 2, abs=0.02)
    assert near.dominant == "model"
    assert found(nearly, half).probability == pytest.approx(0.696 / 2, abs=0.02)
    assert found(half, half).probability == pytest.approx(0.5, abs=0.01)


def test_a_side_without_figures_uses_what_the_other_does_as_its_latency_is_longer(scenario: Scenario) -> None:
    errors = with_errors(scenario, step=0.05)
    assert errors.rate_rps is not None
    use = SloUse.of({"all": np.array([0.9])}, {}, errors.rate_rps)
    on, off = (fluid.in_system(errors.rate_rps) for fluid in errors.fluids)
    assert off > on / 0.9  # without speculation a request takes so much longer that none is within its limits
    assert errors.predict(Probe(0.0), 0.95, metric=METRICS["slo_goodput"], use=use).probability > 0.95


def test_longer_steps_attain_what_the_share_of_the_limits_says(scenario: Scenario) -> None:
    plain = without_speculation(scenario)
    load = CLOSED | {
        "workload.lengths": {"prompt_tokens": {"distribution": "uniform", "low": 16, "high": 2000}, "output_tokens": 20}
    }
    run = simulate(with_values(plain, load | {"slo.e2el_ms": 180.0}))
    (used,) = run.slo_use.values()
    assert np.mean(used <= 1.0) == pytest.approx(run.summary["figures"]["slo_attainment"].mean, abs=0.02)
    measured = {"source": "x", "model": plain.engine.model, "hardware": plain.hardware, "step_factor": 1.2}
    longer = simulate(with_values(plain, load | {"slo.e2el_ms": 180.0, "correction": measured}))
    attained = longer.summary["figures"]["slo_attainment"].mean
    assert attained < np.mean(used <= 1.0) - 0.05
    assert np.mean(used <= 1.0 / 1.2) == pytest.approx(attained, abs=0.05)


def verdict(scenario: Scenario) -> Verdict:
    on, off = simulate_together([scenario, without_speculation(scenario)])
    errors = response(scenario)
    return decide(METRICS["e2e"], Side(on, "below"), Side(off, "below"), 0.95, errors=errors)


def test_the_verdict_goes_by_the_prediction_unless_step_times_are_exact(scenario: Scenario) -> None:
    # Acceptance at which speculation gains a few per cent: more than chance, less than the model's error.
    close = with_values(scenario, CLOSED | {"acceptance": {"model": "constant", "alpha": 0.16}})
    found = verdict(close)
    assert found.word == "too close to call"
    assert found.prediction is not None
    assert "Measure your engine without speculation" in found.sentence("with 4 clients")
    sure = verdict(with_values(close, {"statistics.model_error": "none"}))
    assert sure.word in ("pays", "costs")
    assert sure.prediction is None
    assert width(sure.advantage) < width(found.advantage)
    assert found.summary()["prediction"]["probability"] == found.prediction.probability


def test_acceptance_measured_over_few_rounds_widens_the_interval(scenario: Scenario) -> None:
    closed = with_values(scenario, CLOSED)
    widths = []
    for key, value in (("num_rounds", None), ("num_rounds", 10_000), ("num_rounds", 20), ("relative_error", 0.3)):
        errors = response(with_values(closed, {f"acceptance.{key}": value}))
        assert errors is not None
        widths.append(width(errors.predict(advantage_of(2.0), 0.95).advantage))
    assert widths[1] == pytest.approx(widths[0], rel=0.01)
    assert 1.2 * widths[0] < widths[2] < widths[3]
    with pytest.raises(InputError, match=r"acceptance\.num_rounds.*not both"):
        with_values(closed, {"acceptance.num_rounds": 5, "acceptance.relative_error": 0.1})


def test_few_rounds_have_the_standard_error_of_their_lengths(scenario: Scenario) -> None:
    # One draft, accepted half the time: lengths 1 and 2, standard deviation 0.5, mean 1.5.
    own = {"acceptance": {"model": "constant", "alpha": 0.5, "num_rounds": 100}}
    one = with_values(scenario, {"engine.speculative_config.num_speculative_tokens": 1, **own})
    errors = response(one)
    assert errors is not None
    assert errors.error.acceptance == pytest.approx(0.5 / 1.5 / 10)


def test_what_nobody_measured_is_less_sure(scenario: Scenario) -> None:
    sheet = with_values(scenario, {"hardware": "rtx-4090", "profile": None})
    experts, latent = (
        with_values(scenario, {"engine.model": model, "engine.speculative_config": None})
        for model in ("Qwen3-30B-A3B", "DeepSeek-V2-Lite")
    )
    asked = (scenario, sheet, experts, with_values(experts, {"hardware": "mi300x"}))
    errors = [setting_error(each) for each in asked]
    assert errors == sorted(set(errors))
    assert len({stratum_of(cached_deployment(each)) for each in asked}) == len(SPREADS["strata"])
    assert stratum_of(cached_deployment(latent)) == stratum_of(cached_deployment(experts))
    assert setting_error(with_values(scenario, {"statistics.model_error": "none"})) == 0.0
    assert setting_error(without_speculation(scenario)) < errors[0]


def test_profiles_of_one_gpu_that_disagree_are_inside_the_interval(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundled whole-step fit of the H100 (another vLLM) makes a draft dearer than its timed kernels do."""
    other = with_values(scenario, {"profile": "h100-llama-3.1-8b-affine"})
    error = model_error(scenario, cached_deployment(scenario))
    without = without_speculation
    for batch in (1, 8, 32, 64):
        on, off = (
            math.log(fluid(other).latency_s(batch) / fluid(scenario).latency_s(batch))
            for fluid in (FluidModel.of, lambda side: FluidModel.of(without(side)))
        )
        assert abs(off) < NORMAL_95 * error.step
        assert abs(on - off) < NORMAL_95 * error.speculation
    assert model_error(without(scenario), cached_deployment(without(scenario))).step == error.step
    monkeypatch.setattr("draftcast.scenarios.compare.model_error.profiles_of", lambda _: ())
    alone = model_error(scenario, cached_deployment(scenario))
    assert alone.step < error.step
    assert alone.speculation < error.speculation


def test_a_capacity_s_interval_grows_by_the_error(scenario: Scenario) -> None:
    known = Estimate(10.0, 9.9, 10.1, 0.1, 5)
    assert predicted(known, with_values(scenario, EXACT)).high == pytest.approx(10.1, rel=1e-3)
    error = setting_error(scenario)
    assert error > 0.05
    assert predicted(known, scenario).high == pytest.approx(10.0 * math.exp(NORMAL_95 * error), rel=0.01)


def test_figures_reach_as_far_as_longer_and_shorter_steps_take_them(scenario: Scenario) -> None:
    closed = with_values(without_speculation(scenario), CLOSED | {"slo.e2el_ms": 1500.0})
    found = without_chance(closed)
    reach = math.exp(NORMAL_95 * setting_error(closed))
    for factor, bound in ((1 / reach, "low"), (reach, "high")):
        measured = {"source": "x", "model": closed.engine.model, "hardware": closed.hardware, "step_factor": factor}
        other = simulate(with_values(closed, {"correction": measured})).summary["figures"]
        for name, opposite in (
            ("mean_tpot_s", False),
            ("p99_e2el_s", False),
            ("output_throughput", True),
            ("slo_attainment", True),
            ("request_goodput", True),
        ):
            where = {"low": "high", "high": "low"}[bound] if opposite else bound
            assert getattr(found[name], where) == pytest.approx(other[name].mean, rel=0.03), name


def without_chance(scenario: Scenario) -> dict[str, Estimate]:
    run = simulate(scenario)
    sure = {name: Estimate(each.mean, each.mean, each.mean, 0.0, 2) for name, each in run.summary["figures"].items()}
    reach = RunAtBounds.of(scenario, run, None)
    assert reach is not None
    return reach.predicted_figures(dataclasses.replace(run, summary={"figures": sure}))


@pytest.mark.parametrize(
    "arrivals",
    [
        {"process": "closed_loop", "concurrency": 4, "think_time_s": 0.5},
        {"process": "piecewise", "segments": [{"duration_s": 60.0, "request_rate_rps": rate} for rate in (1.0, 2.0)]},
    ],
    ids=["clients that think", "arrivals by time"],
)  # fmt: skip
def test_throughput_follows_the_steps_as_far_as_they_decide_it(
    scenario: Scenario, arrivals: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Steps that are a quarter longer end the warm-up later, so that other arrivals are counted.
    monkeypatch.setitem(SPREADS["strata"]["dense, measured"], "step", 0.06)
    asked = with_values(without_speculation(scenario), {"workload.arrivals": arrivals})
    found = without_chance(asked)["output_throughput"]
    reach = math.exp(NORMAL_95 * setting_error(asked))
    for factor, bound in ((reach, found.low), (1 / reach, found.high)):
        measured = {"source": "x", "model": asked.engine.model, "hardware": asked.hardware, "step_factor": factor}
        other = simulate(with_values(asked, {"correction": measured})).summary["figures"]
        assert bound == pytest.approx(other["output_throughput"].mean, rel=0.01)


def test_one_replication_has_no_interval(scenario: Scenario) -> None:
    found = predicted_figures_of(with_values(scenario, {"statistics.replications": 1}))
    assert math.isnan(found["mean_e2el_s"].low)
    assert math.isnan(found["mean_e2el_s"].high)


def test_whether_the_slo_is_met_is_asked_of_each_class_that_has_one(scenario: Scenario) -> None:
    run = simulate(with_values(without_speculation(scenario), CLOSED | {"slo.tpot_ms": 100.0}))
    reach = RunAtBounds(np.log([1.25, 1.0, 0.8]), np.ones(3))
    asked = with_values(scenario, {"slo": {"tpot_ms": 10.0, "attainment": 0.9}})

    def is_open(*shares: float) -> bool:
        return reach.leaves_open(
            asked, dataclasses.replace(run, slo_use={"default": np.array(shares), "other": np.ones(9)})
        )

    assert is_open(*[0.5] * 8, 0.9, 0.9)
    assert not is_open(*[0.5] * 9, 0.9)
    assert not is_open(*[0.5] * 8, 1.3, 1.3)


@pytest.mark.parametrize(("limit", "is_open"), [(1.02, True), (3.0, False)])
def test_an_slo_that_the_errors_decide_is_told(scenario: Scenario, limit: float, is_open: bool) -> None:
    plain = with_values(without_speculation(scenario), CLOSED)
    reached_ms = 1e3 * simulate(plain).summary["figures"]["p99_tpot_s"].mean
    asked = with_values(plain, {"slo": {"tpot_ms": limit * reached_ms, "attainment": 0.9}})
    own = side(asked, simulate(asked))
    found = slo_answer(asked, own)
    assert found is not None
    assert found.met
    assert own.run is not None
    for text in (found.sentence, status_line(asked, own)):
        assert text.endswith("could reverse this.") == is_open


def test_figures_of_an_open_loop_rise_with_the_load_and_deliver_what_arrives(scenario: Scenario) -> None:
    def at(rate: float, **changes: object) -> dict[str, Estimate]:
        return predicted_figures_of(with_values(scenario, {"workload.arrivals.request_rate_rps": rate, **changes}))

    low, busy = at(2.0), at(25.0)
    known = simulate(with_values(scenario, {"workload.arrivals.request_rate_rps": 2.0})).summary["figures"]
    error = setting_error(scenario)
    assert width(low["mean_tpot_s"]) == pytest.approx(NORMAL_95 * error, rel=0.1)
    assert width(busy["mean_tpot_s"]) > 1.3 * NORMAL_95 * error
    assert low["output_throughput"].half_width == pytest.approx(known["output_throughput"].half_width)
    assert "mean_acceptance_length" not in low  # no error of the steps touches it
    assert at(2.0, **EXACT) == {}


def test_a_calibrated_forecast_is_as_sure_as_its_factor_and_as_such_factors_hold_elsewhere(scenario: Scenario) -> None:
    engine = {"source": "off.json", "model": scenario.engine.model, "hardware": scenario.hardware}
    measured = {"step_factor": 1.1, "step_factor_interval": [1.09, 1.11], **engine}
    calibrated = with_values(scenario, {"correction": measured})
    error = setting_error(without_speculation(calibrated))
    before = setting_error(without_speculation(scenario))
    of_the_factor = math.log(1.11 / 1.09) / 2 / NORMAL_95
    elsewhere = SPREADS["calibrated_share"] * SPREADS["strata"]["dense, measured"]["step"]
    assert error == pytest.approx(math.hypot(of_the_factor, elsewhere), rel=1e-4)
    assert error < before
