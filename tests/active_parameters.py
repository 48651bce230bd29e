"""How many of a model's parameters one token uses, for comparison with model cards."""

from __future__ import annotations

from draftcast.kernels.model.spec import ModelSpec


def active_parameters(model: ModelSpec) -> int:
    """All but the idle experts. Both embedding tables count in full."""
    per_expert = (3 if model.gated_mlp else 2) * model.expert_input_size * model.moe_intermediate_size
    if model.expert_bias:
        per_expert += 2 * model.moe_intermediate_size + model.hidden_size
    return model.num_parameters - model.num_moe_layers * (model.num_experts - model.num_experts_per_tok) * per_expert
