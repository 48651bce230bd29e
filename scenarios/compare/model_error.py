"""How sure a forecast is: what the errors of step times and acceptance do to figures, an advantage and a capacity.

The errors come from the evidence (``model_error.yaml``): one factor on every step, with speculation and without, and
one on the steps with speculation alone. They are drawn jointly and carried through by similarity, which is exact for a
factor on every step: an engine whose steps take c times as long serves a rate of r as the engine itself serves c * r,
with every time c times as long. How latency rises with the load is the fluid estimate's (`scenarios/run/fluid`), fixed
at the simulated figures.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from draftcast.calibration.profile.load import profiles_of
from draftcast.errors import InputError
from draftcast.files import picked
from draftcast.kernels.arrays import FloatArray
from draftcast.scenarios.compare.metric import E2E, Metric
from draftcast.scenarios.run.deployment import Deployment, cached_deployment
from draftcast.scenarios.run.fluid import FluidModel
from draftcast.scenarios.run.simulate import RunResult
from draftcast.scenarios.run.workload_spec import acceptance_models
from draftcast.scenarios.schema import Scenario, members, with_values, without_speculation
from draftcast.sim.output.metrics import LATENCIES, STATISTICS
from draftcast.sim.statistics.crossing import Probe
from draftcast.sim.statistics.intervals import Estimate, normal_quantile
from draftcast.yaml_text import yaml_beside

Source = Literal["chance", "acceptance", "model"]
Curve = Callable[[FloatArray], FloatArray]
DRAWS = 1024  # quasi-random, the same for every question
FLUID_IS_GOOD_TO = 0.8  # share of the fluid estimate's capacity above which the real one may lie
THROUGHPUTS = ("request_throughput", "output_throughput", "output_throughput_per_replica", "total_token_throughput")
LEAST_ATTAINED = 0.01  # of both sides' mean attainment: stands for no request within its SLO, as a ratio needs a number
SPREADS: Mapping[str, Any] = yaml_beside(__file__, "model_error.yaml")
"""By stratum, standard deviations of the logarithm of two factors, and what they were estimated from;
``calibrated_share``: what of a step's error a calibration leaves at other loads."""
_SENTENCES = yaml_beside(__file__, "sentences.yaml")
UNCERTAIN: Mapping[Source, str] = _SENTENCES["uncertain"]
NEXT_MEASUREMENT: Mapping[Source, str] = _SENTENCES["next_measurement"]


@dataclass(frozen=True)
class RelativeErrors:
    """Of one scenario: relative standard deviations."""

    stratum: str  # of ``model_error.yaml``; which errors it is judged by
    step: float  # of the time of every step, with and without speculation
    speculation: float  # of the steps with speculation beside those without
    acceptance: float = 0.0  # of the tokens a round yields

    def of_setting(self, speculates: bool) -> float:
        """Of the time that the setting with or without speculation takes for a token."""
        return math.hypot(self.step, self.speculation, self.acceptance) if speculates else self.step


def stratum_of(deployment: Deployment) -> str:
    """By the model, dense with plain attention or not, and whether the device's kernels, attention too, were timed."""
    profile, model = deployment.profile, deployment.model
    kind = "dense" if model.has_plain_attention and not model.is_moe else "experts or other attention"
    is_measured = profile.kind == "affine" or (profile.is_timed and profile.times("attention_decode"))
    return f"{kind}, {'measured' if is_measured else 'not measured'}"


def model_error(scenario: Scenario, deployment: Deployment) -> RelativeErrors:
    """Of a scenario's forecasts; if calibrated, how sure its factor is and how well such factors hold elsewhere."""
    name = stratum_of(deployment)
    spreads = SPREADS["strata"][name]
    measured, (of_step, of_speculation) = scenario.correction, _disagreement(scenario, deployment)
    step = math.hypot(spreads["step"], of_step)
    if measured is not None and measured.step_factor_interval is not None:
        low, high = measured.step_factor_interval
        of_the_factor = math.log(high / low) / 2 / normal_quantile(0.95)
        step = min(step, math.hypot(of_the_factor, SPREADS["calibrated_share"] * spreads["step"]))
    return RelativeErrors(name, step, math.hypot(spreads["speculation"], of_speculation), _acceptance_error(scenario))


def _disagreement(scenario: Scenario, deployment: Deployment) -> tuple[float, float]:
    """What bundled profiles of one GPU add to the two standard deviations, as draws of its times: half of the largest
    difference between the profile and another, over batches of 1, 2, 4, ... requests."""
    names = set(profiles_of(deployment.hardware.name))
    others = names - {deployment.profile.name}
    if not others or others == names:
        return 0.0, 0.0  # the only one, or one of the user's own
    scenario = with_values(scenario, {"correction": None})  # of the scenario's own profile
    sides = (without_speculation(scenario), *([scenario] if scenario.speculative_config is not None else []))
    largest = [0.0, 0.0]
    for name in others:
        differences = []
        for side in sides:
            try:
                other = cached_deployment(with_values(side, {"profile": name}))
            except InputError:
                break  # not made for this model, format, method or number of GPUs
            fluid = FluidModel.of(side)
            elsewhere = dataclasses.replace(fluid, deployment=other, _steps={})
            profiles = (deployment.profile, other.profile)
            fitted = [profile.fitted_sequences[1] for profile in profiles if profile.kind == "affine"]
            batches = 2.0 ** np.arange(math.log2(min([fluid.slots / fluid.engines, *fitted])) + 1)
            differences.append([math.log(elsewhere.latency_s(n) / fluid.latency_s(n)) for n in fluid.engines * batches])
        for place, logs in enumerate(differences):
            own_part = np.subtract(logs, differences[0]) if place else logs
            largest[place] = max(largest[place], float(np.abs(own_part).max()))
    return largest[0] / 2, largest[1] / 2


def setting_error(scenario: Scenario) -> float:
    """Relative standard deviation of a setting's times, of unlike replicas the largest; 0 where they count as exact."""
    if scenario.statistics.model_error == "none":
        return 0.0
    errors = [(model_error(each, cached_deployment(each)), each.speculative_config) for each in members(scenario)]
    return max(error.of_setting(spec is not None) for error, spec in errors)


def _acceptance_error(scenario: Scenario) -> float:
    """Relative standard error of the mean acceptance length; of several classes the largest."""
    k, largest, models = scenario.num_speculative_tokens, 0.0, acceptance_models(scenario)
    for entry, model in zip(scenario.request_classes, models, strict=True):
        acceptance = scenario.acceptance_of(entry.name)
        if acceptance is None:
            continue
        error = acceptance.relative_error or 0.0
        if acceptance.num_rounds is not None:
            lengths = [1.0, *(model.tokens_per_round(draft) for draft in range(1, k + 1))]
            rates = np.diff(lengths)
            variance = float(((2 * np.arange(1, k + 1) - 1) * rates).sum() - rates.sum() ** 2)
            error = math.sqrt(max(variance, 0.0) / acceptance.num_rounds) / lengths[-1]
        largest = max(largest, error)
    return largest


@functools.cache
def _normal_draws() -> FloatArray:
    """Standard normal, shape [4, DRAWS]: an additive recurrence (Roberts 2018, R4), which fills the space evenly."""
    from scipy.special import ndtri

    ratio = 1.0
    for _ in range(40):  # the real root of x^5 = x + 1
        ratio = (1.0 + ratio) ** 0.2
    steps = ratio ** -np.arange(1.0, 5.0)
    return np.asarray(ndtri((0.5 + np.outer(steps, np.arange(1, DRAWS + 1))) % 1.0))


def latency_curve(fluid: FluidModel, capacity_rps: float | None) -> Curve:
    """Log seconds over the rate by the fluid estimate, infinite from the capacity on (None: the estimate's own)."""
    most_rps = capacity_rps or fluid.capacity_rps()
    shares, log_seconds = fluid.log_latencies
    log_rates = np.log(shares * most_rps)
    return lambda rate_rps: np.where(rate_rps < most_rps, np.interp(np.log(rate_rps), log_rates, log_seconds), np.inf)


@dataclass(frozen=True)
class Prediction:
    """What is known of an advantage once the errors of the model are counted in."""

    # With its prediction interval; 0 and infinite bounds: one side is overloaded in some draws; None: both sides may be
    advantage: Estimate | None
    probability: float  # that speculation is better
    dominant: Source  # what widens the interval most
    overloaded: float  # share of the draws in which both sides are
    error: RelativeErrors

    @property
    def sign(self) -> int:
        """+1 where speculation pays with the interval's confidence, -1 where it costs, 0 neither."""
        if self.advantage is None:
            return 0
        tail = (1.0 - self.advantage.confidence) / 2.0
        return 1 if self.probability >= 1.0 - tail else -1 if self.probability <= tail else 0

    @property
    def advice(self) -> str:
        """What to measure for a narrower interval."""
        return f"The largest uncertainty is the {UNCERTAIN[self.dominant]}. {NEXT_MEASUREMENT[self.dominant]}"

    def summary(self) -> dict[str, Any]:
        return {
            **picked(self, "advantage probability dominant overloaded"),
            "next_measurement": NEXT_MEASUREMENT[self.dominant],
            **dataclasses.asdict(self.error),
        }


def near_capacity(scenario: Scenario) -> bool:
    """As `Response.near_capacity`, of a setting that is compared with nothing."""
    return _is_near(scenario.rate_rps, setting_error(scenario), FluidModel.of(scenario))


def _is_near(rate_rps: float | None, error: float, fluid: FluidModel) -> bool:
    if rate_rps is None or not error:
        return False
    return rate_rps * math.exp(3.0 * error) > FLUID_IS_GOOD_TO * fluid.capacity_rps()


@dataclass(frozen=True)
class SloUse:
    """What the requests of two runs used of their SLOs (`RunResult.slo_use`), of all classes in rising order."""

    # With and without; empty without figures: then the other's, as much longer as the fluid estimate's latency is
    sides: tuple[FloatArray, FloatArray]
    rate_rps: float | None  # of the runs; None: as of `Response`

    @classmethod
    def of(cls, on: Mapping[str, FloatArray], off: Mapping[str, FloatArray], rate_rps: float | None) -> Self | None:
        """``on``, ``off``: by class; None where neither side knows."""
        shares = (np.arange(DRAWS) + 0.5) / DRAWS
        used = [np.concatenate(list(by_class.values())) if by_class else np.empty(0) for by_class in (on, off)]
        with_sd, without = (np.quantile(side, shares, method="inverted_cdf") if side.size else side for side in used)
        return cls((with_sd, without), rate_rps) if with_sd.size or without.size else None


@dataclass(frozen=True)
class Response:
    """How the advantage of one scenario answers to the errors of the model."""

    error: RelativeErrors
    fluids: tuple[FluidModel, FluidModel]  # with and without speculation
    rate_rps: float | None  # of an open loop; None: closed loops and lists, where all times are as the steps
    busy: float = 1.0  # of a closed loop as of `_busy`; 0 where requests arrive by themselves

    def reaches(self, metric: Metric, capacities: Sequence[float | None]) -> bool:
        """Whether it is known what they do to a metric: all but the throughput of an open loop of unknown capacity."""
        return not metric.is_throughput or self.rate_rps is None or None not in capacities

    def at(self, scenario: Scenario) -> Self:
        """Of the same engine and mix of requests at another scenario's load."""
        busy = 0.0 if scenario.workload.arrivals.process == "piecewise" else 1.0
        if scenario.is_closed_loop:
            concurrency: int = scenario.workload.arrivals.concurrency  # type: ignore[union-attr]
            busy = _busy(scenario, self.fluids[1].latency_s(concurrency))
        return dataclasses.replace(self, rate_rps=scenario.rate_rps, busy=busy)

    def near_capacity(self, speculates: bool) -> bool:
        """Whether a side's capacity, were it wrong by three standard deviations, could be the load."""
        return _is_near(self.rate_rps, self.error.of_setting(speculates), self.fluids[not speculates])

    def predict(
        self,
        probe: Probe,
        confidence: float,
        capacities: Sequence[float | None] = (None, None),
        metric: Metric = E2E,
        use: SloUse | None = None,
    ) -> Prediction:
        """The advantage in a metric that the errors reach, with every error counted in.

        ``probe``: the simulated figures; none: the fluid estimate's. ``capacities``: requests per second with and
        without speculation, where they were simulated. ``use``: for SLO goodput alone; without it the side of lower
        latency wins.
        """
        delivers = self.rate_rps is not None and not metric.less_is_better
        if metric.is_throughput:
            most = [capacity for capacity in capacities if capacity is not None]
            advantage = functools.partial(self._log_delivered, most) if delivers else self._log_completed
        else:
            curves = [latency_curve(fluid, most) for fluid, most in zip(self.fluids, capacities, strict=True)]
            advantage = functools.partial(self._log_advantage, curves)
            if use is not None:
                advantage = functools.partial(self._log_attained, curves, use)
        chance, *errors = _normal_draws()
        values = advantage(np.array(errors))
        # Both sides complete what arrives, or within its SLO, whatever chance does to their capacities.
        even = (values == 0.0) & delivers
        acceptance, *model = (_spread(advantage, deviation) for deviation in np.eye(3))
        spreads: dict[Source, float] = {"acceptance": acceptance, "model": math.hypot(*model), "chance": 0.0}
        simulated = probe.advantage(confidence)
        if probe.gains and probe.bases[0]:
            unperturbed = float(advantage(np.zeros((3, 1)))[0])
            values = values + float(np.mean(probe.indices)) - (unperturbed if math.isfinite(unperturbed) else 0.0)
        if simulated is not None:
            reach = math.log(simulated.high / simulated.low) / 2 + math.log1p((probe.slack_low + probe.slack_high) / 2)
            spreads["chance"] = reach / normal_quantile(confidence)
            values = values + spreads["chance"] * chance
        values[even] = 0.0
        ordered = np.sort(values[~np.isnan(values)])
        dominant = max(spreads, key=lambda source: spreads[source])
        overloaded = 1.0 - ordered.size / values.size
        if overloaded > 0.5:
            return Prediction(None, math.nan, dominant, overloaded, self.error)
        tail = (1.0 - confidence) / 2.0
        low, middle, high = np.exp([ordered[int(share * (ordered.size - 1))] for share in (tail, 0.5, 1.0 - tail)])
        half = float(high - low) / 2 if math.isfinite(low) else math.inf
        estimate = Estimate(float(middle), float(low), float(high), half, ordered.size, confidence)
        probability = float(np.mean(ordered > 0.0) + np.mean(ordered == 0.0) / 2)
        return Prediction(estimate, probability, dominant, overloaded, self.error)

    def _factors(self, draws: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Logarithms of the factor on every step, and of that on steps with speculation beside it, shape [N] each."""
        acceptance, step, speculation = draws
        return self.error.step * step, self.error.speculation * speculation + self.error.acceptance * acceptance

    def _log_delivered(self, capacities: Sequence[float], draws: FloatArray) -> FloatArray:
        """Of an open loop's throughput: what arrives, up to the capacities with and without speculation."""
        assert self.rate_rps is not None
        common, extra = self._factors(draws)
        on, off = np.minimum(self.rate_rps, np.array(capacities)[:, None] * np.exp([-common - extra, -common]))
        return np.asarray(np.log(on / off))

    def _log_completed(self, draws: FloatArray) -> FloatArray:
        """Of a fixed number of clients' throughput: nothing makes the time longer in which they think."""
        _, extra = self._factors(draws)
        return -self.busy * extra

    def _log_attained(self, curves: Sequence[Curve], use: SloUse, draws: FloatArray) -> FloatArray:
        """Of SLO goodput: requests whose times, as much longer as the mean latency, are still within their limits; of a
        fixed number of clients times how many they complete; NaN where both sides are overloaded."""
        common, extra = self._factors(draws)
        attained, overloaded = [], []
        floor = LEAST_ATTAINED * np.mean([np.mean(used <= 1.0) for used in use.sides if used.size]) or LEAST_ATTAINED
        load, run_load = (np.array([math.nan if rate is None else rate]) for rate in (self.rate_rps, use.rate_rps))
        for side, slower in enumerate((common + extra, common)):
            longer, source = slower, side if use.sides[side].size else 1 - side
            if self.rate_rps is not None and np.isfinite(reference := curves[source](run_load)):
                longer = slower + curves[side](load * np.exp(slower)) - reference
            overloaded.append(np.isinf(longer))
            shares = np.searchsorted(use.sides[source], np.exp(-longer), side="right") / use.sides[source].size
            attained.append(np.maximum(shares, floor))
        completed = -self.busy * extra * (attained[0] + attained[1] > 2.0 * floor)
        log_ratio = np.log(attained[0] / attained[1]) + (completed if self.rate_rps is None else 0.0)
        return np.asarray(np.where(overloaded[0] & overloaded[1], np.nan, log_ratio))

    def _log_advantage(self, curves: Sequence[Curve], draws: FloatArray) -> FloatArray:
        """Infinite where one side is overloaded, NaN where both are; ``draws`` has shape [3, N]."""
        common, extra = self._factors(draws)
        if self.rate_rps is None:
            return -extra
        on, off = curves
        with np.errstate(invalid="ignore"):
            without: FloatArray = off(self.rate_rps * np.exp(common)) - extra
            return without - on(self.rate_rps * np.exp(common + extra))


def _spread(advantage: Curve, deviation: FloatArray) -> float:
    """Half of what one source's standard deviation to either side makes of the log advantage."""
    high, low = advantage(np.array([deviation, -deviation]).T).tolist()
    if high == low or (math.isnan(high) and math.isnan(low)):
        return 0.0
    return abs(high - low) / 2 if math.isfinite(high - low) else math.inf


def predicted(estimate: Estimate, scenario: Scenario) -> Estimate:
    """A capacity of the scenario with its prediction interval: chance and the error of its times together."""
    if math.isnan(estimate.half_width):
        return estimate
    times = normal_quantile(estimate.confidence) * setting_error(scenario)
    reach = math.exp(math.hypot(estimate.half_width / estimate.mean, times))
    return estimate.within(estimate.mean / reach, estimate.mean * reach)


def _busy(scenario: Scenario, latency_s: float) -> float:
    """Share of the time between two requests of a client that the engine works on one of them."""
    think_s: float = scenario.workload.arrivals.think_time_s  # type: ignore[union-attr]
    return latency_s / (latency_s + think_s)


@dataclass(frozen=True)
class RunAtBounds:
    """What the longest times, the forecast's and the shortest, of the prediction interval, do to a run, shape [3]."""

    longer: FloatArray  # logarithm of how much longer a request takes
    completed: FloatArray  # how many times as much is completed per second

    @classmethod
    def of(cls, scenario: Scenario, run: RunResult, capacity_rps: float | None) -> Self | None:
        """None where step times count as exact. A steady load is below the capacity (None: the fluid estimate's)."""
        error, rate_rps = setting_error(scenario), scenario.rate_rps
        if not error:
            return None
        slower = normal_quantile(scenario.statistics.confidence) * error * np.array([1.0, 0.0, -1.0])
        if rate_rps is not None and run.state == "steady":
            fluid = FluidModel.of(scenario)
            most = max(capacity_rps or fluid.capacity_rps(), 1.001 * rate_rps)
            latency = latency_curve(fluid, most)(rate_rps * np.exp(slower))
            return cls(slower + latency - latency[1], np.minimum(1.0, most / rate_rps * np.exp(-slower)))
        # Clients think between answers, and a list of requests arrives over some time: neither takes any longer.
        figures = run.summary["figures"]
        if scenario.is_closed_loop:
            busy = _busy(scenario, figures["mean_e2el_s"].mean)
        else:
            arrivals = run.requests.groupby("replication")["arrival_s"]
            busy = max(0.0, 1.0 - float((arrivals.max() - arrivals.min()).mean()) / figures["duration_s"].mean)
        return cls(slower, 1.0 / (1.0 + busy * np.expm1(slower)))

    def attained(self, used: FloatArray) -> FloatArray:
        """Share of the requests within their limits; ``used`` as of `RunResult.slo_use`."""
        return np.array([np.mean(used <= limit) for limit in np.exp(-self.longer)])

    def leaves_open(self, scenario: Scenario, run: RunResult) -> bool:
        """Whether the SLO is met with some of the times and not with others."""
        slos = scenario.slos
        met = [self.attained(used) >= slos[name].attainment for name, used in run.slo_use.items() if name in slos]
        return len(set(np.all(met, axis=0).tolist())) > 1 if met else False

    def predicted_figures(self, run: RunResult) -> dict[str, Estimate]:
        """Latencies, throughputs and SLO attainment with prediction intervals, where several replications ran."""
        figures: dict[str, Estimate] = run.summary["figures"]
        times = [f"{statistic}_{latency}_s" for statistic in STATISTICS for latency in LATENCIES]
        factors = dict.fromkeys(THROUGHPUTS, self.completed) | dict.fromkeys(times, np.exp(self.longer))
        means = {name: figures[name].mean for name in factors if name in figures and figures[name].mean > 0.0}
        reached = {name: mean * factors[name] for name, mean in means.items()}
        estimates = {name: _reaching(figures[name], values) for name, values in reached.items()}
        if run.slo_use:
            attained = self.attained(np.concatenate(list(run.slo_use.values())))
            estimates["slo_attainment"] = _reaching(figures["slo_attainment"], attained, most=1.0)
            within, most = reached["request_throughput"] * attained, estimates["request_throughput"].high
            estimates["request_goodput"] = _reaching(figures["request_goodput"], within, most)
        return estimates


def _reaching(estimate: Estimate, values: FloatArray, most: float = math.inf) -> Estimate:
    """With the distance from the middle value to the outer ones counted in beside chance."""
    if np.ptp(values) == 0.0 or math.isnan(estimate.half_width):
        return estimate
    below, above = (math.hypot(estimate.half_width, value - values[1]) for value in sorted((values[0], values[2])))
    return estimate.within(max(0.0, estimate.mean - below), min(estimate.mean + above, most))


def response(scenario: Scenario, fluids: tuple[FluidModel, FluidModel] | None = None) -> Response | None:
    """Of a scenario with speculation; None where step times count as exact; ``fluids``: with and without, if known.
    Raises InputError: as of `draftcast.simulate`."""
    if scenario.statistics.model_error == "none" or scenario.speculative_config is None:
        return None
    if fluids is None:
        fluids = FluidModel.of(scenario), FluidModel.of(without_speculation(scenario))
    errors = [model_error(member, cached_deployment(member)) for member in members(scenario)]
    return Response(max(errors, key=lambda error: error.of_setting(True)), fluids, None).at(scenario)
