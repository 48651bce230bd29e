"""Draw the pictures of the docs: ``.venv/bin/python docs/figures.py`` (needs ``pip install kaleido`` and a Chromium).

Every picture comes from the simulator with the numbers of an embedded scenario, from a bundled profile, or from the
measured points; nothing is drawn by hand.
"""

from pathlib import Path

from draftcast.scenarios.compare.comparison import compare
from draftcast.scenarios.evidence.forecast import forecast_points
from draftcast.scenarios.evidence.point import points
from draftcast.scenarios.schema.load import load_scenario
from draftcast.scenarios.show.device_plots import profile_figure
from draftcast.scenarios.show.evidence_report import evidence_figure
from draftcast.scenarios.show.profile_view import open_profile
from draftcast.scenarios.show.run_plots import comparison_figure

IMAGES = Path(__file__).parent / "img"
DEMO_RATES = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 65.0, 70.0, 75.0, 80.0)


def main() -> None:
    """Write every picture into ``docs/img``."""
    IMAGES.mkdir(exist_ok=True)
    answer = compare(load_scenario("default"), DEMO_RATES)
    comparison_figure(answer).write_image(IMAGES / "demo.png", scale=1)
    evidence_figure(list(forecast_points(points()))).write_image(IMAGES / "evidence.png", scale=1)
    profile_figure(open_profile("h100-sxm")).write_image(IMAGES / "h100-sxm.png", scale=1)


if __name__ == "__main__":
    main()
