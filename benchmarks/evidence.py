"""How far forecasts are from what real engines measured on real GPUs.

``python benchmarks/evidence.py [FILE...]`` forecasts every shipped point (or the points of JSON-lines files of the same
form) and prints errors by kind with each source counted once, the signs of the speed-ups, the early results, how well
prediction intervals cover with each source held out, and one last JSON line. It takes one to three minutes.
``--write-model-error`` writes the spreads of the errors to ``scenarios/compare/model_error.yaml``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from draftcast.files import plain
from draftcast.scenarios.compare import model_error
from draftcast.scenarios.evidence.forecast import Forecast, forecast_points
from draftcast.scenarios.evidence.point import points, read_points
from draftcast.scenarios.evidence.residuals import coverage, estimated_strata, residuals
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
LEAST_COVERED, MOST_COVERED, WIDEST = 0.85, 0.95, 3
# The results that made speculation known: sources of points/early.jsonl.
EARLY = ("blog-", "opt-2.7b", "arctic-")
EARLY_BAR = 0.15


def main() -> None:
    """Print the table and the JSON line."""
    write = "--write-model-error" in sys.argv
    paths = [Path(name) for name in sys.argv[1:] if not name.startswith("--")]
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
    found["intervals"] = intervals(forecasts)
    if write:
        write_model_error(forecasts)
    print(json.dumps(plain(found), allow_nan=False))


def intervals(forecasts: list[Forecast]) -> dict[str, Any]:
    """Coverage of the 90 % prediction intervals, printed and for machines."""
    found = {}
    for side in SIDES:
        known = coverage(residuals(forecasts, side))
        holds = LEAST_COVERED <= known.covered <= MOST_COVERED and known.half_width <= WIDEST * known.error
        print(
            f"{'ok    ' if holds else 'MISSED'} 90 % intervals, {side}: cover {known.covered:.0%} (bar 85 to 95 %), "
            f"median half width {known.half_width:.1%} (bar {WIDEST} x {known.error:.1%}); {known.points} points, "
            f"{known.sources} sources"
        )
        found[side] = {**asdict(known), "holds": holds}
    return found


def write_model_error(forecasts: list[Forecast]) -> None:
    """The spreads of the errors as the data file that every verdict reads."""
    path = Path(model_error.__file__).with_suffix(".yaml")
    head = [line for line in path.read_text().splitlines() if line.startswith("#")]
    strata = {name: stratum.model_dump() for name, stratum in estimated_strata(forecasts).items()}
    missing = {name: known.model_dump() for name, known in model_error.strata().items() if name not in strata}
    text = yaml.safe_dump({"schema_version": 1, "strata": strata | missing}, sort_keys=False)
    path.write_text("\n".join(head) + "\n" + text)


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
