"""In which number format a checkpoint stores its matrices: ``quantization_config`` of a Hugging Face ``config.json``.

It reads what vLLM 0.32 reads: fp8 (per tensor and per block), AWQ, GPTQ, MXFP4, compressed-tensors, ModelOpt (its
``hf_quant_config.json`` too) and Quark, with targets and lists of modules that are left out. Layers of one kind count
as most of them are stored. A method, algorithm or scheme that is not known is refused by its field.
"""

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from draftcast.errors import ModelError
from draftcast.kernels.model.config import Config
from draftcast.kernels.model.dtypes import WEIGHT_BYTES

Stored = tuple[str, float]
"""A format of `WEIGHT_BYTES`, and the bytes of a weight with its share of the scales."""
Schemes = tuple[Stored | None, dict[Stored, list[str]]]
"""Format of all modules that nothing else is said of, and modules by their own format."""

# Modules of each group of matrices as checkpoints name them, behind the layer's number; one says what all do.
MODULES = {
    "attention": ("self_attn.q_proj", "self_attn.q_b_proj", "mixer.q_proj"),
    "attention_out": ("self_attn.o_proj", "mixer.o_proj"),
    "linear_attention": ("linear_attn.out_proj", "mixer.in_proj", "mamba.in_proj", "self_attn.b_proj"),
    "dense_mlp": ("mlp.down_proj", "mixer.down_proj", "feed_forward.down_proj"),
    "shared_experts": ("mlp.shared_experts.down_proj", "mlp.shared_expert.down_proj", "mixer.shared_experts.down_proj",
                       "block_sparse_moe.shared_experts.down_proj", "feed_forward.shared_expert.down_proj",
                       "share_expert.down_proj"),
    "experts": ("mlp.experts.0.down_proj", "block_sparse_moe.experts.0.w2", "mixer.experts.0.down_proj",
                "feed_forward.experts.down_proj", "moe.down_proj"),
}  # fmt: skip
# A dense MLP beside the experts of a layer (Gemma 4).
MODULES_BESIDE = {**MODULES, "shared_experts": ("mlp.down_proj",), "experts": ("experts.0.down_proj",)}

# ModelOpt's algorithms; ``FP8_PB_WO`` has a scale for 128 x 128 weights.
_ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8",
    "MXFP8": "mxfp8",
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4a16",
}
# (type, bits of a weight, bits of an activation, 16 where none is named) of compressed-tensors and Quark; 4-bit floats
# in groups of 32 are MXFP4.
_SCHEMES = {
    ("float", 8, 8): "fp8",
    ("int", 8, 8): "int8",
    ("int", 4, 16): "int4",
    ("float", 4, 16): "nvfp4a16",
    ("float", 4, 4): "nvfp4",
}
_QUARK = {"fp8_e4m3": ("float", 8), "int8": ("int", 8), "int4": ("int", 4), "fp4": ("float", 4)}
_KINDS_OF_MODULES = ("Linear", "FusedMoE", "Linear*")  # classes: every matrix but tables and routers
_KEPT = ("ignore", "modules_to_not_convert", "exclude_modules", "exclude")  # lists of modules in 16 bits
_METHODS = ("awq", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt...", "mxfp4", "quark")


def stored_formats(
    section: Config, num_layers: int, groups: Mapping[str, int], modules: Mapping[str, tuple[str, ...]]
) -> dict[str, Stored]:
    """Format of each group of matrices that is not in 16 bits.

    Args:
        section: ``quantization_config``, or what stands in ``hf_quant_config.json``.
        num_layers: of the model; those behind them are of its MTP modules.
        groups: layers of each group of ``modules``, and of ``lm_head`` 1.
        modules: `MODULES` or `MODULES_BESIDE`.

    Raises:
        ModelError: a method, algorithm or scheme that is not known, or an ill-typed field (named).
    """
    section = _inner(section)
    default, by_module = _schemes(section)
    is_kept = _matcher({rule: key for key in _KEPT for rule in section.strings(key)}, section.name)
    matchers = [
        (stored, _matcher(dict.fromkeys(names, "targets"), section.name)) for stored, names in by_module.items()
    ]
    found: dict[str, Stored] = {}
    for group, count in groups.items():
        named = [["lm_head"]] if group == "lm_head" else [
            [f"layers.{layer}.{module}" for module in modules[group]] for layer in range(num_layers)
        ]  # fmt: skip
        if not count or 2 * sum(any(map(is_kept, names)) for names in named) >= count:
            continue
        votes = {stored: sum(any(map(matches, names)) for names in named) for stored, matches in matchers}
        most = max(votes, key=votes.__getitem__, default=None)
        if most is not None and 2 * votes[most] >= count:
            found[group] = most
        elif default is not None and group != "lm_head":
            found[group] = default
    return found


def kv_cache_format(section: Config) -> str:
    """Format in which a checkpoint asks for its KV cache (ModelOpt's or compressed-tensors' word); empty: none."""
    section = _inner(section)
    key = section.first(("kv_cache_quant_algo", "kv_cache_scheme"))
    asked = section.values.get(key)
    if isinstance(asked, Mapping):
        asked = f"{asked.get('type')}{asked.get('num_bits')}"
    known = {None: "", "FP8": "fp8", "float8": "fp8", "NVFP4": "nvfp4", "float4": "nvfp4"}
    if not isinstance(asked, str | None) or asked not in known:
        raise ModelError("8-bit or 4-bit floats are needed", file=section.name, key=key, value=section.values[key])
    return known[asked]


def _inner(section: Config) -> Config:
    inner = section.values.get("quantization")
    return Config(inner, f"{section.name}: quantization") if isinstance(inner, Mapping) else section


def _schemes(section: Config) -> Schemes:
    method = section.values.get("quant_method")
    algorithm = section.values.get("quant_algo")
    if algorithm is not None and method in (None, "modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8"):
        listed = section.values.get("quantized_layers") if algorithm == "MIXED_PRECISION" else {}
        return _modelopt(section, algorithm, _mapping(section, "quantized_layers", listed))
    if method in ("fp8", "fbgemm_fp8"):
        return _fp8(section), {}
    if method in ("awq", "gptq"):
        return _int4(section, method == "awq"), {}
    if method == "mxfp4":
        return ("mxfp4", WEIGHT_BYTES["mxfp4"]), {}
    if method in ("compressed-tensors", "quark"):
        default, by_module = None, dict[Stored, list[str]]()
        for targets, stored in (_compressed if method == "compressed-tensors" else _quark)(section):
            if stored is not None and (not targets or set(targets) & set(_KINDS_OF_MODULES)):
                default = stored
            elif stored is not None:
                by_module.setdefault(stored, []).extend(targets)
        return default, by_module
    known = f"known: {', '.join(_METHODS)}"
    raise ModelError(known, file=section.name, key="quant_method", value=method)


def _modelopt(section: Config, algorithm: Any, layers: Mapping[str, Any]) -> Schemes:
    def stored(name: Any, key: str) -> Stored:
        if str(name).upper() not in _ALGORITHMS:
            allowed = f"known: {', '.join(_ALGORITHMS)}, MIXED_PRECISION"
            raise ModelError(allowed, file=section.name, key=key, value=name)
        known = _ALGORITHMS[str(name).upper()]
        return known, WEIGHT_BYTES[known]

    if algorithm != "MIXED_PRECISION":
        return stored(algorithm, "quant_algo"), {}
    by_module: dict[Stored, list[str]] = {}
    for module, said in layers.items():
        by_module.setdefault(stored(_mapping(section, module, said).get("quant_algo"), module), []).append(module)
    return None, by_module


def _fp8(section: Config) -> Stored:
    block = section.values.get("weight_block_size")
    if block is None:
        return "fp8", WEIGHT_BYTES["fp8"]
    if not isinstance(block, list) or len(block) != 2 or not all(isinstance(n, int) and n > 0 for n in block):
        raise ModelError("two integers > 0 are needed", file=section.name, key="weight_block_size", value=block)
    if block == [1, 32]:
        return "mxfp8", WEIGHT_BYTES["mxfp8"]
    return "fp8", WEIGHT_BYTES["fp8"] + 4.0 / (block[0] * block[1])


def _int4(section: Config, zero_points: bool) -> Stored:
    """AWQ's and GPTQ's: groups with a 16-bit scale, and AWQ's with a zero point of 4 bits."""
    key = section.first(("bits", "w_bit"))
    if section.integer(key) != 4:
        raise ModelError("only 4 bits are known", file=section.name, key=key, value=section.values[key])
    group = section.integer(section.first(("group_size", "q_group_size")), 128, minimum=-1)
    return _grouped("int4", group, zero_points)


def _grouped(dtype: str, group: int, zero_points: bool) -> Stored:
    return dtype, 0.5 + ((2.5 if zero_points else 2.0) / group if group > 0 else 0.0)


def _compressed(section: Config) -> Iterator[tuple[list[str], Stored | None]]:
    """(targets, format) of each of ``config_groups``."""
    for name, given in _mapping(section, "config_groups").items():
        group = Config(_mapping(section, name, given), f"{section.name}: config_groups.{name}")
        weights = Config(_mapping(group, "weights"), f"{group.name}.weights")
        inputs = group.values.get("input_activations")
        bits = 16 if inputs is None else _mapping(group, "input_activations").get("num_bits")
        size, symmetric = weights.integer("group_size", 0, minimum=-1), weights.flag("symmetric", True)
        scheme = (weights.values.get("type", "int"), weights.integer("num_bits"))
        yield group.strings("targets"), _scheme(weights, "num_bits", scheme, bits, size, not symmetric)


def _quark(section: Config) -> Iterator[tuple[list[str], Stored | None]]:
    """Of ``global_quant_config`` for all modules, of ``layer_quant_config`` for those that its patterns name."""
    layers = _mapping(section, "layer_quant_config", section.values.get("layer_quant_config") or {})
    said = {"": section.values.get("global_quant_config"), **layers}
    for pattern, given in said.items():
        key = pattern or "global_quant_config"
        scheme = Config(_mapping(section, key, given), f"{section.name}: {key}")
        if scheme.values.get("weight") is None:
            yield [pattern] if pattern else [], None
            continue
        weights = Config(_mapping(scheme, "weight"), f"{scheme.name}.weight")
        inputs = scheme.values.get("input_tensors")
        dtype, of_inputs = weights.values.get("dtype"), inputs and _mapping(scheme, "input_tensors").get("dtype")
        if dtype not in tuple(_QUARK) or of_inputs not in (None, *_QUARK):
            raise ModelError(f"known: {', '.join(_QUARK)}", file=scheme.name, key="dtype", value=[dtype, of_inputs])
        bits = 16 if of_inputs is None else _QUARK[of_inputs][1]
        size = weights.integer("group_size", 0, minimum=-1)
        yield [pattern] if pattern else [], _scheme(weights, "dtype", _QUARK[dtype], bits, size, False)


def _scheme(
    weights: Config, key: str, scheme: tuple[Any, int], activation_bits: Any, group: int, zero_points: bool
) -> Stored:
    # By equality: what a config says may be a list, which has no hash.
    dtype = next((found for known, found in _SCHEMES.items() if known == (*scheme, activation_bits)), None)
    if scheme == ("float", 4) and group == 32:
        dtype = "mxfp4"
    elif dtype == "fp8" and group == 32:
        dtype = "mxfp8"
    if dtype is None:
        allowed = f"weights of {scheme[1]} bits ({scheme[0]}) with activations of {activation_bits} are not known"
        raise ModelError(allowed, file=weights.name, key=key, value=weights.values.get(key))
    return _grouped(dtype, group, zero_points) if dtype == "int4" else (dtype, WEIGHT_BYTES[dtype])


def _mapping(config: Config, key: str, given: Any = None) -> Mapping[str, Any]:
    value = config.values.get(key) if given is None else given
    if not isinstance(value, Mapping):
        raise ModelError("an object is needed", file=config.name, key=key, value=value)
    return value


def _matcher(rules: Mapping[str, str], file: str) -> Callable[[str], bool]:
    """Whether a list names a module: by its path or the path of what holds it, a part of it, a glob or ``re:``.

    Paths count from ``layers.`` on: what stands before differs between engines.

    Args:
        rules: with the key that each stands under, for errors.
    """
    paths, parts, patterns = set(), [], []
    for rule, key in rules.items():
        whole = rule.removeprefix("re:")
        text = re.sub(r"^.*?(?=layers\b)", "", whole)
        if rule.startswith("re:"):
            fits = [pattern for pattern in (text, whole) if _compiles(pattern)]
            if not fits:
                raise ModelError("a regular expression is needed behind re:", file=file, key=key, value=rule)
            patterns.append(fits[0])
        elif any(sign in text for sign in "*?["):
            patterns += [fnmatch.translate(text), fnmatch.translate(f"{text}.*")]
        elif text.startswith("layers.") or text == "lm_head":
            paths.add(text)
        else:
            parts.append(text)
    pattern = re.compile("|".join(f"(?:{text})" for text in patterns)) if patterns else None

    def names(path: str) -> bool:
        pieces = path.split(".")
        if any(".".join(pieces[:end]) in paths for end in range(1, len(pieces) + 1)):
            return True
        return any(part in path for part in parts) or (pattern is not None and pattern.match(path) is not None)

    return names


def _compiles(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True
