"""In which number format a checkpoint stores its matrices: ``quantization_config`` of a Hugging Face ``config.json``.

It reads what vLLM 0.32 reads: fp8 (per tensor and per block), AWQ, GPTQ, MXFP4, compressed-tensors, ModelOpt (its
``hf_quant_config.json`` too) and Quark, with targets and lists of modules that are left out. Layers of one kind count
as most of them are stored. A method, algorithm or scheme that is not known is refused by its field.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeGuard

from draftcast.errors import ModelError
from draftcast.kernels.model.config import ConfigReader
from draftcast.kernels.model.dtypes import FORMATS, WEIGHT_BYTES

Stored = tuple[str, float]  # A format of `WEIGHT_BYTES`, and the bytes of a weight with its share of the scales.
Scheme = tuple[list[str], Stored | None]
"""Modules, none: all that nothing else is said of; and their format, none: 16 bits."""

MODULES: dict[str, list[str]] = FORMATS["modules"]
# A dense MLP beside the experts of a layer (Gemma 4).
MODULES_BESIDE = {**MODULES, "shared_experts": ["mlp.down_proj"], "experts": ["experts.0.down_proj"]}
_MODELOPT: dict[str, str] = FORMATS["modelopt"]
_QUARK: dict[str, tuple[str, int]] = {name: tuple(scheme) for name, scheme in FORMATS["quark"].items()}
_KINDS_OF_MODULES = {"Linear", "FusedMoE", "Linear*"}  # classes: every matrix but tables and routers
# Lists of modules in 16 bits.
_KEPT = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules", "exclude")
_METHODS = ("awq", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt...", "mxfp4", "mxfp8", "quark")
ONLY_4_BITS = "only 4 bits are known"  # of AWQ and GPTQ


def stored_formats(
    section: ConfigReader, num_layers: int, groups: Mapping[str, int], modules: Mapping[str, list[str]]
) -> dict[str, Stored]:
    """Format of each group of matrices that is not in 16 bits, by ``quantization_config``.

    ``groups``: layers of each group of ``modules`` (`MODULES` or `MODULES_BESIDE`), and of ``lm_head`` 1. Layers behind
    ``num_layers`` are of MTP modules.

    Raises ModelError: a method, algorithm or scheme that is not known, or an ill-typed field (named).
    """
    default, by_module = None, dict[Stored | None, list[str]]()
    for targets, stored in _schemes(section):
        if targets:
            by_module.setdefault(stored, []).extend(targets)
        else:
            default = stored
    unquantised = {rule: key for key in _KEPT for rule in section.strings(key)}
    if section.values.get("quant_method") == "gptq":
        rules = section.section("dynamic", optional=True).values
        unquantised |= {f"re:{rule[2:]}": "dynamic" for rule in rules if rule.startswith("-:")}
        if not section.flag("lm_head"):
            unquantised["lm_head"] = "lm_head"
    is_kept = _matcher(unquantised, section.name)
    matchers = {stored: _matcher(dict.fromkeys(names, "targets"), section.name) for stored, names in by_module.items()}
    formats: dict[str, Stored] = {}
    for group, count in groups.items():
        named = [["lm_head"]] if group == "lm_head" else [
            [f"layers.{layer}.{module}" for module in modules[group]] for layer in range(num_layers)
        ]  # fmt: skip
        if not count or 2 * sum(any(map(is_kept, names)) for names in named) >= count:
            continue
        votes = {stored: sum(any(map(matches, names)) for names in named) for stored, matches in matchers.items()}
        most = max(votes, key=votes.__getitem__, default=None)
        usual = default if group != "lm_head" else None
        chosen = most if 2 * votes.get(most, -1) >= count else usual
        if chosen is not None:
            formats[group] = chosen
    return formats


def kv_cache_format(section: ConfigReader) -> str:
    """Format in which a checkpoint asks for its KV cache (ModelOpt's or compressed-tensors' word); empty: none."""
    key = section.first("kv_cache_quant_algo", "kv_cache_scheme")
    algorithm = section.values.get(key)
    if isinstance(algorithm, Mapping):
        algorithm = f"{algorithm.get('type')}{algorithm.get('num_bits')}"
    formats = {None: "", "FP8": "fp8", "float8": "fp8", "NVFP4": "nvfp4", "float4": "nvfp4"}
    if not isinstance(algorithm, str | None) or algorithm not in formats:
        raise ModelError("8-bit or 4-bit floats are needed", file=section.name, key=key, value=section.values[key])
    return formats[algorithm]


def weight_block(section: ConfigReader) -> tuple[int, int] | None:
    """Outputs and inputs of a block with one scale, where weights in fp8 have such."""
    blocks = [section.values.get("weight_block_size")]
    if section.values.get("quant_method") == "compressed-tensors":
        groups = section.section("config_groups")
        blocks = [groups.section(group).section("weights").values.get("block_structure") for group in groups.values]
    return next(((block[0], block[1]) for block in blocks if _is_block(block)), None)


def _is_block(block: Any) -> TypeGuard[list[int]]:
    return isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block)


def _schemes(section: ConfigReader) -> Iterable[Scheme]:
    method, algorithm = section.values.get("quant_method"), section.values.get("quant_algo")
    if algorithm is not None and method in (None, "modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8"):
        return _modelopt(section, algorithm)
    if method in ("fp8", "fbgemm_fp8"):
        return [([], _fp8(section))]
    if method == "awq":
        return [([], _int4(section, True))]
    if method == "gptq":
        return _gptq(section)
    if method in ("mxfp4", "mxfp8"):
        return [([], (method, WEIGHT_BYTES[method]))]
    if method in ("compressed-tensors", "quark"):
        schemes = (_compressed if method == "compressed-tensors" else _quark)(section)
        return (([] if set(targets) & _KINDS_OF_MODULES else targets, stored) for targets, stored in schemes)
    raise ModelError(f"known: {', '.join(_METHODS)}", file=section.name, key="quant_method", value=method)


def _modelopt(section: ConfigReader, algorithm: Any) -> Iterator[Scheme]:
    algorithms: list[tuple[str, list[str], Any]] = [("quant_algo", [], algorithm)]
    if algorithm == "MIXED_PRECISION":
        layers = section.section("quantized_layers")
        algorithms = [(name, [name], layers.section(name).values.get("quant_algo")) for name in layers.values]
    for key, modules, name in algorithms:
        dtype = _MODELOPT.get(str(name).upper())
        if dtype is None:
            raise ModelError(f"known: {', '.join(_MODELOPT)}, MIXED_PRECISION", file=section.name, key=key, value=name)
        yield modules, (dtype, WEIGHT_BYTES[dtype])


def _fp8(section: ConfigReader) -> Stored:
    block = section.values.get("weight_block_size")
    if block is None:
        return "fp8", WEIGHT_BYTES["fp8"]
    if not _is_block(block):
        raise ModelError("two integers > 0 are needed", file=section.name, key="weight_block_size", value=block)
    if block == [1, 32]:
        return "mxfp8", WEIGHT_BYTES["mxfp8"]
    return "fp8", WEIGHT_BYTES["fp8"] + 4.0 / (block[0] * block[1])


def _gptq(section: ConfigReader) -> Iterator[Scheme]:
    """Rules by a pattern of modules: ``-:`` leaves them in 16 bits, another prefix or none changes fields."""
    usual, rules = _int4(section, False), section.section("dynamic", optional=True)
    for rule in rules.values:
        if not rule.startswith("-:"):
            changed = rules.section(rule)
            stored = _int4(ConfigReader({**section.values, **changed.values}, changed.name), False)
            if stored != usual:
                yield [f"re:{rule.removeprefix('+:')}"], stored
    key = "modules_in_block_to_quantize"
    listed = section.values.get(key) or []
    parts = [part if isinstance(part, list) else [part] for part in listed] if isinstance(listed, list) else [[listed]]
    names = [name for part in parts for name in part]
    if not all(isinstance(name, str) for name in names):
        raise section.refusal(key, "a list of strings, or of lists of strings, is needed")
    yield names or ["lm_head"], usual  # the latter is kept unless ``lm_head`` is true
    if not names:
        yield [], usual


def _int4(section: ConfigReader, zero_points: bool) -> Stored:
    """AWQ's and GPTQ's: groups with a 16-bit scale, and AWQ's with a zero point of 4 bits."""
    key = section.first("bits", "w_bit")
    if section.integer(key) != 4:
        raise ModelError(ONLY_4_BITS, file=section.name, key=key, value=section.values[key])
    size = section.first("group_size", "q_group_size")
    group = section.integer(size, 128, minimum=-1)
    if group == 0:
        raise section.refusal(size, "an integer >= 1, or -1 for a scale a column, is needed")
    return _grouped("int4", group, zero_points)


def _grouped(dtype: str, group: int, zero_points: bool) -> Stored:
    return dtype, 0.5 + ((2.5 if zero_points else 2.0) / group if group > 0 else 0.0)


def _compressed(section: ConfigReader) -> Iterator[Scheme]:
    """(targets, format) of each of ``config_groups``."""
    groups = section.section("config_groups")
    for group in map(groups.section, groups.values):
        weights = group.section("weights")
        inputs = group.values.get("input_activations")
        bits = 16 if inputs is None else group.section("input_activations").values.get("num_bits")
        size, symmetric = weights.integer("group_size", 0, minimum=-1), weights.flag("symmetric", True)
        scheme = (weights.values.get("type", "int"), weights.integer("num_bits"))
        yield group.strings("targets"), _scheme(weights, "num_bits", scheme, bits, size, not symmetric)


def _quark(section: ConfigReader) -> Iterator[Scheme]:
    """Of ``global_quant_config`` for all modules, of ``layer_quant_config`` for those that its patterns name."""
    layers = section.section("layer_quant_config", optional=True)
    schemes = [([pattern], layers.section(pattern)) for pattern in layers.values]
    for targets, scheme in [([], section.section("global_quant_config")), *schemes]:
        if scheme.values.get("weight") is None:
            yield targets, None
            continue
        weights = scheme.section("weight")
        inputs = scheme.values.get("input_tensors")
        dtype, of_inputs = weights.values.get("dtype"), inputs and scheme.section("input_tensors").values.get("dtype")
        if dtype not in tuple(_QUARK) or of_inputs not in (None, *_QUARK):
            raise ModelError(f"known: {', '.join(_QUARK)}", file=scheme.name, key="dtype", value=[dtype, of_inputs])
        bits = 16 if of_inputs is None else _QUARK[of_inputs][1]
        size = weights.integer("group_size", 0, minimum=-1)
        yield targets, _scheme(weights, "dtype", _QUARK[dtype], bits, size, False)


def _scheme(
    weights: ConfigReader, key: str, scheme: tuple[Any, int], act_bits: Any, group: int, zero_points: bool
) -> Stored:
    dtype = next((dtype for *row, dtype in FORMATS["schemes"] if row == [*scheme, act_bits]), None)
    if scheme == ("float", 4) and group == 32:
        dtype = "mxfp4"
    elif dtype == "fp8" and group == 32:
        dtype = "mxfp8"
    if dtype is None:
        allowed = f"weights of {scheme[1]} bits ({scheme[0]}) with activations of {act_bits} are not known"
        raise ModelError(allowed, file=weights.name, key=key, value=weights.values.get(key))
    return _grouped(dtype, group, zero_points) if dtype == "int4" else (dtype, WEIGHT_BYTES[dtype])


def _matcher(rules: Mapping[str, str], file: str) -> Callable[[str], bool]:
    """Whether a list names a module: by its path or the path of what holds it, a part of it, a glob or ``re:``.

    Paths count from ``layers.`` on: what stands before differs between engines. ``rules`` come with the key that each
    stands under, for errors.
    """
    paths, patterns = set[str](), list[re.Pattern[str]]()
    for rule, key in rules.items():
        whole = rule.removeprefix("re:")
        text = re.sub(r"^.*?(?=layers\b)", "", whole)
        if rule.startswith("re:"):
            for pattern in (text, whole):
                with suppress(re.error):
                    patterns.append(re.compile(pattern))
                    break
            else:
                raise ModelError("a regular expression is needed behind re:", file=file, key=key, value=rule)
        elif any(sign in text for sign in "*?["):
            patterns += [re.compile(fnmatch.translate(glob)) for glob in (text, f"{text}.*")]
        elif text.startswith("layers.") or text == "lm_head":
            paths.add(text)
        else:
            patterns.append(re.compile(f".*{re.escape(text)}"))

    def names(path: str) -> bool:
        pieces = path.split(".")
        held = any(".".join(pieces[:end]) in paths for end in range(1, len(pieces) + 1))
        return held or any(pattern.match(path) for pattern in patterns)

    return names
