"""How fast the dashboard answers, and whether ten sessions at once each get their own figures; in a real browser.

    python benchmarks/dashboard.py [--changes 40] [--sessions 10]

First, the seconds until a server's first visitor sees the estimate and the simulated verdict. Then a control of What-if
changes by keyboard, every time to a question nobody asked before (2,000 requests, four replications, speculation on and
off): seconds from Enter until its estimate is painted, and until all tiles and pictures of its run are. Then so many
sessions change a control at the same moment; each one's tiles are compared with ``draftcast simulate --json`` of the
command that its own page shows. Processor seconds of server and browser, and what the host and other processes took of
the cores, tell a slow dashboard from a slow machine.
Prints a table and one last JSON line; exit code 1 when a session had other figures than its own, or none in time.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from browser import Browser, Server, missing

from draftcast.calibration.live.record import busy_seconds, tree_seconds

OUTPUT, RATE, PROMPT, SEED = "Output tokens, mean", "Load, req/s", "Prompt tokens, mean", "Seed"
WARM_UP = 4
BAR_S = 1.0
TOGETHER_S = 120.0  # sessions that have no figures by then have none in time


def main(changes: int = 40, sessions: int = 10) -> None:
    if missing():
        print(f"benchmarks/dashboard.py: {missing()}", file=sys.stderr)
        raise typer.Exit(2)
    server = Server()
    browser = Browser(server.url)
    browser.wait_s = TOGETHER_S
    try:
        result = first_visit(browser) | one_session(browser, server, changes) | many_sessions(browser, server, sessions)
    finally:
        browser.quit()
        server.stop()
    print(json.dumps(result))
    sys.exit(1 if result["sessions_with_wrong_figures"] or result["links_with_strange_keys"] else 0)


def first_visit(browser: Browser) -> dict[str, float]:
    """Seconds from opening the page to the first answer and to the simulated one."""
    began_s = time.perf_counter()
    browser.driver.get(browser.url)
    seconds = {}
    for name, css in (("estimate", "[class*=st-key-verdict-]"), ("simulated", "[class*=st-key-verdict-simulated]")):
        browser.find(css)
        seconds[f"first_{name}_s"] = round(time.perf_counter() - began_s, 2)
    print("a server's first visitor: " + ", ".join(f"{name} {value:.2f}" for name, value in seconds.items()))
    return seconds


def one_session(browser: Browser, server: Server, count: int) -> dict[str, float]:
    """Change after change of one session, after some to warm up."""
    browser.open()
    for index in range(WARM_UP):
        change(browser, index)
    pids = server.process.pid, browser.driver.service.process.pid
    rows = []
    began_s, before_busy_s, before_steal_s = time.perf_counter(), busy_seconds(), psutil.cpu_times().steal
    for index in range(WARM_UP, WARM_UP + count):
        before_s = [tree_seconds(pid) for pid in pids]
        seconds = change(browser, index)
        rows.append([*seconds, *(tree_seconds(pid) - old_s for pid, old_s in zip(pids, before_s, strict=True))])
    length_s, used_s = time.perf_counter() - began_s, busy_seconds() - before_busy_s
    spent = pd.DataFrame(rows, columns=["estimate", "all", "server_cpu", "browser_cpu"])
    stolen = (psutil.cpu_times().steal - before_steal_s) / length_s / (os.cpu_count() or 1)
    others = max(used_s - spent[["server_cpu", "browser_cpu"]].sum().sum(), 0.0) / length_s
    table = spent.describe(percentiles=[0.5, 0.95]).T.rename(columns={"50%": "p50", "95%": "p95"})
    print("a changed control, 2,000 requests x 4 replications, on and off, until its estimate and until all is drawn")
    print(f"seconds of {count} changes (bar: estimate p95 {BAR_S:.2f} s)")
    print(table[["mean", "p50", "p95", "max"]].to_string(float_format="{:.2f}".format))
    print(f"the host took {stolen:.0%} of the cores' time meanwhile, other processes used {others:.2f} cores")
    figures = {f"{name}_{pct}_s": table.at[name, pct] for name in ("estimate", "all") for pct in ("p50", "p95", "max")}
    figures |= {"server_cpu_s": table.at["server_cpu", "mean"], "server_cpu_p95_s": table.at["server_cpu", "p95"]}
    figures |= {"browser_cpu_s": table.at["browser_cpu", "mean"], "stolen_share": stolen, "others_cores": others}
    return {"changes": count, **{name: round(float(value), 4) for name, value in figures.items()}}


def change(browser: Browser, index: int) -> tuple[float, float]:
    """The change of this number: another control each time, to a value that it never had; as `Browser.timed_change`."""
    step = index // 4
    lengths = {OUTPUT: f"{180 + step}", PROMPT: f"{150 + 2 * step}"}
    values = {RATE: f"{4 + 0.25 * step:g}", SEED: f"{100 + step}", **lengths}
    return browser.timed_change(*list(values.items())[index % 4])


def many_sessions(browser: Browser, server: Server, count: int) -> dict[str, float]:
    """Open so many sessions, change a control in all, then look at each and at what the command line says."""
    before_s = tree_seconds(server.process.pid)
    windows = []
    for index in range(count):
        browser.driver.switch_to.new_window("tab")
        browser.open(query={"statistics.seed": str(1000 + index)})
        windows.append(browser.driver.current_window_handle)
    rates = [f"{5.5 + index:g}" for index in range(count)]  # no load is the scenario's own, which would be no change
    hashes = []
    began_s = time.perf_counter()
    for window, rate in zip(windows, rates, strict=True):
        browser.driver.switch_to.window(window)
        hashes.append(browser.run_hash())
        browser.write_into(RATE, rate)
        browser.press_enter(RATE)
    pages: list[tuple[dict[str, float | None], list[str]]] = []
    strange_links = 0
    for index, window in enumerate(windows):
        browser.driver.switch_to.window(window)
        browser.answered(hashes[index])
        command = shlex.split(browser.find("[data-testid=stCode] code").text.replace("\n", " "))
        pages.append((browser.tiles(), command))
        link = {f"statistics.seed={1000 + index}", f"workload.arrivals.request_rate_rps={rates[index]}"}
        strange_links += set(browser.query().split("&")) != link
    together_s = time.perf_counter() - began_s
    server_s = (tree_seconds(server.process.pid) - before_s) / count
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        wrong = list(threads.map(lambda page: same_figures(*page), pages)).count(False)
    spent = f"{together_s:.1f} s ({server_s:.2f} s of the server each, opening included)"
    print(f"{count} sessions at once, each on another page: the last one stood after {spent}")
    print(f"sessions with other figures than draftcast simulate --json: {wrong}; with strange keys: {strange_links}")
    seconds = {"together_s": round(together_s, 2), "server_cpu_per_session_s": round(server_s, 3)}
    bad = {"sessions_with_wrong_figures": wrong, "links_with_strange_keys": strange_links}
    return {"sessions": count, **seconds, **bad}


def same_figures(tiles: dict[str, float | None], command: list[str]) -> bool:
    done = subprocess.run([sys.executable, "-m", *command, "--json"], capture_output=True, text=True, check=False)
    figures: dict[str, Any] = json.loads(done.stdout)["figures"]
    shown = {name: value for name, value in tiles.items() if value is not None and name in figures}
    return len(shown) >= 10 and all(value == figures[name]["mean"] for name, value in shown.items())


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
