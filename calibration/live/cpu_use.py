"""How much of the machine others used while a run was recorded: what a quiet machine means, measured.

A server, its client and the rest share a host's cores. Linux counts the seconds of all processes together and of each;
the rest is the difference. Knows nothing of servers: it is given a process.
"""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")
# user, nice, system, irq, softirq of the first line of /proc/stat; steal is not used by anybody here.
_BUSY = (0, 1, 2, 5, 6)


def busy_seconds(proc: Path = PROC) -> float | None:
    """CPU seconds of all processes since the host's start; None where there is no /proc."""
    try:
        first = (proc / "stat").read_text("utf-8").partition("\n")[0].split()[1:]
        return sum(int(first[place]) for place in _BUSY) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def tree_seconds(root: int, proc: Path = PROC) -> float:
    """CPU seconds so far of the living processes that descend from ``root``, itself among them."""
    return sum(tree(root, proc).values())


def tree(root: int, proc: Path = PROC) -> dict[int, float]:
    """CPU seconds so far of each living process that descends from ``root``, itself among them."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in proc.glob("[0-9]*"):
        try:
            # The name in brackets may hold anything; what follows it begins with the state and the parent.
            fields = (folder / "stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            ticks[int(folder.name)] = int(fields[11]) + int(fields[12])
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
    found = {}
    for pid, spent in ticks.items():
        above = pid
        while above != root and above in parents:
            above = parents[above]
        if above == root:
            found[pid] = spent / os.sysconf("SC_CLK_TCK")
    return found
