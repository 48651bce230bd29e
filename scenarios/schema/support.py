"""Which engine runs which method, from which version on and up to which; for what is not said nothing is known."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Lack:
    """An engine does not run a method in versions from ``since`` on and before ``until``; empty: no such end."""

    why: str
    since: tuple[int, ...] = ()
    until: tuple[int, ...] = ()


_PARALLEL = Lack("parallel drafting is vLLM pull request 32887, of 2026", until=(0, 15))
_NO_LSTM = Lack("it has no LSTM speculator of Arctic Inference")
_NO_MLP = Lack("it has no MLP speculator")
_NO_TREES = Lack("it drafts no trees (sglang 0.5 does)", since=(0, 32))
LACKS: dict[tuple[str, str], Lack] = {
    # The registry of 0.32 (model_executor/models/registry.py) has it commented out until V1 supports it. V0, which ran
    # it, lost its speculation in July 2025 (vLLM PR 21152, perhaps in 0.10 already) and was gone in 0.11.
    ("vllm", "mlp_speculator"): Lack("V1 never had the MLP speculator, and vLLM 0.11 has no V0", since=(0, 11)),
    # docs/version_compatibility.md of Arctic Inference: each release refuses every other version of vLLM.
    ("vllm", "arctic"): Lack("Arctic Inference 0.1.1, its last release, is for vLLM 0.11.0", since=(0, 12)),
    ("vllm", "suffix"): Lack("suffix decoding is vLLM pull request 25784, opened after 0.10", until=(0, 11)),
    # Issues 26547 (of 0.11) and 31883 (of 0.13); pull request 24322 of January 2026 brought it to V1.
    ("vllm", "draft_model"): Lack(
        "V0's draft models were gone and V1 had none yet (vLLM issue 31883)", since=(0, 11), until=(0, 14)
    ),
    ("vllm", "p_eagle"): _PARALLEL,
    ("vllm", "pard"): _PARALLEL,
    ("vllm", "dflash"): Lack("vLLM pull request 34014 found no DFlash in it after 0.15", until=(0, 16)),
    # A head of method dflash.
    ("vllm", "dflash2"): Lack("DFlash2 heads came with vLLM 0.28 (release notes; pull request 52816)", until=(0, 28)),
    ("vllm", "dspark"): Lack(
        "DSpark came to vLLM's pull requests (46965) in the end of June 2026, after 0.21", until=(0, 22)
    ),
    # Its configuration knew `speculative_token_tree` before; what of it ran is not known here.
    ("vllm", "eagle_tree"): _NO_TREES,
    ("vllm", "ngram_tree"): _NO_TREES,
    # SGLang 0.5.23: SpeculativeAlgorithm (srt/speculative/spec_info.py).
    ("sglang", "p_eagle"): Lack("it has no parallel EAGLE head"),
    ("sglang", "pard"): Lack("it has no parallel draft model"),
    ("sglang", "medusa"): Lack("it has no Medusa heads"),
    ("sglang", "mlp_speculator"): _NO_MLP,
    ("sglang", "arctic"): _NO_LSTM,
    # Merged on 2026-08-19; v0.5.18 of 2026-08-22 was cut from an earlier state.
    ("sglang", "dflash2"): Lack("DFlash2 heads came with SGLang 0.5.19 (pull request 35371)", until=(0, 5, 19)),
    ("sglang", "ngram_gpu"): Lack("its n-gram search runs on the host (method ngram)"),
    ("sglang", "suffix"): Lack("it has no suffix decoding"),
    # TensorRT-LLM 1.3: the DecodingConfigs of its PyTorch backend (llmapi/llm_args.py).
    ("trtllm", "eagle"): Lack("its EAGLE is EAGLE-3, whose heads are others"),
    ("trtllm", "eagle_tree"): Lack("its trees are of EAGLE-3 heads; the draft's name does not say eagle3"),
    ("trtllm", "p_eagle"): Lack("it has no parallel EAGLE head"),
    ("trtllm", "medusa"): Lack("its PyTorch backend has no Medusa heads"),
    ("trtllm", "mlp_speculator"): _NO_MLP,
    ("trtllm", "arctic"): _NO_LSTM,
    ("trtllm", "ngram_tree"): Lack("its n-gram drafts are chains"),
    ("trtllm", "suffix"): Lack("it has no suffix decoding over earlier outputs"),
}
RESEARCH = {
    "draft_ahead": "no engine's release has a draft on GPUs of its own that works while the target verifies",
    # MedusaDecodingConfig.medusa_choices of TensorRT-LLM; its pull request 15918 of July 2026 took the backend away.
    "medusa_tree": "TensorRT-LLM's TensorRT backend, gone since 2026, alone verified trees of Medusa heads",
}
"""Methods that are simulated for every engine, though none has a command for them, and why none has."""


def cannot_run(engine: str, number: tuple[int, ...], method: str) -> str | None:
    """Why a version of an engine cannot run a method; None where it can, or nothing is known."""
    lack = LACKS.get((engine, method))
    if lack is None or number < lack.since or (lack.until and number >= lack.until):
        return None
    return lack.why
