"""Recorded n-gram acceptance against the matcher: which lookup settings gave the record, and where it still differs.

    python benchmarks/acceptance_record.py FILE [FILE ...]

FILE is a SpecDecode-Bench log: JSONL with ``acc_ngram.acc_len``, the tokens that a round started at each output
position would yield, bonus included. Prints tables for people and one last JSON line for machines.
"""

from __future__ import annotations

import argparse
import json
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from draftcast.calibration.acceptance.measure import rounds_of
from draftcast.kernels.search.ngram import match_positions

SETTINGS = ((1, 3), (2, 2), (2, 5), (3, 3), (3, 5), (3, 6), (3, 7), (3, 8), (4, 7), (5, 5))
DRAFTS = 20


def compare(entries: list[dict[str, Any]], min_n: int, max_n: int) -> dict[str, Any]:
    """Positions where matcher and record agree; the rest split by why they can differ.

    known: the record's number fits into the output, so the log holds every token it speaks of. beyond: the record
    counts tokens after the output's end, which the log does not hold.
    """
    counts = dict.fromkeys(("positions", "same", "beyond_end", "record_longer", "record_shorter"), 0)
    totals = np.zeros(4)
    rounds = [0, 0, 0, 0]
    for entry in entries:
        output = entry["generated_token_ids"]
        recorded = np.array(entry["acc_ngram"]["acc_len"][: len(output)])
        _, accepted = match_positions(entry["prompt_token_ids"], output, DRAFTS, min_n, max_n)
        measured = accepted[: len(recorded)] + 1
        beyond = recorded > len(output) - np.arange(len(recorded))
        counts["positions"] += len(recorded)
        counts["same"] += int((measured == recorded).sum())
        counts["beyond_end"] += int(((measured != recorded) & beyond).sum())
        counts["record_longer"] += int(((measured < recorded) & ~beyond).sum())
        counts["record_shorter"] += int(((measured > recorded) & ~beyond).sum())
        totals += (measured.sum(), recorded.sum(), (measured > 1).sum(), (recorded > 1).sum())
        for at, lengths in ((0, measured), (2, recorded)):
            starts = rounds_of(np.asarray(lengths - 1, dtype=np.int32))
            rounds[at] += len(starts)
            rounds[at + 1] += int(np.minimum(lengths[starts], len(output) - np.array(starts, dtype=int)).sum())
    positions = counts["positions"]
    return counts | {
        "min_n": min_n,
        "max_n": max_n,
        "agreement": counts["same"] / positions,
        "mean_measured": totals[0] / positions,
        "mean_recorded": totals[1] / positions,
        "tokens_per_round_measured": rounds[1] / rounds[0],
        "tokens_per_round_recorded": rounds[3] / rounds[2],
    }


def by_output_position(entries: list[dict[str, Any]], min_n: int, max_n: int) -> list[dict[str, float]]:
    """Mean yield by output position, in bins that double: measured, recorded."""
    edges = [0, 1, 8, 32, 128, 512, 2048]
    rows = []
    found = [
        (match_positions(e["prompt_token_ids"], e["generated_token_ids"], DRAFTS, min_n, max_n)[1] + 1, e)
        for e in entries
    ]
    for low, high in zip_longest(edges, edges[1:]):
        measured = np.concatenate([lengths[low:high] for lengths, _ in found])
        recorded = np.concatenate(
            [e["acc_ngram"]["acc_len"][low : len(lengths)][: (high or 2**40) - low] for lengths, e in found]
        )
        if len(measured):
            rows.append(
                {"from": low, "positions": len(measured), "measured": measured.mean(), "recorded": recorded.mean()}
            )
    return rows


def main() -> None:
    """Every setting on every file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    answer: dict[str, Any] = {}
    for file in parser.parse_args().files:
        entries = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        results = [compare(entries, *setting) for setting in SETTINGS]
        best = max(results, key=lambda row: row["same"])
        print(f"\n{file.name}: {len(entries)} requests, {best['positions']} output positions, {DRAFTS} drafts")
        print("lookup   same       beyond end  longer  shorter  mean yield (record)  tokens/round (record)")
        for row in results:
            print(
                f"{row['min_n']} to {row['max_n']}  {row['agreement']:9.4%}  {row['beyond_end']:10d}  "
                f"{row['record_longer']:6d}  {row['record_shorter']:7d}  "
                f"{row['mean_measured']:10.4f} ({row['mean_recorded']:.4f})  "
                f"{row['tokens_per_round_measured']:12.4f} ({row['tokens_per_round_recorded']:.4f})"
            )
        positions = by_output_position(entries, best["min_n"], best["max_n"])
        print(f"by output position, lookup {best['min_n']} to {best['max_n']}: from, positions, measured, recorded")
        for row in positions:
            print(f"{row['from']:6d} {row['positions']:8d} {row['measured']:9.4f} {row['recorded']:9.4f}")
        answer[file.name] = {"settings": results, "by_output_position": positions}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
