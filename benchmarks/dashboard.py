"""How fast the dashboard answers, and whether ten sessions at once each get their own figures; in a real browser.

    python benchmarks/dashboard.py [--changes 40] [--sessions 10]

First, one session: a control of What-if changes by keyboard, every time to a question nobody asked before (2,000
requests, four replications, speculation on and off), and the clock runs from Enter until all tiles and pictures of
the new run are painted, as the page itself sees it. Then so many sessions change a control at the same moment; each
one's tiles are held against ``draftcast simulate --json`` of the command that its own page shows. Beside the seconds
stand the processor seconds of server and browser, what the host took from this machine's cores, what other processes
used of them and how fast they were (the probe of live runs: microseconds of a fixed piece of work): they tell a slow
dashboard from a slow machine.
Prints a table and one last JSON line; exit code 1 when a session had other figures than its own, or none in time.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from browser import Browser, Server, missing

from draftcast.calibration.live.core_speed import FILE, Probe

K, RATE, PROMPT, SEED = "Draft tokens k", "Load, req/s", "Prompt tokens, mean", "Seed"
WARM_UP = 4
BAR_S = 1.0
TOGETHER_S = 120.0
"""Ten sessions that have no figures by then have none in time."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Changes:
    """Of one session, shape (changes,) each: seconds, and processor seconds of the server and of the browser."""

    seconds: NDArray[np.float64]
    server_s: NDArray[np.float64]
    browser_s: NDArray[np.float64]
    stolen: float  # share of this machine's cores that the host gave to others meanwhile
    others: float  # cores that processes other than server and browser used meanwhile
    spin_us: float  # what the probe of `draftcast.calibration.live.core_speed` read meanwhile, median


@dataclass(frozen=True)
class Together:
    """Sessions at once: seconds until the last stood, how many have figures, and links, that are not their own."""

    seconds: float
    wrong: int
    strangers: int


def main() -> None:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=40)
    parser.add_argument("--sessions", type=int, default=10)
    asked = parser.parse_args()
    if missing():
        parser.exit(2, f"benchmarks/dashboard.py: {missing()}\n")
    server = Server()
    browser = Browser(server.url)
    browser.wait_s = TOGETHER_S
    try:
        one = changes(browser, server, asked.changes)
        before_s = processor_s(server.process.pid)
        many = at_once(browser, asked.sessions)
        together_cpu_s = processor_s(server.process.pid) - before_s
    finally:
        browser.quit()
        server.stop()
    print("a changed control, 2,000 requests x 4 replications, on and off, until all is drawn")
    print(f"{asked.changes:>5} changes{'mean':>10}{'p50':>10}{'p95':>10}{'slowest':>10}{'bar p95':>10}")
    for name, values, bar in (
        ("seconds", one.seconds, f"{BAR_S:.2f}"),
        ("server CPU s", one.server_s, ""),
        ("browser CPU s", one.browser_s, ""),
    ):
        p50, p95 = np.quantile(values, [0.5, 0.95])
        print(f"{name:<13}{values.mean():>10.2f}{p50:>10.2f}{p95:>10.2f}{values.max():>10.2f}{bar:>10}")
    print(
        f"the host took {one.stolen:.0%} of the cores' time meanwhile, other processes used {one.others:.2f} cores; "
        f"the cores' probe read {one.spin_us:.0f} us"
    )
    print(
        f"{asked.sessions} sessions at once, each on another page: the last one stood after {many.seconds:.1f} s "
        f"({together_cpu_s / asked.sessions:.2f} s of the server each, opening included)"
    )
    print(
        f"sessions with other figures than draftcast simulate --json: {many.wrong}; with strange keys: {many.strangers}"
    )
    p50_s, p95_s = np.quantile(one.seconds, [0.5, 0.95])
    result = {
        "changes": len(one.seconds),
        "p50_s": round(float(p50_s), 3),
        "p95_s": round(float(p95_s), 3),
        "max_s": round(float(one.seconds.max()), 3),
        "server_cpu_s": round(float(one.server_s.mean()), 3),
        "server_cpu_p95_s": round(float(np.quantile(one.server_s, 0.95)), 3),
        "browser_cpu_s": round(float(one.browser_s.mean()), 3),
        "stolen_share": round(one.stolen, 4),
        "others_cores": round(one.others, 3),
        "spin_us": round(one.spin_us, 1),
        "sessions": asked.sessions,
        "together_s": round(many.seconds, 2),
        "server_cpu_per_session_s": round(together_cpu_s / asked.sessions, 3),
        "sessions_with_wrong_figures": many.wrong,
        "links_with_strange_keys": many.strangers,
    }
    print(json.dumps(result))
    sys.exit(1 if many.wrong or many.strangers else 0)


def changes(browser: Browser, server: Server, count: int) -> Changes:
    """Change after change of one session, after some to warm up."""
    browser.open()
    for index in range(WARM_UP):
        change(browser, index)
    chromium = browser.driver.service.process.pid
    found = []
    with tempfile.TemporaryDirectory() as folder:
        with Probe(Path(folder) / FILE):
            began_s, used_s, stolen_s = time.perf_counter(), *cores_s()
            for index in range(WARM_UP, WARM_UP + count):
                before = processor_s(server.process.pid), processor_s(chromium, *descendants(chromium))
                seconds = change(browser, index)
                after = processor_s(server.process.pid), processor_s(chromium, *descendants(chromium))
                found.append((seconds, after[0] - before[0], after[1] - before[1]))
            length_s, (used_end_s, stolen_end_s) = time.perf_counter() - began_s, cores_s()
        spin_s = pd.read_csv(Path(folder) / FILE)["spin_s"]
    columns = np.array(found).T
    own_s = float(columns[1:].sum())
    return Changes(
        *columns,
        stolen=(stolen_end_s - stolen_s) / length_s / (os.cpu_count() or 1),
        others=max(used_end_s - used_s - own_s, 0.0) / length_s,
        spin_us=1e6 * float(spin_s.median()),
    )


def change(browser: Browser, index: int) -> float:
    """The change of this number: another control each time, to a value that it never had; the seconds it took."""
    step = index // 4
    label, text = (
        (RATE, f"{4 + 0.25 * step:g}"),
        (K, str(1 + step % 2)),
        (PROMPT, f"{150 + 2 * step}"),
        (SEED, str(100 + step)),
    )[index % 4]
    return browser.timed_change(label, text)


def processor_s(*pids: int) -> float:
    """Seconds that processes have computed so far, as Linux counts them; one that is gone counts nothing."""
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) * TICK_S
    return total


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and theirs."""
    try:
        tasks = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    children = [int(child) for text in tasks for child in text.split()]
    return [*children, *(each for child in children for each in descendants(child))]


def cores_s() -> tuple[float, float]:
    """Seconds over all cores: that processes computed, and that a hypervisor gave to others while some wanted to."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq) * TICK_S, steal * TICK_S


def at_once(browser: Browser, count: int) -> Together:
    """Open so many sessions, change a control in all, then look at each and at what the command line says."""
    windows = []
    for index in range(count):
        browser.driver.switch_to.new_window("tab")
        browser.open(query={"statistics.seed": str(1000 + index)})
        windows.append(browser.driver.current_window_handle)
    before = []
    began_s = time.perf_counter()
    for index, window in enumerate(windows):
        browser.driver.switch_to.window(window)
        before.append(browser.run_hash())
        browser.write_into(RATE, rate_of(index))
        browser.press_enter(RATE)
    pages: list[tuple[dict[str, float | None], list[str], str]] = []
    for window, old in zip(windows, before, strict=True):
        browser.driver.switch_to.window(window)
        browser.answered(old)
        command = shlex.split(browser.find("[data-testid=stCode] code").text.replace("\n", " "))
        pages.append((browser.tiles(), command, browser.query()))
    together_s = time.perf_counter() - began_s
    strangers = 0
    for index, (_, _, query) in enumerate(pages):
        own = {"statistics.seed": str(1000 + index), "workload.arrivals.request_rate_rps": rate_of(index)}
        strangers += sorted(query.split("&")) != sorted(f"{key}={value}" for key, value in own.items())
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        right = list(threads.map(lambda page: same_figures(page[0], page[1]), pages))
    return Together(together_s, right.count(False), strangers)


def rate_of(session: int) -> str:
    """The load a session asks for; none is the scenario's own, which would be no change."""
    return f"{5.5 + session:g}"


def same_figures(tiles: dict[str, float | None], command: list[str]) -> bool:
    """Whether every tile is what the command prints."""
    done = subprocess.run([sys.executable, "-m", *command, "--json"], capture_output=True, text=True, check=False)
    figures: dict[str, Any] = json.loads(done.stdout)["figures"]
    shown = {name: value for name, value in tiles.items() if value is not None and name in figures}
    return len(shown) >= 10 and all(value == figures[name]["mean"] for name, value in shown.items())


if __name__ == "__main__":
    main()
