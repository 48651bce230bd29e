"""Choice of a token from the logits."""

from __future__ import annotations

from numpy.typing import ArrayLike

from draftcast.kernels.work import Work, as_array


def sampler_work(rows: ArrayLike, vocab: float, act_bytes: float = 2.0) -> Work:
    """Greedy or temperature sampling of ``rows`` of ``vocab`` logits, rejection sampler included.

    vLLM casts logits to fp32 (read 2, write 4), takes the softmax (read 4, write 4) and samples or compares (read 4):
    ``16 + act_bytes`` bytes and about 5 FLOPs an element.
    """
    elements = as_array(rows) * vocab
    return Work(5.0 * elements, elements * (16.0 + act_bytes))
