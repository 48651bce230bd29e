"""Record what vLLM's own scheduler schedules, for the tests that run without vLLM.

    .venv-live/bin/python tests/live/record_schedule_traces.py
    PYTHONPATH=.venv-live/vllm-0.33 .venv-live/bin/python tests/live/record_schedule_traces.py

write ``tests/data/schedule_traces_0.32.json.gz`` and that of 0.33: the workloads of ``workloads.py`` by number, each
with vLLM's lines.
"""

from __future__ import annotations

import datetime
import gzip
import json
from pathlib import Path

import vllm
from vllm_scheduler_driver import drive
from workloads import EVERY_METHOD, NEXT, NEXT_METHODS, random_workload

DATA = Path(__file__).parents[1] / "data"
# Every k from 0 to 7, every method and every option are among them; tests/sim/engine/test_schedule_trace.py holds that.
NUMBERS = range(100, 140)


def main() -> None:
    number_of_version = vllm.__version__.split("+")[0]
    target = DATA / f"schedule_traces_{number_of_version.rpartition('.')[0]}.json.gz"
    is_next = number_of_version.startswith(NEXT.split()[1])
    version, every = (NEXT, NEXT_METHODS) if is_next else ("", EVERY_METHOD)
    workloads = [random_workload(number, version=version) for number in NUMBERS]
    for kind in ({"prefix_caching": True}, {"sessions": True}):
        workloads += [random_workload(number, methods=every, version=version, **kind) for number in NUMBERS]
    recorded = {
        "source": "vLLM's Scheduler and AsyncScheduler, driven by tests/live/vllm_scheduler_driver.py",
        "vllm": number_of_version,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "traces": [{"workload": workload, "lines": list(drive(workload))} for workload in workloads],
    }
    text = json.dumps(recorded, separators=(",", ":"))
    target.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{target}: {len(workloads)} workloads, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
