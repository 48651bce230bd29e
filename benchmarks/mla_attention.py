"""Latent attention (DeepSeek-V3) as a profile extrapolates it, against NVIDIA's timings of vLLM's whole MLA module.

    pip download --no-deps aiconfigurator-core==0.12.0 && unzip -d DIR aiconfigurator_core-*.whl
    python benchmarks/mla_attention.py --source DIR

aiconfigurator-core times the module with its projections, so no table can hold the attention alone; here the profile's
matrices and attention of one layer are added up and divided by the module's time. The module's norms, rotary embedding
and cache write are in its time and not in the sum. Prints a table and a JSON line.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from draftcast.calibration.importers.aiconfigurator import SYSTEMS, find_system, newest
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import load_profile
from draftcast.calibration.profile.spec import RooflineProfile
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.operators.attention import attention_work
from draftcast.kernels.work.layers import linear_layers
from draftcast.sim.cost.operator_tables import OperatorTables

PROJECTIONS = ("qkv_a", "q_b", "kv_b", "o")
DEGREES = (1, 2, 4, 8, 16)


def ratios(source: Path, device: str, phase: str, tp: int) -> np.ndarray:
    """Predicted over measured seconds of every bf16 point of the module at one tensor-parallel degree."""
    hardware, model = load_hardware(device), load_model("DeepSeek-V3")
    profile = load_profile(device, hardware)
    assert isinstance(profile, RooflineProfile)
    file = newest(find_system(source, hardware) / "mla" / "vllm", f"mla_{phase}_module_perf.parquet")
    if file is None:
        return np.empty(0)
    frame = pq.read_table(file).to_pandas()
    heads = model.num_attention_heads // tp
    frame = frame[
        (frame["gemm_type"] == "bfloat16") & (frame["kv_cache_dtype"] == "bfloat16") & (frame["num_heads"] == heads)
    ]
    batch, q = (frame[name].to_numpy(np.float64) for name in ("batch_size", "isl"))
    context = frame["step"].to_numpy(np.float64) + q
    rows = (batch * q).astype(np.int64)
    tables = OperatorTables(profile, tp, "bf16")
    matrices = [layer for layer in linear_layers(model, tp) if layer.name in PROJECTIONS]
    seconds = sum((tables.linear(layer, rows).sum(axis=1) / layer.count for layer in matrices), np.zeros(len(rows)))
    decode = phase == "generation"
    pairs = batch * (q * context - (0.0 if decode else 0.5 * q * (q - 1.0)))
    work = attention_work(model, rows, batch * context, pairs, tp=tp, absorbed=decode)
    seconds = seconds + profile.seconds_of("attention_decode" if decode else "attention_prefill", "bf16")(work)
    return np.asarray(seconds / (1e-3 * frame["latency"].to_numpy()))


def main() -> None:
    """Print the tables and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="folder that holds aiconfigurator_core")
    source = parser.parse_args().source
    rows = []
    print(f"{'device':<16}{'phase':<12}{'tp':>3}{'points':>8}{'p10':>8}{'median':>8}{'p90':>8}   predicted / measured")
    for device in SYSTEMS:
        if device == "h100-pcie":  # no bundled profile
            continue
        for phase in ("generation", "context"):
            for tp in DEGREES:
                found = ratios(source, device, phase, tp)
                if len(found):
                    p10, median, p90 = np.quantile(found, (0.1, 0.5, 0.9))
                    print(f"{device:<16}{phase:<12}{tp:>3}{len(found):>8}{p10:>8.2f}{median:>8.2f}{p90:>8.2f}")
                    figures = {"p10": p10, "median": median, "p90": p90}
                    rows.append({"device": device, "phase": phase, "tp": tp, "points": len(found), **figures})
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
