"""Choice of tokens from the logits: the sampler, and the rejection sampler of speculative decoding.

Sampler: softmax at a temperature and a draw, or the likeliest token. Inputs: ``logits`` [m, n] (n the vocabulary),
``temperature`` float32 [m], ``uniforms`` float32 [m] in [0, 1). Output: ``tokens`` int32 [m]. A draw is the inverse of
the cumulative distribution in the order of token ids: the first token whose cumulative weight exceeds ``uniform * sum
of weights``. Temperature 0 takes the likeliest token, of equal ones the first. Engines draw with noise for every token
instead (Gumbel's trick); the distribution is the same, and as numbers are inputs here, the answer can be compared.

Rejection sampler (arXiv 2211.17192, algorithm 1): outputs are distributed as the target's. Draft i, drawn from q_i, is
kept with probability min(1, p_i / q_i) of it; the first that is not is replaced by a token drawn from max(p_i - q_i, 0)
(recovered), and what follows it is dropped; if all are kept, one more is drawn from the last p (bonus). At temperature
0 a draft is kept if it is the likeliest token, and recovered and bonus tokens are the likeliest.

Inputs (q = drafts + 1 rows a sequence, n the vocabulary): ``logits`` [batch, q, n] of the target; ``temperature``
float32 [batch]; ``draft_tokens`` int32 [batch, q-1]; ``num_drafts`` int32 [batch], drafts of each sequence (later
columns may hold anything); ``draft_probs`` float32 [batch, q-1, n], or None where a draft was certain of its token
(n-gram, suffix, greedy drafts: q is one-hot); ``uniforms`` float32 [batch, q-1] for keeping, ``final_uniforms`` float32
[batch] for the recovered or bonus token, drawn as above. Outputs: ``tokens`` int32 [batch, q], -1 after the last, and
``counts`` int32 [batch], how many there are.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from draftcast.kernels.extras import torch
from draftcast.kernels.model.dtypes import activation_bytes
from draftcast.kernels.operators.cost import Work, as_array
from draftcast.kernels.operators.registry import Draw, Operator, Outputs, Shape, Tensors, by_formula, implementations


def sampler_work(rows: ArrayLike, vocab: ArrayLike, act_bytes: float = 2.0) -> Work:
    """Greedy or temperature sampling of ``rows`` of ``vocab`` logits, rejection sampler included.

    vLLM casts logits to fp32 (read 2, write 4), takes the softmax (read 4, write 4) and samples or compares (read 4):
    ``16 + act_bytes`` bytes and about 5 FLOPs an element.
    """
    elements = as_array(rows) * as_array(vocab)
    return Work(5.0 * elements, elements * (16.0 + act_bytes))


def probabilities(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Softmax of [..., n] in float32 (float64 for float64), ``temperature`` [...]; of temperature 0 that at 1."""
    scores = logits if logits.dtype == torch.float64 else logits.float()
    return torch.softmax(scores / torch.where(temperature > 0, temperature, 1.0)[..., None], -1)


def drawn(weights: torch.Tensor, uniforms: torch.Tensor, likeliest: torch.Tensor) -> torch.Tensor:
    """Tokens int64 [rows] drawn by any ``weights`` [rows, n]; ``likeliest`` where rounding leaves none positive."""
    cumulative = weights.cumsum(1)
    tokens = torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True)
    tokens = tokens.clamp_(max=weights.shape[1] - 1)
    return torch.where(weights.gather(1, tokens) > 0, tokens, likeliest[:, None])[:, 0]


def _sampler_inputs(shape: Shape, draw: Draw) -> dict[str, Any]:
    """Normal logits at temperature 1: every row is drawn."""
    m, n = shape["m"], shape["n"]
    temperature = torch.ones(m, device=draw.device)
    return {"logits": draw.normal(m, n, scale=2.0), "temperature": temperature, "uniforms": draw.uniform(m)}


def _sampler_reference(inputs: Tensors) -> Outputs:
    """Of a row for each sequence, which has no drafts."""
    drafts = inputs["logits"].new_empty((len(inputs["logits"]), 0), dtype=torch.int32)
    without = {"draft_tokens": drafts, "num_drafts": drafts.sum(1), "draft_probs": None, "uniforms": drafts}
    rows = {**inputs, **without, "logits": inputs["logits"][:, None], "final_uniforms": inputs["uniforms"]}
    return {"tokens": _rejection_reference(rows)["tokens"][:, 0]}


def _sampled(inputs: Tensors) -> Outputs:
    logits, temperature = inputs["logits"], inputs["temperature"]
    likeliest = logits.argmax(1)
    chosen = drawn(probabilities(logits, temperature), inputs["uniforms"], likeliest)
    return {"tokens": torch.where(temperature > 0, chosen, likeliest)}


SAMPLER = Operator(
    name="sampler",
    work=lambda shape, dtype, kv_dtype: sampler_work(shape["m"], shape["n"], activation_bytes(dtype)),
    draw_inputs=_sampler_inputs,
    make_outputs=lambda inputs: {"tokens": inputs["logits"].new_empty(len(inputs["logits"]), dtype=torch.int32)},
    reference=_sampler_reference,
    implementations=implementations(by_formula(_sampled), "sampler:prepare"),
)


def _rejection_inputs(shape: Shape, draw: Draw) -> dict[str, Any]:
    """Normal logits at temperature 1; q-1 certain drafts of each sequence, half the likeliest token, the others any."""
    batch, q, n = shape["batch"], shape["q"], shape["n"]
    drafts = (batch, q - 1)
    logits = draw.normal(batch, q, n, scale=2.0)
    tokens = torch.where(draw.uniform(*drafts) < 0.5, logits[:, :-1].argmax(2), draw.integers(0, n, *drafts))
    return {
        "logits": logits,
        "temperature": torch.ones(batch, device=draw.device),
        "draft_tokens": tokens.to(torch.int32),
        "num_drafts": draw.equal(batch, q - 1),
        "draft_probs": None,
        "uniforms": draw.uniform(*drafts),
        "final_uniforms": draw.uniform(batch),
    }


def _rejection_outputs(inputs: Tensors) -> Outputs:
    shape, empty = inputs["logits"].shape[:2], inputs["draft_tokens"].new_empty
    return {"tokens": empty(shape), "counts": empty(shape[0])}


def _rejection_reference(inputs: Tensors) -> Outputs:
    """Sequence by sequence in float64, as the algorithm is written."""
    outputs = _rejection_outputs(inputs)
    for sequence, temperature in enumerate(inputs["temperature"].tolist()):
        drafts = inputs["draft_tokens"][sequence, : inputs["num_drafts"][sequence]].tolist()
        logits = inputs["logits"][sequence, : len(drafts) + 1].double()
        target = torch.softmax(logits / (temperature or 1.0), 1)
        likeliest = [int((row == row.max()).nonzero()[0]) for row in logits]
        tokens: list[int] = []
        for place, draft in enumerate(drafts):
            q = torch.zeros_like(target[0])
            q[draft] = 1.0
            if inputs["draft_probs"] is not None:
                q = inputs["draft_probs"][sequence, place].double()
            ratio = float(target[place, draft] / q[draft]) if q[draft] > 0 else 0.0
            kept = float(inputs["uniforms"][sequence, place]) < ratio
            if not (draft == likeliest[place] if temperature == 0 else kept):
                weights = (target[place] - q).clamp(min=0)
                break
            tokens.append(draft)
        else:
            weights = target[len(drafts)]
        place = len(tokens)
        cumulative = weights.cumsum(0)
        over = (cumulative > float(inputs["final_uniforms"][sequence]) * cumulative[-1]).nonzero()
        tokens.append(int(over[0]) if temperature > 0 and len(over) else likeliest[place])
        outputs["counts"][sequence] = len(tokens)
        outputs["tokens"][sequence] = torch.tensor(tokens + [-1] * (inputs["logits"].shape[1] - len(tokens)))
    return outputs


def residual(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """Weights of the recovered token: what the target gives beyond the draft."""
    return (target - draft).clamp_(min=0)


def verify_drafts(inputs: Tensors) -> Outputs:
    """Tokens [batch, q] and counts [batch]; see the module's docstring. Nothing is read back to the host."""
    logits, draft_probs, temperature = inputs["logits"], inputs["draft_probs"], inputs["temperature"]
    (batch, q, n), drafts = logits.shape, logits.shape[1] - 1
    likeliest = logits.argmax(2)
    target = probabilities(logits, temperature[:, None].expand(batch, q))
    num_drafts = inputs["num_drafts"][:, None].long()
    slots = torch.arange(q, device=logits.device)
    is_draft = slots[:-1] < num_drafts
    tokens = inputs["draft_tokens"].long().where(is_draft, 0)
    p = target[:, :-1].gather(2, tokens[..., None])[..., 0]
    q_drafted = torch.ones_like(p) if draft_probs is None else draft_probs.gather(2, tokens[..., None])[..., 0]
    kept = (inputs["uniforms"] * q_drafted < p) & (q_drafted > 0)
    kept = torch.where(temperature[:, None] > 0, kept, tokens == likeliest[:, :-1]) & is_draft
    length = kept.long().cumprod(1).sum(1, keepdim=True)
    weights = target.gather(1, length[..., None].expand(batch, 1, n))[:, 0]
    if drafts:
        place = length.clamp(max=drafts - 1)
        if draft_probs is None:
            draft = torch.zeros_like(weights).scatter_(1, tokens.gather(1, place), 1.0)
        else:
            draft = draft_probs.gather(1, place[..., None].expand(batch, 1, n))[:, 0]
        weights = torch.where(length < num_drafts, residual(weights, draft), weights)
    best = likeliest.gather(1, length)[:, 0]
    final = torch.where(temperature > 0, drawn(weights, inputs["final_uniforms"], best), best)
    padded = torch.cat((tokens, tokens.new_zeros((batch, 1))), 1)
    result = torch.where(slots < length, padded, torch.where(slots == length, final[:, None], -1))
    return {"tokens": result, "counts": length[:, 0] + 1}


REJECTION_SAMPLER = Operator(
    name="rejection_sampler",
    work=lambda shape, dtype, kv_dtype: sampler_work(shape["batch"] * shape["q"], shape["n"], activation_bytes(dtype)),
    draw_inputs=_rejection_inputs,
    make_outputs=_rejection_outputs,
    reference=_rejection_reference,
    implementations=implementations(by_formula(verify_drafts), "sampler:prepare_rejection"),
)
