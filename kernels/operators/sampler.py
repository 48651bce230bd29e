"""Choice of a token from the logits: softmax at a temperature and a draw, or the likeliest token.

Inputs: ``logits`` [m, n] (n the vocabulary), ``temperature`` float32 [m], ``uniforms`` float32 [m] in [0, 1). Output:
``tokens`` int32 [m]. A draw is the inverse of the cumulative distribution in the order of token ids: the first token
whose cumulative weight exceeds ``uniform * sum of weights``. Temperature 0 takes the likeliest token, of equal ones the
first. Engines draw with noise for every token instead (Gumbel's trick); the distribution is the same, and as numbers
are inputs here, the answer can be compared.
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
    found = torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True)
    found = found.clamp_(max=weights.shape[1] - 1)
    return torch.where(weights.gather(1, found) > 0, found, likeliest[:, None])[:, 0]


def _draw_inputs(shape: Shape, draw: Draw) -> dict[str, Any]:
    """Normal logits at temperature 1: every row is drawn."""
    m, n = shape["m"], shape["n"]
    temperature = torch.ones(m, device=draw.device)
    return {"logits": draw.normal(m, n, scale=2.0), "temperature": temperature, "uniforms": draw.uniform(m)}


def _reference(inputs: Tensors) -> Outputs:
    """Row by row in float64."""
    tokens = []
    for row, temperature, uniform in zip(
        inputs["logits"].double(), inputs["temperature"].tolist(), inputs["uniforms"].tolist(), strict=True
    ):
        if temperature == 0:
            tokens.append(int((row == row.max()).nonzero()[0]))
            continue
        cumulative = torch.exp(row / temperature - (row / temperature).max()).cumsum(0)
        tokens.append(int((cumulative > uniform * cumulative[-1]).nonzero()[0]))
    return {"tokens": torch.tensor(tokens, dtype=torch.int32, device=inputs["logits"].device)}


def _sampled(inputs: Tensors) -> Outputs:
    logits, temperature = inputs["logits"], inputs["temperature"]
    likeliest = logits.argmax(1)
    chosen = drawn(probabilities(logits, temperature), inputs["uniforms"], likeliest)
    return {"tokens": torch.where(temperature > 0, chosen, likeliest)}


SAMPLER = Operator(
    name="sampler",
    work=lambda shape, dtype, kv_dtype: sampler_work(shape["m"], shape["n"], activation_bytes(dtype)),
    draw_inputs=_draw_inputs,
    make_outputs=lambda inputs: {"tokens": inputs["logits"].new_empty(len(inputs["logits"]), dtype=torch.int32)},
    reference=_reference,
    implementations=implementations(by_formula(_sampled), "sampler:prepare"),
)
