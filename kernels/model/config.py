"""Typed look-ups in a parsed Hugging Face ``config.json``, its fields in the usual words, and what of it is refused.

Checkpoints saved by transformers 5 give other names to kinds of layers and to sizes than the models were published with
(DeepSeek-V4, GLM-5, Kimi-Linear, MiniMax-M3, Gemma 4, Nemotron-H); Step, Llama 4 and Bamba number layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from draftcast.errors import ModelError
from draftcast.yaml_text import yaml_beside

_LARGEST = 2**31  # No dimension of a model comes near it, and no product of dimensions leaves a float.
_FIELDS = yaml_beside(__file__, "fields.yaml")
OTHER_NAMES: dict[str, list[str]] = _FIELDS["names"]
_KNOWN = {*OTHER_NAMES, *chain(*OTHER_NAMES.values()), *_FIELDS["read"], *_FIELDS["silent"]}
WINDOW_HEADS: dict[str, str] = _FIELDS["window_heads"]
PLAIN: dict[str, dict[str, str]] = _FIELDS["plain"]
GLOBAL_HEADS: dict[str, str] = _FIELDS["global_heads"]
# A field so called tells a size or a pattern of layers.
_SIZE = re.compile(r"(^|_)(dim|size|rank|heads?|layers?|experts?|window|pattern|types|freq|interval|chunk)(_|$)")


@dataclass(frozen=True)
class ConfigReader:
    """Typed look-ups in a parsed config, by any of a field's names; every failure names the file and the key."""

    values: Mapping[str, Any]
    name: str  # of the file

    def refusal(self, key: str, allowed: str) -> ModelError:
        """The value of a key is not one of those allowed; a long one is cut."""
        value = self.values.get(key)
        text = str(value)
        return ModelError(allowed, file=self.name, key=key, value=value if len(text) < 60 else f"{text[:50]} ...")

    def first(self, *keys: str) -> str:
        """The first of ``keys`` and their other names that has a value; ``keys[0]`` where none has."""
        names = (name for key in keys for name in (key, *OTHER_NAMES.get(key, ())))
        return next((name for name in names if self.values.get(name) is not None), keys[0])

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """Integer from ``minimum`` to 2**31; ``default`` where the key is absent or null, an error without one.

        A list with an entry for each layer, all alike, is that entry.
        """
        key = self.first(key)
        value = self.values.get(key)
        if isinstance(value, list) and len(value) == self.values.get("num_hidden_layers") != 0:
            value = value[0] if all(entry == value[0] for entry in value) else value
        if value is None:
            if default is None:
                raise ModelError("missing; an integer is needed", file=self.name, key=key)
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= _LARGEST:
            bound = f"<= {_LARGEST}" if isinstance(value, int) and value > _LARGEST else f">= {minimum}"
            raise self.refusal(key, f"an integer {bound} is needed")
        return value

    def count(self, *keys: str) -> int:
        """Integer >= 0 under the first of ``keys`` that has a value; 0 where none has."""
        return self.integer(self.first(*keys), 0, minimum=0)

    def flag(self, key: str, default: bool = False) -> bool:
        key = self.first(key)
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refusal(key, "true or false is needed")
        return value

    def strings(self, key: str, allowed: tuple[str, ...] = ()) -> list[str]:
        """List of strings, of ``allowed`` ones where given; empty when the key is absent or null."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refusal(key, "a list of strings is needed")
        for item in value:
            if allowed and item not in allowed:
                raise ModelError(f"not known; allowed: {', '.join(allowed)}", file=self.name, key=key, value=item)
        return value

    def section(self, key: str, *, optional: bool = False) -> ConfigReader:
        """The object under ``key``, where ``optional`` an empty one in place of none. Raises ModelError: it is none."""
        value = self.values.get(key)
        if optional and not value:
            value = {}
        if not isinstance(value, Mapping):
            raise self.refusal(key, "an object is needed")
        return ConfigReader(value, f"{self.name}: {key}")

    def per_layer(self, key: str, entries: Any, layers: int) -> None:
        """Refuse what is no list with one entry for each of ``layers``."""
        if not isinstance(entries, list):
            raise self.refusal(key, f"a list of {layers} entries is needed (num_hidden_layers)")
        if len(entries) != layers:
            allowed = f"{layers} entries are needed (num_hidden_layers), not {len(entries)}"
            raise ModelError(allowed, file=self.name, key=key)

    def bits(self, key: str, layers: int) -> list[int]:
        """List of 0 and 1, one for each of ``layers``."""
        value = self.values.get(key)
        if not isinstance(value, list) or not all(type(bit) is int and bit in (0, 1) for bit in value):
            raise self.refusal(key, "a list of 0 and 1 is needed")
        self.per_layer(key, value, layers)
        return value

    def layer_numbers(self, key: str, layers: int, first: int = 0) -> set[int]:
        """Numbers of some of ``layers``, counted from ``first`` on; none where the key is absent or null."""
        value = self.values.get(key)
        if value is None:
            return set()
        if isinstance(value, str) and re.fullmatch(r"\d+(,\d+)*", value):
            value = list(map(int, value.split(",")))
        last = first + layers - 1
        if (
            not isinstance(value, list)
            or not all(type(layer) is int and first <= layer <= last for layer in value)
            or len(set(value)) < len(value)
        ):
            allowed = f"layer numbers are needed, as a list or between commas: from {first} to {last}, each once"
            raise self.refusal(key, allowed)
        return set(value)

    def refuse_unused(self, keys: Iterable[str]) -> None:
        """Refuse sizes of layers that no other field says the model has."""
        for key in keys:
            if self.values.get(key):
                raise self.refusal(key, "what it says of the layers is not known; only absent, null or 0 is read")

    def refuse_other_layers(self) -> None:
        """Refuse fields that describe what the cost model does not cover, instead of ignoring them."""
        kinds = self.values.get("attn_type_list", [])
        if not isinstance(kinds, list) or any(kind != 1 for kind in kinds):
            raise self.refusal("attn_type_list", "linear attention is not known; only a list of 1 (full) is read")
        filled = [key for key, value in self.values.items() if value is not False and value not in (0, [], {}, "")]
        for kind, pattern in _FIELDS["other_layers"].items():
            for key in filled:
                if key not in _KNOWN and re.fullmatch(pattern, key):
                    raise self.refusal(key, f"{kind} not known; only absent, null, false or 0 is read")
        layers = self.values.get("num_hidden_layers")
        for key in filled:
            value = self.values[key]
            # Shorter lists are of tokens.
            an_entry_a_layer = isinstance(value, list) and len(value) == layers and len(value) > 4
            is_size = _SIZE.search(key) and not isinstance(value, (bool, float, Mapping))
            if key not in _KNOWN and (is_size or an_entry_a_layer):
                raise self.refusal(key, "what it says of the layers is not known; only absent, null or 0 is read")


def usual_words(config: ConfigReader) -> dict[str, Any]:
    """The fields as `draftcast.kernels.model.architectures` reads them; lists of layers without MTP layers."""
    fields = dict(config.values)
    layers = config.integer("num_hidden_layers", 0, minimum=0)
    for key in ("layer_types", "compress_ratios"):
        if isinstance(fields.get(key), list) and len(fields[key]) == layers + config.count("num_nextn_predict_layers"):
            fields[key] = fields[key][:layers]
    for key in ("moe_layers_enum", "moe_layers"):  # Step, Llama 4
        if fields.pop(key, None) is not None:
            experts = config.layer_numbers(key, layers)
            fields["moe_layer_freq"] = [int(layer in experts) for layer in range(layers)]
    if fields.pop("attn_layer_indices", None) is not None:  # Bamba
        attention = config.layer_numbers("attn_layer_indices", layers)
        fields["layer_types"] = ["attention" if layer in attention else "mamba" for layer in range(layers)]
    _kinds_of_layers(config, fields)
    _heads_of_layers(config, fields)
    return fields


def _kinds_of_layers(config: ConfigReader, fields: dict[str, Any]) -> None:
    for key, names in _FIELDS["kinds"].items():
        if isinstance(fields.get(key), list):
            mamba = key == "layer_types" and not fields.keys().isdisjoint(("mamba_num_heads", "mamba_n_heads"))
            words = {**names, "linear_attention": "mamba"} if mamba else names
            fields[key] = [words.get(kind, kind) if isinstance(kind, str) else kind for kind in fields[key]]
    blocks = fields.get("layers_block_type")
    if isinstance(blocks, list) and not {"mlp", "moe"} & set(map(str, blocks)):  # of whole layers
        fields.setdefault("layer_types", fields.pop("layers_block_type"))
    if fields.get("mamba_d_head") == "auto":  # Bamba
        heads = ConfigReader(fields, config.name).integer("mamba_n_heads")
        fields["mamba_d_head"] = config.integer("mamba_expand", 2) * config.integer("hidden_size") // heads
    kinds = fields.get("layer_types")
    rates = fields.get("compress_rates")
    if isinstance(kinds, list) and isinstance(rates, Mapping):  # DeepSeek-V4
        fields["compress_ratios"] = [rates.get(kind, 0) for kind in kinds]
        del fields["layer_types"], fields["compress_rates"]
    if isinstance(kinds, list) and "linear_num_heads" in fields:  # Kimi-Linear
        sizes = {old: fields.pop(new, None) for old, new in _FIELDS["kda"].items()}
        kda = [layer for layer, kind in enumerate(kinds, 1) if kind == "linear_attention"]
        fields["linear_attn_config"] = {**sizes, "kda_layers": kda}
    if isinstance(kinds, list) and "index_topk_blocks" in fields:  # MiniMax-M3
        sparse = [int(kind == "minimax_m3_sparse") for kind in kinds]
        sizes = {old: fields.pop(new, None) for old, new in _FIELDS["block_sparse"].items()}
        del fields["layer_types"]
        if any(sparse):
            fields["sparse_attention_config"] = {**sizes, "sparse_attention_freq": sparse}


def _heads_of_layers(config: ConfigReader, fields: dict[str, Any]) -> None:
    """Sizes of layers of one kind: Step's, and those that transformers 5 lists by layer."""
    other = fields.pop("attention_other_setting", None)
    if other is not None:
        other = config.section("attention_other_setting").values
        names = ("num_attention_heads", "num_attention_groups", "head_dim")
        fields |= {key: other[word] for key, word in zip(WINDOW_HEADS.values(), names, strict=False) if word in other}
    sliding_heads = fields.pop("num_sliding_attention_heads", None)
    if sliding_heads not in (None, fields.get("num_attention_heads")):
        fields["swa_num_attention_heads"] = sliding_heads
    by_layer = fields.pop("per_layer_config", None)
    if not by_layer:
        return
    kinds = ConfigReader(fields, config.name).strings("layer_types")
    first, *others = by_layer.values() if isinstance(by_layer, Mapping) else [None]
    if isinstance(first, Mapping) and all(size == first for size in others):
        numbers = {str(layer).lstrip("0") or "0" for layer in by_layer}
        for kind, words in (("sliding_attention", WINDOW_HEADS), ("full_attention", GLOBAL_HEADS)):
            of_kind = {str(layer) for layer, layer_kind in enumerate(kinds) if layer_kind == kind}
            if numbers == of_kind and set(first) <= set(words):
                fields |= {words[name]: value for name, value in first.items()}
                return
    raise config.refusal("per_layer_config", "heads of all sliding or of all full layers, all alike, are needed")
