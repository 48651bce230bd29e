"""The fluid estimate beside the simulation.

``python benchmarks/fluid.py``: by setting, with speculation and without, the error of its capacity, and of the mean E2E
latency at shares of the simulated capacity; then one JSON line. Three minutes.
"""

import json

from draftcast import load_scenario
from draftcast.scenarios.compare.capacity import capacity
from draftcast.scenarios.run.fluid import FluidModel
from draftcast.scenarios.run.simulate import simulate_together
from draftcast.scenarios.schema import Scenario, with_values, without_speculation
from draftcast.scenarios.show.tables import aligned

MTP = ("engine.speculative_config={method: mtp, num_speculative_tokens: 2}", "acceptance={model: chain, alpha: 0.8}")
DEEPSEEK = ("engine.model=DeepSeek-V3", "hardware=h200", *MTP)
SETTINGS: dict[str, tuple[str, ...]] = {
    "Llama-3.1-8B, H100": (),
    "the same, prompts of 6,000 tokens": ("workload.lengths={prompt_tokens: 6000, output_tokens: 200}",),
    "the same, SGLang": ("engine.version=sglang 0.5.9",),
    "DeepSeek-V3, 8 x H200": (*DEEPSEEK, "engine.tensor_parallel_size=8"),
    "the same, 8 data-parallel ranks": (*DEEPSEEK, "engine.data_parallel_size=8", "engine.enable_expert_parallel=true"),
    "Qwen3.5-27B, B200": ("engine.model=Qwen3.5-27B", "hardware=b200", *MTP),
}
SHARES = (0.02, 0.3, 0.7, 0.85)


def errors(scenario: Scenario) -> list[float]:
    """Of the capacity, then of the latency at `SHARES` of it."""
    simulated, fluid = capacity(scenario), FluidModel.of(scenario)
    assert simulated is not None
    most_rps = simulated.estimate.mean
    result = [fluid.capacity_rps() / most_rps - 1]
    for share in SHARES:
        rate_rps = share * most_rps
        load = {"workload.arrivals.request_rate_rps": rate_rps, "workload.num_requests": 3000}
        (run,) = simulate_together([with_values(scenario, load | {"statistics.replications": 2})])
        result.append(fluid.in_system(rate_rps) / rate_rps / run.summary["figures"]["mean_e2el_s"].mean - 1)
    return result


def main() -> None:
    rows = [("setting", "speculation", "capacity", *(f"latency at {share:.0%}" for share in SHARES))]
    answers = {}
    for name, overrides in SETTINGS.items():
        loaded = load_scenario(overrides=overrides)
        for side, scenario in (("on", loaded), ("off", without_speculation(loaded))):
            row = answers[f"{name}, {side}"] = errors(scenario)
            rows.append((name, side, *(f"{error:+.0%}" for error in row)))
    print(*aligned(rows), sep="\n")
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
