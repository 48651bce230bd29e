"""Speed-ups forecast with fitted acceptance against replays of traces that the fit has not seen.

``python benchmarks/held_out.py [FILE ...] [--splits N] [--cut-outputs]``. FILE is a ``specdecode_bench`` recording; by
default both of Llama-3.1-8B-Instruct (arXiv 2601.11580). Each split deals the requests to two halves at random; each
half's acceptance is fitted (EAGLE: ``acceptance fit``; n-gram: ``acceptance measure --model along_output``) and
forecasts the other half: throughput with k = 3 over throughput without, in a closed loop of B users, step times of the
profile ``h100-llama-3.1-8b-affine``. Beside it the same loop replays the half's own record. Outputs cut at the
recording's limit, which repeat themselves without end, are left out, or kept with ``--cut-outputs``.

Printed are the mean error (what the model gets wrong), the median and largest size of one forecast's error, and the
share of forecasts within the bars of 3 % for EAGLE and 5 % for n-gram. Beside them is the noise floor, that of a model
which reproduces one half exactly: how far the halves of 2,000 deals differ in tokens a round (median), and the share of
deals within the bar. The last line is JSON.
"""

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from replay_specdecode import scenario_of

from draftcast import simulate
from draftcast.calibration.acceptance.fit import ngram_model
from draftcast.calibration.acceptance.measure import measure_ngram, read_token_log
from draftcast.kernels.arrays import FloatArray
from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.acceptance.fit import fit_chain, recorded_rounds, round_moments, with_positions
from draftcast.sim.workload.traces import TraceSpec, load_trace

DATA = Path(__file__).parents[2] / "shared/data/acceptance"
FILES = [DATA / f"llama31_8b_{name}.jsonl" for name in ("sharegpt", "instructcoder")]
K = 3
BATCH_SIZES = (1, 8, 64)
BARS = {"eagle": 0.03, "ngram": 0.05}
LOOKUP = {"prompt_lookup_min": 3, "prompt_lookup_max": 7}  # those of the record (docs/acceptance.md)
CUT = 8192
REQUESTS = 1500  # of one loop
DEALS = 2000
RECORDS = {"eagle": "acc_eagle", "ngram": "acc_ngram"}


def throughput(path: Path, users: int, method: str, acceptance: dict[str, Any]) -> float:
    """Output tokens a second of a closed loop over the requests of ``path``."""
    drafting = {"method": method, "num_speculative_tokens": K} | (LOOKUP if method == "ngram" else {})
    engine = {"max_num_seqs": users, "speculative_config": drafting}
    arrivals = {"process": "closed_loop", "concurrency": users}
    workload = {"arrivals": arrivals, "num_requests": REQUESTS, "lengths": {"path": str(path)}}
    result = simulate(scenario_of(engine, workload, acceptance, 2 * CUT))
    return result.summary["figures"]["output_throughput"].mean


def sections(path: Path, method: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Acceptance fitted to a file, and that which replays it."""
    if method == "ngram":
        measured = measure_ngram(read_token_log(path), K, *LOOKUP.values(), bootstrap=0)
        fitted = with_positions(Chain(**ngram_model(measured)), measured.rounds, K)
        share = measured.figures["draft_share"].value
        replayed = {"model": "trace", "record": RECORDS[method], "match_probability": share}
    else:
        fitted = fit_chain(round_moments(rounds_of(path, method), K))
        replayed = {"model": "trace"}
    return fitted.model_dump(mode="json", exclude_none=True), replayed


def rounds_of(path: Path, method: str) -> list[FloatArray]:
    """Drafts accepted in each round of each request."""
    table = load_trace(TraceSpec(path=str(path)), RECORDS[method])
    return recorded_rounds(table.acceptance_offsets, table.acceptance_lengths, K)


def noise_floor(path: Path, method: str) -> dict[str, float]:
    """How far halves of the recording are apart in tokens a round: what a perfect model would still miss."""
    rounds = rounds_of(path, method)
    counts = np.array([len(each) for each in rounds])
    tokens = counts + [each.sum() for each in rounds]
    dealt = np.tile(np.arange(len(rounds)) < len(rounds) // 2, (DEALS, 1))
    half = np.random.default_rng(0).permuted(dealt, axis=1)
    apart = np.abs((half @ tokens / (half @ counts)) / (~half @ tokens / (~half @ counts)) - 1)
    return {"floor_median": float(np.median(apart)), "floor_within_bar": float((apart <= BARS[method]).mean())}


def halves_of(lines: list[str], seed: int, folder: Path) -> list[Path]:
    order = np.random.default_rng(seed).permutation(len(lines))
    halves = [folder / f"{seed}{half}.jsonl" for half in "ab"]
    for half, chosen in zip(halves, np.array_split(order, 2), strict=True):
        half.write_text("".join(lines[i] + "\n" for i in chosen), encoding="utf-8")
    return halves


def compare(lines: list[str], method: str, splits: int, folder: Path) -> list[dict[str, Any]]:
    """A row a batch size: errors of 2 * splits forecasts, and the noise floor."""
    errors = []
    whole = folder / "whole.jsonl"
    whole.write_text("\n".join(lines) + "\n", encoding="utf-8")
    floor = noise_floor(whole, method)
    for seed in range(splits):
        halves = halves_of(lines, seed, folder)
        fitted, replayed = zip(*(sections(half, method) for half in halves), strict=True)
        for users in BATCH_SIZES:
            for half, other, own in zip(halves, reversed(fitted), replayed, strict=True):
                # Without speculation both take as long: the error of the throughput is that of the speed-up.
                recorded = throughput(half, users, method, own)
                errors.append((users, throughput(half, users, method, other) / recorded - 1))
    rows = []
    for users, error in pd.DataFrame(errors).groupby(0)[1]:
        size = error.abs()
        figures = {"mean_error": error.mean(), "median_size": size.median(), "largest": size.max()}
        figures |= {"within_bar": (size <= BARS[method]).mean(), **floor}
        rows.append({"method": method, "batch": int(users), "forecasts": len(error), **figures})
    return rows


def main(
    files: Annotated[list[Path] | None, typer.Argument()] = None,
    splits: int = 4,
    cut_outputs: Annotated[bool, typer.Option("--cut-outputs")] = False,
) -> None:
    answer: dict[str, Any] = {}
    for file in files or FILES:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        lines = [line for line in lines if cut_outputs or len(json.loads(line)["generated_token_ids"]) < CUT]
        print(f"\n{file.name}: {len(lines)} requests, {splits} splits in halves, k = {K}")
        answer[file.name] = []
        for method in BARS:
            with tempfile.TemporaryDirectory() as folder:
                answer[file.name] += compare(lines, method, splits, Path(folder))
        print(pd.DataFrame(answer[file.name]).to_string(index=False, float_format="{:.1%}".format), flush=True)
    print(json.dumps(answer))


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
