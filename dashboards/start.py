"""``python -m draftcast.dashboards.start run ...``: Streamlit's command line, in a process that is ready for a visitor.

What takes a first visitor's time (imports, compiled code, the first answer) is the same for all. The imports and the
estimate are made before the address is printed, the simulation of the default scenario beside the server.
"""

from threading import Thread

from draftcast.dashboards.pages import shell  # noqa: F401  all pages, for the first visitor
from draftcast.dashboards.session.answers import answer
from draftcast.dashboards.session.session import ScenarioPair
from draftcast.dashboards.widgets.verdict_card import card, draft_lengths, step_estimate
from draftcast.scenarios.schema.load import DEFAULT_SCENARIO
from draftcast.scenarios.show.cutover_report import advantage_figure


def warm() -> Thread:
    """Load what the first page needs; the thread ends when its answer is simulated."""
    scenario = ScenarioPair.opening(DEFAULT_SCENARIO).scenario
    estimate = step_estimate(scenario)
    assert estimate is not None
    card(scenario, estimate)
    advantage_figure(scenario, estimate.rates, estimate.ratios, estimate.advantages, None).to_json()

    def simulate() -> None:
        answer(scenario)
        draft_lengths(scenario)

    thread = Thread(target=simulate, name="first-answer", daemon=True)
    thread.start()
    return thread


if __name__ == "__main__":
    from streamlit.runtime.pages_manager import PagesManager
    from streamlit.web.cli import main

    # Streamlit would take the modules of the folder "pages" for pages of its own, until the first one is drawn.
    PagesManager.uses_pages_directory = False
    warm()
    main(prog_name="streamlit")
