"""Speculation changes no distribution: a million texts per pair of draft and target, by chi-square.

Target and draft are Markov chains over a few tokens, so what a slot should hold depends on the token before it. The
statistics come with the shape of the test: a rule that is slightly wrong must fail them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from draftcast.kernels.operators import sampler
from draftcast.kernels.operators.registry import Implementation, Outputs, Tensors, by_formula, operator

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TEXTS = 1_000_000
CHUNK = 250_000
TOKENS = 4
DRAFTS = 2
LENGTH = 3
LEVEL = 1e-4
START = 0
# The interpreter would take an hour; there Triton's answers are the reference's, token by token.
IMPLEMENTATIONS = ["torch"] + (["triton"] if DEVICE == "cuda" else [])
Counts = NDArray[np.float64]


class Pair(NamedTuple):
    """Rows: the token before. ``draft`` None: always the tokens of ``certain`` by the token before."""

    target: torch.Tensor
    draft: torch.Tensor | None
    certain: torch.Tensor

    @property
    def draft_rows(self) -> torch.Tensor:
        if self.draft is not None:
            return self.draft
        return torch.nn.functional.one_hot(self.certain, TOKENS).float()


def pairs() -> dict[str, Pair]:
    generator = torch.Generator()
    generator.manual_seed(5)

    def chain(spread: float) -> torch.Tensor:
        return torch.softmax(spread * torch.randn((TOKENS, TOKENS), generator=generator), 1)

    target = chain(1.0)
    near = torch.softmax(target.log() + 0.5 * torch.randn(target.shape, generator=generator), 1)
    # Half of the tokens are impossible for the target, all but 2 % of the draft's weight is on those.
    halves = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    apart = chain(1.0) * halves
    apart /= apart.sum(1, keepdim=True)
    against = chain(1.0) * torch.where(halves > 0, 0.02, 1.0)
    against /= against.sum(1, keepdim=True)
    certain = torch.zeros(TOKENS, dtype=torch.int64)
    return {
        "equal": Pair(target, target, certain),
        "near": Pair(target, near, certain),
        "far": Pair(chain(2.0), chain(2.0), certain),
        "apart": Pair(apart, against, certain),
        "certain and likely": Pair(target, None, target.argmax(1)),
        "certain and unlikely": Pair(target, None, target.argmin(1)),
    }


PAIRS = pairs()
pair_names = pytest.mark.parametrize("pair_name", PAIRS)


class Seen(NamedTuple):
    """Counts over all texts.

    texts: [TOKENS] * LENGTH, the first tokens of each text, however many rounds they took.
    slots: [DRAFTS + 1, TOKENS, TOKENS], in the first round: slot, token before it, token.
    recovered: [DRAFTS, TOKENS, TOKENS], those of ``slots`` that replaced a rejected draft.
    kept: [DRAFTS, TOKENS, 2], in the first round: slot, token before it, whether the draft was kept.
    """

    texts: Counts
    slots: Counts
    recovered: Counts
    kept: Counts


def generate(pair: Pair, name: str, texts: int = TEXTS) -> Seen:
    """Texts of LENGTH tokens and more, by rounds of DRAFTS drafts."""
    generator = torch.Generator(DEVICE)
    generator.manual_seed(77)
    seen = Seen(*(np.zeros(size) for size in (
        (TOKENS,) * LENGTH, (DRAFTS + 1, TOKENS, TOKENS), (DRAFTS, TOKENS, TOKENS), (DRAFTS, TOKENS, 2),
    )))  # fmt: skip
    for _ in range(texts // CHUNK):
        _generate_chunk(pair, name, generator, seen)
    return seen


def _generate_chunk(pair: Pair, name: str, generator: torch.Generator, seen: Seen) -> None:
    found = operator("rejection_sampler")
    scores, draft_rows = pair.target.log().to(DEVICE), pair.draft_rows.to(DEVICE)
    text = torch.full((CHUNK, LENGTH + DRAFTS + 1), -1, device=DEVICE)
    length = torch.zeros(CHUNK, dtype=torch.int64, device=DEVICE)
    last = torch.full((CHUNK,), START, device=DEVICE)
    first_round = True
    while bool((length < LENGTH).any()):
        tokens = [last]
        for _ in range(DRAFTS):
            uniform = torch.rand((CHUNK, 1), device=DEVICE, generator=generator)
            tokens.append((draft_rows[tokens[-1]].cumsum(1) <= uniform).sum(1).clamp(max=TOKENS - 1))
        before = torch.stack(tokens, 1)
        inputs = {
            "logits": scores[before],
            "temperature": torch.ones(CHUNK, device=DEVICE),
            "draft_tokens": before[:, 1:].to(torch.int32).contiguous(),
            "num_drafts": torch.full((CHUNK,), DRAFTS, dtype=torch.int32, device=DEVICE),
            "draft_probs": None if pair.draft is None else draft_rows[before[:, :-1]],
            "uniforms": torch.rand((CHUNK, DRAFTS), device=DEVICE, generator=generator),
            "final_uniforms": torch.rand(CHUNK, device=DEVICE, generator=generator),
        }
        outputs = found.make_outputs(inputs)
        found.implementations[name].prepare(inputs, outputs)()
        new, counts = outputs["tokens"].long(), outputs["counts"].long()
        if first_round:
            _count_slots(seen, before, new, counts)
        # Texts that are long enough are written over past their end.
        at = length.clamp(max=LENGTH)[:, None] + torch.arange(DRAFTS + 1, device=DEVICE)
        text.scatter_(1, at, torch.where(at >= length[:, None], new, text.gather(1, at)))
        length = length + counts
        last, first_round = new.gather(1, counts[:, None] - 1)[:, 0], False
    _count(seen.texts, *text[:, :LENGTH].T)


def _count(counts: Counts, *at: torch.Tensor) -> None:
    """Add 1 to ``counts`` at each of the places."""
    places = np.ravel_multi_index([axis.cpu().numpy() for axis in at], counts.shape)
    counts += np.bincount(places, minlength=counts.size).reshape(counts.shape)


def _count_slots(seen: Seen, before: torch.Tensor, new: torch.Tensor, counts: torch.Tensor) -> None:
    for slot in range(DRAFTS + 1):
        there = counts > slot
        _count(seen.slots[slot], before[there, slot], new[there, slot])
        if slot < DRAFTS:
            kept = (counts > slot + 1).long()[there]
            _count(seen.kept[slot], before[there, slot], kept)
            ended = counts == slot + 1
            _count(seen.recovered[slot], before[ended, slot], new[ended, slot])


def p_value(seen: Counts, probabilities: Counts) -> float:
    """Of counts [..., cells] whose every row should be multinomial with ``probabilities`` [..., cells].

    0 if a cell of probability 0 was seen. Rows that were never seen say nothing; cells of under five expected are added
    to the row's largest.
    """
    statistic, freedom = 0.0, 0
    for row, of_row in zip(seen.reshape(-1, seen.shape[-1]), probabilities.reshape(-1, seen.shape[-1]), strict=True):
        if row[of_row == 0].any():
            return 0.0
        total = row.sum()
        small = of_row * total < 5
        largest = int(of_row.argmax())
        small[largest] = False
        if total == 0 or (~small).sum() < 2:
            continue
        observed, expected = row.copy(), of_row * total
        observed[largest] += row[small].sum()
        expected[largest] += expected[small].sum()
        statistic += float(((observed - expected)[~small] ** 2 / expected[~small]).sum())
        freedom += int((~small).sum()) - 1
    return float(stats.chi2.sf(statistic, freedom)) if freedom else 1.0


def text_probabilities(target: Counts) -> Counts:
    """Of the first three tokens, one row."""
    texts: Counts = target[START][:, None, None] * target[:, :, None] * target[None]
    return texts.reshape(1, -1)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pair_names
def test_a_million_texts_follow_the_target(pair_name: str, name: str) -> None:
    pair = PAIRS[pair_name]
    target, draft = pair.target.double().numpy(), pair.draft_rows.double().numpy()
    seen = generate(pair, name)
    assert seen.texts.sum() == TEXTS
    assert p_value(seen.texts.reshape(1, -1), text_probabilities(target)) > LEVEL
    # Every slot by itself, whatever ended up in it; the last is the bonus token alone.
    for slot in range(DRAFTS + 1):
        assert p_value(seen.slots[slot], target) > LEVEL, slot
    keep = np.minimum(target, draft).sum(1)
    beyond = np.maximum(target - draft, 0)
    beyond /= np.maximum(beyond.sum(1, keepdims=True), 1e-300)
    for slot in range(DRAFTS):
        assert p_value(seen.kept[slot], np.stack((1 - keep, keep), 1).clip(0)) > LEVEL, slot
        assert p_value(seen.recovered[slot], beyond) > LEVEL, slot
    assert seen.recovered.sum() > 0 or pair_name == "equal"
    assert seen.slots[DRAFTS].sum() > 0


@pytest.mark.parametrize("pair_name", ["near", "far", "certain and likely"])
def test_recovering_from_the_whole_target_is_noticed(pair_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule that is easy to get wrong: after a rejection, p itself instead of what p gives beyond q."""
    monkeypatch.setattr(sampler, "residual", lambda target, draft: target)
    pair = PAIRS[pair_name]
    seen = generate(pair, "torch", texts=CHUNK)
    target = pair.target.double().numpy()
    assert p_value(seen.texts.reshape(1, -1), text_probabilities(target)) < LEVEL
    assert p_value(seen.slots[0], target) < LEVEL


def test_keeping_a_little_too_often_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts that count as 3 % less likely for the draft than they were are kept 3 % too often."""
    pair = PAIRS["near"]
    assert pair.draft is not None
    implementations = cast(dict[str, Implementation], sampler.REJECTION_SAMPLER.implementations)

    def hasty(inputs: Tensors) -> Outputs:
        return sampler.verify_drafts({**inputs, "uniforms": inputs["uniforms"] * 0.97})

    monkeypatch.setitem(implementations, "torch", replace(implementations["torch"], prepare=by_formula(hasty)))
    seen = generate(pair, "torch", texts=CHUNK)
    assert p_value(seen.texts.reshape(1, -1), text_probabilities(pair.target.double().numpy())) < LEVEL


def test_the_statistic_by_hand() -> None:
    half = np.array([[0.5, 0.5]])
    assert p_value(np.array([[50.0, 50.0]]), half) == 1.0
    assert p_value(np.array([[60.0, 40.0]]), half) == pytest.approx(stats.chisquare([60, 40]).pvalue)
    assert p_value(np.array([[1.0, 99.0]]), np.array([[0.0, 1.0]])) == 0.0
    # Two rows add up; one that was never seen does not count.
    rows, of_rows = np.array([[60.0, 40.0], [0.0, 0.0], [60.0, 40.0]]), np.repeat(half, 3, 0)
    assert p_value(rows, of_rows) == pytest.approx(stats.chi2.sf(8.0, 2))
