"""How long a sweep takes: 200 runs of 2,000 requests (40 cells, 5 replications) on two local processes.

``python benchmarks/sweep.py [--workers N]`` prints a table and one last JSON line. The wall time holds everything a
user waits for once the command has started: starting the workers, resolving engines, simulating, writing the data set.
The second sweep finds all cells in the data set.
"""

import json
import os
import tempfile
import time
from pathlib import Path

import typer

from draftcast.scenarios.schema.load import load_scenario
from draftcast.scenarios.sweep.run import SweepResult, sweep

REPLICATIONS, REQUESTS = 5, 2000
GRID = ["rate=5..50:10", "k=0..3"]
BAR_S = 60.0


def main(workers: int = 2) -> None:
    sizes = [f"statistics.replications={REPLICATIONS}", f"workload.num_requests={REQUESTS}"]
    scenario = load_scenario("default", overrides=sizes)
    with tempfile.TemporaryDirectory() as folder:

        def timed() -> tuple[float, SweepResult]:
            began_s = time.perf_counter()
            result = sweep(scenario, GRID, folder=Path(folder, "sweep"), workers=workers)
            return time.perf_counter() - began_s, result

        first_s, result = timed()
        again_s, again = timed()
    assert (result.computed, again.reused) == (40, 40)
    assert not result.errors
    runs = result.computed * REPLICATIONS
    print(f"{runs} runs of {REQUESTS:,} requests, {workers} workers, {len(os.sched_getaffinity(0))} cores")
    print(f"{'first':<28}{first_s:8.1f} s   {runs / first_s:6.1f} runs/s   bar {BAR_S:g} s")
    print(f"{'all in the data set':<28}{again_s:8.2f} s")
    print(json.dumps({"runs": runs, "requests": REQUESTS, "workers": workers, "first_s": first_s, "again_s": again_s}))


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
