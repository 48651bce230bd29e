"""How fast the dashboard answers, and whether ten sessions at once each get their own figures; in a real browser.

    python benchmarks/dashboard.py [--changes 40] [--sessions 10]

First, one session: a control of What-if changes by keyboard, every time to a question nobody asked before (2,000
requests, three replications, speculation on and off), and the clock runs from Enter until all tiles and pictures of the
new run stand. Then so many sessions change a control at the same moment; each one's tiles are held against
``draftcast simulate --json`` of the command that its own page shows. Prints a table and one last JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from browser import Browser, Server, missing

K, RATE, PROMPT, SEED = "Draft tokens k", "Load, req/s", "Prompt tokens, mean", "Seed"
WARM_UP = 4
BAR_S = 1.0


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
    browser.wait_s = 600.0
    try:
        seconds, cpu_s = changes(browser, server, asked.changes)
        together_s, wrong, strangers = at_once(browser, asked.sessions)
    finally:
        browser.quit()
        server.stop()
    p50_s, p95_s = np.quantile(seconds, [0.5, 0.95])
    print("a changed control, 2,000 requests x 3 replications, on and off, until all is drawn")
    print(f"{'changes':>10}{'p50 s':>10}{'p95 s':>10}{'slowest s':>12}{'bar p95 s':>12}")
    print(f"{len(seconds):>10}{p50_s:>10.2f}{p95_s:>10.2f}{seconds.max():>12.2f}{BAR_S:>12.2f}")
    print(f"of which {cpu_s:.2f} s a change are the server's processor time, whatever else the machine does")
    print(f"{asked.sessions} sessions at once, each on another page: the last one stood after {together_s:.1f} s")
    print(f"sessions with other figures than draftcast simulate --json: {wrong}; with strange keys: {strangers}")
    result = {
        "changes": len(seconds),
        "p50_s": round(float(p50_s), 3),
        "p95_s": round(float(p95_s), 3),
        "max_s": round(float(seconds.max()), 3),
        "server_cpu_s": round(cpu_s, 3),
        "sessions": asked.sessions,
        "together_s": round(together_s, 2),
        "sessions_with_wrong_figures": wrong,
        "links_with_strange_keys": strangers,
    }
    print(json.dumps(result))
    sys.exit(1 if wrong or strangers else 0)


def changes(browser: Browser, server: Server, count: int) -> tuple[np.ndarray, float]:
    """(seconds of each change after some to warm up, mean processor seconds of the server for one)."""
    browser.open()
    seconds = []
    began_s = 0.0
    for index in range(WARM_UP + count):
        if index == WARM_UP:
            began_s = processor_s(server.process.pid)
        step = index // 4
        label, text = (
            (RATE, f"{4 + 0.25 * step:g}"),
            (K, str(1 + step % 2)),
            (PROMPT, f"{150 + 2 * step}"),
            (SEED, str(100 + step)),
        )[index % 4]
        seconds.append(browser.timed_change(label, text))
    return np.array(seconds[WARM_UP:]), (processor_s(server.process.pid) - began_s) / count


def processor_s(pid: int) -> float:
    """Seconds that a process has computed so far, as Linux counts them."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def at_once(browser: Browser, count: int) -> tuple[float, int, int]:
    """(seconds until the last page stood, sessions with figures not their own, links with keys not their own)."""
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
        browser.write_into(RATE, f"{5 + index}")
        browser.press_enter(RATE)
    pages: list[tuple[dict[str, float | None], list[str], str]] = []
    for window, old in zip(windows, before, strict=True):
        browser.driver.switch_to.window(window)
        browser.answered(old)
        command = shlex.split(browser.find("[data-testid=stCode] code").text.replace("\n", " "))
        pages.append((browser.tiles(), command, browser.query()))
    together_s = time.perf_counter() - began_s
    wrong = strangers = 0
    for index, (tiles, command, query) in enumerate(pages):
        own = {"statistics.seed": str(1000 + index), "workload.arrivals.request_rate_rps": str(5 + index)}
        strangers += sorted(query.split("&")) != sorted(f"{key}={value}" for key, value in own.items())
        wrong += not same_figures(tiles, command)
    return together_s, wrong, strangers


def same_figures(tiles: dict[str, float | None], command: list[str]) -> bool:
    """Whether every tile is what the command prints."""
    done = subprocess.run([sys.executable, "-m", *command, "--json"], capture_output=True, text=True, check=False)
    figures: dict[str, Any] = json.loads(done.stdout)["figures"]
    shown = {name: value for name, value in tiles.items() if value is not None and name in figures}
    return len(shown) >= 10 and all(value == figures[name]["mean"] for name, value in shown.items())


if __name__ == "__main__":
    main()
