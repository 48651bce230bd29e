"""`Plotted`, what every answer with a picture has in common."""

from importlib import import_module
from typing import Any


class Plotted:
    """An answer that ``draftcast.scenarios.show`` can draw."""

    def plot(self) -> Any:
        """The Plotly figure that the command line and the dashboard draw of it.

        Raises:
            InputError: nothing to draw, such as a comparison of fewer than two rates.
        """
        # Pictures are made of answers, so their package is above; it is looked up when a picture is asked for.
        return import_module("draftcast.scenarios.show.figures").figure_of(self)
