"""``/metrics``: vLLM 0.32's names, labels and buckets (``v1/metrics``), in seconds of the wall clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

LABELS = ("model_name", "engine")
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
_ITL_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    80.0,
)
# What engines count, by their key: metric, type, help.
_SCHEDULER: dict[str, tuple[str, type[Metric], str]] = {
    "num_running": ("vllm:num_requests_running", GaugeMetricFamily, "Requests in the engine's batches."),
    "num_waiting": ("vllm:num_requests_waiting", GaugeMetricFamily, "Requests that wait to be scheduled."),
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", GaugeMetricFamily, "Share of KV blocks in use, 1: all."),
    "looked_up_tokens": ("vllm:prefix_cache_queries", CounterMetricFamily, "Tokens looked up in the prefix cache."),
    "cached_tokens": ("vllm:prefix_cache_hits", CounterMetricFamily, "Tokens found in the prefix cache."),
    "num_preemptions": ("vllm:num_preemptions", CounterMetricFamily, "Preemptions."),
}
_SPECULATION: dict[str, tuple[str, type[Metric], str]] = {
    "num_drafts": ("vllm:spec_decode_num_drafts", CounterMetricFamily, "Rounds with a draft."),
    "num_draft_tokens": ("vllm:spec_decode_num_draft_tokens", CounterMetricFamily, "Draft tokens verified."),
    "num_accepted": ("vllm:spec_decode_num_accepted_tokens", CounterMetricFamily, "Draft tokens accepted."),
}


class Metrics(Collector):
    """Counters and histograms of the front end, and what each engine counts (``counts``, see `LiveEngine.counts`).

    Args:
        model: its name.
        replicas: label ``engine`` is the replica's number.
        speculates: engines draft.
        cache_config: labels of ``vllm:cache_config_info``.
    """

    def __init__(self, model: str, replicas: int, *, speculates: bool, cache_config: dict[str, str]) -> None:
        self.registry = CollectorRegistry()
        self.counts: list[dict[str, Any]] = [{} for _ in range(replicas)]
        self._model, self._speculates, self._cache_config = model, speculates, cache_config
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests with a first token.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self.success = self._counter("request_success", "Requests that ended.", "finished_reason")
        self.ttft_s = self._histogram("time_to_first_token_seconds", "Time to first token.", _TTFT_S)
        self.itl_s = self._histogram("inter_token_latency_seconds", "Time between pieces of an answer.", _ITL_S)
        self.tpot_s = self._histogram("request_time_per_output_token_seconds", "Mean time per token.", _ITL_S)
        self.e2el_s = self._histogram("e2e_request_latency_seconds", "Time of a request.", _REQUEST_S)
        self.queue_s = self._histogram("request_queue_time_seconds", "Time before a request is scheduled.", _REQUEST_S)
        self.inference_s = self._histogram("request_inference_time_seconds", "Time since then.", _REQUEST_S)
        self.prefill_s = self._histogram("request_prefill_time_seconds", "Of it until the first token.", _REQUEST_S)
        self.decode_s = self._histogram("request_decode_time_seconds", "Of it after the first token.", _REQUEST_S)
        self.registry.register(self)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"vllm:{name}", text, (*LABELS, *labels), registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"vllm:{name}", text, LABELS, registry=self.registry, buckets=buckets)

    def collect(self) -> Iterator[Metric]:
        """What the engines counted when they were last asked."""
        info = GaugeMetricFamily("vllm:cache_config_info", "The KV cache.", labels=[*self._cache_config, "engine"])
        for name, (metric, kind, text) in (_SCHEDULER | (_SPECULATION if self._speculates else {})).items():
            family: Any = kind(metric, text, labels=LABELS)  # type: ignore[call-arg]
            for engine, counts in enumerate(self.counts):
                family.add_metric((self._model, str(engine)), counts.get(name, 0))
            yield family
        for engine in range(len(self.counts)):
            info.add_metric((*self._cache_config.values(), str(engine)), 1)
        yield info
        if self._speculates:
            text = "Accepted tokens by draft position."
            family = CounterMetricFamily(
                "vllm:spec_decode_num_accepted_tokens_per_pos", text, labels=(*LABELS, "position")
            )
            for engine, counts in enumerate(self.counts):
                for position, accepted in enumerate(counts.get("accepted_per_position", ())):
                    family.add_metric((self._model, str(engine), str(position)), accepted)
            yield family
