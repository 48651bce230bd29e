"""Look-up of token embeddings: ``y[i] = table[tokens[i]]``.

Inputs: ``table`` [k, n] (k the vocabulary, n the hidden size) and ``tokens`` int64 [m]. Output: ``y`` [m, n].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from draftcast.kernels.model.dtypes import activation_bytes, torch_dtype
from draftcast.kernels.operators.cost import Work, as_array, moved_work
from draftcast.kernels.operators.registry import Operator, Shape, implementations

if TYPE_CHECKING:
    import torch


def embedding_work(m: ArrayLike, n: ArrayLike, act_bytes: float = 2.0) -> Work:
    """A row of ``n`` read and written for each of ``m`` tokens."""
    return moved_work(2.0 * as_array(m) * as_array(n), act_bytes)


def make_inputs(
    shape: Shape, dtype: str, kv_dtype: str, device: str, generator: torch.Generator
) -> dict[str, Any]:  # fmt: skip
    import torch

    table = torch.randn((shape["k"], shape["n"]), device=device, generator=generator, dtype=torch.float32)
    tokens = torch.randint(shape["k"], (shape["m"],), device=device, generator=generator)
    return {"table": table.to(torch_dtype(dtype)), "tokens": tokens}


def make_outputs(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    table = inputs["table"]
    return {"y": table.new_empty((len(inputs["tokens"]), table.shape[1]))}


def reference(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {"y": inputs["table"].double()[inputs["tokens"]]}


def _prepare_torch(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Callable[[], None]:
    import torch

    table, tokens, y = inputs["table"], inputs["tokens"], outputs["y"]

    def launch() -> None:
        torch.index_select(table, 0, tokens, out=y)

    return launch


EMBEDDING = Operator(
    name="embedding",
    shape_fields=("m", "n", "k"),
    dtypes=("fp32", "bf16"),
    work=lambda shape, dtype, kv_dtype: embedding_work(shape["m"], shape["n"], activation_bytes(dtype)),
    make_inputs=make_inputs,
    make_outputs=make_outputs,
    reference=reference,
    implementations=implementations(_prepare_torch, "draftcast.kernels.operators.triton.embedding:prepare"),
)
