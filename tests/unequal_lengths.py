"""Inputs of an operator, which are drawn of equal lengths, with lengths that differ."""

from __future__ import annotations

from typing import Any

import torch


def with_unequal(inputs: dict[str, Any], name: str, least: int, generator: torch.Generator) -> dict[str, Any]:
    """The inputs with a random length from ``least`` on, no longer than before, for every sequence but the first."""
    lengths = inputs[name].clone()
    most = int(lengths[0])
    drawn = torch.randint(least, most + 1, lengths.shape, device=lengths.device, generator=generator)
    lengths[1:] = drawn[1:].to(lengths.dtype)
    return {**inputs, name: lengths}
