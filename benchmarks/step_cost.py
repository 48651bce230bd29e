"""Loading profiles and compiling step costs: ``.venv/bin/python benchmarks/step_cost.py`` (part of ``make bench``).

Prints the best of several rounds, since machines are shared: loading every bundled profile, compiling the step cost of
every bundled model on the H100's, and one `step_time` call with measured attention and without. The last line is JSON.
"""

import argparse
import json
import timeit
from collections.abc import Callable
from functools import partial

from numba import njit

from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import load_profile, profile_names
from draftcast.kernels.model.catalog import load_model, model_names
from draftcast.scenarios.show.profile_view import fits_any_device, open_profile
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.methods import METHODS
from draftcast.sim.cost.step_cost import compile_step_cost

ROUNDS = 5
DEVICE = "h100-sxm"
CALLS = 200_000


def best_ms(run: Callable[[], object]) -> float:
    return 1e3 * min(timeit.repeat(run, number=1, repeat=ROUNDS))


@njit(cache=False)
def _calls(cost: st.StepCost, features: st.Record, out: st.Record, times: int) -> float:
    total = 0.0
    for _ in range(times):
        st.step_time(cost, features, out)
        total += out["target_s"]
    return total


def step_ns(profile_name: str) -> float:
    """Nanoseconds of one `step_time` call: 64 requests verifying three EAGLE-3 drafts."""
    cost = _compiled("Llama-3.1-8B", profile_name)
    features, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    st.decode_features(cost, 64, 3, 1000.0, features)
    _calls(cost, features, out, 10)
    return best_ms(lambda: _calls(cost, features, out, CALLS)) * 1e6 / CALLS


def _compiled(model: str, profile_name: str) -> st.StepCost:
    hardware, spec = load_hardware(DEVICE), load_model(model)
    profile = load_profile(profile_name, hardware)  # anew each time: a profile keeps what it has read
    drafting = {} if spec.is_mla else {"method": METHODS["eagle3"], "num_speculative_tokens": 3}
    return compile_step_cost(EngineConfig(**drafting), spec, None, profile)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    devices = {name: DEVICE if fits_any_device(name) else None for name in profile_names()}
    loads = {name: best_ms(partial(open_profile, name, device)) for name, device in devices.items()}
    compiles = {name: best_ms(partial(_compiled, name, DEVICE)) for name in model_names()}
    steps = {name: step_ns(name) for name in (DEVICE, "default")}
    shown = {
        "profile load, ms": loads,
        "step cost compile, profile load included, ms": compiles,
        "step_time call, ns": steps,
    }
    for title, figures in shown.items():
        print(f"{title}:")
        for name, value in figures.items():
            print(f"  {name:<28} {value:8.1f}")
    print(f"measured attention costs {steps[DEVICE] / steps['default']:.2f} times a roofline's step_time")
    print(json.dumps({"load_ms": loads, "compile_ms": compiles, "step_ns": steps}))


if __name__ == "__main__":
    main()
