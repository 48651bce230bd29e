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

from draftcast.calibration.yaml_text import yaml_beside  # noqa: E402

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


SHOTS = {name: Shot(**shot) for name, shot in yaml_beside(__file__, "screenshots.yaml").items()}


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
