"""Decode steps of a real vLLM on this machine's GPU, with random weights, against the forecast of the same steps.

    python benchmarks/engine_steps.py measure Llama-3.1-8B --out steps.csv [--speculative-config JSON]
    python benchmarks/engine_steps.py compare benchmarks/data/*.csv

``measure`` needs vLLM. The prompts of every batch are in the prefix cache, so all its requests decode together; the
figure is the median time between the log's lines of steps in which all of them decode and none is prefilled. Random
weights route the rows of a step to few experts, so a model with experts is worth a batch of 1 only; and a draft head
shares the target's LM head, whatever its own vocabulary.
"""

import json
import os
import random
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from draftcast.calibration.engine_log.log import read_engine_log
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.model.heads import resolve_head

MODELS = Path(__file__).parents[1] / "kernels" / "models"
OUTPUT_TOKENS = 48
FEWEST_STEPS = 5
COLUMNS = ["hardware", "version", "model", "dtype", "method", "k", "batch", "context", "steps", "median_ms"]
app = typer.Typer(help=__doc__, add_completion=False)


@app.command()
def measure(
    model: Annotated[str, typer.Argument(help="a bundled model")],
    out: Annotated[Path, typer.Option(help="CSV file")],
    hardware: str = "h100-sxm",
    dtype: Annotated[str, typer.Option(help="format of the weights, for the forecast")] = "bf16",
    context: int = 1024,
    batches: str = "1,2,4,8,16,32,48,64,96,128,192",
    speculative_config: Annotated[str, typer.Option(help="vLLM's, as JSON")] = "null",
) -> None:
    sizes = [int(size) for size in batches.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        log, spec = Path(folder) / "engine.log", json.loads(speculative_config)
        file = {"class": "logging.FileHandler", "filename": str(log), "formatter": "stamped"}
        handlers = {"file": file, "terminal": {"class": "logging.StreamHandler", "level": "WARNING"}}
        logging = {"version": 1, "formatters": {"stamped": {"format": "%(created).6f %(message)s"}}}
        logging |= {"handlers": handlers, "loggers": {"vllm": {"handlers": [*handlers], "level": "INFO"}}}
        (Path(folder) / "logging.json").write_text(json.dumps(logging))
        (Path(folder) / "config.json").write_bytes((MODELS / f"{model}.json").read_bytes())
        os.environ |= {"VLLM_LOGGING_CONFIG_PATH": f"{folder}/logging.json", "HF_HUB_OFFLINE": "1"}
        _run(folder, context, sizes, spec)
        same = {"hardware": hardware, "model": model, "dtype": dtype, "context": context + OUTPUT_TOKENS // 2}
        pd.DataFrame([same | row for row in steps_of(log)])[COLUMNS].to_csv(out, index=False)
    compare([out])


def _run(folder: str, context: int, sizes: list[int], speculative_config: dict[str, Any] | None) -> None:
    from vllm import LLM, SamplingParams

    size = {"max_model_len": 2 * context + OUTPUT_TOKENS, "max_num_seqs": max(sizes)}
    weights = {"load_format": "dummy", "skip_tokenizer_init": True, "dtype": "bfloat16"}
    log = {"enable_logging_iteration_details": True, "disable_log_stats": False}
    engine = LLM(folder, speculative_config=speculative_config, **weights, **size, **log)
    draw = random.Random(1)
    prompts = [{"prompt_token_ids": [draw.randrange(10, 10_000) for _ in range(context)]} for _ in range(max(sizes))]

    def answer(count: int, tokens: int) -> None:
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0, detokenize=False)
        engine.generate(prompts[:count], sampling, use_tqdm=False)

    answer(max(sizes), 1)
    for size in sizes:
        answer(size, OUTPUT_TOKENS)


def steps_of(log: Path) -> Iterator[dict[str, Any]]:
    """Median milliseconds between the lines of successive steps that decode alone, by how many requests they decode."""
    steps = read_engine_log(log)
    alone = (steps["context_requests"] == 0) & (steps["generation_requests"] == steps["generation_requests"].shift())
    steps = steps.assign(gap_ms=1e3 * steps["time_s"].diff())[alone & (steps["context_requests"].shift() == 0)]
    for batch, rows in steps.groupby("generation_requests"):
        if len(rows) >= FEWEST_STEPS:
            first = rows.iloc[0]
            facts = {"version": f"vllm {first['version']}", "method": first["method"] or "none"}
            facts |= {"k": first["num_speculative_tokens"], "batch": batch, "steps": len(rows)}
            yield facts | {"median_ms": round(float(rows["gap_ms"].median()), 3)}


@app.command()
def compare(files: list[Path]) -> None:
    # Later than vLLM: on a CPU it looks through all loaded modules and stumbles over numba's.
    from draftcast.scenarios.show.profile_view import Step, open_profile, step_cost, step_parts

    rows = pd.concat([pd.read_csv(file) for file in files])
    errors = []
    print(f"{'model':<24}{'method':<10}{'batch':>6}{'measured, ms':>14}{'forecast, ms':>14}{'error':>8}")
    for row in rows.itertuples():
        opened = open_profile(row.hardware)
        same = {"context": row.context, "dtype": row.dtype, "version": row.version}
        step = Step(row.model, row.method, row.k, temperature=0.0, **same)
        target, draft = load_model(row.model), None
        if row.k:  # with the target's LM head
            draft = replace(resolve_head(row.method, target, row.k, None).spec, vocab_size=target.vocab_size)
        parts = step_parts(opened, step_cost(opened, step, draft), step, row.batch)
        forecast = 1e3 * max(parts["device"], parts["host"])  # asynchronous scheduling hides the shorter of them
        errors.append(forecast / row.median_ms - 1.0)
        name = f"{row.method} {row.k}" if row.k else "none"
        print(f"{row.model:<24}{name:<10}{row.batch:>6}{row.median_ms:>14.2f}{forecast:>14.2f}{errors[-1]:>+8.1%}")
    size, mean = statistics.median(map(abs, errors)), statistics.mean(errors)
    print(f"{len(errors)} steps on {rows['hardware'].nunique()} device: median error {size:.1%}, mean {mean:+.1%}")


if __name__ == "__main__":
    app()
