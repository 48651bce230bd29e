"""Finds the draft head that is served: by bundled name, by Hugging Face id or by path, and says what it had to assume.

``heads.json`` holds the facts of public head configs, the ids they answer to (``aliases``), the targets they were made
for and where the facts come from. Reads the configs of SpecForge, of the speculators library and of EAGLE's, Medusa's
and the MLP speculator's own repositories. What a config leaves out is filled in as vLLM 0.32 fills it in. Nothing is
downloaded.
"""

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftcast.errors import ModelError
from draftcast.files import read_json
from draftcast.kernels.model.architectures import decoder_values
from draftcast.kernels.model.catalog import canonical_name, is_bundled_model, load_model
from draftcast.kernels.model.config import ConfigReader
from draftcast.kernels.model.drafters import DFLASH2_SIZES, MLP_SPECULATOR_INNER, HeadConfig, mtp_head
from draftcast.kernels.model.spec import ModelSpec

# ``kinds`` by what a config calls itself (``architectures``, of a speculators config ``speculators_model_type``), the
# kinds that each of ``methods`` runs, the usual one first, and the ``heads``.
_FACTS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("heads.json").read_text(encoding="utf-8"))
# Where the captured layers stand: top level, or inside one of these sections.
_CAPTURED = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids")
_SECTIONS = ("eagle_config", "dflash_config", "dspark_config")


@dataclass(frozen=True)
class Head:
    """A draft head of one target, and what had to be assumed of it (a sentence each)."""

    spec: ModelSpec
    assumed: tuple[str, ...] = ()


def _on(config: HeadConfig, target: ModelSpec, k: int) -> Head:
    """The head on its target, with what is assumed of it."""
    # A block holds the last accepted token besides its drafts, but for DSpark, which drafts from that token on.
    most = config.block_size - (config.kind in ("dflash", "dflash2"))
    beyond = f"num_speculative_tokens = {k} is beyond the {most} drafts of {config.name}'s block: assumed to run alike"
    return Head(config.build(target, k), (*config.assumed, beyond) if 0 < most < k else config.assumed)


@functools.cache
def _bundled() -> dict[str, tuple[str, dict[str, Any]]]:
    """Lower-case name or alias -> (canonical name, entry)."""
    return {key.lower(): (name, entry) for name, entry in _FACTS["heads"].items() for key in (name, *entry["aliases"])}


def is_bundled_head(name: str) -> bool:
    """Whether ``name`` is a bundled head's name or alias, in any case."""
    return name.lower() in _bundled()


def public_head(kind: str, target: str) -> str | None:
    """The bundled head of a kind (eagle, eagle3, ...) that was made for a target; None: there is none."""
    names = {canonical_name(target), target}
    for name, entry in _bundled().values():
        made_for = {canonical_name(listed) for listed in entry["targets"]}
        if names & made_for and read_head(entry["config"], name).kind == kind:
            return name
    return None


def has_head(method: str) -> bool:
    """Whether the method drafts with a head of the target (and not with a model of its own, or a search)."""
    return method == "mtp" or method in _FACTS["methods"]


def resolve_head(method: str, target: ModelSpec, k: int, name: str | None) -> Head:
    """The head a method drafts with.

    Args:
        method: draftcast's name of the method, see `has_head`.
        k: draft tokens per round.
        name: a bundled head, a Hugging Face id, a folder or a ``config.json``; None: the scenario names none, and the
            public head for this target is taken, else the method's usual shape.

    Raises ModelError: a path without a file, an unreadable config, a head of another method or another target, or the
    target has no MTP layer.
    """
    if method == "mtp":  # vLLM reads the layer from ``name`` where one is given, else from the target's own checkpoint
        if name is None or canonical_name(name) == canonical_name(target.name):
            return Head(mtp_head(target))
        if is_bundled_model(name) or _is_path(name):
            return Head(mtp_head(load_model(name)))
        return Head(mtp_head(target), (f"draft head {name} is not known: assumed {target.name}'s own MTP layer",))
    config = _find(name) if name is not None else None
    if config is None:
        # Of the two kinds of a tree and of DFlash it is the one that the name holds.
        kinds = _FACTS["methods"][method]
        newer = method in ("eagle_tree", "dflash") and says_kind(kinds[-1], name)
        kind = kinds[-1] if newer else kinds[0]
        public = public_head(kind, target.name)
        basis = f"{kind}'s usual shape for {target.name}" if public is None else f"the shape of {public}"
        usual = _on((public and _find(public)) or HeadConfig(target.name, kind), target, k)
        subject = "the scenario names no draft head" if name is None else f"draft head {name} is not known"
        shape = f"{subject}: assumed {basis}: {describe(usual.spec, target)}"
        return Head(usual.spec, (shape, *usual.assumed))
    if config.kind not in _FACTS["methods"][method]:
        allowed = f"is a head for method {config.kind}, not for {method}; name one for it, or null"
        raise ModelError(allowed, key="draft_model", value=name)
    return _on(config, target, k)


def says_kind(kind: str, name: str | None) -> bool:
    """Whether a head's name says that it is of a kind, such as eagle3, as vLLM goes by the name."""
    return kind in (name or "").lower().replace("-", "")


def describe(spec: ModelSpec, target: ModelSpec) -> str:
    """A head's shape in words, such as ``1 layer of hidden size 4096, MLP 14336, draft vocabulary 32000``."""
    count, what = (spec.num_hidden_layers, "layer") if spec.num_hidden_layers else (spec.num_draft_heads, "head")
    parts = [f"{count} {what}{'s' * (count > 1)} of hidden size {spec.hidden_size}"]
    if spec.num_dense_layers:
        parts.append(f"MLP {spec.intermediate_size}")
    if spec.is_moe:
        parts.append(f"{spec.num_experts} experts of {spec.moe_intermediate_size}")
    if spec.num_hidden_layers:
        parts.append("the target's lm_head" if spec.shares_lm_head else f"draft vocabulary {spec.vocab_size}")
    if spec.fc_input_size and spec.num_hidden_layers and not spec.fc_every_pass:
        parts.append(f"{spec.fc_input_size // target.hidden_size} captured layers")
    return ", ".join(parts)


def _is_path(name: str) -> bool:
    return os.path.exists(os.path.expanduser(name)) or name.startswith(("/", ".", "~")) or name.endswith(".json")


def _find(name: str) -> HeadConfig | None:
    """The config behind a name or path; None for a name that is not bundled."""
    bundled = _bundled().get(name.lower())
    if bundled is not None:
        return read_head(bundled[1]["config"], name)
    if not _is_path(name):
        return None
    path = Path(os.path.expanduser(name))
    if os.path.isdir(path):
        path = path / "config.json"
    return read_head(read_json(path, ModelError), str(path))


def read_head(values: Mapping[str, Any], name: str) -> HeadConfig:
    """A head's parsed ``config.json``.

    Raises ModelError: no head's architecture, or a missing, ill-typed or contradicting field (named).
    """
    layer = values.get("transformer_layer_config")
    if isinstance(layer, Mapping):  # speculators: the layer's own config, and what concerns the head around it
        values = {**layer, **{key: value for key, value in values.items() if value is not None}}
    config = ConfigReader(values, name)
    kind = _kind(config)
    assumed: tuple[str, ...] = ()
    if values.get("quantization_config"):
        wide = "assumed 16 bits unless speculative_config.quantization is given"
        assumed = (f"{name} has a quantization_config: {wide}",)
    if kind in ("medusa", "mlp_speculator"):
        return replace(_without_layers(config, kind), assumed=assumed)
    # vLLM's drafters go by ``layer_types`` alone.
    sliding_layers = sum("sliding" in kind for kind in config.strings("layer_types"))
    window = config.integer("sliding_window") if sliding_layers else 0
    unused = 0 if config.strings("layer_types") else config.integer("sliding_window", 0)
    if 0 < unused < config.integer("max_position_embeddings") and config.values.get("use_sliding_window") is not False:
        assumed += (f"{name} has sliding_window = {unused} and no layer_types: assumed full attention",)
    if "DominoDraftModel" in config.strings("architectures"):
        assumed += (f"{name} is a Domino head: assumed a DFlash head whose sequential projector costs nothing",)
    overrides = {"sliding_window": window, "num_sliding_layers": sliding_layers}
    overrides |= {"qk_norm": kind in ("dflash", "dflash2", "dspark"), "tie_word_embeddings": False}
    decoder = ModelSpec(name=name, architecture="LlamaForCausalLM", **decoder_values(config, overrides))
    sections = [config, *(config.section(key) for key in _SECTIONS if isinstance(config.values.get(key), Mapping))]

    def count(key: str) -> int:
        return max(section.count(key) for section in sections)

    sizes = {key: count(key) for key in DFLASH2_SIZES}
    missing = [key for key, size in sizes.items() if not size]
    if kind == "dflash2" and missing:
        raise ModelError("an integer >= 1 is needed", file=name, key=missing[0])
    # vLLM 0.32 (llama_eagle3): without a draft vocabulary lm_head has the target's.
    absent = decoder.vocab_size if kind in ("eagle3", "p_eagle") else None
    return HeadConfig(
        name=name,
        kind=kind,
        decoder=replace(decoder, shares_embedding=True),
        draft_vocab_size=config.count("draft_vocab_size") or absent,
        captured_layers=_captured(sections),
        target_hidden_size=config.integer("target_hidden_size", decoder.hidden_size),
        vocab_size=decoder.vocab_size,
        block_size=count("block_size"),
        markov_rank=count("markov_rank"),
        sizes=sizes,
        assumed=assumed,
    )


def _kind(config: ConfigReader) -> str:
    architectures = config.strings("architectures")
    key = "speculators_model_type" if config.values.get("speculators_model_type") else "architectures"
    label = config.values[key] if key != "architectures" else next(iter(architectures), None)
    if label == "LlamaForCausalLM":  # EAGLE's own repositories
        return "eagle3" if config.values.get("draft_vocab_size") else "eagle"
    if "medusa_num_heads" in config.values:  # Medusa's own repositories name no architecture
        return "medusa"
    kinds = _FACTS["kinds"]
    if not isinstance(label, str) or label not in kinds:
        choices = ", ".join(kind for kind in kinds if kind[0].isupper() == (key == "architectures"))
        raise ModelError(f"no draft head's; known: {choices}", file=config.name, key=key, value=label)
    return str(kinds[label])


def _without_layers(config: ConfigReader, kind: str) -> HeadConfig:
    """Medusa (``medusa_num_heads`` or vLLM's ``num_heads``) and the MLP speculator (``n_predict``, ``inner_dim``)."""
    if kind == "medusa":
        # vLLM 0.32 takes the target's vocabulary for Medusa, whose old configs lack it.
        heads = config.integer("medusa_num_heads", config.count("num_heads"), minimum=0)
        return HeadConfig(config.name, kind, target_hidden_size=config.count("hidden_size"), num_heads=heads)
    return HeadConfig(
        name=config.name,
        kind=kind,
        target_hidden_size=config.integer("emb_dim"),
        vocab_size=config.integer("vocab_size"),
        num_heads=config.integer("n_predict"),
        inner_dim=config.integer("inner_dim", MLP_SPECULATOR_INNER),
    )


def _captured(sections: list[ConfigReader]) -> int | None:
    """Number of captured layers; None where the config names none."""
    if any(section.values.get("use_aux_hidden_state") is False for section in sections):
        return 0
    for section in sections:
        for key in _CAPTURED:
            layers = section.values.get(key)
            if layers is not None:
                if not isinstance(layers, list) or not layers:
                    raise ModelError("a list of layer numbers is needed", file=section.name, key=key, value=layers)
                return len(layers)
    return None
