"""The script that ``draftcast dashboard`` runs with Streamlit, once for every interaction of every session."""

from __future__ import annotations

import sys

from draftcast.dashboards.shell import run_app

run_app(tuple(sys.argv[1:]))
