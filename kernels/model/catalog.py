"""Finds a model by bundled name, by Hugging Face id or by path.

The bundled files (``models/*.json``) hold the numeric facts of public ``config.json`` files, the ids they answer to
(``aliases``) and where the facts come from (``source``). Nothing is downloaded.
"""

import difflib
import functools
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftcast.errors import ModelError
from draftcast.files import read_json
from draftcast.kernels.model.architectures import spec_from_config
from draftcast.kernels.model.dtypes import FORMATS, weight_dtype, wide_dtype
from draftcast.kernels.model.formats import ONLY_4_BITS
from draftcast.kernels.model.spec import ModelSpec

_FOLDER = Path(__file__).parents[1] / "models"
# How publishers name a format at the end of a repository's name. GPTQ's int8 is of weights alone, which is not known.
_FORMATS = ("bf16", "fp8", "mxfp8", "fp4", "nvfp4", "mxfp4", "awq", "gptq", "int4", "w4a16", "(?<!gptq.)int8", "w8a8")
_FORMAT = re.compile(
    rf"(?:[-_](?:quantized|awq|gptq|int4))?[-_.]({'|'.join(_FORMATS)})"
    r"(?:[-_](?:dynamic|block|kv|4bit|preview|v\d))*$",
    re.IGNORECASE,
)


@functools.cache
def _bundled() -> dict[str, tuple[str, dict[str, Any]]]:
    """Lower-case name, alias or repository without its owner -> (canonical name, config facts)."""
    by_name: dict[str, tuple[str, dict[str, Any]]] = {}
    for file in sorted(_FOLDER.glob("*.json")):
        config = json.loads(file.read_text(encoding="utf-8"))
        repositories = [alias.rpartition("/")[2] for alias in config["aliases"]]
        by_name |= {key.lower(): (file.stem, config) for key in (file.stem, *config["aliases"], *repositories)}
    return by_name


@functools.cache
def _spec(name: str) -> ModelSpec:
    """Of a bundled model's own name. Reading which modules a checkpoint leaves out takes milliseconds."""
    return spec_from_config(_bundled()[name.lower()][1], name)


def model_names() -> list[str]:
    """Canonical names of the bundled models."""
    return sorted({name for name, _ in _bundled().values()})


def named_format(name: str) -> tuple[str, str | None]:
    """A repository's name without the format at its end, and that format of `WEIGHT_BYTES`.

    The format is empty where the name says 16 bits, None where it says nothing.
    """
    match = _FORMAT.search(name)
    if match is None:
        return name, None
    ending = match[1].lower()
    stored = "nvfp4" if ending == "fp4" else weight_dtype(ending)
    return name[: match.start()], "" if stored == wide_dtype(stored) else stored


def _named_block(name: str) -> tuple[int, int] | None:
    """Outputs and inputs of a block with one scale, where a repository's name says that its fp8 weights have such."""
    blocks, published = FORMATS["fp8_blocks"], published_id(named_format(name)[0]).lower()
    own = name.lower().endswith("-fp8") and published.startswith(tuple(blocks["repositories"]))
    return tuple(blocks["block"]) if own or name.lower().endswith("fp8-block") else None


def _find(name: str) -> tuple[str, dict[str, Any]] | None:
    """Of a name or alias, or of anybody's repository that is named after one, with a format at its end or without."""
    entry = _bundled().get(name.lower())
    bare, _ = named_format(name.lower())
    # A folder of one's own may be named like a repository, and then says itself what is in it.
    if entry is not None or bare.count("/") > 1 or bare[:1] in "./~" or os.path.exists(name):
        return entry
    return _bundled().get(bare) or _bundled().get(bare.rpartition("/")[2])


def is_bundled_model(name: str) -> bool:
    """Whether ``name`` is a bundled model's name or alias, in any case, in its own format or one that it ends in."""
    return _find(name) is not None


def canonical_name(name: str) -> str:
    """The bundled model's own name behind a name or alias of it; any other name as it is."""
    entry = _find(name)
    return entry[0] if entry is not None else name


def _nearest(name: str) -> str:
    """A question with the bundled names that one looks like; empty without any."""
    names = {key.rpartition("/")[2]: canonical for key, (canonical, _) in _bundled().items()}
    close = difflib.get_close_matches(name.lower().rpartition("/")[2], names, n=3, cutoff=0.7)
    nearest = dict.fromkeys(names[key] for key in close)
    return f"did you mean {' or '.join(nearest)}? " if nearest else ""


def load_model(name_or_path: str | Path) -> ModelSpec:
    """Model by bundled name or alias (any case), else by path to a ``config.json`` or to the folder holding one.

    A format at the end of a name (``Qwen/Qwen3-8B-FP8``, ``gpt-oss-20b-BF16``) stands for the checkpoint's own.

    Raises ModelError: nothing of that name (lists the bundled names), an unreadable file, a bad config.
    """
    text = str(name_or_path)
    bundled = _find(text)
    if bundled is not None:
        spec, stored = _spec(bundled[0]), named_format(text)[1]
        if stored is None or stored == spec.quantization:
            return spec
        return replace(spec.in_format(stored), weight_block=_named_block(text))
    path = Path(os.path.expanduser(name_or_path))
    if os.path.isdir(path):
        path = path / "config.json"
        if not os.path.exists(path):
            raise ModelError("a folder without a config.json", key="model", value=text)
    if not os.path.exists(path):
        if re.search(r"gptq[-_]int8$", text, re.IGNORECASE):
            raise ModelError(ONLY_4_BITS, key="model", value=text)
        message = f"unknown model and no such file; {_nearest(text)}draftcast models lists the bundled ones; or give"
        raise ModelError(f"{message} the path of a Hugging Face config.json", key="model", value=text)
    config = read_json(path, ModelError)
    beside = path.with_name(path.name.replace("config.json", "hf_quant_config.json"))  # ModelOpt's
    if beside.name != path.name and beside.exists():
        config.setdefault("quantization_config", read_json(beside, ModelError))
    return spec_from_config(config, str(path))


def published_ids(name: str) -> tuple[str, ...]:
    """Hugging Face ids of a bundled model's shape, such as its base and Instruct repositories; none if unknown."""
    entry = _bundled().get(name.lower())
    return tuple(alias for alias in entry[1]["aliases"] if "/" in alias) if entry is not None else ()


def published_id(name_or_path: str) -> str:
    """What a server calls the model: the Hugging Face id behind a bundled short name; ids and paths as they are."""
    ids = published_ids(name_or_path)
    if not ids or "/" in name_or_path:
        return name_or_path
    return next((repo for repo in ids if repo.lower().endswith(f"/{name_or_path.lower()}")), ids[0])
