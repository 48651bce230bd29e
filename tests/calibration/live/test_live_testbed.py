"""The testbed: cycles, draft layouts, n-gram prompts and weights do what they promise, checked without a server."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from draftcast.calibration.live.checkpoint import draft_folder, weights, write_testbed
from draftcast.calibration.live.continuation import (
    Continuation,
    DraftLayout,
    NgramTarget,
    continuation_prompts,
    dealt,
    random_prompts,
    shares_of,
)
from draftcast.errors import InputError, ModelError
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.search.ngram import match_positions


def small(**changes: object) -> ModelSpec:
    fields = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    fields |= {"head_dim": 16, "intermediate_size": 96, "vocab_size": 300, "word_embed_proj_dim": 64}
    return replace(load_model("testbed-250M"), **{**fields, **changes})  # type: ignore[arg-type]


def rounds(target: np.ndarray, draft: np.ndarray, first: int, outputs: int, k: int) -> list[int]:
    """Accepted drafts of each greedy round, with the two models' own rule followed token by token."""
    accepted, token, done = [], int(target[first]), 1
    while done < outputs:
        count, said = 0, token
        while count < k and draft[said] == target[said]:
            said = int(target[said])
            count += 1
        accepted.append(count)
        token = int(target[said])
        done += count + 1
    return accepted


def after(continuation: Continuation, token: int, tokens: int) -> np.ndarray:
    """What the target says after a prompt that ends with ``token``."""
    follows, said = continuation.next_token, []
    for _ in range(tokens):
        token = int(follows[token])
        said.append(token)
    return np.array(said)


def test_the_continuation_is_a_permutation_in_long_cycles() -> None:
    continuation = Continuation.build(9000, seed=1)
    follows = continuation.next_token
    assert sorted(follows) == list(range(9000))
    assert follows[:4].tolist() == [0, 1, 2, 3]
    assert np.diff(continuation.cycles).tolist() == [4498, 4498]
    seen = after(continuation, int(continuation.order[4498 + 7]), 4498)
    assert seen.tolist() == continuation.stretch(4498 + 8, 4498).tolist()
    assert len(set(seen)) == 4498
    for position in (0, 5, 4497, 4498, 8995):
        assert follows[continuation.before(position)] == continuation.order[position]
    assert not np.array_equal(Continuation.build(9000, seed=2).order, continuation.order)


@pytest.mark.parametrize(
    "rates", [(0.6, 0.36, 0.216), (0.9, 0.5, 0.5, 0.1), (0.7,), (1.0, 1.0), (0.0, 0.0), (0.3, 0.0)]
)
def test_rounds_from_a_block_s_start_accept_the_wanted_shares(rates: tuple[float, ...]) -> None:
    continuation = Continuation.build(32000, seed=0)
    layout = DraftLayout.build(continuation, rates, seed=0)
    target, draft = continuation.next_token, layout.next_token(continuation)
    assert sorted(draft) == list(range(32000))
    prompts, _ = continuation_prompts([8] * 100, [90] * 100, continuation, seed=3, layout=layout)
    accepted = [a for prompt in prompts for a in rounds(target, draft, int(prompt[-1]), 90, len(rates))]
    found = [float(np.mean(np.array(accepted) >= i)) for i in range(1, len(rates) + 1)]
    assert found == pytest.approx(rates, abs=0.012)


def test_a_request_out_of_step_falls_in_at_the_next_block() -> None:
    continuation = Continuation.build(5000, seed=0)
    layout = DraftLayout.build(continuation, (0.9, 0.8, 0.7, 0.6), seed=0)
    target, draft = continuation.next_token, layout.next_token(continuation)
    start = int(layout.starts[10])
    length = int(layout.starts[11]) - start
    assert length >= 3
    (first, *rest) = rounds(target, draft, int(continuation.order[start]), 60, 4)  # one token into the block
    assert first == length - 2
    assert rest[:8] == rounds(target, draft, continuation.before(int(layout.starts[11])), 60, 4)[:8]


def test_a_deck_is_exact_in_the_long_run_and_random_inside() -> None:
    cards = list(islice(dealt(np.array([0.5, 0.3, 0.1996, 0.0004]), np.random.default_rng(0)), 40_000))
    assert np.bincount(cards).tolist() == [20_000, 12_000, 7_984, 16]
    assert cards[:400] != sorted(cards[:400])


def test_shares_are_differences_of_the_rates() -> None:
    assert shares_of([0.6, 0.36]) == pytest.approx([0.4, 0.24, 0.36])


@pytest.mark.parametrize(
    ("match_rate", "rates", "lookup"),
    [(0.9, (0.8, 0.6, 0.5), 1), (0.4, (0.8, 0.6, 0.5), 2), (0.2, (0.9, 0.2), 3), (0.5, (1.0, 1.0, 1.0, 1.0), 2)],
)
def test_ngram_rounds_match_and_accept_as_wanted(match_rate: float, rates: tuple[float, ...], lookup: int) -> None:
    continuation = Continuation.build(32000, seed=0)
    k = len(rates)
    wanted = NgramTarget(match_rate, rates, lookup)
    prompts, answers = continuation_prompts([160] * 200, [100] * 200, continuation, seed=1, ngram=wanted)
    drafted, accepted = [], []
    for prompt, answer in zip(prompts, answers, strict=True):
        # Past its end the answer goes on: a draft there is right or wrong as anywhere.
        longer = after(continuation, int(prompt[-1]), 100 + k)
        assert answer.tolist() == longer[:100].tolist()
        made, right = match_positions(prompt, longer, k, lookup, max(5, lookup))
        position = 1
        while position < 100:
            drafted.append(made[position])
            accepted.append(right[position])
            position += right[position] + 1
    hit = np.array(drafted) > 0
    assert float(hit.mean()) == pytest.approx(match_rate, abs=0.02)
    found = [float((np.array(accepted)[hit] >= i).mean()) for i in range(1, k + 1)]
    assert found == pytest.approx(rates, abs=0.012)


def test_without_pieces_nothing_is_found() -> None:
    continuation = Continuation.build(9000, seed=0)
    prompts, answers = continuation_prompts([300] * 5, [100] * 5, continuation, seed=1)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert match_positions(prompt, answer, 3, 1, 5)[0].sum() == 0


def test_prompts_are_the_seed_s() -> None:
    continuation = Continuation.build(9000, seed=0)
    first, again, other = (continuation_prompts([20, 30], [40, 50], continuation, seed=seed)[0] for seed in (1, 1, 2))
    assert [prompt.tolist() for prompt in first] == [prompt.tolist() for prompt in again]
    assert [len(prompt) for prompt in other] == [20, 30]
    assert first[0].tolist() != other[0].tolist()
    drawn = random_prompts([3, 4], 100, seed=0)
    assert [len(prompt) for prompt in drawn] == [3, 4]
    assert drawn[0].tolist() != random_prompts([3, 4], 100, seed=1)[0].tolist()


def test_too_short_a_prompt_is_named() -> None:
    continuation = Continuation.build(9000, seed=0)
    with pytest.raises(InputError, match=r"prompt_tokens = 20: request 0 copies \d+ tokens for its 100 tokens"):
        continuation_prompts([20], [100], continuation, seed=1, ngram=NgramTarget(0.5, (0.8,), 2))
    with pytest.raises(InputError, match=r"match_probability = 0.6: above 0 and at most 0.5"):
        NgramTarget(0.6, (0.8,), 2)
    with pytest.raises(InputError, match="request 0 uses up the vocabulary"):
        continuation_prompts([20], [3996], Continuation.build(4000, seed=0), seed=1)


@pytest.mark.parametrize(
    ("rates", "message"),
    [((), "at least one"), ((0.5, 0.6), r"rates\[1\] = 0.6: from 0 to 0.5"), ((1.2,), r"rates\[0\]")],
)
def test_bad_rates_are_refused(rates: tuple[float, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DraftLayout.build(Continuation.build(300, 0), rates, 0)


def test_the_weights_say_the_next_token_with_a_safe_margin() -> None:
    import torch

    spec = small(vocab_size=2000, word_embed_proj_dim=64)
    continuation = Continuation.build(2000, seed=0)
    made = weights(spec, continuation.next_token, "bf16", seed=0)
    assert sum(tensor.numel() for tensor in made.values()) == spec.num_parameters
    # The stream after all layers is the embedding give or take two hundredths: so much noise, and the margin holds.
    embedding = made["model.embed_tokens.weight"].float()
    noise = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(0)) * 0.02
    stream = (embedding + noise).to(torch.bfloat16).float()
    logits = stream @ made["lm_head.weight"].float().T
    best = logits.topk(2, dim=1)
    assert best.indices[:, 0].tolist() == continuation.next_token.tolist()
    assert float((best.values[:, 0] - best.values[:, 1]).min()) > 0.2 * 64**0.5


def test_layers_change_the_stream_by_no_more_than_they_may() -> None:
    import torch

    spec = small()
    made = {name: tensor.float() for name, tensor in weights(spec, np.arange(300), "fp32", seed=0).items()}
    x = stream = made["model.embed_tokens.weight"]
    for layer in range(2):
        at = f"model.layers.{layer}"
        normed = x / x.square().mean(dim=1, keepdim=True).sqrt()
        # Attention that looks at one token only adds the most: an average over tokens is smaller.
        values = normed @ made[f"{at}.self_attn.v_proj.weight"].T
        x = x + values.repeat(1, 2) @ made[f"{at}.self_attn.o_proj.weight"].T
        normed = x / x.square().mean(dim=1, keepdim=True).sqrt()
        gate = torch.nn.functional.silu(normed @ made[f"{at}.mlp.gate_proj.weight"].T)
        x = x + (gate * (normed @ made[f"{at}.mlp.up_proj.weight"].T)) @ made[f"{at}.mlp.down_proj.weight"].T
    change = float((x - stream).square().mean().sqrt())
    assert 0.002 < change < 0.02


def test_a_testbed_is_written_whole_and_repeats(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    target, draft = small(), small(num_hidden_layers=1)
    for name in ("a", "b"):
        write_testbed(tmp_path / name, target, draft, (0.6, 0.3), (1, 2), dtype="fp32", seed=4)
    for folder in ("target", draft_folder(1), draft_folder(2)):
        for file in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
            assert (tmp_path / "a" / folder / file).read_bytes() == (tmp_path / "b" / folder / file).read_bytes()
    read = load_model(tmp_path / "a" / "target")
    assert read.num_parameters == target.num_parameters
    assert load_model(tmp_path / "a" / draft_folder(2)).num_parameters == draft.num_parameters
    words = json.loads((tmp_path / "a/target/tokenizer.json").read_text())["model"]["vocab"]
    assert (len(words), words["</s>"], words["t299"]) == (300, 2, 299)
    continuation = Continuation.read(tmp_path / "a/target")
    layout = DraftLayout.read(tmp_path / "a" / draft_folder(2))
    assert continuation is not None
    assert layout is not None
    assert layout.rates.tolist() == [0.6, 0.3]
    assert Continuation.read(tmp_path / "a" / draft_folder(1)) is None
    assert DraftLayout.read(tmp_path / "a/target") is None
    for folder, says in (("target", continuation.next_token), (draft_folder(2), layout.next_token(continuation))):
        stored = load_file(tmp_path / "a" / folder / "model.safetensors")
        logits = stored["model.embed_tokens.weight"] @ stored["lm_head.weight"].T
        assert logits.argmax(axis=1).tolist() == says.tolist()
    with pytest.raises(InputError, match="target: exists already"):
        write_testbed(tmp_path / "a", target, draft, (0.6,), (1,))
    (tmp_path / "a/target/continuation.npz").write_bytes(b"torn")
    with pytest.raises(InputError, match=r"continuation\.npz: damaged"):
        Continuation.read(tmp_path / "a/target")


def test_the_seed_and_the_dtype_are_used(tmp_path: Path) -> None:
    spec = small()
    for name, dtype, seed in (("a", "bf16", 0), ("b", "bf16", 1), ("c", "fp16", 0)):
        write_testbed(tmp_path / name, spec, spec, (0.5,), (1,), dtype=dtype, seed=seed)
    files = [(tmp_path / name / "target/model.safetensors").read_bytes() for name in "abc"]
    assert len(set(files)) == 3
    assert json.loads((tmp_path / "c/target/config.json").read_text())["torch_dtype"] == "float16"


@pytest.mark.parametrize(
    ("target", "draft", "message"),
    [
        ({"architecture": "Qwen3ForCausalLM"}, {}, "architecture = 'Qwen3ForCausalLM': only LlamaForCausalLM"),
        ({"tie_word_embeddings": True}, {}, "tie_word_embeddings = True: must be False"),
        ({}, {"attention_bias": True}, "attention_bias = True: must be False"),
        ({"hidden_size": 32, "word_embed_proj_dim": 32}, {}, "hidden_size = 32: at least 64"),
        ({"vocab_size": 20}, {}, "vocab_size = 20: at least 64"),
        ({}, {"vocab_size": 301}, "vocab_size = 301: must be the target's, 300"),
    ],
)
def test_shapes_that_cannot_be_testbeds(
    tmp_path: Path, target: dict[str, object], draft: dict[str, object], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        write_testbed(tmp_path, small(**target), small(**draft), (0.5,), (1,))


def test_bad_arguments_of_a_testbed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="k = 2: 1 to 1"):
        write_testbed(tmp_path, small(), small(), (0.5,), (2,))
    with pytest.raises(InputError, match="dtype = 'int4': choose from bf16"):
        write_testbed(tmp_path, small(), small(), (0.5,), (1,), dtype="int4")
