"""A run as a file to take away: rows as CSV or Parquet, figures as JSON, the scenario as YAML, pictures as HTML."""

from __future__ import annotations

import datetime
import io
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from draftcast.scenarios.run.run_directory import plain
from draftcast.scenarios.run.simulate import RunResult
from draftcast.scenarios.schema import Scenario
from draftcast.sim.output.metrics import Metrics
from draftcast.sim.output.vllm_result import vllm_result

if TYPE_CHECKING:
    import pandas as pd


def csv_bytes(table: pd.DataFrame) -> bytes:
    """UTF-8 CSV with a header and no index; every digit of a number."""
    return table.to_csv(index=False).encode()


def parquet_bytes(table: pd.DataFrame) -> bytes:
    """Parquet with the columns' own types."""
    target = io.BytesIO()
    table.to_parquet(target, index=False)
    return target.getvalue()


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """JSON as ``--json`` prints it, indented; NaN and infinities become null."""
    return (json.dumps(plain(data), indent=1, allow_nan=False) + "\n").encode()


def vllm_bench_result(scenario: Scenario, run: RunResult) -> dict[str, Any]:
    """The first replication of ``scenario`` as ``vllm bench serve --save-result --save-detailed`` would write it."""
    values = run.replications[0]
    positions = (f"acceptance_rate_position_{i}" for i in itertools.count())
    arrivals = scenario.workload.arrivals
    rate = getattr(arrivals, "request_rate_rps", None)
    return vllm_result(
        Metrics(
            values,
            per_position_acceptance=tuple(values[p] for p in itertools.takewhile(values.__contains__, positions)),
        ),
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
    parts = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(line)}</p>" for line in lines)]
    for name, table in tables.items():
        shown = table.to_html(index=False, border=0, float_format=lambda value: f"{value:.4g}")
        parts.append(f"<h2>{escape(name)}</h2>{shown}")
    for index, figure in enumerate(figures):
        figure.update_layout(template="plotly_white")
        parts.append(figure.to_html(full_html=False, include_plotlyjs=index == 0, config={"displaylogo": False}))
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem;color:#212529}"
        "table{border-collapse:collapse;font-size:13px}td,th{padding:.2rem .6rem;text-align:right;"
        "border-bottom:1px solid #dee2e6}"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )
