"""Speed of the engine: steps per second, a million requests, a small warm run, first result, seconds of compiling.

Run it with ``make bench``; it prints a table for people and one last JSON line for machines. Machines are shared and
noisy, so steps per second stand beside a minimal loop on the same machine, measured in turn: a compiled decode loop
over as many sequences that draws the same drafts and knows no scheduler, blocks, step cost, arrivals or metrics.
"""

import argparse
import json
import math
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numba import njit

from draftcast.scenarios.compare.comparison import simulate
from draftcast.scenarios.run.deployment import Deployment, deploy
from draftcast.scenarios.run.simulate import build_replicas
from draftcast.scenarios.run.workload_spec import workload_spec
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import load_scenario
from draftcast.sim.compiled.random_streams import request_keys, uniform
from draftcast.sim.state.engine import EngineState
from draftcast.sim.workload.build_requests import build_requests
from draftcast.sim.workload.request_table import RequestTable

AZURE = Path(__file__).parents[2] / "shared/data/traces/azure_llm_2023_conv.csv"
STEADY = ["workload.arrivals={process: deterministic, request_rate_rps: 53}", "workload.num_requests=20000"]
ROUNDS = 8
ALPHA, K = 0.7, 3


@njit(cache=True)
def minimal_loop(keys: Any, context: Any, outputs: Any, limits: Any, alpha: float, k: int, steps: int) -> float:
    """``steps`` steps of ``outputs.size`` sequences that accept drafts until one is rejected; the simulated time."""
    now = 0.0
    for _ in range(steps):
        total = 0.0
        for i in range(outputs.size):
            accepted = 0
            while accepted < k and uniform(keys[i], outputs[i] + accepted) < alpha:
                accepted += 1
            outputs[i] += accepted + 1
            total += context[i] + outputs[i]
            if outputs[i] >= limits[i]:
                outputs[i] = 0
        now += 1e-3 + 1e-8 * total
    return now


def minimal_step_s(sequences: int, clock: Callable[[], float] = time.perf_counter) -> float:
    rng, n, steps = np.random.default_rng(0), sequences, 50_000
    loop = (request_keys(0, 2, n), rng.integers(100, 1000, n), np.zeros(n, np.int64), rng.integers(50, 500, n))
    start = clock()
    minimal_loop(*loop, ALPHA, K, steps)
    return (clock() - start) / steps


def served(
    scenario: Scenario, deployment: Deployment, table: RequestTable, clock: Callable[[], float] = time.perf_counter
) -> tuple[EngineState, float]:
    """A replica's state after it has served all requests, and the seconds that each step took."""
    (replica,) = build_replicas(scenario, [deployment], table, 0)
    replica.submit(np.arange(len(table), dtype=np.uint32))
    start = clock()
    replica.advance(math.inf)
    return replica.state, (clock() - start) / int(replica.state.engine[0]["step"])


def least_in_turn(timed: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The least seconds that each says in so many rounds, after a first round, which compiles."""
    seconds = [{name: measure() for name, measure in timed.items()} for _ in range(rounds + 1)]
    return {name: min(of_round[name] for of_round in seconds[1:]) for name in timed}


def steps_per_second(prefix_caching: bool) -> dict[str, float]:
    """One replica at about 50 running sequences, k=3, paging on; best of several rounds, the minimal loop in turn."""
    scenario = load_scenario("default", overrides=[*STEADY, f"engine.enable_prefix_caching={prefix_caching}".lower()])
    deployment = deploy(scenario)
    table = build_requests(workload_spec(scenario), 0, None, deployment.settings.max_model_len)
    state, _ = served(scenario, deployment, table)
    batch = float(np.sum(state.requests["finish_s"] - state.requests["first_scheduled_s"]) / state.engine[0]["mark_s"])

    def step_s() -> float:
        return served(scenario, deployment, table)[1]

    least = least_in_turn({"engine": step_s, "minimal": partial(minimal_step_s, round(batch))}, ROUNDS)
    rates = {"steps_per_s": 1 / least["engine"], "minimal_steps_per_s": 1 / least["minimal"]}
    return rates | {"ratio_to_minimal": least["engine"] / least["minimal"], "mean_running": batch}


def million_requests() -> dict[str, float]:
    """A million requests tiled from the Azure conversation trace, through ``simulate``."""
    sizes = ["workload.num_requests=1000000", "statistics.replications=1"]
    scenario = load_scenario("azure-conversation", trace=str(AZURE), overrides=sizes)
    start = time.perf_counter()
    simulate(scenario)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def least_seconds(run: Callable[[], object], times: int) -> float:
    """The least of ``times`` runs, after a first that does not count."""
    return min(timeit.repeat(run, number=1, repeat=times + 1)[1:])


def compile_seconds() -> float:
    """CPU seconds of compiling the engine: a first simulation with an empty compile cache, less the same one warm."""
    command = [sys.executable, "-m", "draftcast", "simulate", "default", "--set", "workload.num_requests=100"]
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, check=True, capture_output=True, env=os.environ | {"NUMBA_CACHE_DIR": folder})
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return seconds[0] - seconds[1]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with ProcessPoolExecutor(1, get_context("spawn")) as process:  # whose peak memory is that of the million
        million = process.submit(million_requests).result() if AZURE.exists() else None
    sizes = "workload.num_requests=2000"
    small = load_scenario("default", overrides=[sizes, "statistics.replications=1"])
    command = [sys.executable, "-m", "draftcast", "simulate", "default", "--set", sizes]
    results: dict[str, Any] = {
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "paging": steps_per_second(False),
        "paging_and_prefix_caching": steps_per_second(True),
        "million_requests": million,
        "small_run_s": least_seconds(partial(simulate, small), 5),
        "first_result_s": least_seconds(partial(subprocess.run, command, check=True, capture_output=True), 3),
        "compile_s": compile_seconds(),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    engines = pd.DataFrame({name: results[name] for name in ("paging", "paging_and_prefix_caching")})
    print(engines.T.to_string(float_format="{:,.1f}".format))
    if million is None:
        print(f"one million requests: not run, {AZURE} is absent")
    else:
        print(f"one million requests: {million['seconds']:.1f} s, {million['peak_bytes'] / 1e9:.2f} GB")
    print(f"2,000 requests, warm: {results['small_run_s'] * 1e3:.0f} ms")
    print(f"process start to first result: {results['first_result_s']:.2f} s")
    print(f"compiling the engine: {results['compile_s']:.0f} s of CPU")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
