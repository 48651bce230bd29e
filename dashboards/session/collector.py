"""Python's garbage collector, kept from looking at what stays.

Streamlit collects after every run of the script. Libraries and compiled code are 250,000 objects: looking at all of
them took 0.14 s of Python's lock each time, while the page was still being drawn.
"""

from __future__ import annotations

import gc


def set_aside() -> None:
    """Collect everything, then leave what remains out of later collections until this is called again.

    What is set aside and then ends (a browser session is part of cycles) goes with the next call.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
