"""Rejection sampler, torch and Triton: against the algorithm in float64, greedy against plain decoding."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from unequal_lengths import with_unequal

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from draftcast.kernels.operators.registry import Draw, operator
from draftcast.kernels.operators.sampler import drawn
from draftcast.kernels.operators.triton.sampler import PIECE

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REJECTION = operator("rejection_sampler")
both = pytest.mark.parametrize("name", ["torch", "triton"])
# The interpreter warns of the poison that it computes with and does not use.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
certain_or_not = pytest.mark.parametrize("draft_probs", [False, True], ids=["certain", "drawn"])


def made(
    batch: int, q: int, n: int, dtype: str = "fp32", *, draft_probs: bool = False, seed: int = 0
) -> dict[str, Any]:
    """Inputs with unequal numbers of drafts; what belongs to no draft is poison.

    ``draft_probs``: the drafts are drawn from a distribution near the target's, which is an input.
    """
    generator = torch.Generator(DEVICE)
    generator.manual_seed(seed)
    shape = {"batch": batch, "q": q, "n": n}
    inputs = REJECTION.make_inputs(shape, dtype, "", DEVICE, generator)
    if draft_probs:
        draw, logits = Draw("fp32", "", DEVICE, generator), inputs["logits"][:, :-1]
        near = torch.softmax(draw.normal(batch, q - 1, n) + logits, 2)
        tokens = drawn(near.view(-1, n), draw.uniform(batch * (q - 1)), logits.argmax(2).view(-1))
        inputs |= {"draft_probs": near, "draft_tokens": tokens.view(batch, q - 1).to(torch.int32)}
    inputs = with_unequal(inputs, "num_drafts", 0, generator)
    for sequence, drafts in enumerate(inputs["num_drafts"].tolist()):
        inputs["logits"][sequence, drafts + 1 :] = torch.nan
        inputs["draft_tokens"][sequence, drafts:] = -9
        inputs["uniforms"][sequence, drafts:] = torch.nan
        if draft_probs:
            inputs["draft_probs"][sequence, drafts:] = torch.nan
    return inputs


def run(name: str, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    outputs = REJECTION.make_outputs(inputs)
    for output in outputs.values():
        output.fill_(-7)
    REJECTION.implementations[name].prepare(inputs, outputs)()
    return outputs


def check(name: str, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    outputs, expected = run(name, inputs), REJECTION.reference(inputs)
    for key, value in expected.items():
        assert torch.equal(outputs[key], value), key
    return outputs


@both
@pytest.mark.parametrize("q", range(1, 18))
def test_every_number_of_drafts(name: str, q: int) -> None:
    """Drawn and greedy sequences side by side; the interpreter sees certain drafts for every second q, drawn ones for
    the others. On the border between two answers rounding decides; with these seeds no draw is there."""
    for draft_probs in (False, True) if name == "torch" or DEVICE == "cuda" else (q % 4 < 2,):
        inputs = made(4, q, 50, "bf16" if q % 2 else "fp32", draft_probs=draft_probs, seed=q)
        inputs["temperature"][:] = torch.tensor([1.0, 0.0, 0.7, 1.5])
        check(name, inputs)


@both
@certain_or_not
@pytest.mark.parametrize("n", [1, 2, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 9])
def test_every_size_of_vocabulary(name: str, draft_probs: bool, n: int) -> None:
    inputs = made(4, 3, n, draft_probs=draft_probs, seed=n)
    inputs["temperature"][:] = torch.tensor([1.0, 0.5, 1.0, 0.0])
    check(name, inputs)


@both
def test_by_hand(name: str) -> None:
    """Two tokens of probability 3/4 and 1/4; drafts that were certain of token 1 are kept below a uniform of 1/4."""
    inputs = made(4, 3, 2)
    inputs["logits"][:] = torch.tensor([0.75, 0.25], device=DEVICE).log()
    inputs["num_drafts"][:], inputs["draft_tokens"][:], inputs["temperature"][:] = 2, 1, 1
    inputs["uniforms"][:] = torch.tensor([[0.26, 0.0], [0.24, 0.26], [0.24, 0.24], [0.24, 0.24]])
    inputs["final_uniforms"][:] = torch.tensor([0.9, 0.9, 0.74, 0.76])
    outputs = check(name, inputs)
    # Recovered from what is left (token 0 alone), twice; then bonus tokens on either side of 3/4.
    assert outputs["tokens"].tolist() == [[0, -1, -1], [1, 0, -1], [1, 1, 0], [1, 1, 1]]
    assert outputs["counts"].tolist() == [1, 2, 3, 3]


@both
def test_recovered_from_the_difference_by_hand(name: str) -> None:
    """p = (0.5, 0.3, 0.2), q = (0.2, 0.7, 0.1): token 1 is kept below 3/7, and replaced by 0 or 2 as 3 to 1."""
    inputs = made(4, 2, 3, draft_probs=True)
    inputs["logits"][:] = torch.tensor([0.5, 0.3, 0.2], device=DEVICE).log()
    inputs["draft_probs"][:] = torch.tensor([0.2, 0.7, 0.1], device=DEVICE)
    inputs["num_drafts"][:], inputs["draft_tokens"][:], inputs["temperature"][:] = 1, 1, 1
    inputs["uniforms"][:, 0] = torch.tensor([0.42, 0.43, 0.43, 0.999])
    inputs["final_uniforms"][:] = torch.tensor([0.6, 0.74, 0.76, 0.0])
    assert check(name, inputs)["tokens"].tolist() == [[1, 1], [0, -1], [2, -1], [0, -1]]


@both
def test_a_draft_like_the_target_is_kept(name: str) -> None:
    inputs = made(3, 5, 30, draft_probs=True)
    inputs["logits"] = inputs["logits"].nan_to_num(0.0)
    inputs["num_drafts"][:] = 4
    inputs["draft_probs"] = torch.softmax(inputs["logits"][:, :-1], 2)
    inputs["draft_tokens"] = torch.randint(0, 30, (3, 4), dtype=torch.int32, device=DEVICE)
    inputs["uniforms"] = torch.full((3, 4), 0.9999, device=DEVICE)
    outputs = run(name, inputs)
    assert (outputs["counts"] == 5).all()
    assert torch.equal(outputs["tokens"][:, :-1], inputs["draft_tokens"])


@both
@certain_or_not
def test_an_impossible_draft_is_never_kept(name: str, draft_probs: bool) -> None:
    """Of probability 0 for the target, or 0 for the draft itself, at the smallest uniform."""
    inputs = made(2, 2, 4, draft_probs=draft_probs)
    inputs["num_drafts"][:], inputs["draft_tokens"][:], inputs["uniforms"][:] = 1, 2, 0.0
    inputs["logits"][:] = 0.0
    inputs["logits"][0, 0, 2] = -torch.inf
    if draft_probs:
        inputs["draft_probs"][:] = torch.tensor([0.0, 0.0, 1.0, 0.0])
        inputs["draft_probs"][1, 0] = torch.tensor([0.5, 0.5, 0.0, 0.0])
    counts = check(name, inputs)["counts"].tolist()
    assert counts == ([1, 1] if draft_probs else [1, 2])


@certain_or_not
def test_every_input_changes_the_outcome(draft_probs: bool) -> None:
    inputs = made(64, 4, 20, draft_probs=draft_probs)
    inputs["logits"] = inputs["logits"].nan_to_num(0.0)
    inputs["num_drafts"][:], inputs["draft_tokens"][:] = 3, inputs["draft_tokens"].clamp(min=0)
    inputs["uniforms"] = inputs["uniforms"].nan_to_num(0.5)
    if draft_probs:
        inputs["draft_probs"] = inputs["draft_probs"].nan_to_num(0.05)
    before = run("torch", inputs)["tokens"]
    for key, value in inputs.items():
        if isinstance(value, torch.Tensor):
            other = value * 0 if key in ("temperature", "num_drafts") else value.flip(0)
            assert not torch.equal(run("torch", {**inputs, key: other})["tokens"], before), key


@both
@certain_or_not
def test_greedy_speculation_is_greedy_decoding(name: str, draft_probs: bool) -> None:
    """A text grown with drafts, right and wrong ones, is the text of the likeliest tokens."""
    n, k, length = 12, 4, 40
    generator = torch.Generator(DEVICE)
    generator.manual_seed(1)
    scores = torch.randn((n, n), device=DEVICE, generator=generator).to(torch.bfloat16)
    following = scores.argmax(1).tolist()
    plain = [0]
    for _ in range(length):
        plain.append(following[plain[-1]])
    text, accepted, step = [0], set(), 0
    while len(text) < length:
        # A draft follows the target for a while (0 to 4 tokens), then errs.
        drafts, last = [], text[-1]
        for place in range(k):
            last = following[last] if place < step % (k + 1) else (following[last] + 1) % n
            drafts.append(last)
        step += 1
        inputs = {
            "logits": scores[torch.tensor([text[-1], *drafts])][None],
            "temperature": torch.zeros(1, device=DEVICE),
            "draft_tokens": torch.tensor([drafts], dtype=torch.int32, device=DEVICE),
            "num_drafts": torch.tensor([k], dtype=torch.int32, device=DEVICE),
            "draft_probs": torch.full((1, k, n), 1 / n, device=DEVICE) if draft_probs else None,
            "uniforms": torch.rand((1, k), device=DEVICE, generator=generator),
            "final_uniforms": torch.rand(1, device=DEVICE, generator=generator),
        }
        outputs = run(name, inputs)
        count = int(outputs["counts"][0])
        text += outputs["tokens"][0, :count].tolist()
        accepted.add(count - 1)
    assert text[:length] == plain[:length]
    assert accepted == set(range(k + 1))
