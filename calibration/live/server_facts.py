"""What a running server says of itself: version, model, resolved configuration, counters.

``/server_info`` tells everything (vLLM in development mode, as ours are started); else ``/metrics`` and ``/v1/models``
tell what they know, and the rest is null.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from draftcast.calibration.acceptance.metrics import read_metrics
from draftcast.calibration.live.http import get, get_json
from draftcast.errors import InputError, LiveError

# Our name: section and name in vLLM's configuration.
_CONFIG = {
    "num_gpu_blocks": ("cache_config", "num_gpu_blocks"),
    "block_size": ("cache_config", "block_size"),
    "enable_prefix_caching": ("cache_config", "enable_prefix_caching"),
    "gpu_memory_utilization": ("cache_config", "gpu_memory_utilization"),
    "cache_dtype": ("cache_config", "cache_dtype"),
    "max_num_batched_tokens": ("scheduler_config", "max_num_batched_tokens"),
    "max_num_scheduled_tokens": ("scheduler_config", "max_num_scheduled_tokens"),
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "enable_chunked_prefill": ("scheduler_config", "enable_chunked_prefill"),
    "long_prefill_token_threshold": ("scheduler_config", "long_prefill_token_threshold"),
    "scheduling_policy": ("scheduler_config", "policy"),
    "watermark": ("scheduler_config", "watermark"),
    "async_scheduling": ("scheduler_config", "async_scheduling"),
    "max_model_len": ("model_config", "max_model_len"),
    "dtype": ("model_config", "dtype"),
    "quantization": ("model_config", "quantization"),
    "enforce_eager": ("model_config", "enforce_eager"),
    "tensor_parallel_size": ("parallel_config", "tensor_parallel_size"),
    "data_parallel_size": ("parallel_config", "data_parallel_size"),
}
_SPECULATIVE = ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")
_CACHE_INFO = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class ServerFacts:
    """Attributes: model: the name it serves; version: "" where it does not say; config: see `_CONFIG`, null unknown."""

    model: str
    version: str
    config: dict[str, Any]


def server_facts(url: str) -> ServerFacts:
    """Ask the server at ``url``.

    Raises:
        LiveError: nobody answers there, or not as vLLM does.
    """
    models = get_json(f"{url}/v1/models")
    try:
        first = models["data"][0]
        model = str(first["id"])
    except (TypeError, KeyError, IndexError):
        raise LiveError(f"{url}/v1/models: no model in the answer; is it a vLLM server?") from None
    config: dict[str, Any] = {**dict.fromkeys(_CONFIG), "max_model_len": first.get("max_model_len")}
    version = ""
    with contextlib.suppress(LiveError):
        version = str(get_json(f"{url}/version")["version"])
    with contextlib.suppress(LiveError):
        config |= _from_metrics(get(f"{url}/metrics"))
    with contextlib.suppress(LiveError):
        # The first answer also collects facts of the system, which takes its time.
        config |= _from_server_info(get_json(f"{url}/server_info?config_format=json", timeout_s=120.0))
    return ServerFacts(model, version, config)


def acceptance_between(before: str | None, after: str | None) -> dict[str, Any] | None:
    """What the server counted between two snapshots of its metrics; None where it drafted nothing or does not say."""
    if before is None or after is None:
        return None
    with TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("before", "after")]
        for file, text in zip(files, (before, after), strict=True):
            file.write_text(text, encoding="utf-8")
        try:
            found = read_metrics(files[1], before=files[0])
        except InputError:
            return None
    return {
        "num_drafts": found.num_drafts,
        "num_draft_tokens": found.num_draft_tokens,
        "num_accepted_tokens": found.num_accepted_tokens,
        "per_position": [round(rate * found.num_drafts) for rate in found.rates],
    }


def _from_metrics(text: str) -> dict[str, Any]:
    labels = dict(_LABEL.findall(found[1])) if (found := _CACHE_INFO.search(text)) else {}
    config: dict[str, Any] = {}
    for name in ("num_gpu_blocks", "block_size"):
        if labels.get(name, "").isdigit():
            config[name] = int(labels[name])
    if labels.get("enable_prefix_caching") in ("True", "False"):
        config["enable_prefix_caching"] = labels["enable_prefix_caching"] == "True"
    return config


def _from_server_info(info: Any) -> dict[str, Any]:
    whole = info.get("vllm_config") if isinstance(info, Mapping) else None
    if not isinstance(whole, Mapping):
        return {}
    config: dict[str, Any] = {}
    for name, (section, key) in _CONFIG.items():
        if isinstance(whole.get(section), Mapping) and key in whole[section]:
            config[name] = whole[section][key]
    speculative = whole.get("speculative_config")
    if isinstance(speculative, Mapping):
        config["speculative_config"] = {key: speculative.get(key) for key in _SPECULATIVE}
    return config
