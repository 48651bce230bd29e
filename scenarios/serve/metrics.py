"""``/metrics``: vLLM 0.32's names, labels and buckets (``v1/metrics``), in seconds of the wall clock."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from draftcast.scenarios.run.deployment import cached_deployment
from draftcast.scenarios.run.simulate import RunResult, front_end_work_s
from draftcast.scenarios.schema import Scenario
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.yaml_text import yaml_beside

LABELS = ("model_name", "engine")
CACHE_CONFIG = ("block_size", "num_gpu_blocks", "enable_prefix_caching")
_WORDS: dict[str, Any] = yaml_beside(__file__, "metrics.yaml")
_KINDS = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


class ServerMetrics(Collector):
    """Counters and histograms of the front end, and what each engine counted when it was last asked (``counts``)."""

    def __init__(self, model: str, engines: Sequence[EngineConfig], *, speculates: bool) -> None:
        self.registry = CollectorRegistry()
        self.counts: list[dict[str, Any]] = [{} for _ in engines]
        self._model, self._configs = model, engines
        self._engine_metrics = _WORDS["scheduler"] | (_WORDS["speculation"] if speculates else {})
        keep: dict[str, Any] = {"registry": self.registry}
        self._metrics: dict[str, Histogram | Counter] = {
            name: Histogram(f"vllm:{name}", text, LABELS, buckets=_WORDS["buckets"][buckets], **keep)
            for name, (text, buckets) in _WORDS["histograms"].items()
        }
        counters = _WORDS["counters"].items()
        self._metrics |= {name: Counter(f"vllm:{name}", text, LABELS, **keep) for name, text in counters}
        self._ended = Counter("vllm:request_success", "Requests that ended.", (*LABELS, "finished_reason"), **keep)
        self.registry.register(self)
        self._labelled = cache(lambda name, engine: self._metrics[name].labels(model, engine))

    def record(self, engine: int, **values: float) -> None:
        """One value for each histogram named, more for each counter named."""
        for name, value in values.items():
            metric = self._labelled(name, engine)
            (metric.inc if isinstance(metric, Counter) else metric.observe)(value)

    def end(self, engine: int, reason: str) -> None:
        """A request has ended."""
        self._ended.labels(self._model, engine, reason).inc()

    def collect(self) -> Iterator[Metric]:
        """What the engines counted."""
        engines = [str(engine) for engine in range(len(self.counts))]
        info = GaugeMetricFamily("vllm:cache_config_info", "The KV cache.", labels=[*CACHE_CONFIG, "engine"])
        for engine, config in zip(engines, self._configs, strict=True):
            info.add_metric([*(str(getattr(config, name)) for name in CACHE_CONFIG), engine], 1)
        yield info
        for key, (name, kind) in self._engine_metrics.items():
            family = _KINDS[kind](f"vllm:{name}", "Of the simulated engine.", labels=LABELS)
            for engine, counts in zip(engines, self.counts, strict=True):
                family.add_metric((self._model, engine), counts.get(key, 0))
            yield family
        if "num_drafts" in self._engine_metrics:
            name = "vllm:spec_decode_num_accepted_tokens_per_pos"
            family = CounterMetricFamily(name, "Of the simulated engine.", labels=(*LABELS, "position"))
            for engine, counts in zip(engines, self.counts, strict=True):
                for position, accepted in enumerate(counts.get("accepted_per_position", ())):
                    family.add_metric((self._model, engine, str(position)), accepted)
            yield family


def run_text(scenario: Scenario, run: RunResult) -> bytes:
    """The first replication as ``/metrics`` after the last request, in simulated seconds, without gaps of pieces."""
    figures = run.replications[0]
    deployment = cached_deployment(scenario)
    engines = [deployment.settings] * scenario.cluster.replicas
    metrics = ServerMetrics(scenario.engine.model, engines, speculates=scenario.speculative_config is not None)
    requests = run.requests[(run.requests["replication"] == 0) & np.isfinite(run.requests["finish_s"])]
    # vLLM's queue begins in the engine, behind the front end's work.
    work_s = front_end_work_s(deployment, requests["prompt_tokens"]) + scenario.more_front_end_s
    for row, late_s in zip(requests.itertuples(), work_s, strict=True):
        replica = int(row.replica)
        decode_s, prefill_s = row.finish_s - row.first_token_s, row.first_token_s - row.first_scheduled_s
        metrics.record(
            replica,
            time_to_first_token_seconds=row.first_token_s - row.arrival_s,
            request_time_per_output_token_seconds=decode_s / max(row.output_tokens - 1, 1),
            e2e_request_latency_seconds=row.finish_s - row.arrival_s,
            request_queue_time_seconds=max(row.first_scheduled_s - row.arrival_s - late_s, 0.0),
            request_inference_time_seconds=prefill_s + decode_s,
            request_prefill_time_seconds=prefill_s,
            request_decode_time_seconds=decode_s,
            request_prompt_tokens=row.prompt_tokens,
            request_generation_tokens=row.output_tokens,
            prompt_tokens=row.prompt_tokens,
            generation_tokens=row.output_tokens,
        )
        metrics.end(replica, "length")
    rates = np.array([value for name, value in figures.items() if name.startswith("acceptance_rate_position_")])
    shares = rates / max(float(rates.sum()), 1e-9)  # figures leave the warm-up out, counters do not
    for replica, rows in requests.groupby("replica"):
        counts = {name: int(rows[column].sum()) for name, column in _WORDS["columns"].items()}
        per_position = (shares * counts["num_accepted"]).round().tolist()
        metrics.counts[int(replica)] = counts | {"accepted_per_position": per_position}
    return generate_latest(metrics.registry)
