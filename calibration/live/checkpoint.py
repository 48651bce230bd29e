"""Checkpoints with random weights, full compute cost and a known greedy continuation.

Token t's embedding E[t] is random with root mean square 1. Attention and MLP are random and computed in full, but what
they add to the residual stream is scaled so that all layers together change it by at most about two hundredths: after
the last norm the stream is still E[t] to that accuracy. ``lm_head[next_token[t]] = E[t] / sqrt(hidden)`` gives the
wanted next token a logit of about sqrt(hidden) and any other one about a standard normal number, whose largest in
32,000 is 4.5: for hidden >= 64 far enough apart for bf16. Untied embeddings are needed: a tied model repeats its token.
Only Llama models are written: their weights' names are known here, and vLLM loads them on every device.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path

from draftcast.calibration.live.continuation import SPECIAL_TOKENS, Continuation, DraftLayout
from draftcast.errors import InputError, LiveError, ModelError
from draftcast.files import picked, write_text
from draftcast.kernels.arrays import IntArray
from draftcast.kernels.extras import require, torch
from draftcast.kernels.model.spec import ModelSpec

TARGET = "target"
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_RESIDUAL_SHARE = 0.02  # RMS of all that attention and MLPs add to the residual stream, over the embedding's
_MINIMUM_SIZE = 64
_ABSENT = {"tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "num_sliding_layers": 0}
_SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}  # of ids 0, 1, 2, 3
_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}


def draft_folder(k: int) -> str:
    return f"draft-k{k}"


def write_testbed(
    folder: Path,
    target: ModelSpec,
    draft: ModelSpec,
    rates: Sequence[float],
    ks: Sequence[int],
    dtype: str = "bf16",
    seed: int = 0,
) -> None:
    """``folder/target`` and for each k of ``ks`` ``folder/draft-k<k>``, built for ``rates[:k]``, each with a tokenizer.

    The same arguments write the same bytes (with the same version of torch).

    Raises ModelError: a shape that cannot be written (see the module's text), or a draft of another vocabulary;
    InputError: bad rates, a k without a rate, an unknown dtype, folders that exist, no torch or safetensors; LiveError:
    the disk refuses.
    """
    if dtype not in DTYPES:
        raise InputError(f"choose from {', '.join(DTYPES)}", key="dtype", value=dtype)
    for spec in (target, draft):
        _check_shape(spec)
    if draft.vocab_size != target.vocab_size:
        message = f"must be the target's, {target.vocab_size}"
        raise ModelError(message, file=draft.name, key="vocab_size", value=draft.vocab_size)
    for k in ks:
        if not 1 <= k <= len(rates):
            raise InputError(f"1 to {len(rates)}, the number of rates, is needed", key="k", value=k)
    if taken := [name for name in (TARGET, *map(draft_folder, ks)) if (folder / name).exists()]:
        raise InputError("exists already; a testbed is never written over", file=str(folder / taken[0]))
    require("live", "torch", "safetensors", place="draftcast live checkpoint")
    continuation = Continuation.build(target.vocab_size, seed)
    layouts = {draft_folder(k): DraftLayout.build(continuation, rates[:k], seed) for k in ks}
    try:
        _write_model(folder / TARGET, target, continuation.next_token, dtype, seed)
        continuation.write(folder / TARGET)
        for name, layout in layouts.items():
            _write_model(folder / name, draft, layout.next_token(continuation), dtype, seed + 1)
            layout.write(folder / name)
    except OSError as error:
        raise LiveError(f"{folder}: cannot be written: {error.strerror or error}") from None


def weights(spec: ModelSpec, next_token: IntArray, dtype: str, seed: int) -> dict[str, torch.Tensor]:
    """All tensors of the checkpoint by Hugging Face's names; ``next_token``: int64[vocab_size], a permutation."""
    kind = getattr(torch, DTYPES[dtype])

    def random(name: str, *shape: int) -> torch.Tensor:
        # Each tensor has a stream of its own, so that a deeper model begins with a shallower one's layers.
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + (seed << 32))
        return torch.randn(*shape, generator=generator)

    hidden, mlp = spec.hidden_size, spec.intermediate_size
    heads, kv_heads = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
    embedding = random("embedding", spec.vocab_size, hidden)
    embedding /= embedding.square().mean(dim=1, keepdim=True).sqrt()
    head = torch.empty_like(embedding)
    head[torch.from_numpy(next_token)] = embedding / hidden**0.5
    tensors = {
        "model.embed_tokens.weight": embedding.to(kind),
        "lm_head.weight": head.to(kind),
        "model.norm.weight": torch.ones(hidden, dtype=kind),
    }
    # Unit variance through every projection; the two that write to the residual stream share its allowance evenly.
    share = _RESIDUAL_SHARE / (2 * spec.num_hidden_layers)
    for layer in range(spec.num_hidden_layers):
        at = f"model.layers.{layer}"
        for name, rows, columns, scale in (
            ("self_attn.q_proj", heads, hidden, 1.0),
            ("self_attn.k_proj", kv_heads, hidden, 1.0),
            ("self_attn.v_proj", kv_heads, hidden, 1.0),
            ("self_attn.o_proj", hidden, heads, share),
            ("mlp.gate_proj", mlp, hidden, 1.0),
            ("mlp.up_proj", mlp, hidden, 1.0),
            ("mlp.down_proj", hidden, mlp, share),
        ):
            tensors[f"{at}.{name}.weight"] = (random(f"{at}.{name}", rows, columns) * (scale * columns**-0.5)).to(kind)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{name}.weight"] = torch.ones(hidden, dtype=kind)
    return tensors


def _check_shape(spec: ModelSpec) -> None:
    # A narrower stream cannot hold logits apart, a smaller vocabulary leaves no tokens for a prompt beside its answer.
    for key, holds, needed in (
        ("architecture", spec.architecture == "LlamaForCausalLM", "only LlamaForCausalLM can be a testbed"),
        *((key, not getattr(spec, key), f"must be {absent} in a testbed") for key, absent in _ABSENT.items()),
        ("hidden_size", spec.hidden_size >= _MINIMUM_SIZE, f"at least {_MINIMUM_SIZE} in a testbed"),
        ("vocab_size", spec.vocab_size >= _MINIMUM_SIZE, f"at least {_MINIMUM_SIZE} in a testbed"),
    ):
        if not holds:
            raise ModelError(needed, file=spec.name, key=key, value=getattr(spec, key))


def _write_model(folder: Path, spec: ModelSpec, next_token: IntArray, dtype: str, seed: int) -> None:
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    save_file(weights(spec, next_token, dtype, seed), folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": [spec.architecture],
        "model_type": "llama",
        **picked(spec, "hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim"),
        **picked(spec, "intermediate_size vocab_size max_position_embeddings"),
        **picked(spec, "tie_word_embeddings attention_bias mlp_bias"),
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        **_IDS,
        "torch_dtype": DTYPES[dtype],
    }
    # One word per token id: prompts are sent as ids, so nothing is ever split.
    words = [*_SPECIAL.values(), *(f"t{token}" for token in range(SPECIAL_TOKENS, spec.vocab_size))]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder")),
        "added_tokens": [{"id": token, "content": word, **special} for token, word in enumerate(_SPECIAL.values())],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {w: token for token, w in enumerate(words)}, "unk_token": "<unk>"},
    }
    named = {"tokenizer_class": "PreTrainedTokenizerFast", **_SPECIAL, "model_max_length": spec.max_position_embeddings}
    contents = {"config": config, "generation_config": _IDS, "tokenizer": tokenizer, "tokenizer_config": named}
    for name, content in contents.items():
        write_text(folder / f"{name}.json", json.dumps(content, indent=1) + "\n", LiveError)
