"""The figures of a run in vLLM's terms: latencies, throughput, SLO goodput, acceptance, and where the time went.

In seconds; ``sim/output/vllm_result.py`` turns the figures into the keys and milliseconds of ``vllm bench serve``.

Words: *output_throughput* (tokens emitted per second, also "token goodput" in SmartSpec) is not *request_goodput*
(requests per second that meet every SLO, vLLM ``--goodput``). *ITL* is the gap between two emissions of a request; an
emission may hold several tokens. *TPOT* is per request, (E2E - TTFT) / (output tokens - 1), undefined for one token.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from draftcast.errors import InputError
from draftcast.kernels.arrays import BoolArray, FloatArray, IntArray
from draftcast.sim.compiled import itl_histogram as itl
from draftcast.sim.output.results import TIME_COLUMNS, RequestColumns
from draftcast.sim.statistics.intervals import Estimate, replication_interval
from draftcast.sim.workload.workload import Slo

LATENCIES = ("ttft", "tpot", "itl", "e2el", "queue_time")
PERCENTILES = (50, 90, 95, 99)
STATISTICS = ("mean", "median", "std", *(f"p{percentile}" for percentile in PERCENTILES))


@dataclass(frozen=True)
class Metrics:
    """Figures of one run by name: ``mean_ttft_s``, ``p99_e2el_s``, ``request_throughput``, ... (NaN: undefined)."""

    values: Mapping[str, float]  # ``acceptance_rate_position_j``: accepted at position j over draft rounds, as in vLLM
    warmup_requests: int  # left out at the front
    by_class: Mapping[str, Mapping[str, float]]
    by_group: Mapping[str, Mapping[str, float]]
    # By class, of each counted request what its times use of the SLO, see `_slo_use`; none without an SLO
    slo_use: Mapping[str, FloatArray]

    def __getitem__(self, name: str) -> float:
        return self.values[name]


def compute_metrics(
    requests: pd.DataFrame,
    itl_counts: IntArray | None = None,
    *,
    slo: Slo | Mapping[str, Slo] | None = None,
    warmup: int | None = None,
    percentiles: bool = True,
    replicas: int = 1,
    accepted_per_position: IntArray | None = None,
    group_of: IntArray | None = None,
) -> Metrics:
    """All figures of one run.

    Args:
        requests: one row per request (columns as in ``RunResult.requests``), at least one; rows in any order.
        itl_counts: histogram of gaps, int64 [20, ITL_BINS], segment = request index * 20 // n.
        slo: objectives for all requests, or per class name; a class without one counts as good when it finishes.
        warmup: of a steady run, the leading requests to leave out, rounded up to a twentieth of the requests: the ITL
            histogram's segments. None: a finite run, of which every request counts.
        percentiles: whether there are medians and percentiles: without a steady state they describe this run only.
        replicas: divides the ``_per_replica`` figures.
        accepted_per_position: accepted drafts by segment and draft position, [20, K].
        group_of: the group of each replica, for ``by_group``; None or empty: all are alike.

    Latencies, acceptance and SLO attainment describe the requests from the cut on. Throughput of a steady run is what
    completes and is emitted between the arrivals of the first and of the last of them, requests in flight at the
    beginning included; the output of a request that straddles either end is spread evenly between its first token and
    its end. Of a finite run it is vLLM's definition: totals over first arrival to last completion.

    Raises InputError: a warm-up outside what the run allows.
    """
    requests = requests.sort_values("request", kind="stable")
    c = RequestColumns.of(requests)
    n = len(requests)
    kept = slice(_whole_segments(warmup or 0, n), n)
    start_s, last_s = float(c.arrival_s[kept].min()), float(c.arrival_s.max())
    end_s = last_s if warmup is not None else float(c.finish_s[c.finished].max(initial=last_s))
    used = _slo_use(requests, c, slo) if slo is not None else None
    good = used <= 1.0 if used is not None else None

    values = _throughput(c, start_s, end_s, good, replicas)
    values["num_requests"] = float(n - kept.start)
    values["slo_attainment"] = float(good[kept].mean()) if good is not None else math.nan
    groups = pd.Series(group_of[requests["replica"]]) if group_of is not None and group_of.size else None
    latencies = _latencies(c, kept) | (_itl(c, itl_counts, kept) if itl_counts is not None else {})
    values |= _shown(latencies, percentiles) | _acceptance_and_work(requests, kept, accepted_per_position)
    by_class, by_group = (_by_label(labels, c, kept, good, percentiles) for labels in (requests["class"], groups))
    counted = pd.Series(used[kept]).groupby(requests["class"].to_numpy()[kept]) if used is not None else ()
    return Metrics(values, kept.start, by_class, by_group, {str(name): np.asarray(use) for name, use in counted})


def _slo_use(requests: pd.DataFrame, c: RequestColumns, slo: Slo | Mapping[str, Slo]) -> FloatArray:
    """Of each request the largest of its times over its limit: up to 1 it is good; infinite where it did not finish."""
    used = np.where(c.finished, 0.0, np.inf)
    classes = requests["class"].astype("category").cat
    for code, name in enumerate(classes.categories):
        objectives = slo if isinstance(slo, Slo) else slo.get(str(name))
        if objectives is not None:
            # TPOT counts as 0 for one-token outputs, as in vLLM.
            times_s = (c.ttft_s, np.where(c.output > 1, c.tpot_s, 0.0), c.e2el_s)
            limits_ms = (objectives.ttft_ms, objectives.tpot_ms, objectives.e2el_ms)
            for limit_ms, time_s in zip(limits_ms, times_s, strict=True):
                if limit_ms is not None:
                    used = np.fmax(used, np.where(classes.codes == code, time_s / (limit_ms / 1000), 0.0))
    return used


def _whole_segments(requests: int, n: int) -> int:
    """The first segment's start at or after so many requests. Raises InputError: there is none, or fewer than 0."""
    last = itl.segment_start(itl.ITL_SEGMENTS - 1, n)
    if not 0 <= requests <= last:
        message = f"a run of {n:,} requests can leave out at most {last:,}; compare runs of the same number of requests"
        raise InputError(message, key="warmup", value=requests)
    return itl.segment_start((requests - 1) * itl.ITL_SEGMENTS // n + 1, n)


def _throughput(
    c: RequestColumns, start_s: float, end_s: float, good: BoolArray | None, replicas: int
) -> dict[str, float]:
    duration = end_s - start_s
    # Not what completes at the very start: in a closed loop that is the answer which the first request waited for.
    touched = c.finished & (c.finish_s > start_s)
    inside = touched & (c.finish_s <= end_s)
    tokens = c.output[touched].astype(np.float64)
    prompt = c.prompt[touched].astype(np.float64)
    if not inside.all():
        # The first token comes with the prompt; the others follow evenly until the end.
        first, finish = (c.arrival_s + c.ttft_s)[touched], c.finish_s[touched]
        before = np.where(first < start_s, _emitted(start_s, first, finish, tokens), 0.0)
        prompt[(before > 0) | (first > end_s)] = 0.0
        tokens = _emitted(end_s, first, finish, tokens) - before
    completed, output, total_input = float(np.count_nonzero(inside)), float(tokens.sum()), float(prompt.sum())
    rate = 1 / duration if duration > 0 else math.nan
    return {
        "duration_s": duration,
        "completed": completed,
        "failed": float(np.count_nonzero(~c.finished)),
        "total_input_tokens": total_input,
        "total_output_tokens": output,
        "request_throughput": completed * rate,
        "request_goodput": float(np.count_nonzero(good & inside)) * rate if good is not None else math.nan,
        "output_throughput": output * rate,
        "output_throughput_per_replica": output * rate / replicas,
        "total_token_throughput": (total_input + output) * rate,
    }


def _emitted(at_s: float, first_s: FloatArray, finish_s: FloatArray, tokens: FloatArray) -> FloatArray:
    """Tokens that each request has put out by then, the first at ``first_s`` and the last at ``finish_s``."""
    since = np.clip(at_s - first_s, 0.0, finish_s - first_s)
    share = np.divide(since, finish_s - first_s, out=np.ones_like(since), where=finish_s > first_s)
    return np.where(at_s >= first_s, 1 + share * (tokens - 1), 0.0)


def _named(name: str, mean: float, std: float, points: FloatArray) -> dict[str, float]:
    figures = zip(STATISTICS, (mean, points[0], std, *points), strict=True)
    return {f"{statistic}_{name}_s": float(figure) for statistic, figure in figures}


def _latencies(c: RequestColumns, kept: slice | IntArray) -> dict[str, float]:
    """Mean, median, std and percentiles (seconds) as vLLM computes them: population std, linear interpolation."""
    done = c.finished[kept]
    result: dict[str, float] = {}
    for name, series in (("ttft", c.ttft_s), ("tpot", c.tpot_s), ("e2el", c.e2el_s), ("queue_time", c.queue_s)):
        values_s = series[kept][done]
        values_s = values_s[np.isfinite(values_s)]
        if not values_s.size:
            values_s = np.array([math.nan])
        result |= _named(name, values_s.mean(), values_s.std(), np.percentile(values_s, PERCENTILES))
    return result


def _segments(kept: slice, n: int) -> slice:
    """The twentieths of the run that these requests fill."""
    return slice(int(itl.segment_of(kept.start, n)), int(itl.segment_of(kept.stop - 1, n)) + 1)


def _itl(c: RequestColumns, counts: IntArray, kept: slice) -> dict[str, float]:
    histogram = counts[_segments(kept, c.arrival_s.size)].sum(axis=0)
    mean, std = itl.histogram_mean_std(histogram)
    gaps = int(histogram.sum())
    if gaps and c.finished[kept].all():
        # Gaps of a finished request add up to E2E - TTFT: the mean needs no binning.
        mean = float((c.e2el_s - c.ttft_s)[kept].sum()) / gaps
    return _named("itl", mean, std, itl.histogram_quantile(histogram, np.array(PERCENTILES) / 100))


def _shown(values: dict[str, float], percentiles: bool) -> dict[str, float]:
    return {name: value for name, value in values.items() if percentiles or name.startswith(("mean_", "std_"))}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _acceptance_and_work(requests: pd.DataFrame, kept: slice, by_position: IntArray | None) -> dict[str, float]:
    """Acceptance (bonus token included, rounds without a draft not counted), preemptions, prefix hits and the time."""

    def total(name: str) -> float:
        return float(requests[name].to_numpy()[kept].sum())

    count = kept.stop - kept.start
    drafts, proposed, accepted = total("num_drafts"), total("num_draft_tokens"), total("num_accepted_tokens")
    times = {name: float(np.nansum(requests[name].to_numpy(dtype=np.float64)[kept])) for name in TIME_COLUMNS}
    whole = sum(times.values())
    counts = by_position[_segments(kept, len(requests))].sum(axis=0) if by_position is not None and drafts else ()
    return {
        "num_drafts": drafts,
        "num_draft_tokens": proposed,
        "num_accepted_tokens": accepted,
        "mean_acceptance_length": 1 + _ratio(accepted, drafts),
        "acceptance_rate": _ratio(accepted, proposed),
        "preemptions": total("preemptions"),
        "prefix_cache_hit_rate": _ratio(total("cached_tokens"), total("prompt_tokens")),
        **{f"mean_{name}": value / count for name, value in times.items()},
        **{f"share_{name.removesuffix('_s')}": _ratio(value, whole) for name, value in times.items()},
        **{f"acceptance_rate_position_{j}": float(count) / drafts for j, count in enumerate(counts)},
    }


def _by_label(
    labels: "pd.Series[Any] | None", c: RequestColumns, kept: slice, good: BoolArray | None, percentiles: bool
) -> dict[str, dict[str, float]]:
    """Latencies of the requests of each class, or group of replicas; none where there is one alone."""
    if labels is None or labels.nunique() < 2:
        return {}
    counted, result = labels.iloc[kept], {}
    for name, places in counted.groupby(counted, observed=True).indices.items():
        members = kept.start + places
        if members.size:
            attainment = float(good[members].mean()) if good is not None else math.nan
            figures = _shown(_latencies(c, members), percentiles)
            result[str(name)] = {"num_requests": float(members.size), "slo_attainment": attainment, **figures}
    return result


def summarise(replications: Sequence[Mapping[str, float]], confidence: float = 0.95) -> dict[str, Estimate]:
    """Interval of each figure across replications (``Metrics.values`` of each run), at least one.

    A name that any replication leaves out is left out: one run without a steady state takes the percentiles away. NaN
    (undefined in that run) is skipped, so ``n`` may be smaller; all NaN gives an Estimate of NaN with n = 0.
    """
    result = {}
    for name in replications[0]:
        if all(name in r for r in replications):
            finite = [v for r in replications if math.isfinite(v := r[name])]
            nothing = Estimate(math.nan, math.nan, math.nan, math.nan, 0, confidence)
            result[name] = replication_interval(finite, confidence) if finite else nothing
    return result


def do_not_differ(replications: Sequence[Mapping[str, float]]) -> bool:
    """Whether several replications are one and the same run: a trace without anything drawn at random, for example."""
    first, *others = (pd.Series(dict(figures)) for figures in replications)
    return bool(others) and all(map(first.equals, others))
