"""Replay of recorded acceptance: the speed-ups of static batches beside those SpecDecode-Bench published.

``python benchmarks/replay_specdecode.py [FILE]`` prints a table and one last JSON line. FILE is a ``specdecode_bench``
recording (arXiv 2601.11580): Llama-3.1-8B-Instruct on ShareGPT by default. Step times are the authors' own fit for one
H100 (profile ``h100-llama-3.1-8b-affine``); the scheduler, the drafts and the tokens are the engine's.

Their protocol: each recorded request becomes a batch of B equal requests that arrive together (prefill included), once
with k = 3 and once without speculation; throughput is tokens over the batch's duration; the speed-up is the ratio of
the two throughputs, each averaged over the requests.

Why the figures differ by 1 to 2 %: theirs come from 300 of the 310 requests, drawn at random (their formulas over all
310 give 1.727, 1.658, 1.360); their prefill makes no drafts, the engine's makes those of the first round; and they
count the draft tokens of one request a step, the engine those of the batch. Every n-gram round verifies k drafts here
as in theirs (match probability 1), which is too many at large batches: most rounds find none.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from draftcast.kernels.arrays import FloatArray
from draftcast.scenarios.run.deployment import deploy
from draftcast.scenarios.run.simulate import replicate
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import load_scenario
from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.traces import TraceSpec, load_trace

SHAREGPT = Path(__file__).parents[2] / "shared/data/acceptance/llama31_8b_sharegpt.jsonl"
K = 3
BATCH_SIZES = (1, 8, 64)
PUBLISHED = {("eagle", 1): 1.74, ("eagle", 8): 1.67, ("eagle", 64): 1.37}  # ShareGPT, EAGLE, k = 3
# Batches stand so far apart in time that each finds the engine idle.
GAP_S = 1e3


class Replay(NamedTuple):
    """One method at one batch size; arrays have one entry per recorded request."""

    table: RequestTable
    with_drafts: FloatArray  # output tokens per second of the batch
    without: FloatArray
    mean_acceptance_length: float

    @property
    def speedup(self) -> float:
        """Mean throughput with drafts over mean throughput without."""
        return float(self.with_drafts.mean() / self.without.mean())


def replay(path: Path, method: str, batch_size: int, match_probability: float = 1.0) -> Replay:
    """Replay every request of the recording in batches of ``batch_size`` equal requests.

    Raises:
        InputError: the file is not such a recording, or lacks the record ``acc_<method>``.
    """
    table = load_trace(TraceSpec(path=str(path)), f"acc_{method}")
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
    fixed = {"model": "llama-3.1-8b", "max_model_len": longest, "num_gpu_blocks": blocks}
    return load_scenario(
        {
            "schema_version": 1,
            "engine": {**fixed, "enable_prefix_caching": False, **engine},
            "hardware": "h100-sxm",
            "profile": "h100-llama-3.1-8b-affine",
            "workload": workload,
            "acceptance": acceptance,
            "statistics": {"replications": 1},
        }
    )


def _run(
    table: RequestTable, path: Path, batch_size: int, drafting: dict[str, Any] | None, acceptance: dict[str, Any]
) -> tuple[FloatArray, int, int]:
    """Tokens per second of every batch, drafts accepted and verify rounds."""
    n = len(table)
    longest = int((table.prompt_tokens + table.output_tokens).max()) + 64
    # One step prefills the whole batch.
    engine = {"max_num_seqs": batch_size, "max_num_batched_tokens": batch_size * longest}
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
    finish_s = requests["finish_s"].to_numpy().reshape(n, batch_size).max(axis=1)
    duration_s = finish_s - np.arange(n) * GAP_S
    assert float(duration_s.max()) < GAP_S, "batches overlap"
    throughput = batch_size * table.output_tokens / duration_s
    return throughput, int(requests["num_accepted_tokens"].sum()), int(requests["num_drafts"].sum())


def main(file: Annotated[Path, typer.Argument()] = SHAREGPT) -> None:
    path = file.resolve()
    print(f"{path.name}: static batches, k = {K}, profile h100-llama-3.1-8b-affine")
    print(f"{'method':8}{'batch':>6}{'requests':>10}{'length':>10}{'speed-up':>10}{'published':>11}{'error':>8}")
    found = []
    for method in ("eagle", "ngram"):
        for batch_size in BATCH_SIZES:
            result = replay(path, method, batch_size)
            published = PUBLISHED.get((method, batch_size)) if path.name == SHAREGPT.name else None
            error = result.speedup / published - 1 if published else None
            shown = f"{published:11.2f}{error:+8.1%}" if published and error is not None else f"{'-':>11}{'-':>8}"
            length = result.mean_acceptance_length
            print(f"{method:8}{batch_size:6}{len(result.table):10}{length:10.3f}{result.speedup:10.3f}{shown}")
            figures = {"speedup": result.speedup, "published": published, "mean_acceptance_length": length}
            found.append({"method": method, "batch_size": batch_size, **figures})
    print(json.dumps({"file": path.name, "k": K, "replays": found}))


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
