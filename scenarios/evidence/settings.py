"""What a point ran: its model, format, device, engine and flags as keys of a scenario, or why there are none.

Names are looked up, never guessed: what stands in no table here and in no bundled file is a reason, by field.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from draftcast.calibration.profile.hardware import is_bundled_device
from draftcast.kernels.model.catalog import canonical_name, is_bundled_model
from draftcast.scenarios.evidence.point import Point


@dataclass
class Reading:
    """What reading a point found besides the keys: why a side cannot be expressed, and what was assumed."""

    point: Point
    reasons: list[str] = field(default_factory=list)
    on_reasons: list[str] = field(default_factory=list)
    assumed: dict[str, str] = field(default_factory=dict)

    def missing(self, name: str, why: str) -> None:
        """Neither side can be expressed."""
        self.reasons.append(f"{name}: {why}")

    def missing_on(self, name: str, why: str) -> None:
        """The side with speculation cannot be expressed."""
        self.on_reasons.append(f"{name}: {why}")


# A format at the end of a checkpoint's name.
_FORMAT = re.compile(r"[-_](fp8-kv|kv|fp8|int4-awq|awq|gptq|int4|nvfp4|fp4|mxfp4|mxfp8|w4afp8|bf16)$", re.IGNORECASE)
# Checkpoints that have a bundled model's shapes under another name (their context windows may differ).
_SAME_SHAPES = {
    "meta-llama-3-8b": "Llama-3.1-8B",
    "meta-llama-3-8b-instruct": "Llama-3.1-8B",
    "meta-llama-3-70b": "Llama-3.1-70B",
    "meta-llama-3-70b-instruct": "Llama-3.1-70B",
}
# Why a family of models is not bundled: the first pattern found in the name.
_UNKNOWN_LAYERS = (
    (r"deepseek-v4", "attention to compressed tokens is not known"),
    (r"step-3", "sliding layers with heads of their own are not known"),
)


def model_name(name: str) -> str | None:
    """The bundled model with the shapes of a checkpoint, whatever its format; None: there is none."""
    bare = name.split(" (", maxsplit=1)[0].strip()
    while True:
        for text in (bare, bare.rpartition("/")[2]):
            if is_bundled_model(text):
                return canonical_name(text)
            if text.lower() in _SAME_SHAPES:
                return _SAME_SHAPES[text.lower()]
        shorter = _FORMAT.sub("", bare)
        if shorter == bare:
            return None
        bare = shorter


def read_model(reading: Reading) -> str | None:
    """``engine.model``."""
    name = reading.point.model
    if name is None:
        reading.missing("model", "not named")
        return None
    found = model_name(name)
    if found is None:
        layers = (why for pattern, why in _UNKNOWN_LAYERS if re.search(pattern, name, re.IGNORECASE))
        reading.missing("model", f"{name}: {next(layers, 'not among the bundled models')}")
    elif "presum" in name:
        reading.assumed["model"] = f"presumably {found}"
    return found


_FORMATS = {
    "bf16": {},
    "fp16": {"dtype": "float16"},
    "fp8": {"quantization": "fp8"},
    "awq": {"quantization": "awq"},
    "gptq": {"quantization": "gptq"},
    "int4": {"quantization": "int4"},
    "int4-awq": {"quantization": "awq"},
    "mxfp4": {"quantization": "mxfp4"},
    "nvfp4": {"quantization": "nvfp4"},
    "mxfp8": {"quantization": "mxfp8"},
    "int8": {"quantization": "int8"},
}
# The format of a checkpoint that its name does not tell.
_NATIVE = {
    "DeepSeek-V3": "fp8",
    "DeepSeek-V3.2": "fp8",
    "Devstral-2-123B": "fp8",
    "Kimi-K2": "fp8",
    "MiniMax-M2.5": "fp8",
    "MiniMax-M2.7": "fp8",
    "Ministral-3-3B": "fp8",
    "Ministral-3-8B": "fp8",
    "Ministral-3-14B": "fp8",
    "gpt-oss-20b": "mxfp4",
    "gpt-oss-120b": "mxfp4",
}
_KV = {"auto": "auto", "bf16": "bfloat16", "fp16": "float16"} | {
    name: name.split("_")[0] for name in ("fp8", "fp8_e4m3", "fp8_e5m2", "nvfp4")
}


def read_format(reading: Reading, model: str | None) -> dict[str, Any]:
    """``engine.quantization``, ``dtype`` and ``kv_cache_dtype``."""
    point = reading.point
    text = point.quantization
    if text is None:
        named = _FORMAT.search((point.model or "").split(" (")[0])
        text = named[1].lower().removesuffix("-kv") if named else _NATIVE.get(model or "", "bf16")
        reading.assumed["quantization"] = f"{text}, not given"
    keys = _FORMATS.get(text.split(" (")[0])
    if keys is None:
        reading.missing("quantization", f"{text} is not known")
    kv = _KV.get(point.kv_cache_dtype or "auto")
    if kv is None:
        reading.missing("kv_cache_dtype", f"{point.kv_cache_dtype} is not known")
    return {**(keys or {}), "kv_cache_dtype": kv or "auto"}


_DEVICES = {"a100": "a100-80g", "a10g-24g": "a10g", "rtx-pro-6000": "rtx-pro-6000"}


def read_device(reading: Reading) -> str | None:
    """``hardware``."""
    name = reading.point.gpu
    if name is None or re.match(r"(none|unknown)\b", name, re.IGNORECASE):
        reading.missing("gpu", "not named")
        return None
    bare, _, remark = name.partition(" (")
    device = _DEVICES.get(bare.lower(), bare.lower())
    if not is_bundled_device(device):
        reading.missing("gpu", f"{name} is not among the bundled devices" if "/" not in bare else f"{name}: which one?")
        return None
    if bare == "A100":
        if "40 GB" in reading.point.note:
            device = "a100-40g"
        reading.assumed["gpu"] = f"{device}; the source says A100"
    elif remark:
        reading.assumed["gpu"] = f"{device}; not printed"
    return device


def read_parallelism(reading: Reading) -> int:
    """``engine.tensor_parallel_size``; other kinds of parallelism are reasons."""
    point = reading.point
    if point.pp is not None and point.pp > 1:
        reading.missing("pp", "pipeline parallelism is not simulated")
    if point.dp is not None and point.dp > 1:
        reading.missing("dp", "data-parallel ranks are not simulated")
    if point.ep is True or (point.ep is not False and (point.ep or 0) > 1):
        reading.missing("ep", "expert parallelism is not simulated")
    tp = point.tp
    if tp is None and point.num_gpus is not None:
        tp = point.num_gpus
        reading.assumed["tp"] = f"{tp}: all {point.num_gpus} GPUs"
    elif tp is None:
        tp = 1
        if point.model is not None and _billions(point.model) >= 30:
            reading.missing("tp", "not given")
        reading.assumed["tp"] = "1, not given"
    if tp > _NODE:
        reading.missing("tp", f"{tp} GPUs span nodes, whose link is not simulated")
    if point.num_gpus is not None and point.num_gpus != tp and not reading.reasons:
        reading.missing("num_gpus", f"{point.num_gpus} GPUs at tp {tp}")
    return tp


_NODE = 8


def _billions(name: str) -> float:
    """Parameters in a model's name, in billions; 0 where it does not tell."""
    return max((float(size) for size in re.findall(r"(\d+(?:\.\d+)?)B", name, re.IGNORECASE)), default=0.0)


# Flags of vLLM and of SGLang (dashes as underscores) and the engine's key of the same meaning.
_FLAGS = {
    "max_num_seqs": "max_num_seqs",
    "max_running_requests": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "chunked_prefill_size": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
    "context_length": "max_model_len",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "mem_fraction_static": "gpu_memory_utilization",
    "enable_prefix_caching": "enable_prefix_caching",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "enforce_eager": "enforce_eager",
    "async_scheduling": "async_scheduling",
    "max_cudagraph_capture_size": "max_cudagraph_capture_size",
    "block_size": "block_size",
    "page_size": "block_size",
    "num_gpu_blocks_override": "num_gpu_blocks",
}
_NOT = {
    "disable_radix_cache": "enable_prefix_caching",
    "no_enable_prefix_caching": "enable_prefix_caching",
    "no_async_scheduling": "async_scheduling",
    "no_enable_chunked_prefill": "enable_chunked_prefill",
}
# Flags that change what runs in a way that no key says.
_UNKNOWN_FLAGS = {
    "enable_dp_attention": "data-parallel attention is not simulated",
    "dp_attention": "data-parallel attention is not simulated",
    "decode_context_parallel_size": "decode-context parallelism is not simulated",
    "dcp": "decode-context parallelism is not simulated",
    "enable_expert_parallel": "expert parallelism is not simulated",
    "kv_connector": "a KV connector is not simulated",
}
_COMMANDS = ("cmd", "server", "server_command", "backend_parameters")


def flags_of(point: Point) -> dict[str, Any]:
    """The server's flags, dashes as underscores: those of its command line, then those given by name."""
    found: dict[str, Any] = {}
    for key in _COMMANDS:
        found |= _command_flags(str(point.flags.get(key, "")))
    return found | {key.replace("-", "_"): value for key, value in point.flags.items() if key not in _COMMANDS}


def _command_flags(command: str) -> dict[str, Any]:
    try:
        words = shlex.split(command.replace("\\\n", " "))
    except ValueError:
        words = command.split()
    found: dict[str, Any] = {}
    for index, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            following = words[index + 1] if index + 1 < len(words) else "--"
            found[name.replace("-", "_")] = _plain(value) if equals else following.startswith("-") or _plain(following)
    return found


def _plain(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def read_flags(reading: Reading) -> dict[str, Any]:
    """Keys of ``engine`` that the flags give."""
    keys: dict[str, Any] = {}
    for flag, value in flags_of(reading.point).items():
        if flag in _UNKNOWN_FLAGS and (value is True or str(value) not in ("False", "0", "1")):
            reading.missing(f"flags.{flag}", _UNKNOWN_FLAGS[flag])
        if flag in _NOT:
            keys[_NOT[flag]] = not value
        if flag in _FLAGS and value is not None:
            given = str(value).startswith("on") if isinstance(value, str) else value
            keys[_FLAGS[flag]] = given
    return keys


# Releases of vLLM by the month from which they were current, of branches and points without a version.
_RELEASES = {
    "2026-08": "0.27",
    "2026-07": "0.24",
    "2026-04": "0.20",
    "2026-03": "0.18",
    "2026-02": "0.16",
    "2026-01": "0.14",
    "2025-12": "0.12",
    "2025-10": "0.11",
    "2025-07": "0.10",
    "2025-05": "0.9",
    "2025-02": "0.8",
}


def read_engine(reading: Reading) -> dict[str, Any]:
    """Keys of ``engine`` that follow from the engine and its version."""
    point = reading.point
    name = point.engine.split(" (")[0].lower()
    if name not in ("vllm", "sglang") or "plugin" in point.engine:
        reading.missing("engine", f"{point.engine} is not simulated")
        return {}
    if "presum" in point.engine:
        reading.assumed["engine"] = f"presumably {name}"
    if name == "sglang":
        # Its own limit follows from memory and lies in the thousands.
        return {"version": f"sglang 0.{4 if version_of(point) == (0, 4) else 5}", "max_num_seqs": 2048}
    if is_v0(point):
        return {"version": "vllm 0.7", "enable_chunked_prefill": False, "max_num_seqs": 256}
    version = version_of(point)
    release = ".".join(map(str, version)) if version else _release_at(point.date)
    if re.search(r"MRV2|Model Runner V2", point.engine_version):
        release = f"{'0.25' if int(release.split('.')[1]) < 25 else release} v2"  # its constants are those of 0.25 on
    elif "V1 runner" in point.engine_version:
        release += " v1"
    return {"version": f"vllm {release}"}


def _release_at(date: str) -> str:
    month = date if "-" in date or len(date) < 6 else f"{date[:4]}-{date[4:6]}"
    return next((release for since, release in _RELEASES.items() if month >= since), "0.8")


def version_of(point: Point) -> tuple[int, int] | None:
    """(major, minor) of the engine; None where no release is named."""
    found = re.search(r"(?<![\d.])v?(\d+)\.(\d+)(?:\.\d+)?", point.engine_version)
    return (int(found[1]), int(found[2])) if found and "dev" not in point.engine_version.split("+")[0] else None


def is_v0(point: Point) -> bool:
    """Whether vLLM's first engine ran."""
    version = version_of(point)
    return "V0" in point.engine_version or (version is not None and version < (0, 8))


def draft_tp(point_tp: int | None, tp: int) -> int | None:
    """``draft_tensor_parallel_size`` where it is given and differs from the target's."""
    return point_tp if point_tp not in (None, tp) else None


def spec_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of ``speculative_config`` that the flags give."""
    keys = {name: flags[name] for name in ("prompt_lookup_max", "prompt_lookup_min") if name in flags}
    if flags.get("speculative_model_quantization"):
        keys["quantization"] = flags["speculative_model_quantization"]
    return keys
