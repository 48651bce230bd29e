"""Decode steps of every bundled model against their floor, the bytes they touch at the device's bandwidth.

A step must take no less, and with CUDA graphs no more than four times that and 40 us a layer (80 on several ranks) and
1 ms. Models run in bf16, or in fp8 where they do not fit in bf16, at every degree up to 8 at which they fit. Prints the
steps that are outside and one last JSON line.

    python benchmarks/model_bounds.py [--devices h200,mi300x] [--models TEXT]
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import typer

from draftcast.calibration.profile.hardware import hardware_names, load_hardware
from draftcast.calibration.profile.load import load_profile
from draftcast.errors import DraftcastError
from draftcast.kernels.model.catalog import load_model, model_names
from draftcast.kernels.model.spec import WINDOWS
from draftcast.scenarios.compare.limits import target_work
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.memory import memory_budget
from draftcast.sim.cost.step_cost import compile_step_cost

BATCHES = tuple(2**i for i in range(9))
CONTEXT = 1024
DEVICES = ",".join(name for name in hardware_names() if name != "cpu")


def steps(name: str, device: str) -> Iterator[dict[str, Any]]:
    """Every step of a model on a device with its bounds, in seconds."""
    model, hardware = load_model(name), load_hardware(device)
    for tp in (1, 2, 4, 8):
        for dtype in ("bf16", "fp8"):
            config = EngineConfig(
                is_moe=model.is_moe, tensor_parallel_size=tp, weight_dtype=dtype, max_num_batched_tokens=512,
                max_model_len=2048, window_kind=WINDOWS.index(model.window_kind),
            )  # fmt: skip
            try:
                room = memory_budget(config, model, None, hardware).max_concurrency(CONTEXT)
            except DraftcastError:
                continue  # does not fit, or the degree does not divide its heads
            cost = compile_step_cost(config, model, None, load_profile(None, hardware))
            f, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
            for batch in BATCHES:
                if batch <= room:
                    st.decode_features(cost, batch, 0, CONTEXT, f)
                    st.step_time(cost, f, out)
                    # Weights that the batch touches and the context it reads, at the memory's bandwidth.
                    moved = sum(work.bytes for kind, _, work in target_work(model, config, f) if kind != "elementwise")
                    floor = float(moved) / hardware.ceilings("attention_decode", "bf16")[1]
                    seconds = float(out["target_s"] + out["sample_s"])
                    most = 4 * floor + (40e-6 if tp == 1 else 80e-6) * model.num_hidden_layers + 1e-3
                    yield {"model": name, "device": device, "tp": tp, "dtype": dtype, "batch": batch,
                           "seconds": seconds, "floor_s": floor, "most_s": most}  # fmt: skip
            break


def main(devices: str = DEVICES, models: str = "") -> None:
    names = [name for name in model_names() if models in name]
    timed = [step for device in devices.split(",") for name in names for step in steps(name, device)]
    outside = [step for step in timed if not step["floor_s"] <= step["seconds"] <= step["most_s"]]
    for step in outside:
        print(*(f"{value * 1e3:9.3f}" if isinstance(value, float) else value for value in step.values()))
    share = np.quantile([step["seconds"] / step["floor_s"] for step in timed], [0.0, 0.5, 1.0]) if timed else []
    print(json.dumps({"steps": len(timed), "outside": len(outside), "over_floor": [round(float(x), 3) for x in share]}))


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
