"""The whole validation on a real vLLM server: calibration runs, then the sweep that the forecast is judged by.

    python benchmarks/live.py --out DIR [--vllm 'PYTHON -m vllm.entrypoints.openai.api_server'] [--quick]

Made for two CPU cores (about 30 minutes on a quiet machine; ``--quick`` about 5): a 54 M parameter target in float32
with drafts of one layer, speculation off, draft_model k = 1, 3, 5 and ngram k = 3. Calibration runs are closed loops of
other lengths and other numbers of users. A stopped run goes on with the same command. Prints progress, which bars
hold, the measured cutovers and effects beside the forecast's, and one last JSON line; the whole report is in DIR/sweep.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from draftcast.calibration.live.checkpoint import TARGET, write_testbed
from draftcast.files import plain
from draftcast.kernels.model.catalog import load_model
from draftcast.scenarios.cli.live import live_progress, split_command
from draftcast.scenarios.cli.terminal import progress_bar
from draftcast.scenarios.cli.validate import report_sweep
from draftcast.scenarios.live.run import LiveOptions, testbed_scenario
from draftcast.scenarios.live.sweep import SweepPlan, live_sweep
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import load_scenario, with_values

KS = (1, 3, 5)
RATES = (0.8, 0.62, 0.48, 0.37, 0.28)
LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 3}
NGRAM = {
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, **LOOKUP},
    "acceptance": {"model": "ngram", "match_probability": 0.45, "rates": [0.85, 0.7, 0.6]},
}
LENGTHS = {
    "prompt_tokens": {"distribution": "uniform", "low": 80, "high": 144},
    "output_tokens": {"distribution": "uniform", "low": 24, "high": 56},
}
CALIBRATION_LENGTHS = {
    "prompt_tokens": {"distribution": "uniform", "low": 96, "high": 320},
    "output_tokens": {"distribution": "uniform", "low": 32, "high": 64},
}
FULL = SweepPlan(
    KS,
    (NGRAM,),
    concurrencies=(1, 2, 3, 4, 6, 8, 12, 16),
    calibration_concurrencies=(1, 5, 7, 10, 14, 20),
    calibration_lengths=CALIBRATION_LENGTHS,
    cell_s=9.0,
)
QUICK = replace(FULL, ks=(3,), concurrencies=(1, 8), rates_rps=(2.0,), calibration_concurrencies=(4,), cell_s=6.0)


def question(folder: Path) -> Scenario:
    """The scenario; its checkpoints, 54 M parameters in 10 layers, are written when they are not there."""
    if not (folder / TARGET).is_dir():
        target = replace(
            load_model("testbed-250M"),
            name="benchmark target",
            num_hidden_layers=10,
            hidden_size=640,
            word_embed_proj_dim=640,
            num_attention_heads=10,
            num_key_value_heads=5,
            head_dim=64,
            intermediate_size=1920,
            vocab_size=8192,
            max_position_embeddings=2048,
        )
        write_testbed(folder, target, replace(target, num_hidden_layers=1), RATES, KS, dtype="fp32")
    values = {
        "name": "54 M target on two CPU cores",
        "engine.max_model_len": 1024,
        "engine.max_num_batched_tokens": 1024,
        "engine.num_gpu_blocks": 512,
        "workload.num_requests": 100,
        "workload.lengths": LENGTHS,
    }
    return with_values(load_scenario(testbed_scenario(folder, RATES, KS, "fp32", "cpu")), values)


def main(
    out: Annotated[Path, typer.Option()],
    vllm: Annotated[str | None, typer.Option(help="how vLLM's server is called; found when absent")] = None,
    cell_seconds: Annotated[float | None, typer.Option(help="seconds in which a run sends (9; quick 6)")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="few loads, off, draft_model k=3 and ngram k=3")] = False,
) -> None:
    plan = QUICK if quick else FULL
    if cell_seconds is not None:
        plan = replace(plan, cell_s=cell_seconds)
    began = time.monotonic()
    scenario, live_options = question(out / "testbed"), LiveOptions(vllm=split_command(vllm))
    with progress_bar("live sweep") as progress:
        index = live_sweep(scenario, out / "sweep", plan, live_options, live_progress(progress))
    report, text = report_sweep(out / "sweep")
    print(text)
    incomplete = [cell["dir"] for cell in index["cells"] if not cell["complete"]]
    minutes = (time.monotonic() - began) / 60
    judged = {name: report[name] for name in ("verdicts", "steps", "cutovers", "known_continuation")}
    print(json.dumps(plain({**judged, "incomplete": incomplete, "minutes": round(minutes, 1)})))
    sys.exit(1 if incomplete else 0)


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
