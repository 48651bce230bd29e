"""Photograph the dashboard's pages for docs/dashboard.md: ``.venv/bin/python docs/screenshots.py [PAGE...]``.

Needs the extras ``dashboard`` and ``test``, Chromium and its driver. Each picture is a page as a browser shows it of
an embedded scenario; 128 colours are enough for it and keep the files small.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import Browser, Server  # noqa: E402

IMAGES = Path(__file__).parent / "img"
COLOURS = 128


@dataclass(frozen=True)
class Shot:
    """One picture."""

    query: dict[str, str]  # of the link
    press: tuple[str, ...] = ()  # buttons, in this order; the page is waited for after each
    until: str = ".dc-footer"  # CSS of what the page shows in the end
    width: int = 1280
    dark: bool = False


SHOTS = {
    "what-if": Shot({"workload.arrivals.request_rate_rps": "40", "slo": "{tpot_ms: 20, attainment: 0.9}"}),
    "what-if-dark": Shot({"workload.arrivals.request_rate_rps": "40"}, width=390, dark=True),
    "capacity": Shot(
        {
            "page": "capacity",
            "slo": "{ttft_ms: 500, tpot_ms: 30, attainment: 0.95}",
            "view.capacity.rate": "150",
            "view.capacity.hardware": "h100-sxm,a100-80g",
            "view.capacity.spare": "1",
            "view.capacity.prices": "h100-sxm=2.5@2026-11-01,a100-80g=1.3@2026-11-01",
        }
    ),
    "sweep": Shot(
        {"page": "sweep", "view.sweep.grid": "rate=8,16,32,48,64;k=0,1,3"},
        ("Run 15 cells",),
        ".st-key-metric .js-plotly-plot",
    ),
    "cutover": Shot({"page": "cutover"}, ("Find the cutover",), ".st-key-advantage .js-plotly-plot"),
    "compare": Shot({"page": "compare"}, ("Add it with speculation off",)),
    "trust": Shot({"page": "trust"}),
}


def main(names: list[str]) -> None:
    """Write ``docs/img/dashboard-NAME.png`` of each page named, or of all."""
    IMAGES.mkdir(exist_ok=True)
    server = Server()
    try:
        for name in names or SHOTS:
            photograph(server, SHOTS[name], IMAGES / f"dashboard-{name}.png")
    finally:
        server.stop()


def photograph(server: Server, shot: Shot, target: Path) -> None:
    """Open the page, press what is to be pressed, and write the whole page as a small PNG."""
    page = Browser(server.url, width=shot.width, dark=shot.dark)
    page.wait_s = 600.0
    try:
        page.open(query=shot.query)
        for label in shot.press:
            page.press(label)
        page.find(shot.until)
        page.settled()
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder) / "page.png"
            page.screenshot(raw, whole=True)
            Image.open(raw).convert("RGB").quantize(COLOURS).save(target, optimize=True)
    finally:
        page.quit()
    print(f"{target}: {target.stat().st_size / 1e3:,.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
