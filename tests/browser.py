"""A dashboard server and a headless Chromium, for tests, screenshots and the benchmark.

Waits are for conditions on the page, never for a length of time. Everything stays on 127.0.0.1.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
WAIT_S = 180.0  # of a machine that does other things too; nothing is judged by it
# What Streamlit's own front end says about a reader's settings; nothing the pages can change.
HARMLESS = ("Permissions policy", "theme.sidebar")
# The page itself says when it stands: asking it over and over would take the time that is to be measured. Milliseconds
# from the key's own time to the frame in which the estimate of another run is shown, and to that in which the run is
# another one, the script has ended, nothing is stale and every picture holds other data or lines and is drawn.
STANDS = """
const app = document.querySelector('[data-testid=stApp]');
const run = () => document.querySelector('.dc-footer code')?.textContent ?? '';
const graphs = () => [...document.querySelectorAll('.js-plotly-plot')];
const data = graph => JSON.stringify([graph.layout.shapes,
  graph._fullData.map(trace => [trace.name, [...trace.x], [...trace.y]])]);
const drawn = graph => graph.querySelectorAll('.trace').length >= graph._fullData.length;
const before = run(), old = graphs().map(data);
const stands = () => app.dataset.testScriptState === 'notRunning' && ![ '', before].includes(run())
  && !document.querySelector('[data-stale=true], [data-testid=stSkeleton]') && graphs().length === old.length
  && graphs().every((graph, index) => graph._fullData && drawn(graph) && data(graph) !== old[index]);
const estimated = () => document.querySelector('[class*=st-key-verdict-estimate]') || stands();
let began;
addEventListener('keydown', event => { if (event.key === 'Enter') began ??= event.timeStamp; }, {capture: true});
const painted = then => requestAnimationFrame(() => setTimeout(then));
const when = condition => new Promise(resolve => {
  let waits = false;
  const watch = new MutationObserver(() => {
    if (waits || !condition()) return;
    waits = true;
    painted(() => {
      waits = false;
      if (!condition()) return;
      watch.disconnect();
      resolve(performance.now() - began);
    });
  });
  watch.observe(document.body, {subtree: true, childList: true, characterData: true, attributes: true,
    attributeFilter: ['data-test-script-state', 'data-stale', 'd', 'class']});
});
window.draftcastStands = Promise.all([when(estimated), when(stands)]);
"""


def missing() -> str:
    """Why no browser test can run here; empty when one can."""
    try:
        import selenium  # noqa: F401
        import streamlit  # noqa: F401
    except ImportError as error:
        return f"needs {error.name}: pip install -e '.[test]'"
    if not any(map(shutil.which, CHROMIUM)):
        return "needs Chromium (Debian: apt-get install chromium chromium-driver)"
    return "" if shutil.which("chromedriver") else "needs chromedriver (Debian: apt-get install chromium-driver)"


class Server:
    """``draftcast dashboard`` in a process of its own, on a free port."""

    def __init__(self, *scenarios: str) -> None:
        from draftcast.scenarios.cli.main import streamlit_command

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  closed in stop()
        command = streamlit_command(list(scenarios), port=port)
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, env=dict(os.environ))
        until = time.monotonic() + WAIT_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the dashboard did not start: {self.output()[-2000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/_stcore/health", timeout=1) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def output(self) -> str:
        """What the server printed."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def stop(self) -> None:
        """End it and wait for it."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


class Browser:
    """A Chromium with a fresh profile."""

    def __init__(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        self.url = url
        self.wait_s = WAIT_S
        self.downloads = Path(tempfile.mkdtemp(prefix="draftcast-downloads-"))
        options = webdriver.ChromeOptions()
        options.binary_location = next(found for name in CHROMIUM if (found := shutil.which(name)))
        for flag in (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--process-per-site",  # tabs share what one has compiled
            "--no-first-run",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
        ):
            options.add_argument(flag)
        options.add_experimental_option("prefs", {"download.default_directory": str(self.downloads)})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        self.resize(width, height)
        self.theme(dark)

    def quit(self) -> None:
        """Close it and drop what it downloaded."""
        self.driver.quit()
        shutil.rmtree(self.downloads, ignore_errors=True)

    def resize(self, width: int, height: int) -> None:
        """The page's own size, as a device of that size has it."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def theme(self, dark: bool) -> None:
        """What the reader's system prefers."""
        value = "dark" if dark else "light"
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": value}]}
        )

    def open(self, page: str = "", query: Mapping[str, str] | str = "") -> None:
        """Open a page in a new session and wait until it stands."""
        text = query if isinstance(query, str) else urlencode(query)
        # Nothing but a word, and of the same server: from elsewhere the browser would compile the page's scripts anew.
        self.driver.get(f"{self.url}/_stcore/health")
        self.driver.get(f"{self.url}/{page}" + (f"?{text}" if text else ""))
        self.settled()

    def script(self, code: str, *arguments: Any) -> Any:
        """JavaScript in the page; ``return`` its value."""
        return self.driver.execute_script(code, *arguments)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """The condition's first true value; what it raises while the page changes is ignored."""
        end = time.monotonic() + self.wait_s
        while True:
            try:
                found = condition()
            except Exception as error:
                found, what = None, f"{what.partition(' [')[0]} [{type(error).__name__}: {str(error)[:200]}]"
            if found:
                return found
            if time.monotonic() > end:
                raise AssertionError(f"waited {self.wait_s:.0f} s for {what}; the page says: {self.text()[:1500]}")
            time.sleep(0.1)

    def settled(self) -> None:
        """Wait until the page's script has run to its end and its footer, or an error instead, is shown."""
        self.until(
            lambda: self.script(
                "const app = document.querySelector('[data-testid=stApp]');"
                "return app && app.dataset.testScriptState === 'notRunning'"
                " && document.querySelector('.dc-footer, [data-testid=stAlert]')"
                " && !document.querySelector('[data-stale=true], [data-testid=stSkeleton]')"
            ),
            "the page",
        )

    def text(self) -> str:
        """All visible text."""
        return str(self.script("return document.body.innerText"))

    def find(self, css: str) -> Any:
        """The first element, once it is there."""
        from selenium.webdriver.common.by import By

        return self.until(lambda: self.driver.find_element(By.CSS_SELECTOR, css), css)

    def all(self, css: str) -> list[Any]:
        """All elements there are now."""
        from selenium.webdriver.common.by import By

        return list(self.driver.find_elements(By.CSS_SELECTOR, css))

    def input(self, label: str) -> Any:
        """The input of this accessible name."""
        return self.find(f"input[aria-label='{label}']")

    def run_hash(self) -> str:
        """The run that the footer names."""
        return str(self.script("return document.querySelector('.dc-footer code')?.innerText ?? ''"))

    def type_into(self, label: str, text: str) -> None:
        """Put ``text`` into an input by keyboard and wait for the run it asks for."""
        before = self.run_hash()
        self.write_into(label, text)
        self.press_enter(label)
        self.answered(before)

    def slide_down(self, label: str) -> None:
        """Move a slider by one step with the keyboard and wait for the run it asks for."""
        from selenium.webdriver import ActionChains, Keys

        before = self.run_hash()
        self.script("arguments[0].focus()", self.input(label))  # not seen: its thumb is drawn in its place
        ActionChains(self.driver).send_keys(Keys.ARROW_LEFT).perform()
        self.answered(before)

    def timed_change(self, label: str, text: str) -> tuple[float, float]:
        """Like `type_into`; seconds from Enter to another run's estimate and to all its figures and pictures."""
        self.write_into(label, text)
        self.driver.set_script_timeout(self.wait_s)
        self.script(STANDS)
        self.press_enter(label)
        estimate_ms, all_ms = self.driver.execute_async_script("window.draftcastStands.then(arguments[0])")
        return estimate_ms / 1e3, all_ms / 1e3

    def write_into(self, label: str, text: str) -> None:
        """Put ``text`` into an input without asking for anything yet."""
        from selenium.webdriver.common.keys import Keys

        field = self.input(label)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text)

    def press_enter(self, label: str) -> None:
        """Ask for what an input holds."""
        from selenium.webdriver.common.keys import Keys

        self.input(label).send_keys(Keys.ENTER)

    def answered(self, before: str) -> None:
        """Wait for another run than ``before`` (of `run_hash`)."""
        self.until(lambda: self.run_hash() not in ("", before), f"another run than {before}")
        self.settled()

    def tab(self, times: int) -> None:
        """Press Tab so often, beginning at the top of the page."""
        from selenium.webdriver import ActionChains, Keys

        self.script("document.activeElement.blur(); scrollTo(0, 0)")
        keys = ActionChains(self.driver)
        for _ in range(times):
            keys.send_keys(Keys.TAB)
        keys.perform()

    def press(self, label: str) -> None:
        """Press the button whose text holds this and wait until the page has answered."""
        button = self.until(
            lambda: next(each for each in self.all("[data-testid=stButton] button") if label in each.text), label
        )
        # A quick answer may come and go between two looks at the state.
        self.script(
            "window.draftcastRan = false; const app = document.querySelector('[data-testid=stApp]');"
            "new MutationObserver((_, self) => { if (app.dataset.testScriptState === 'running') {"
            " window.draftcastRan = true; self.disconnect(); } }).observe(app, {attributes: true});"
            "arguments[0].scrollIntoView({block: 'center'})",
            button,
        )
        button.click()
        self.until(lambda: self.script("return window.draftcastRan"), f"an answer to {label}")
        self.settled()

    def tiles(self) -> dict[str, float | None]:
        """Every tile's value as the page holds it, unrounded; None where it shows none."""
        found = self.script(
            "return [...document.querySelectorAll('.dc-tile [data-figure]')]"
            ".map(cell => [cell.dataset.figure, cell.dataset.value])"
        )
        return {name: float(value) if value else None for name, value in found}

    def plot(self, name: str) -> list[dict[str, Any]]:
        """The data of a picture: name, x and y of each trace."""
        code = (
            "const graph = document.querySelector(`.st-key-${arguments[0]} .js-plotly-plot`);"
            "return graph && graph._fullData && JSON.stringify(graph._fullData.map("
            "trace => ({name: trace.name, x: Array.from(trace.x ?? []), y: Array.from(trace.y ?? [])})))"
        )
        return list(json.loads(self.until(lambda: self.script(code, name), f"the picture {name}")))

    def lines(self, name: str) -> list[str]:
        """The lines of a picture as they are drawn, each trace's path: a picture may hold new data and show the old."""
        found = "[...document.querySelectorAll(`.st-key-${arguments[0]} path.js-line`)]"
        code = f"return {found}.map(line => line.getAttribute('d'))"
        return list(self.until(lambda: self.script(code, name), f"lines of the picture {name}"))

    def query(self) -> str:
        """The address after the question mark."""
        return str(self.script("return location.search")).removeprefix("?")

    def upload(self, label: str, path: Path) -> None:
        """Give a file to the uploader of this label."""
        field = self.find(
            f"[data-testid=stFileUploader][class] input[type=file][aria-label='{label}'], "
            f"[data-testid=stFileUploader]:has([aria-label='{label}']) input[type=file]"
        )
        field.send_keys(str(path))

    def download(self, label: str) -> Path:
        """Press a download button and return the file once it is whole."""
        before = set(self.downloads.iterdir())
        button = self.until(
            lambda: next(each for each in self.all("[data-testid=stDownloadButton] button") if label in each.text),
            label,
        )
        self.script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()

        def arrived() -> Path | None:
            # Chromium writes under a hidden name, or with a suffix of its own, until the file is whole; an empty file
            # keeps the name free for it.
            new = [each for each in set(self.downloads.iterdir()) - before if each.suffix != ".crdownload"]
            return next((each for each in new if not each.name.startswith(".") and each.stat().st_size), None)

        found = self.until(arrived, f"the download {label}")
        assert isinstance(found, Path)
        return found

    def errors(self) -> list[str]:
        """What went wrong in the console since the last call."""
        severe = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        return [message for message in severe if not any(known in message for known in HARMLESS)]

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """A PNG of what is seen, or of the whole page."""
        if whole:
            height = int(
                self.script("return document.querySelector('[data-testid=stMainBlockContainer]').scrollHeight + 20")
            )
            width = int(self.script("return innerWidth"))
            self.resize(width, max(height, 400))
        self.driver.save_screenshot(str(path))

    def click_mark(self, name: str, trace: int, number: int) -> None:
        """Click the marker ``number`` of a picture's scatter trace ``trace``, with the mouse."""
        from selenium.webdriver.common.action_chains import ActionChains

        code = (
            "const graph = document.querySelector(`.st-key-${arguments[0]} .js-plotly-plot`);"
            "return graph.querySelectorAll('.scatterlayer .trace')[arguments[1]]"
            ".querySelectorAll('.points path')[arguments[2]]"
        )
        hovers = f".st-key-{name} .hoverlayer .hovertext"
        before: list[Any] = [None]

        def hovered() -> bool:
            # A late redraw replaces the marker or moves it: it must be where it was at the last look. Plotly takes a
            # click only where it has noticed the pointer.
            mark = self.script(code, name, trace, number)
            self.script("arguments[0].scrollIntoView({block: 'center'})", mark)
            last, before[0] = before[0], (mark, mark.rect)
            ActionChains(self.driver).move_to_element_with_offset(mark, 1, 0).move_to_element(mark).perform()
            return last == before[0] and bool(self.all(hovers))

        self.until(hovered, f"the pointer over {name}")
        ActionChains(self.driver).click().perform()
