"""Photograph the dashboard's pages for docs/dashboard.md: ``.venv/bin/python docs/screenshots.py [PAGE...]``.

Needs the extras ``dashboard`` and ``test``, Chromium and its driver. Each picture is a page as a browser shows it of
an embedded scenario; 128 colours are enough for it and keep the files small.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import Browser, Server  # noqa: E402

from draftcast.yaml_text import yaml_beside  # noqa: E402

IMAGES = Path(__file__).parent / "img"
COLOURS = 128
SHOTS = yaml_beside(__file__, "screenshots.yaml")


def main(names: list[str]) -> None:
    """Write ``docs/img/dashboard-NAME.png`` of each page named, or of all."""
    IMAGES.mkdir(exist_ok=True)
    server = Server()
    try:
        for name in names or SHOTS:
            photograph(server.url, IMAGES / f"dashboard-{name}.png", **SHOTS[name])
    finally:
        server.stop()


def photograph(
    url: str, target: Path, query: dict[str, str], press: Sequence[str] = (), until: str = ".dc-footer", **window: Any
) -> None:
    """Open the page of ``query``, press buttons, wait for ``until`` (CSS), and write the whole page as a small PNG."""
    page = Browser(url, **window)
    page.wait_s = 600.0
    try:
        page.open(query=query)
        for label in press:
            page.press(label)
        page.find(until)
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
