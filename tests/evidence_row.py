"""A complete row of the corpus of measured points, to be changed field by field."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "id": "one",
    "source": "a page",
    "url": "",
    "date": "2026-06",
    "tier": "A",
    "engine": "vllm",
    "engine_version": "0.20.0",
    "model": "Qwen/Qwen3-8B",
    "quantization": "bf16",
    "gpu": "H100-SXM",
    "num_gpus": 1,
    "tp": 1,
    "spec": {"method": "eagle3", "k": 2},
    "acceptance": {"mean_length": 1.5},
    "dataset": "random",
    "input_tokens": 100,
    "output_tokens": 50,
    "load": {"kind": "concurrency", "value": 8, "num_prompts": 80},
    "metric": "tpot_ms",
    "off": 7.0,
    "on": 6.0,
}
