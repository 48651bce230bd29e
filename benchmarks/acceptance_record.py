"""Recorded n-gram acceptance against the matcher: which lookup settings gave the record, and where it still differs.

    python benchmarks/acceptance_record.py FILE [FILE ...]

FILE is a SpecDecode-Bench log: JSONL with ``acc_ngram.acc_len``, the tokens that a round started at each output
position would yield, bonus included. Prints tables for people and one last JSON line for machines.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import typer

from draftcast.calibration.acceptance.measure import rounds_of
from draftcast.kernels.search.ngram import match_positions

SETTINGS = ((1, 3), (2, 2), (2, 5), (3, 3), (3, 5), (3, 6), (3, 7), (3, 8), (4, 7), (5, 5))
DRAFTS = 20


def compare(entries: list[dict[str, Any]], min_n: int, max_n: int) -> dict[str, Any]:
    """Positions where matcher and record agree; the rest split by why they can differ.

    beyond_end: the record counts tokens after the output's end, which the log does not hold. longer, shorter: of the
    others, where the log holds every token that the record counts.
    """
    counts: Counter[str] = Counter(positions=0, same=0, beyond_end=0, longer=0, shorter=0)
    tokens: Counter[str] = Counter()
    for entry in entries:
        output = entry["generated_token_ids"]
        recorded = np.array(entry["acc_ngram"]["acc_len"][: len(output)])
        _, accepted = match_positions(entry["prompt_token_ids"], output, DRAFTS, min_n, max_n)
        measured = accepted[: len(recorded)] + 1
        beyond = recorded > len(output) - np.arange(len(recorded))
        counts["positions"] += len(recorded)
        counts["same"] += int((measured == recorded).sum())
        counts["beyond_end"] += int(((measured != recorded) & beyond).sum())
        counts["longer"] += int(((measured < recorded) & ~beyond).sum())
        counts["shorter"] += int(((measured > recorded) & ~beyond).sum())
        for name, lengths in (("measured", measured), ("recorded", recorded)):
            starts = np.array(rounds_of(np.asarray(lengths - 1, dtype=np.int32)), dtype=int)
            tokens[name] += int(lengths.sum())
            tokens[f"rounds {name}"] += len(starts)
            tokens[f"in rounds {name}"] += int(np.minimum(lengths[starts], len(output) - starts).sum())
    row: dict[str, Any] = {"min_n": min_n, "max_n": max_n, **counts, "agreement": counts["same"] / counts["positions"]}
    for name in ("measured", "recorded"):
        row[f"mean_{name}"] = tokens[name] / counts["positions"]
        row[f"tokens_per_round_{name}"] = tokens[f"in rounds {name}"] / tokens[f"rounds {name}"]
    return row


def main(files: list[Path]) -> None:
    answer: dict[str, Any] = {}
    for file in files:
        entries = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        rows = answer[file.name] = [compare(entries, *setting) for setting in SETTINGS]
        print(f"\n{file.name}: {len(entries)} requests, {rows[0]['positions']} output positions, {DRAFTS} drafts")
        print(pd.DataFrame(rows).to_string(index=False, float_format="{:.4f}".format))
    print(json.dumps(answer))


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
