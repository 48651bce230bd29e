"""How far forecasts are from what real engines measured on real GPUs.

``python benchmarks/evidence.py [FILE...]`` forecasts every shipped point (or the points of JSON-lines files of the same
form) and prints errors by kind with each source counted once, the signs of the speed-ups, the early results, and one
last JSON line. It takes one to three minutes.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from draftcast.files import plain
from draftcast.scenarios.evidence.forecast import Forecast, forecast_points
from draftcast.scenarios.evidence.point import points, read_points
from draftcast.scenarios.evidence.summary import SIDES, errors, is_moe, kinds, signs
from draftcast.scenarios.show.evidence_report import SUMMARY, counts_line, sign_lines, summary_rows
from draftcast.scenarios.show.tables import aligned

# (kind, figure, statistic) -> at most; a signed statistic counts by its size.
_DENSE = {
    ("off", "median"): 0.04,
    ("on", "median"): 0.05,
    ("speedup", "median"): 0.04,
    ("speedup", "p90"): 0.12,
    ("off", "mean"): 0.02,
    ("on", "mean"): 0.02,
    ("speedup", "mean"): 0.02,
}
BARS = {
    **{("A, dense", *figure): bar for figure, bar in _DENSE.items()},
    **{("A, dense, vLLM", *figure): bar for figure, bar in _DENSE.items()},
    ("A, dense, SGLang", "speedup", "mean"): 0.06,
    ("A, experts", "off", "median"): 0.12,
    ("A, experts", "off", "mean"): 0.05,
}
LOSSES, GAINS = 0.80, 0.97
# The results that made speculation known: sources of points/early.jsonl.
EARLY = ("blog-", "opt-2.7b", "arctic-")
EARLY_BAR = 0.15


def main() -> None:
    """Print the table and the JSON line."""
    paths = [Path(name) for name in sys.argv[1:]]
    forecasts = list(forecast_points(read_points(paths) if paths else points()))
    print("\n".join(aligned([SUMMARY, *summary_rows(forecasts)])))
    print("\n" + counts_line(forecasts))
    dense = [f for f in forecasts if f.point.tier == "A" and not is_moe(f.point)]
    for name, members in (("tier A, dense", dense), ("all", forecasts)):
        print("\n".join(f"{name}: {line}" for line in sign_lines(members)))
    found = figures(forecasts, dense)
    print()
    for name, entry in found["bars"].items():
        print(f"{'ok    ' if entry['holds'] else 'MISSED'} {name}: {entry['value']:+.1%} (bar {entry['bar']:.0%})")
    for name, error in found["early"].items():
        print(
            f"{'ok    ' if abs(error) <= EARLY_BAR else 'MISSED'} {name}: speed-up {error:+.0%} (bar {EARLY_BAR:.0%})"
        )
    print(json.dumps(plain(found), allow_nan=False))


def figures(forecasts: list[Forecast], dense: list[Forecast]) -> dict[str, Any]:
    """Everything that is printed, for machines."""
    by_kind = {
        kind.name: {side: errors([f for f in forecasts if kind.holds(f.point)], side) for side in SIDES}
        for kind in kinds()
    }
    bars = {}
    for (kind, side, statistic), bar in BARS.items():
        error = by_kind[kind][side]
        if error is not None:
            value = getattr(error, statistic)
            bars[f"{kind}: {side} {statistic}"] = {"value": value, "bar": bar, "holds": abs(value) <= bar}
    for name, below, bar in (("losses", True, LOSSES), ("gains", False, GAINS)):
        sign = signs(dense, below=below)
        if sign.points:
            bars[f"A, dense: {name} with the right sign"] = {
                "value": sign.share,
                "bar": bar,
                "holds": sign.share >= bar,
            }
    return {
        "errors": {
            kind: {side: asdict(error) for side, error in found.items() if error is not None}
            for kind, found in by_kind.items()
        },
        "bars": bars,
        "early": {
            f.point.id: f.speedup_error
            for f in forecasts
            if f.point.id.startswith(EARLY) and f.speedup_error is not None
        },
    }


if __name__ == "__main__":
    main()
