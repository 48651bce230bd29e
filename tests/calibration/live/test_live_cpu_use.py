"""CPU seconds of this very process, of a child of it, and of the host."""

import os
import subprocess
import sys
import time

from draftcast.calibration.live.record import busy_seconds, tree_seconds


def test_work_of_this_process_is_seen() -> None:
    before, of_all = tree_seconds(os.getpid()), busy_seconds()
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    assert tree_seconds(os.getpid()) - before >= 0.15
    assert busy_seconds() - of_all >= 0.15


def test_work_of_children_counts_while_they_live() -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); time.sleep(60)"
    before = tree_seconds(os.getpid())
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert tree_seconds(os.getpid()) - before >= 0.25
        assert 0.25 <= tree_seconds(process.pid) <= tree_seconds(os.getpid())
        process.kill()
    assert tree_seconds(process.pid) == 0.0
