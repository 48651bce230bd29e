"""A run in the shape of ``vllm bench serve --save-result``: its keys, its units (milliseconds), its percentages.

Key names and definitions follow vLLM 0.32 (``vllm/benchmarks/serve.py``): a script that reads vLLM's file reads ours.
What a simulation has no equal of is filled with the empty value (no generated text, no client queue, no audio).
"""

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from draftcast.sim.output.metrics import STATISTICS
from draftcast.sim.output.results import RequestColumns, integral

THROUGHPUTS = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput")


def vllm_result(
    values: Mapping[str, float],
    requests: pd.DataFrame,
    *,
    model_id: str = "",
    date: str = "",
    request_rate: float = math.inf,
    burstiness: float = 1.0,
    max_concurrency: int | None = None,
) -> dict[str, object]:
    """The result dict of ``vllm bench serve --save-detailed --percentile-metrics ttft,tpot,itl,e2el``, ready for JSON.

    ``values`` are a run's figures (``Metrics.values``, without the warm-up where one was cut off); lists and peaks are
    of all ``requests``, in request order. Undefined figures are None, as are medians and percentiles of a run without a
    steady state. ``spec_decode_*`` is there when drafts were made; its acceptance rate is in percent, as in vLLM.
    """
    c = RequestColumns.of(requests.sort_values("request", kind="stable"))
    count = len(requests)

    def figure(name: str, scale: float = 1.0) -> float | None:
        value = values.get(name, math.nan)
        return value * scale if math.isfinite(value) else None

    def wholes(*names: str) -> dict[str, int | None]:
        return {name: round(values[name]) if math.isfinite(values[name]) else None for name in names}

    tokens_per_s, concurrent_requests = _peaks(c)
    result: dict[str, object] = {
        "date": date,
        "endpoint_type": "draftcast",
        "backend": "draftcast",
        "label": None,
        "model_id": model_id,
        "tokenizer_id": model_id,
        "num_prompts": count,
        "request_rate": request_rate if math.isfinite(request_rate) else "inf",
        "burstiness": burstiness,
        "max_concurrency": max_concurrency,
        "duration": figure("duration_s"),
        **wholes("completed", "failed", "total_input_tokens", "total_output_tokens"),
        **{name: figure(name) for name in THROUGHPUTS},
        "latencies": np.where(c.finished, c.e2el_s, 0.0).tolist(),
        "queue_times": [0.0] * count,
        "input_lens": c.prompt.tolist(),
        "output_lens": np.where(c.finished, c.output, 0).tolist(),
        "ttfts": np.where(c.finished, c.ttft_s, 0.0).tolist(),
        "itls": [[] for _ in range(count)],
        "start_times": c.arrival_s.tolist(),
        "generated_texts": [""] * count,
        "errors": ["" if done else "unfinished" for done in c.finished.tolist()],
        "max_output_tokens_per_s": tokens_per_s,
        "max_concurrent_requests": concurrent_requests,
        "rtfx": 0.0,
    }
    if values["num_draft_tokens"] > 0:
        positions = (f"acceptance_rate_position_{position}" for position in itertools.count())
        rates = [values[name] for name in itertools.takewhile(values.__contains__, positions)]
        result |= {
            "spec_decode_acceptance_rate": figure("acceptance_rate", 100),
            "spec_decode_acceptance_length": figure("mean_acceptance_length"),
            "spec_decode_num_drafts": round(values["num_drafts"]),
            "spec_decode_draft_tokens": round(values["num_draft_tokens"]),
            "spec_decode_accepted_tokens": round(values["num_accepted_tokens"]),
            "spec_decode_per_position_acceptance_rates": rates,
        }
    for name in ("ttft", "tpot", "itl", "e2el"):
        result |= {f"{statistic}_{name}_ms": figure(f"{statistic}_{name}_s", 1e3) for statistic in STATISTICS}
    return result


def _peaks(c: RequestColumns) -> tuple[float, int]:
    """Most output tokens, and most active requests, in any whole second since the first arrival, as vLLM buckets them.

    The first token counts at its time, the others evenly from there to the end (vLLM counts stream chunks, which hold
    several tokens each under speculative decoding).
    """
    if not c.finished.any():
        return 0.0, 0
    start = float(c.arrival_s[c.finished].min())
    came, first, finish = (at_s[c.finished] - start for at_s in (c.arrival_s, c.arrival_s + c.ttft_s, c.finish_s))
    rest = (c.output[c.finished] - 1).astype(np.float64)
    seconds = np.arange(math.ceil(float(finish.max())) + 2, dtype=np.float64)
    spread = finish > first
    rate = np.divide(rest, finish - first, out=np.zeros_like(rest), where=spread)
    at_once = np.bincount(first.astype(np.int64), weights=1 + np.where(spread, 0.0, rest), minlength=seconds.size - 1)
    tokens = np.diff(integral(first, finish, rate, seconds)) + at_once[: seconds.size - 1]
    leaves = finish.astype(np.int64) + 1
    change = np.bincount(came.astype(np.int64), minlength=int(leaves.max()) + 1) - np.bincount(leaves)
    return float(tokens.max()), int(np.cumsum(change).max())
