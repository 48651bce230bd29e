"""Recorded acceptance of SpecDecode-Bench (arXiv 2601.11580) replayed: beside published speed-ups, and beside fits.

    python benchmarks/replay_specdecode.py published [FILE]
    python benchmarks/replay_specdecode.py held-out [FILE ...] [--splits N] [--cut-outputs]

FILE is a ``specdecode_bench`` recording, of Llama-3.1-8B-Instruct by default. Step times are the authors' own fit for
one H100 (profile ``h100-llama-3.1-8b-affine``); the rest is the engine's. Both print tables and one last JSON line.

``published`` follows their protocol: each recorded request becomes a batch of B equal requests that arrive together
(prefill included), once with k = 3 and once without speculation; the speed-up is the ratio of the two throughputs
(tokens over the batch's duration), each averaged over the requests. Why the figures differ by 1 to 2 %: theirs come
from 300 of the 310 requests, drawn at random (their formulas over all 310 give 1.727, 1.658, 1.360); their prefill
makes no drafts, the engine's makes those of the first round; and they count the draft tokens of one request a step, the
engine those of the batch. Every n-gram round verifies k drafts here as in theirs (match probability 1), which is too
many at large batches: most rounds find none.

``held-out`` forecasts speed-ups for requests that the acceptance was not fitted to. Each split deals the requests to
two halves at random; the acceptance fitted to one (EAGLE: ``acceptance fit``; n-gram: ``acceptance measure --model
along_output``) forecasts the other, in a closed loop of B users; beside it the same loop replays the half's own record.
Outputs cut at the recording's limit, which repeat themselves without end, are left out, or kept with ``--cut-outputs``.
Printed are the mean error (what the model gets wrong), the median and largest size of one forecast's error, and the
share of forecasts within the bars of 3 % for EAGLE and 5 % for n-gram. Beside them is the noise floor, that of a model
which reproduces one half exactly: how far the halves of 2,000 deals differ in tokens a round (median), and the share of
deals within the bar.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import typer

from draftcast import simulate
from draftcast.calibration.acceptance.fit import ngram_model
from draftcast.calibration.acceptance.measure import measure_ngram, read_token_log
from draftcast.kernels.arrays import FloatArray
from draftcast.scenarios.run.deployment import deploy
from draftcast.scenarios.run.simulate import replicate
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import load_scenario
from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.acceptance.fit import fit_chain, recorded_rounds, round_moments, with_positions
from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.traces import TraceSpec, load_trace

DATA = Path(__file__).parents[2] / "shared/data/acceptance"
FILES = [DATA / f"llama31_8b_{name}.jsonl" for name in ("sharegpt", "instructcoder")]
K = 3
BATCH_SIZES = (1, 8, 64)
PUBLISHED = {("eagle", 1): 1.74, ("eagle", 8): 1.67, ("eagle", 64): 1.37}  # ShareGPT, EAGLE, k = 3
GAP_S = 1e3  # batches stand so far apart in time that each finds the engine idle
BARS = {"eagle": 0.03, "ngram": 0.05}
LOOKUP = {"prompt_lookup_min": 3, "prompt_lookup_max": 7}  # those of the record (docs/acceptance.md)
CUT = 8192
REQUESTS = 1500  # of one loop
DEALS = 2000
RECORDS = {"eagle": "acc_eagle", "ngram": "acc_ngram"}
app = typer.Typer(help=__doc__, add_completion=False)


class Replay(NamedTuple):
    """One method at one batch size; arrays have one entry per recorded request."""

    table: RequestTable
    with_drafts: FloatArray  # output tokens per second of the batch
    without: FloatArray
    mean_acceptance_length: float

    @property
    def speedup(self) -> float:
        return float(self.with_drafts.mean() / self.without.mean())


def replay(path: Path, method: str, batch_size: int, match_probability: float = 1.0) -> Replay:
    """Replay every request of the recording in batches of ``batch_size`` equal requests.

    Raises InputError: the file is not such a recording, or lacks the method's record.
    """
    table = load_trace(TraceSpec(path=str(path)), RECORDS[method])
    drafting = {"method": method, "num_speculative_tokens": K}
    acceptance = {"model": "trace"} | ({"match_probability": match_probability} if method == "ngram" else {})
    with_drafts, accepted, rounds = _run(table, path, batch_size, drafting, acceptance)
    without, _, _ = _run(table, path, batch_size, None, {"model": "constant", "alpha": 0.0})
    return Replay(table, with_drafts, without, 1 + accepted / rounds)


def scenario_of(
    engine: Mapping[str, Any], workload: Mapping[str, Any], acceptance: Mapping[str, Any], longest: int
) -> Scenario:
    """The recorded model on the H100 of the fit, with blocks for ``max_num_seqs`` requests of ``longest`` tokens."""
    blocks = engine["max_num_seqs"] * (longest // 16 + 1) + 1
    measured = {"model": "llama-3.1-8b", "version": "vllm 0.10"}  # 0.10.1 (arXiv 2601.11580)
    fixed = {"max_model_len": longest, "num_gpu_blocks": blocks, "enable_prefix_caching": False}
    fitted = {"schema_version": 1, "hardware": "h100-sxm", "profile": "h100-llama-3.1-8b-affine"}
    sections = {"engine": {**measured, **fixed, **engine}, "workload": workload, "acceptance": acceptance}
    return load_scenario({**fitted, **sections, "statistics": {"replications": 1}})


def _run(
    table: RequestTable, path: Path, batch_size: int, drafting: dict[str, Any] | None, acceptance: dict[str, Any]
) -> tuple[FloatArray, int, int]:
    """Tokens per second of every batch, drafts accepted and verify rounds."""
    n = len(table)
    longest = int((table.prompt_tokens + table.output_tokens).max()) + 64
    engine = {"max_num_seqs": batch_size, "max_num_batched_tokens": batch_size * longest}  # prefilled in one step
    workload = {"arrivals": {"process": "trace", "path": str(path)}}
    scenario = scenario_of(engine | {"speculative_config": drafting}, workload, acceptance, longest)
    copies = table.take(np.repeat(np.arange(n), batch_size))
    batches = RequestTable.from_columns(
        copies.prompt_tokens,
        copies.output_tokens,
        np.repeat(np.arange(n) * GAP_S, batch_size),
        acceptance_offsets=copies.acceptance_offsets,
        acceptance_lengths=copies.acceptance_lengths,
    )
    requests = replicate(scenario, None, [deploy(scenario)], batches, 0, None, False).requests
    assert not requests["preemptions"].any(), "a static batch must fit"
    duration_s = requests["finish_s"].to_numpy().reshape(n, batch_size).max(axis=1) - np.arange(n) * GAP_S
    assert float(duration_s.max()) < GAP_S, "batches overlap"
    throughput = batch_size * table.output_tokens / duration_s
    return throughput, int(requests["num_accepted_tokens"].sum()), int(requests["num_drafts"].sum())


@app.command()
def published(file: Annotated[Path, typer.Argument()] = FILES[0]) -> None:
    path = file.resolve()
    print(f"{path.name}: static batches, k = {K}, profile h100-llama-3.1-8b-affine")
    print(f"{'method':8}{'batch':>6}{'requests':>10}{'length':>10}{'speed-up':>10}{'published':>11}{'error':>8}")
    replays = []
    for method in ("eagle", "ngram"):
        for batch_size in BATCH_SIZES:
            result = replay(path, method, batch_size)
            stated = PUBLISHED.get((method, batch_size)) if path.name == FILES[0].name else None
            shown = f"{stated:11.2f}{result.speedup / stated - 1:+8.1%}" if stated else f"{'-':>11}{'-':>8}"
            length = result.mean_acceptance_length
            print(f"{method:8}{batch_size:6}{len(result.table):10}{length:10.3f}{result.speedup:10.3f}{shown}")
            figures = {"speedup": result.speedup, "published": stated, "mean_acceptance_length": length}
            replays.append({"method": method, "batch_size": batch_size, **figures})
    print(json.dumps({"file": path.name, "k": K, "replays": replays}))


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
    table = load_trace(TraceSpec(path=str(path)), RECORDS[method])
    return recorded_rounds(table.acceptance_offsets, table.acceptance_lengths, K)


def noise_floor(path: Path, method: str) -> dict[str, float]:
    """How far halves of the recording are apart in tokens a round: what a perfect model would still miss."""
    rounds = rounds_of(path, method)
    counts = np.array([len(lengths) for lengths in rounds])
    tokens = counts + [lengths.sum() for lengths in rounds]
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
            for half, other, record in zip(halves, reversed(fitted), replayed, strict=True):
                # Without speculation both take as long: the error of the throughput is that of the speed-up.
                recorded = throughput(half, users, method, record)
                errors.append((users, throughput(half, users, method, other) / recorded - 1))
    rows = []
    for users, error in pd.DataFrame(errors).groupby(0)[1]:
        size = error.abs()
        figures = {"mean_error": error.mean(), "median_size": size.median(), "largest": size.max()}
        figures |= {"within_bar": (size <= BARS[method]).mean(), **floor}
        rows.append({"method": method, "batch": int(users), "forecasts": len(error), **figures})
    return rows


@app.command()
def held_out(
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
    app()
