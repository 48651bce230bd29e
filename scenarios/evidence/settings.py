"""What a point ran: its model, format, device, engine, flags and lengths as keys of a scenario, or why there are none.

Names are looked up, never guessed: what stands neither in ``names.yaml`` nor in a bundled file is a reason, by field.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import yaml

from draftcast.calibration.profile.hardware import recognised
from draftcast.kernels.model.catalog import canonical_name, is_bundled_model, load_model, named_format
from draftcast.scenarios.compare.read_command import split_flags
from draftcast.scenarios.evidence.point import EvidencePoint
from draftcast.scenarios.schema import Scenario
from draftcast.yaml_text import yaml_beside

NAMES: dict[str, Any] = yaml_beside(__file__, "names.yaml")
_COMMANDS = ("cmd", "server", "server_command", "backend_parameters")
_NODE = 8  # GPUs


@dataclass
class Reading:
    """A point as scenarios; a side is None where no figure of the point needs it, or where ``reasons`` say why."""

    point: EvidencePoint
    assumed: dict[str, str] = field(default_factory=dict)  # what the row does not give, and what was taken
    reasons: tuple[str, ...] = ()
    off: Scenario | None = None
    on: Scenario | None = None

    @classmethod
    def of(cls, point: EvidencePoint) -> Self:
        """Of the row with what its source's other pages say."""
        row = cls(point).pages.get("row", {})
        reading = cls(point.model_copy(update=row), dict(point.assumed))
        reading.note(row)
        return reading

    @property
    def pages(self) -> dict[str, Any]:
        """What the source's own pages say of its rows beside them (``sources`` of ``names.yaml``)."""
        of_row = f"{self.point.source} {self.point.id}"
        said = (facts for pattern, facts in NAMES["sources"].items() if re.search(pattern, of_row))
        return {key: value for facts in said for key, value in facts.items()}

    @property
    def is_expressed(self) -> bool:
        """Whether any figure of the point can be forecast."""
        wants_ratio = self.point.off is None and self.point.on is None
        sides = (self.off is not None, self.on is not None)
        return all(sides) if wants_ratio else any(sides)

    def missing(self, name: str, why: str) -> None:
        self.reasons += (f"{name}: {why}",)

    def note(self, values: Mapping[str, Any]) -> None:
        """Say that these values, by field, are from the source's other pages."""
        self.assumed |= {name: f"{value}, as the source's pages say" for name, value in values.items()}


def model_name(name: str) -> str | None:
    """The bundled model with the shapes of a checkpoint, whatever its format; None: there is none."""
    written = _written(name)
    return canonical_name(written) if is_bundled_model(written) else None


def _written(name: str) -> str:
    """A checkpoint's name without a source's remark."""
    return name.split(" (", maxsplit=1)[0].strip()


def read_engine(reading: Reading) -> tuple[dict[str, Any], str | None]:
    """The ``engine`` section without speculation, and ``hardware``."""
    model = _model(reading)
    keys = {"model": model, **_version(reading), **_format(reading, model)}
    hardware = _device(reading)
    of_pages = reading.pages.get("engine", {})
    reading.note({f"flags.{key}": value for key, value in of_pages.items()})
    return keys | _parallelism(reading) | of_pages | _flags(reading), hardware


def _model(reading: Reading) -> str | None:
    name = reading.point.model
    if name is None:
        reading.missing("model", "not named")
        return None
    model = model_name(name)
    if model is None:
        reading.missing("model", f"{name}: not among the bundled models")
    elif "presum" in name:
        reading.assumed["model"] = f"presumably {model}"
    elif load_model(written := _written(name)).weight_block != load_model(model).weight_block:
        return written  # the repository's own name says that its weights are in fp8 by blocks
    return model


def _format(reading: Reading, model: str | None) -> dict[str, Any]:
    """``engine.quantization``, ``dtype`` and ``kv_cache_dtype``."""
    point = reading.point
    text = point.quantization
    if text is None:
        named = named_format(_written(point.model or ""))[1]
        own_format = load_model(model).quantization if model is not None else ""
        text = (own_format if named is None else named) or "bf16"
        reading.assumed["quantization"] = f"{text}, not given"
    keys = NAMES["formats"].get(_format_name(text))
    if keys is None:
        reading.missing("quantization", f"{text} is not known")
    kv = NAMES["kv_formats"].get(_format_name(point.kv_cache_dtype or "auto"))
    if kv is None:
        reading.missing("kv_cache_dtype", f"{point.kv_cache_dtype} is not known")
    return {**(keys or {}), "kv_cache_dtype": kv or "auto"}


def _format_name(text: str) -> str:
    """A number format in one spelling, without remarks: "int4-awq" and "AWQ (4 bits)" are "awq"."""
    name = _written(text).lower().replace("_", "-").replace("bfloat16", "bf16").replace("float16", "fp16")
    return re.sub(r"^(int4-)?(awq|gptq)(-int4|-marlin)?$", r"\2", name)


def _device(reading: Reading) -> str | None:
    name = reading.point.gpu
    if name is None or re.match(r"(none|unknown)\b", name, re.IGNORECASE):
        reading.missing("gpu", "not named")
        return None
    bare, _, remark = name.partition(" (")
    if (hardware := recognised(bare)) is None:
        reading.missing("gpu", f"{name}: which one?" if "/" in bare else f"{name} is not among the bundled devices")
        return None
    device = hardware.name
    if bare == "A100":
        if "40 GB" in reading.point.note:
            device = "a100-40g"
        reading.assumed["gpu"] = f"{device}; the source says A100"
    elif remark:
        reading.assumed["gpu"] = f"{device}; not printed"
    return device


def _parallelism(reading: Reading) -> dict[str, Any]:
    """Keys of ``engine`` that say how it is spread over GPUs."""
    point = reading.point
    tp, pp, dp, flags = point.tp, point.pp or 1, point.dp or 1, flags_of(point)
    if tp is None and point.num_gpus is not None:
        tp = point.num_gpus // (pp * dp)
        reading.assumed["tp"] = f"{tp}: all {point.num_gpus} GPUs"
    elif tp is None:
        tp = 1
        billions = re.findall(r"(\d+(?:\.\d+)?)B", point.model or "", re.IGNORECASE)
        if any(float(size) >= 30 for size in billions):
            reading.missing("tp", "not given")
        reading.assumed["tp"] = "1, not given"
    if any(flags.get(name) is True for name in ("enable_dp_attention", "dp_attention")) and dp == 1:
        dp = int(flags.get("dp_size") or flags.get("dp") or tp)
    if point.engine.lower().startswith("sglang") and dp > 1 and point.num_gpus in (None, tp) and tp % dp == 0:
        # Its data-parallel ranks of attention are parts of the tensor-parallel ones, which all share the experts.
        reading.assumed["dp"] = f"attention of {tp} GPUs in {dp} groups"
        tp //= dp
    ranks = tp * dp
    size = 1 if point.ep is None or isinstance(point.ep, bool) else int(point.ep)
    experts = size > 1 or point.ep is True or flags.get("enable_expert_parallel") is True
    if ranks * pp > _NODE:
        reading.missing("tp", f"{ranks * pp} GPUs span nodes, whose link is not simulated")
    if point.num_gpus is not None and point.num_gpus != ranks * pp and not reading.reasons:
        reading.missing("num_gpus", f"{point.num_gpus} GPUs at tp {tp}, pp {pp}, dp {dp}")
    keys = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp, "data_parallel_size": dp}
    if 1 < size != ranks:
        keys["expert_parallel_size"] = size
    return keys | {"enable_expert_parallel": True} if experts else keys


def flags_of(point: EvidencePoint) -> dict[str, Any]:
    """The server's flags, dashes as underscores: those of its command line, then those given by name."""
    flags: dict[str, Any] = {}
    for key in _COMMANDS:
        command = str(point.flags.get(key, ""))
        try:
            words = shlex.split(command.replace("\\\n", " "))
        except ValueError:
            words = command.split()
        flags |= split_flags(words)[1]
    flags |= {key: value for key, value in point.flags.items() if key not in _COMMANDS}
    return {key.replace("-", "_"): value for key, value in flags.items()}


def _flags(reading: Reading) -> dict[str, Any]:
    """Keys of ``engine`` that the flags give."""
    keys: dict[str, Any] = {}
    direct, negated, unknown = (NAMES[table] for table in ("flags", "negated_flags", "unknown_flags"))
    for flag, value in flags_of(reading.point).items():
        if flag in unknown and (value is True or str(value) not in ("False", "0", "1")):
            reading.missing(f"flags.{flag}", unknown[flag])
        if flag in negated:
            keys[negated[flag]] = not value
        keys |= NAMES["flag_values"].get(f"{flag}={value}", {})
        if flag in direct and value is not None:
            # A word of a command line ("4096"), or a remark ("on (the default)").
            keys[direct[flag]] = yaml.safe_load(value.split()[0]) if isinstance(value, str) else value
    return keys


def _version(reading: Reading) -> dict[str, Any]:
    """Keys of ``engine`` that follow from the engine and its version."""
    point = reading.point
    name = point.engine.split(" (")[0].lower()
    if name not in ("vllm", "sglang") or "plugin" in point.engine:
        reading.missing("engine", f"{point.engine} is not simulated")
        return {}
    if "presum" in point.engine:
        reading.assumed["engine"] = f"presumably {name}"
    if name == "sglang":
        named = re.match(r"v?(0\.[45]\.\d+)", point.engine_version)
        dated = "0.4" if version_of(point) == (0, 4) else _release_at(point.date, "sglang_releases")
        return {"version": f"sglang {named[1] if named else dated}"}
    version = version_of(point)
    if "V0" in point.engine_version or (version is not None and version < (0, 8)):
        return {"version": "vllm 0.7", "enable_chunked_prefill": False}
    release = ".".join(map(str, version)) if version else _release_at(point.date, "releases")
    runner = str(flags_of(point).get("VLLM_USE_V2_MODEL_RUNNER"))
    if runner == "1" or re.search(r"MRV2|Model Runner V2", point.engine_version):
        release = f"{'0.25' if int(release.split('.')[1]) < 25 else release} v2"  # its constants are those of 0.25 on
    elif runner == "0" or "V1 runner" in point.engine_version:
        release += " v1"
    return {"version": f"vllm {release}"}


def _release_at(date: str, table: str) -> str:
    month = date if "-" in date or len(date) < 6 else f"{date[:4]}-{date[4:6]}"
    releases = NAMES[table]
    return str(next((release for since, release in releases.items() if month >= since), list(releases.values())[-1]))


def version_of(point: EvidencePoint) -> tuple[int, int] | None:
    """(major, minor) of the engine; None where no release is named."""
    release = re.search(r"(?<![\d.])v?(\d+)\.(\d+)(?:\.\d+)?", point.engine_version)
    return (int(release[1]), int(release[2])) if release and "dev" not in point.engine_version.split("+")[0] else None


def read_lengths(reading: Reading) -> dict[str, Any] | None:
    """``workload.lengths``; None (and a reason) where a length is neither given nor typical of the data set."""
    point = reading.point
    data_set = point.dataset or ""
    usual_ones = (usual for name, usual in NAMES["data_sets"].items() if re.search(name, data_set, re.IGNORECASE))
    typical: dict[str, Any] = next(usual_ones, {})
    lengths: dict[str, Any] = {}
    for key, name, stated, usual in (
        ("prompt_tokens", "input_tokens", point.input_tokens, typical.get("prompt")),
        ("output_tokens", "output_tokens", point.output_tokens, typical.get("output")),
    ):
        mean = _counted(point, NAMES["totals"][key])
        if mean is None and name == "output_tokens" and (mean := _of_rate(point)) is not None:
            reading.assumed[name] = "latency times throughput over the number of requests"
        if mean is None and stated is None and usual is not None:
            lengths[key] = _spread(*usual)
            reading.assumed[name] = f"{usual[0]:g}, typical of the data set: {typical['source']}"
        elif mean is None and stated is None:
            reading.missing(name, "not given")
        elif "random" in data_set.lower() or usual is None:
            lengths[key] = _random(reading, name, mean, stated)
        else:
            # A source that states the mean of its outputs cut them all at one limit; totals are of free lengths.
            spread = 0.0 if stated is not None and name == "output_tokens" else usual[1]
            lengths[key] = _spread(stated if stated is not None else mean or 1.0, spread)
    return lengths if len(lengths) == 2 else None


def _counted(point: EvidencePoint, names: list[str]) -> float | None:
    """The mean of the requests that were sent, from a total in ``more``."""
    totals = [point.more[name] for name in names if isinstance(point.more.get(name), int | float)]
    count = point.load.num_prompts
    if count is None and point.load.kind == "burst":
        count = int(point.load.value or 0)
    return totals[0] / count if totals and count else None


def _of_rate(point: EvidencePoint) -> float | None:
    """Mean output tokens of a run whose time and rate are given."""
    if point.metric != "output_tok_s" or point.load.num_prompts is None:
        return None
    for side, rate in (("off", point.off), ("on", point.on)):
        latency_s = point.more.get(f"{side}_latency_s", point.more.get("latency_s"))
        if rate is not None and isinstance(latency_s, int | float):
            return rate * latency_s / point.load.num_prompts
    return None


def _random(reading: Reading, name: str, mean: float | None, stated: float | None) -> Any:
    """Lengths of generated prompts: fixed, or drawn up to a limit, see the notes of the collection."""
    point = reading.point
    dataset = (point.dataset or "").lower()
    ratio = re.search(r"ratio[ =]*([\d.]+)", dataset)
    lowest = float(ratio[1]) if ratio else 0.0 if "uniform" in dataset else reading.pages.get("range_ratio")
    if lowest is None and point.engine == "sglang" and "random" in dataset and not re.search(r"\d/\d", dataset):
        lowest = 0.0
    if lowest is None or lowest == 1.0 or (mean is not None and stated is not None and abs(mean / stated - 1) < 0.02):
        return max(1, round(mean if mean is not None else stated or 1))
    if mean is None:
        limit = stated or 1.0
        mean = max(1.0, limit * (1 + lowest) / 2)
        reading.assumed[name] = f"drawn between {lowest:g} and 1 of {limit:g}"
    high = 2 * mean / (1 + lowest)
    low, high = max(1, round(lowest * high)), max(1, round(high))
    return {"distribution": "uniform", "low": low, "high": max(low, high)}


def _spread(mean: float, spread: float) -> Any:
    if spread == 0.0:
        return max(1, round(mean))
    return {"distribution": "lognormal", "mean": mean, "std": mean * spread, "min": 1, "max": round(mean * 10)}
