"""Recorded vLLM runs beside their forecasts: ``python benchmarks/recorded.py [--replications N]``.

Three whole runs on GPUs with the kernel timings of the same machines (``../shared/data/recorded``). Each is forecast
with its machine's own timings and with what is shipped for the device, and judged by the bars of `BARS` and
`SHIPPED_TPOT`. Nothing in the package was fitted to these runs.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer

from draftcast.calibration.importers.formats import read, write_profile
from draftcast.calibration.live.imported_runs import import_recorded_run
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.kernels.model.catalog import load_model
from draftcast.scenarios.live.validate.comparison import validate
from draftcast.scenarios.schema.load import load_scenario, with_values
from draftcast.scenarios.show.tables import aligned

DATA = Path(__file__).parents[2] / "shared" / "data" / "recorded"
RUNS = {  # folder of a run and its device
    "rtx-pro-6000_llama-3.1-8b": "rtx-pro-6000",
    "rtx-4090_llama-3.1-8b": "rtx-4090",
    "rtx-pro-6000_qwen3-32b_tp2": "rtx-pro-6000",
}
UTILIZATION = 0.9  # vLLM 0.19's default, which the runs took
BARS = {"request_throughput": 0.03, "mean_tpot_s": 0.03, "mean_e2el_s": 0.04, "mean_ttft_s": 0.07}
"""Largest relative error with the machine's own timings."""
TWO_RANKS_TPOT, SHIPPED_TPOT = 0.08, 0.08


def own_profile(run: LiveRun, folder: Path, device: str, out: Path) -> str:
    """A profile of the run's own kernel timings; returns its folder."""
    config, hardware = run.manifest["server"]["config"], load_hardware(device)
    model, tp = load_model(config["model"]), config["tensor_parallel_size"]
    times = read("llmservingsim", folder / "perf", hardware, model=model, tp=tp)
    today = datetime.now(UTC).date().isoformat()
    write_profile(out, times, hardware, name=out.name, date=today, command="benchmarks/recorded.py")
    return str(out)


def errors(run: LiveRun, device: str, profile: str | None, replications: int) -> dict[str, dict[str, float]]:
    """Measured value, forecast and relative error of every judged figure."""
    values = {
        "hardware": device,
        "engine.speculative_config": None,
        "engine.gpu_memory_utilization": UTILIZATION,
        "statistics.replications": replications,
    }
    judged = validate(run, with_values(load_scenario(), values), profile=profile, attribute=False).figures
    return {
        name: {"measured": judged[name].measured, "forecast": judged[name].forecast.mean, "error": judged[name].error}
        for name in BARS
    }


def bar_of(name: str, run: LiveRun, own_timings: bool) -> float | None:
    if not own_timings:
        return SHIPPED_TPOT if name == "mean_tpot_s" else None
    is_parallel = run.manifest["server"]["config"]["tensor_parallel_size"] > 1
    return TWO_RANKS_TPOT if is_parallel and name == "mean_tpot_s" else BARS[name]


def main(replications: int = 1) -> None:  # nothing is drawn where speculation is off: all are the same
    if not DATA.is_dir():
        sys.exit(f"{DATA} is not there")
    rows: list[list[str]] = [["run", "timings", "figure", "measured", "forecast", "error", "bar", ""]]
    results: list[dict[str, Any]] = []
    with TemporaryDirectory() as scratch:
        for name, device in RUNS.items():
            run = import_recorded_run(DATA / name, Path(scratch) / "runs" / name)
            own_folder = own_profile(run, DATA / name, device, Path(scratch) / name)
            for timings, profile in (("own", own_folder), ("shipped", None)):
                for figure, values in errors(run, device, profile, replications).items():
                    bar = bar_of(figure, run, profile is not None)
                    met = bar is None or abs(values["error"]) <= bar
                    numbers = [f"{values['measured']:.4g}", f"{values['forecast']:.4g}", f"{values['error']:+.1%}"]
                    verdict = "" if bar is None else "met" if met else "MISSED"
                    rows.append([name, timings, figure, *numbers, "" if bar is None else f"{bar:.0%}", verdict])
                    results.append({"run": name, "timings": timings, "figure": figure, **values, "bar": bar})
    print("\n".join(aligned(rows)))
    print(json.dumps(results))


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
