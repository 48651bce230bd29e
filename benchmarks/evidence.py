"""How far forecasts are from what real engines measured on real GPUs.

``python benchmarks/evidence.py [FILE...]`` forecasts every shipped point (or the points of JSON-lines files of the same
form) and prints errors by kind with each source counted once, the signs of the speed-ups, the early results, how well
prediction intervals cover with each source held out, errors without and with ``--calibrate-to`` a run without
speculation, and one last JSON line; half an hour of one core. ``--write-model-error`` writes the spreads of the errors
to ``scenarios/compare/model_error.yaml``; ``--write-forecasts`` alone writes the forecasts of steady loads to
``scenarios/evidence/forecasts.csv``, which the page Trust shows (some minutes).

``--recorded`` instead forecasts three whole runs of vLLM on GPUs with the kernel timings of the same machines
(``../shared/data/recorded``): with its machine's own timings and with what is shipped for the device. Nothing in the
package was fitted to these runs. Its last line is JSON too. Bars are those of ``evidence.yaml``.
"""

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import yaml

from draftcast.calibration.importers.formats import read, write_profile
from draftcast.calibration.live.imported_runs import import_recorded_run
from draftcast.calibration.live.off_runs import OffRun
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.errors import InputError
from draftcast.files import plain
from draftcast.kernels.model.catalog import load_model
from draftcast.scenarios.compare import model_error
from draftcast.scenarios.evidence import summary
from draftcast.scenarios.evidence.forecast import SIDES, Forecast, ForecastSide, forecast_points, forecast_questions
from draftcast.scenarios.evidence.point import points
from draftcast.scenarios.evidence.settings import Reading
from draftcast.scenarios.evidence.summary import by_kind, coverage, errors, estimated_strata, is_moe, residuals, signs
from draftcast.scenarios.live.calibrate_to import fitted, with_correction
from draftcast.scenarios.live.validate.comparison import validate
from draftcast.scenarios.run.simulate import simulate_together
from draftcast.scenarios.schema.load import load_scenario, to_mapping, with_values
from draftcast.scenarios.show.evidence_report import SUMMARY, counts_line, sign_lines, summary_rows
from draftcast.scenarios.show.tables import aligned
from draftcast.yaml_text import yaml_beside

_BARS = yaml_beside(__file__, "evidence.yaml")
BARS, RECORDED = _BARS["points"], _BARS["recorded"]
RECORDED_RUNS = Path(__file__).parents[2] / "shared" / "data" / "recorded"
UTILIZATION = 0.9  # vLLM 0.19's default, which the runs took
LOSSES, GAINS = 0.80, 0.97
LEAST_COVERED, MOST_COVERED, WIDEST = 0.85, 0.95, 3
EARLY = ("blog-", "opt-2.7b", "arctic-")  # the results that made speculation known: sources of points/early.jsonl
EARLY_BAR = 0.15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--write-model-error", action="store_true")
    parser.add_argument("--write-forecasts", action="store_true")
    parser.add_argument("--recorded", action="store_true")
    # Nothing is drawn where speculation is off: all are the same.
    parser.add_argument("--replications", type=int, default=1, help="of recorded runs")
    arguments = parser.parse_args()
    if arguments.recorded:
        print(json.dumps(recorded(arguments.replications)))
        return
    if arguments.write_forecasts:
        write_forecasts(list(forecast_points(point for point in points() if point.tier in summary.JUDGED_TIERS)))
        return
    forecasts = list(forecast_points(points(*arguments.files)))
    print("\n".join(aligned([SUMMARY, *summary_rows(forecasts)])))
    print("\n" + counts_line(forecasts))
    dense = [f for f in forecasts if f.point.tier == "A" and not is_moe(f.point)]
    for name, members in (("tier A, dense", dense), ("all", forecasts)):
        print("\n".join(f"{name}: {line}" for line in sign_lines(members)))
    results = figures(forecasts, dense)
    calibrations = calibrated(forecasts)
    print("\nMedian error by source, without and with --calibrate-to one run without speculation (tiers A and B)")
    print(calibrations.to_string(index=False, float_format="{:.1%}".format))
    results["calibrated"] = calibrations.to_dict("records")
    results["bars"] |= calibration_bars(calibrations)
    print()
    for name, entry in results["bars"].items():
        print(f"{'ok    ' if entry['holds'] else 'MISSED'} {name}: {entry['value']:+.1%} (bar {entry['bar']:.0%})")
    for name, error in results["early"].items():
        mark = "ok    " if abs(error) <= EARLY_BAR else "MISSED"
        print(f"{mark} {name}: speed-up {error:+.0%} (bar {EARLY_BAR:.0%})")
    results["intervals"] = intervals(forecasts)
    if arguments.write_model_error:
        write_model_error(forecasts, calibrations)
    print(json.dumps(plain(results), allow_nan=False))


def intervals(forecasts: list[Forecast]) -> dict[str, Any]:
    """Coverage of the 90 % prediction intervals, printed and for machines."""
    by_side = {}
    for side in SIDES:
        cover = coverage(residuals(forecasts, side))
        holds = LEAST_COVERED <= cover.covered <= MOST_COVERED and cover.half_width <= WIDEST * cover.error
        print(
            f"{'ok    ' if holds else 'MISSED'} 90 % intervals, {side}: cover {cover.covered:.0%} (bar 85 to 95 %), "
            f"median half width {cover.half_width:.1%} (bar {WIDEST} x {cover.error:.1%}); {cover.points} points, "
            f"{cover.sources} sources"
        )
        by_side[side] = {**asdict(cover), "holds": holds}
    return by_side


def write_model_error(forecasts: list[Forecast], calibrations: pd.DataFrame) -> None:
    """The spreads of the errors as the data file that every verdict reads."""
    path = Path(model_error.__file__).with_suffix(".yaml")
    head = [line for line in path.read_text().splitlines() if line.startswith("#")]
    strata = estimated_strata(forecasts)
    missing = {name: spread for name, spread in model_error.SPREADS["strata"].items() if name not in strata}
    others = calibrations[calibrations["figure"] == OTHER_LOADS]
    share = min(round(float((others["with_it"] / others["without"]).median()), 2), 1.0)
    values = {"schema_version": 1, "calibrated_share": share, "strata": strata | missing}
    path.write_text("\n".join(head) + "\n" + yaml.safe_dump(values, sort_keys=False))


def write_forecasts(forecasts: list[Forecast]) -> None:
    """What `shipped_forecasts` reads: id, stratum and figures of every forecast."""
    rows = [(f.point.id, f.stratum, f.off, f.on) for f in forecasts if f.stratum]
    table = pd.DataFrame(rows, columns=["id", "stratum", "off", "on"])
    path = Path(summary.__file__).with_name(summary.SHIPPED)
    table.to_csv(path, index=False, float_format="%.5g", lineterminator="\n")


def figures(forecasts: list[Forecast], dense: list[Forecast]) -> dict[str, Any]:
    errors_by_kind: dict[str, dict[str, Any]] = {}
    for name, members in by_kind(forecasts).items():
        sides = {side: errors(members, side) for side in SIDES}
        errors_by_kind[name] = {side: asdict(error) for side, error in sides.items() if error is not None}
    bars = {}
    for name, sides in BARS.items():
        for side, error in errors_by_kind[name].items():
            for statistic, bar in sides.get(side, {}).items():
                value = error[statistic]
                bars[f"{name}: {side} {statistic}"] = {"value": value, "bar": bar, "holds": abs(value) <= bar}
    for name, below, bar in (("losses", True, LOSSES), ("gains", False, GAINS)):
        sign = signs(dense, below=below)
        if sign.points:
            entry = {"value": sign.share, "bar": bar, "holds": sign.share >= bar}
            bars[f"A, dense: {name} with the right sign"] = entry
    shown = [f for f in forecasts if f.point.id.startswith(EARLY)]
    early = {f.point.id: error for f in shown if (error := f.error("speedup")) is not None}
    return {"errors": errors_by_kind, "bars": bars, "early": early}


BETTER, WORSE = 0.75, 0.02
OTHER_LOADS = "off, other loads"


def setup_of(question: Reading) -> str:
    """Text that is equal for runs of one source that differ in their load only."""
    data = to_mapping(question.off)
    data["engine"].pop("max_model_len")  # follows from the load where it is not given
    data["workload"] = data["workload"]["lengths"]
    return json.dumps([question.point.source, *(data[key] for key in ("engine", "hardware", "workload"))])


def calibrated(forecasts: list[Forecast]) -> pd.DataFrame:
    """Median absolute errors of each source's forecasts before and after a calibration to one run without speculation.

    Every run corrects the forecasts of its set-up. ``figure``: on at the load of that run, on at others, off at others.
    """
    setups: dict[str, list[Forecast]] = defaultdict(list)
    for forecast in forecasts:
        if forecast.error("off") is not None and forecast.point.tier != "C":
            setups[setup_of(forecast.question)].append(forecast)
    rows = []
    for members in setups.values():
        runs = {(f.point.load.value, f.point.off): f for f in members}
        for (load, off), run in runs.items():
            same = [f for f in members if (f.point.load.value, f.point.off) == (load, off)]
            judged = [f for f in members if f.point.load.value != load]
            judged += [f for f in same if f.error("on") is not None]
            correction = correction_of(run) if judged else None
            if correction is None:
                continue
            for before, after in zip(judged, corrected(judged, correction), strict=True):
                at_others = before.point.load.value != load
                sides: tuple[ForecastSide, ...] = ("on", "off") if at_others else ("on",)
                for side in sides:
                    without, with_it = before.error(side), after.error(side)
                    if without is not None and with_it is not None:
                        figure = f"{side}, {'other loads' if at_others else 'this load'}"
                        rows.append((run.point.source, figure, abs(without), abs(with_it)))
    errors_of = pd.DataFrame(rows, columns=["source", "figure", "without", "with_it"]).groupby(["figure", "source"])
    return errors_of.median().assign(forecasts=errors_of.size()).reset_index()


def correction_of(run: Forecast) -> dict[str, Any] | None:
    off, error = run.question.off, run.error("off")
    # The row's metric in the terms of a figure that a client knows.
    name = "mean_tpot_s" if run.point.metric in ("tpot_ms", "itl_ms", "per_request_decode_tok_s") else "mean_e2el_s"
    (result,) = simulate_together([off])
    seconds = result.summary["figures"][name].mean / (1.0 + error)
    measured = OffRun(run.point.id, "", len(result.requests), {name: seconds}, {}, None, None, None)
    try:
        calibration = with_correction(off, fitted(off, [measured]), [run.point.id]).correction
    except InputError:
        return None
    return calibration.model_dump(mode="json")


def corrected(forecasts: list[Forecast], correction: dict[str, Any]) -> list[Forecast]:
    questions = []
    for f in forecasts:
        sides = {"off": f.question.off, "on": f.question.on}
        after = {name: with_values(s, {"correction": correction}) for name, s in sides.items() if s is not None}
        questions.append(replace(f.question, **after))
    return list(forecast_questions(questions))


def calibration_bars(calibrations: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Better in three of four sources, worse by two points in none."""
    bars: dict[str, dict[str, Any]] = {}
    for figure, kind in calibrations.groupby("figure"):
        loss = kind["with_it"] - kind["without"]
        share, worst = (loss < 0.0).mean(), loss.max()
        name = f"calibrated: {figure}: sources ({len(kind)})"
        bars[f"{name} with a smaller error"] = {"value": share, "bar": BETTER, "holds": share >= BETTER}
        bars[f"{name}, largest loss"] = {"value": worst, "bar": WORSE, "holds": worst <= WORSE}
    return bars


def recorded(replications: int) -> list[dict[str, Any]]:
    """Measured value, forecast and relative error of every judged figure of every recorded run, also printed."""
    if not RECORDED_RUNS.is_dir():
        sys.exit(f"{RECORDED_RUNS} is not there")
    rows, results = [["run", "timings", "figure", "measured", "forecast", "error", "bar", ""]], []
    values = {"engine.speculative_config": None, "engine.gpu_memory_utilization": UTILIZATION}
    values |= {"statistics.replications": replications}
    origin = {"date": datetime.now(UTC).date().isoformat(), "command": "benchmarks/evidence.py --recorded"}
    with TemporaryDirectory() as scratch:
        for name, judged in RECORDED.items():
            folder, own, hardware = RECORDED_RUNS / name, Path(scratch) / name, load_hardware(judged["device"])
            run = import_recorded_run(folder, Path(scratch) / "runs" / name)
            config = run.manifest["server"]["config"]
            model, tp = load_model(config["model"]), config["tensor_parallel_size"]
            times = read("llmservingsim", folder / "perf", hardware, model=model, tp=tp)
            write_profile(own, times, hardware, name=name, **origin)
            scenario = with_values(load_scenario(), {"hardware": judged["device"], **values})
            for timings, profile in (("own", str(own)), ("shipped", None)):
                comparison = validate(run, scenario, profile=profile, attribute=False)
                for figure in judged["own"]:
                    of_figure, bar = comparison.figures[figure], judged[timings].get(figure)
                    measured, forecast, error = of_figure.measured, of_figure.forecast.mean, of_figure.error
                    verdict = "" if bar is None else "met" if abs(error) <= bar else "MISSED"
                    numbers = [f"{measured:.4g}", f"{forecast:.4g}", f"{error:+.1%}"]
                    rows.append([name, timings, figure, *numbers, "" if bar is None else f"{bar:.0%}", verdict])
                    shown = {"measured": measured, "forecast": forecast, "error": error}
                    results.append({"run": name, "timings": timings, "figure": figure, **shown, "bar": bar})
    print("\n".join(aligned(rows)))
    return results


if __name__ == "__main__":
    main()
