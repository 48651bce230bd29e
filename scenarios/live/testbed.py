"""A scenario for a testbed: what `draftcast live checkpoint` writes beside the checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftcast.calibration.live.checkpoint import DTYPES, TARGET, draft_folder
from draftcast.calibration.yaml_text import write_yaml
from draftcast.errors import LiveError
from draftcast.files import write_text

SCENARIO = "scenario.yaml"


def testbed_scenario(folder: Path, rates: Sequence[float], ks: Sequence[int], dtype: str, hardware: str) -> Path:
    """Write ``folder/scenario.yaml``: the target with the draft of the largest k, a light Poisson load.

    Raises:
        LiveError: the disk refuses.
    """
    k = max(ks)
    engine: dict[str, Any] = {
        "model": TARGET,
        "dtype": DTYPES[dtype],
        "max_model_len": 2048,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        # vLLM's attention on a CPU takes multiples of 32, and graphs there would need a compiler.
        "block_size": 32 if hardware == "cpu" else 16,
        "enforce_eager": hardware == "cpu",
        "speculative_config": {
            "method": "draft_model",
            "model": draft_folder(k),
            "num_speculative_tokens": k,
        },
    }
    content = {
        "schema_version": 1,
        "name": f"testbed, draft_model k={k}",
        "engine": engine,
        "hardware": hardware,
        "workload": {
            "arrivals": {"process": "poisson", "request_rate_rps": 1.0},
            "num_requests": 60,
            "lengths": {
                "prompt_tokens": {"distribution": "uniform", "low": 64, "high": 192},
                "output_tokens": {"distribution": "uniform", "low": 32, "high": 96},
            },
        },
        "acceptance": {"model": "per_position", "rates": [float(rate) for rate in rates]},
    }
    path = folder / SCENARIO
    write_text(path, write_yaml(content), LiveError)
    return path
