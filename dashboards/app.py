"""The script that ``draftcast dashboard`` runs with Streamlit, once for every interaction of every session."""

import sys
from pathlib import Path

from draftcast.dashboards.pages.shell import run_app

# Streamlit puts this folder in front of all others, where a page would be taken for a package of the same name.
sys.path[:] = [entry for entry in sys.path if entry not in ("", str(Path(__file__).parent))]
run_app(tuple(sys.argv[1:]))
