"""Times the same small piece of work on every core in turn, for as long as standard input stays open.

``python -m draftcast.calibration.live.core_speed_probe PERIOD_S FILE`` appends a line ``time_s,core,spin_s`` (Unix
time; CPU seconds of the work) to FILE every PERIOD_S seconds, the allowed cores one after the other. A core that has
other work loses a hundredth of its time at the usual period. CPU seconds and not the wall clock's: waiting for the core
is the load's doing, being slow on it is the machine's.

Standard library only: it stays as small as it can while a measurement runs.
"""

from __future__ import annotations

import gc
import itertools
import os
import select
import sys
import time

HEADER = "time_s,core,spin_s"
_LOOPS = 600  # 40 to 100 us


def main() -> None:
    """Entry point of the process."""
    period_s, path = float(sys.argv[1]), sys.argv[2]
    gc.disable()
    with open(path, "w", buffering=1, encoding="utf-8") as file:
        file.write(f"{HEADER}\n")
        for core in itertools.cycle(sorted(os.sched_getaffinity(0))):
            if select.select([0], [], [], period_s)[0]:
                return
            os.sched_setaffinity(0, {core})
            _work()  # caches and branch predictor are the load's until here
            began_s = time.thread_time()
            _work()
            file.write(f"{time.time():.4f},{core},{time.thread_time() - began_s:.9f}\n")


def _work() -> int:
    total = 0
    for number in range(_LOOPS):
        total += number
    return total


if __name__ == "__main__":
    main()
