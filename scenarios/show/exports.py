"""A run as a file to take away: figures as JSON, as vLLM's benchmark writes them, and a page with its pictures."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from draftcast.files import plain
from draftcast.scenarios.run.simulate import RunResult
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.show.tables import page, paragraphs
from draftcast.sim.output.vllm_result import vllm_result

if TYPE_CHECKING:
    import pandas as pd


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """JSON as ``--json`` prints it, indented; NaN and infinities become null."""
    return (json.dumps(plain(data), indent=1, allow_nan=False) + "\n").encode()


def vllm_bench_result(scenario: Scenario, run: RunResult) -> dict[str, Any]:
    """The first replication of ``scenario`` as ``vllm bench serve --save-result --save-detailed`` would write it."""
    arrivals = scenario.workload.arrivals
    rate = getattr(arrivals, "request_rate_rps", None)
    return vllm_result(
        run.replications[0],
        run.requests[run.requests["replication"] == 0],
        model_id=scenario.engine.model,
        date=datetime.datetime.now().strftime("%Y%m%d-%H%M%S"),
        request_rate=math.inf if rate is None else rate,
        burstiness=getattr(arrivals, "burstiness", 1.0),
        max_concurrency=getattr(arrivals, "concurrency", None),
        detailed=True,
    )


def html_report(title: str, lines: Sequence[str], tables: Mapping[str, pd.DataFrame], figures: Sequence[Any]) -> str:
    """One HTML file that needs no network: sentences, tables, and plotly pictures that still answer the mouse."""
    parts = paragraphs(lines)
    for name, table in tables.items():
        shown = table.to_html(index=False, border=0, float_format=lambda value: f"{value:.4g}")
        parts.append(f"<h2>{escape(name)}</h2>{shown}")
    for index, figure in enumerate(figures):
        figure.update_layout(template="plotly_white")
        parts.append(figure.to_html(full_html=False, include_plotlyjs=index == 0, config={"displaylogo": False}))
    return page(title, parts)
