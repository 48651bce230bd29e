"""Checkpoints in fp8 with a scale for each block of a matrix: which ranks cut within a block, and who refuses it.

A config that gives ``weight_block_size`` is one, and a name that says so (``fp8_blocks`` of ``formats.yaml``); weights
that the engine itself quantises to fp8 have a scale a tensor. It follows vLLM 0.32 (``validate_fp8_block_shape`` and
``refine_fp8_moe_block_shape``) and SGLang 0.5.20 (``layers/quantization/fp8.py``), which check parts as they load them.
"""

import math
from dataclasses import replace

from draftcast.calibration.profile.engines import is_since
from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.errors import ScenarioError
from draftcast.kernels.model.matrices import matrices
from draftcast.kernels.model.spec import ModelSpec
from draftcast.sim.cost.engine_config import EngineConfig

_LEAST_BLOCK = 32  # that the Triton kernels of cut experts take
_BY_INPUTS = ("o", "window_o", "linear_out", "down", "fc2", "shared_down")  # matrices whose inputs ranks divide


def cut_expert(config: EngineConfig, model: ModelSpec) -> int:
    """Width of an expert's part on one rank if it is not made of whole blocks, else 0."""
    ranks = config.tensor_parallel_size * config.lockstep_ranks // config.expert_groups
    if model.weight_block is None or "experts" not in _groups(config, model):
        return 0
    part = math.ceil(model.moe_intermediate_size / ranks)
    return part if ranks > 1 and any(part % size for size in model.weight_block) else 0


def check_blocks(config: EngineConfig, model: ModelSpec, hardware: HardwareSpec) -> None:
    """Raise ScenarioError where the engine does not start, because ranks cut within blocks. Experts run from some
    version on if smaller blocks divide their parts; no other matrix does, and expert parallelism helps none."""
    block, tp = model.weight_block, config.tensor_parallel_size
    if block is None or tp * config.lockstep_ranks == 1:
        return
    why = f"no whole fp8 blocks of {block[0]} x {block[1]} of the checkpoint, and {config.version} does not start"
    groups = _groups(config, model) - {"experts"}
    if config.enable_expert_parallel and config.lockstep_ranks > 1:
        groups -= {"shared_experts"}  # whole on every rank where tokens are
    for matrix in matrices(model, tp, tp):
        if tp > 1 and matrix.name in _BY_INPUTS and matrix.group in groups and matrix.k % block[1]:
            message = f"leaves {matrix.k} inputs of matrix {matrix.name} to a rank: {why}; a smaller one works"
            raise ScenarioError(message, key="engine.tensor_parallel_size", value=tp)
    if part := cut_expert(config, model):
        is_run = is_since(config.version, config.generation.cuts_blocks_since.get(hardware.vendor))
        if not is_run or math.gcd(*block, part, model.hidden_size) < _LEAST_BLOCK:
            in_groups = config.enable_expert_parallel
            fewer = [replace(config, tensor_parallel_size=degree) for degree in range(1, tp) if tp % degree == 0]
            works = [str(alike.tensor_parallel_size) for alike in fewer if not (in_groups or cut_expert(alike, model))]
            whole = "a larger expert_parallel_size works" if in_groups else "enable_expert_parallel works"
            instead = f"{', '.join(works)} or {whole}" if works else whole
            message = f"leaves {part} of an expert's {model.moe_intermediate_size} columns to a rank: {why}; {instead}"
            raise ScenarioError(message, key="engine.tensor_parallel_size", value=tp)


def _groups(config: EngineConfig, model: ModelSpec) -> set[str]:
    """Groups of `ModelSpec.parameter_groups` in fp8 by blocks, as served."""
    return {group for group, dtype, _ in model.formats if dtype == "fp8" and config.weight_dtype == model.quantization}
