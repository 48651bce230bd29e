"""``--calibrate-to``: runs without speculation that the user measured correct the forecast, before speculation is.

The same runs are forecast by their own protocol (clients or rate, lengths, number of requests; every request counts).
What makes forecast and measurement agree is the scenario's `Correction`, which then holds with and without speculation:

- one load: a factor on every step's time;
- two loads or more: a factor and fixed seconds a step, where the loads can tell them apart;
- what the time to first token then lacks is the front end, where requests do not queue.

One run is one measurement: the next of the same set-up differs. So the factor and the seconds are weighed against how
far forecasts of such a scenario lie from measurements (`draftcast.scenarios.compare.model_error`): a small difference
is followed in part, a large one almost whole. Errors of forecasts have long tails, as Student's t with 3 degrees of
freedom has; the fit is by reweighted least squares.

Latency grows with the requests in the engine, ``L = C1 + C2 B``; with Little's law, ``B = rate x L``, that is ``L = C1
/ (1 - rate x C2)`` (arXiv 2605.15051). So a run at a rate is compared at the B that was measured, not at the one
forecast.

An engine log is compared step by step instead: it has no client and no front end.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from draftcast.calibration.engine_log.log import read_engine_log
from draftcast.calibration.engine_log.steps import timed_steps, with_kv_tokens
from draftcast.calibration.live.off_runs import OffRun, RunLengths, is_engine_log, local_copy, read_off_runs
from draftcast.calibration.measured_model import check_model, check_model_of_logs
from draftcast.errors import InputError
from draftcast.files import picked
from draftcast.kernels.arrays import FloatArray
from draftcast.scenarios.compare.model_error import model_error
from draftcast.scenarios.run.deployment import cached_deployment
from draftcast.scenarios.run.simulate import measure, serve
from draftcast.scenarios.schema import Scenario, with_values
from draftcast.scenarios.schema.correction import MEASURED_DEGREES, PLAUSIBLE
from draftcast.sim.cost import step_time as st
from draftcast.sim.statistics.intervals import normal_quantile, student_t

# Relative standard deviation between two runs of one set-up (weights, intervals): six published runs of one set-up
# (Qwen3-8B, H100, 8 clients, TPOT) spread over 8 %, on machines of their own; one machine repeats better.
REPEAT = 0.02
_TTFT_REPEAT = 0.10
_CONFIDENCE = 0.95
_LEAST_SPREAD = 1.15  # loads whose step times differ by less cannot tell a factor from fixed seconds
# Of the time to first token; where more of it is waiting for other requests it says nothing about the front end.
_MOST_QUEUE = 0.2
_ROUNDS, _CLOSE = 8, 2e-3
_REWEIGHTED, _FREEDOM = 20, 3
_UNCORRECTED = np.array([1.0, 0.0])  # factor and seconds
_REPLICATIONS = 5
# Means of lengths that differ by less are of one distribution; by more than the second, of another load.
_SAME_LENGTHS, _OTHER_LENGTHS = 0.1, 0.25
_LEAST_STEPS, _CHUNKS = 50, 10
_OFF: dict[str, Any] = {"engine.speculative_config": None, "policy": None}
# The first of them that was measured is what the steps are fitted to.
_TARGETS = ("mean_tpot_s", "mean_e2el_s", "output_throughput")


def calibrate_to(scenario: Scenario, sources: str | Path | Sequence[str | Path]) -> Scenario:
    """``scenario`` with a correction from runs without speculation, which replaces any earlier one.

    Args:
        sources: files or http(s) addresses, see `draftcast.calibration.live.off_runs`.

    Raises:
        InputError: a source that cannot be read or is refused, runs of another model, a factor out of range.
    """
    # A source named twice is one measurement.
    names = list(dict.fromkeys(str(source) for source in ([sources] if isinstance(sources, str | Path) else sources)))
    runs: list[OffRun] = []
    logs: list[pd.DataFrame] = []
    for name in names:
        with local_copy(name) as file:
            if is_engine_log(file):
                logs.append(read_engine_log(file).assign(source=name))
            else:
                runs += read_off_runs(file, name)
    if logs and runs:
        raise InputError("an engine log is compared step by step: give logs or runs, not both", file="--calibrate-to")
    if not logs and not runs:
        raise InputError("holds no run" if names else "names no file", file=names[0] if names else "--calibrate-to")
    plain = with_values(scenario, {"correction": None})
    return with_correction(plain, _from_log(plain, logs) if logs else fitted(plain, runs), names)


def with_correction(scenario: Scenario, values: dict[str, Any], sources: Sequence[str]) -> Scenario:
    source = ", ".join(name if "://" in name else Path(name).name for name in sources)
    checksum = cached_deployment(with_values(scenario, _OFF)).profile.checksum()
    return with_values(scenario, {"correction": _setup(scenario, source) | values | {"profile_checksum": checksum}})


def _setup(scenario: Scenario, source: str) -> dict[str, Any]:
    """Of a correction: where it comes from and what it holds for."""
    engine = picked(scenario.engine, f"model quantization {' '.join(MEASURED_DEGREES)}")
    return {"source": source, "hardware": scenario.hardware, **engine}


def _check_plausible(factor: float, source: str) -> None:
    if not PLAUSIBLE[0] <= factor <= PLAUSIBLE[1]:
        message = (
            f"a step took {factor:.2f} x the forecast; beyond {PLAUSIBLE[0]:g} to {PLAUSIBLE[1]:g} model, device, "
            "quantization, parallelism, lengths or load of the scenario are not those of the run"
        )
        raise InputError(message, file=source)


def off_scenario(scenario: Scenario, run: OffRun) -> Scenario:
    """The run as a scenario: no speculation, its own load, lengths and number of requests, every request counts.

    Raises InputError: the load is the scenario's, and that of several replicas or of fewer engines than were counted.
    """
    if run.arrivals is None and scenario.cluster.replicas > 1:
        message = "counters hold no load, and the scenario's is that of all replicas; give a Prometheus range query"
        raise InputError(message, file=run.source, key="cluster.replicas", value=scenario.cluster.replicas)
    if run.arrivals is None and run.engines > scenario.engine.data_parallel_size:
        message = f"counters hold no load, and these are of {run.engines} engines; give a Prometheus range query"
        key = "engine.data_parallel_size"
        raise InputError(message, file=run.source, key=key, value=scenario.engine.data_parallel_size)
    values: dict[str, Any] = _OFF | {"slo": None, "cluster.replicas": 1}
    values |= {"statistics.replications": _REPLICATIONS, "statistics.warmup": "none"}
    if run.arrivals is not None:
        lengths = {name: _lengths(getattr(run, name), scenario, name) for name in ("prompt_tokens", "output_tokens")}
        ranks = scenario.engine.data_parallel_size if run.per_engine else 1
        arrivals = dict(run.arrivals)
        if run.per_engine:
            arrivals["request_rate_rps"] *= ranks
        load = {"arrivals": arrivals, "lengths": lengths, "num_requests": run.requests * ranks}
        workload = load | {"max_model_len_action": scenario.workload.max_model_len_action}
        values |= {"workload": workload, "acceptance": None}
    return with_values(scenario, values)


def _lengths(tokens: RunLengths | None, scenario: Scenario, key: str) -> Any:
    """The run's lengths; where it tells but their mean, spread as the scenario's if those have that mean."""
    distribution = getattr(scenario.workload.lengths, key, None)
    if tokens is None:
        return distribution.model_dump(mode="json") if distribution is not None else None
    if tokens.section is not None:
        return tokens.section
    if distribution is not None:
        quantiles = (np.arange(1000) + 0.5) / 1000.0
        if abs(float(distribution.tokens(quantiles).mean()) / tokens.mean - 1.0) <= _SAME_LENGTHS:
            return distribution.model_dump(mode="json")
    return max(1, round(tokens.mean))


class _Compared:
    """A run, its forecast with the last correction, and its uncorrected step time over the requests in the engine."""

    def __init__(self, scenario: Scenario, run: OffRun) -> None:
        self.run = run
        self._target = next((name for name in _TARGETS if run.figures.get(name, 0.0) > 0.0), "")
        if not self._target:
            raise InputError("has no TPOT, latency or throughput", file=run.source)
        self._off = off_scenario(scenario, run)
        self._setup = _setup(scenario, run.source)
        # NaN of a closed loop, which has as many in the forecast.
        self._rate_rps = float((run.arrivals or {}).get("request_rate_rps", math.nan))
        self._in_flight = math.nan  # as measured
        if "mean_tpot_s" in run.figures and run.output_tokens is not None:
            tokens = run.output_tokens.mean - 1.0
            e2el_s = run.figures.get("mean_ttft_s", 0.0) + tokens * run.figures["mean_tpot_s"]
            self._in_flight = self._rate_rps * e2el_s
        self._earlier = (math.nan, math.nan)  # requests in the engine, and seconds of an uncorrected step with them
        self.figures: dict[str, float]  # means over replications
        self.spread: float  # relative standard deviation of the target in one replication: the run differs by chance
        self.queue_share: float  # of the time to first token
        self.forecast({})
        # Relative standard deviation between measurement and forecast where the forecast is right.
        self.sigma = math.hypot(REPEAT, run.errors.get(self._target, 0.0), self.spread)

    def forecast(self, values: dict[str, Any]) -> None:
        off = with_values(self._off, {"correction": self._setup | values}) if values else self._off
        result = measure([serve(off)])[0]
        frame, requests = pd.DataFrame(result.replications)[[*_TARGETS, "mean_ttft_s"]], result.requests
        ttft_s = requests["first_token_s"] - requests["arrival_s"]
        # What every request waits for is its front end.
        waiting_s = float((requests["time_queue_s"] - requests["time_queue_s"].min()).mean())
        if self.run.arrivals is None:
            self._check_lengths(requests)
        self.figures = {str(name): float(mean) for name, mean in frame.mean().items()}
        self.spread = float(frame[self._target].std(ddof=1)) / self.figures[self._target]
        self.queue_share = waiting_s / float(ttft_s.mean())

    def _check_lengths(self, requests: pd.DataFrame) -> None:
        for kind, tokens in (("prompt", self.run.prompt_tokens), ("output", self.run.output_tokens)):
            simulated = float(requests[f"{kind}_tokens"].mean())
            if tokens is not None and abs(tokens.mean / simulated - 1.0) > _OTHER_LENGTHS:
                message = (
                    f"the server's {kind}s had {tokens.mean:.0f} tokens on average, the scenario's have "
                    f"{simulated:.0f}; counters hold no load, so the scenario's must be the server's"
                )
                raise InputError(message, file=self.run.source, key=f"workload.lengths.{kind}_tokens")

    def wanted_s(self) -> float:
        """Seconds of a step at which the forecast would be what was measured."""
        more = self.run.figures[self._target] / self.figures[self._target]
        return self.figures["mean_tpot_s"] * (1.0 / more if self._target == "output_throughput" else more)

    def plain_s(self, factor: float, seconds: float) -> float:
        """Seconds of an uncorrected step with as many requests as were measured; a straight line through the last two.

        ``factor``, ``seconds``: what the forecast was corrected by.
        """
        plain_s = (self.figures["mean_tpot_s"] - seconds) / factor
        in_flight = self._rate_rps * self.figures["mean_e2el_s"]
        (earlier, earlier_s), self._earlier = self._earlier, (in_flight, plain_s)
        if math.isnan(self._in_flight) or not abs(in_flight / earlier - 1.0) >= 0.005:
            return plain_s
        slope = max((plain_s - earlier_s) / (in_flight - earlier), 0.0)
        # A line through two noisy points is not followed far.
        return min(max(plain_s + slope * (self._in_flight - in_flight), 0.5 * plain_s), 2.0 * plain_s)


def fitted(scenario: Scenario, runs: Sequence[OffRun]) -> dict[str, Any]:
    """The values, by their keys, of the correction that makes the forecasts of ``runs`` what was measured.

    Raises InputError: another model, a factor out of range.
    """
    for run in runs:
        check_model(run.model, scenario.engine.model, run.source)
    compared = [_Compared(scenario, run) for run in runs]
    factor, seconds, front_end, solved = 1.0, 0.0, None, np.ones(1)
    sigma, expected = np.array([pair.sigma for pair in compared]), _expected(scenario)
    for _ in range(_ROUNDS):
        plain_s = np.array([pair.plain_s(factor, seconds) for pair in compared])
        before, shortest_s = (factor, seconds), min(pair.figures["mean_tpot_s"] for pair in compared)
        wanted_s = np.array([pair.wanted_s() for pair in compared])
        solved = _line(plain_s, wanted_s, sigma, expected)
        factor, seconds = (*map(float, solved), 0.0)[:2]
        as_measured = float(_line(plain_s, wanted_s, sigma, math.inf)[0])
        _check_plausible(as_measured, ", ".join(run.source for run in runs))
        front_end = _front_end(compared, front_end)
        for pair in compared:
            pair.forecast({"step_factor": factor, "step_s": seconds, "front_end_s": front_end[0] if front_end else 0.0})
        if abs(math.log(factor / before[0])) + abs(seconds - before[1]) / shortest_s < _CLOSE:
            break
    front_end = _front_end(compared, front_end)
    values = _with_intervals(plain_s, solved, sigma, expected)
    if front_end is not None:
        value, half = front_end
        values |= {"front_end_s": value, "front_end_s_interval": [max(value - half, 0.0), value + half]}
    return values | {"loads": ", ".join(dict.fromkeys(run.load for run in runs)), "runs": len(runs)}


def _expected(scenario: Scenario) -> float:
    """Relative standard deviation of the scenario's step times without speculation, uncorrected."""
    plain = with_values(scenario, _OFF | {"correction": None})
    return model_error(plain, cached_deployment(plain)).step


def _line(plain_s: FloatArray, measured_s: FloatArray, sigma: FloatArray, expected: float) -> FloatArray:
    """Factor of ``measured = factor x plain + seconds`` and, where the loads tell them apart, the seconds.

    By relative errors: ``sigma`` of the measurements, ``expected`` of a forecast. Seconds are never below 0.
    """
    differ = len(plain_s) > 1 and float(plain_s.max() / plain_s.min()) >= _LEAST_SPREAD
    for parameters in (2, 1) if differ else (1,):
        solved = uncorrected = _UNCORRECTED[:parameters]
        for _ in range(_REWEIGHTED):
            design, forecast = _equations(plain_s, measured_s, sigma, expected, solved)
            weighed = np.concatenate([1.0 / sigma, forecast @ uncorrected])
            solved, *_ = np.linalg.lstsq(np.vstack([design, forecast]), weighed, rcond=None)
        if parameters == 2 and solved[1] > 0.0 and solved[0] >= PLAUSIBLE[0]:
            break
    return np.asarray(solved)


def _equations(
    plain_s: FloatArray, measured_s: FloatArray, sigma: FloatArray, expected: float, solved: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Rows of the measurements, shape [runs, parameters], and of the uncorrected forecast, one a parameter.

    The further a parameter from the uncorrected one, the less the forecast weighs: Student's t, scaled so that nine in
    ten lie within the normal distribution's limits for ``expected``.
    """
    parameters = len(solved)
    # The factor is multiplied by the step, the seconds by 1.
    design = np.vander(plain_s, 2)[:, :parameters] / (sigma * measured_s)[:, None]
    scale = np.array([1.0, plain_s.min()])[:parameters]
    apart = (solved - _UNCORRECTED[:parameters]) / scale
    width = expected * normal_quantile(0.9) / student_t(_FREEDOM, 0.9)
    doubt = scale * np.sqrt((_FREEDOM * width**2 + apart**2) / (_FREEDOM + 1.0))
    return design, np.diag(1.0 / doubt)


def _with_intervals(plain_s: FloatArray, solved: FloatArray, sigma: FloatArray, expected: float) -> dict[str, Any]:
    """The values with 95 % intervals of the least squares."""
    corrected_s = np.vander(plain_s, 2)[:, : len(solved)] @ solved
    equations = np.vstack(_equations(plain_s, corrected_s, sigma, expected, solved))
    half = normal_quantile(_CONFIDENCE) * np.sqrt(np.diag(np.linalg.inv(equations.T @ equations)))
    factor, seconds = float(solved[0]), float(solved[1]) if len(solved) > 1 else 0.0
    interval = [factor - half[0], factor + half[0]]
    values: dict[str, Any] = {"step_factor": factor, "step_factor_interval": interval, "step_s": seconds}
    if seconds > 0.0:
        values["step_s_interval"] = [max(seconds - half[1], 0.0), seconds + half[1]]
    return {name: np.asarray(value).tolist() for name, value in values.items()}


def _front_end(compared: Sequence[_Compared], before: tuple[float, float] | None) -> tuple[float, float] | None:
    """Seconds a request, and half their interval: what the time to first token lacks; None where no run can tell."""
    ttfts_s = [
        (pair.run.figures["mean_ttft_s"], pair.figures["mean_ttft_s"])
        for pair in compared
        if pair.run.figures.get("mean_ttft_s", 0.0) > 0.0 and pair.queue_share <= _MOST_QUEUE
    ]
    if not ttfts_s:
        return None
    measured, forecast_s = np.array(ttfts_s).T
    weights = 1.0 / (_TTFT_REPEAT * measured) ** 2
    lacking = float(np.average(measured - forecast_s, weights=weights))
    value = max((before[0] if before is not None else 0.0) + lacking, 0.0)
    return min(value, 10.0), normal_quantile(_CONFIDENCE) / math.sqrt(float(weights.sum()))


def _from_log(scenario: Scenario, logs: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """The factor on steps without prompts, from their logged time against the step cost's."""
    source = ", ".join(str(log["source"].iloc[0]) for log in logs)
    frame = pd.concat(logs, ignore_index=True)
    check_model_of_logs(frame, scenario.engine.model)
    drafting = (frame["method"] != "") & (frame["method"] != "?")
    if drafting.any():
        message = "a server with speculation; calibrate to one without"
        raise InputError(message, file=source, key="method", value=str(frame.loc[drafting, "method"].iloc[0]))
    deployment = cached_deployment(with_values(scenario, _OFF))
    resolved = {"kv_capacity_tokens": deployment.memory.kv_tokens, "block_size": deployment.settings.block_size}
    steps = timed_steps(with_kv_tokens(frame.fillna(resolved))).frame
    steps = steps[(steps["context_tokens"] == 0) & steps["kv_tokens"].notna()]
    count = int(steps["steps"].sum())
    if count < _LEAST_STEPS:
        raise InputError(f"{count} timed steps without prompts; {_LEAST_STEPS} or more are needed", file=source)
    predicted_s = _decode_seconds(deployment.cost, steps) * steps["steps"].to_numpy(np.float64)
    parts = np.array_split(np.arange(len(steps)), min(_CHUNKS, len(steps)))
    measured_s = steps["seconds"].to_numpy(np.float64)
    factors = [float(measured_s[part].sum() / predicted_s[part].sum()) for part in parts]
    factor = float(measured_s.sum() / predicted_s.sum())
    _check_plausible(factor, source)
    spread = float(np.std(factors, ddof=1)) / math.sqrt(len(factors)) if len(factors) > 1 else 0.0
    sigma, expected = np.array([math.hypot(spread / factor, REPEAT)]), _expected(scenario)
    solved = _line(np.ones(1), np.array([factor]), sigma, expected)
    values = _with_intervals(np.ones(1), solved, sigma, expected)
    return values | {"loads": f"{count:,} logged steps", "runs": frame["run"].nunique()}


def _decode_seconds(cost: st.StepCost, steps: pd.DataFrame) -> FloatArray:
    """Seconds of a mean step of each block by the step cost."""
    f, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    p = cost.params[0]
    seconds = np.empty(len(steps))
    columns = steps[["steps", "sequences", "rows", "kv_tokens"]].to_numpy(np.float64)
    for index, (count, *sums) in enumerate(columns):
        seqs, rows, kv = (total / count for total in sums)
        kv += rows  # the cost counts a step's own tokens as well
        st.fill_decode(f, p["window_kind"], p["window"], seqs, rows, kv, kv / seqs)
        st.step_time(cost, f, out)
        seconds[index] = st.step_seconds(cost, out)
    return seconds
