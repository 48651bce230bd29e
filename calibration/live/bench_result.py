"""A result of ``vllm bench serve --save-result --save-detailed`` as a live run: somebody else's client, our comparison.

Facts as of vLLM 0.32 (``vllm/benchmarks/serve.py``): lists with one value per request; ``start_times`` in seconds of
the client's clock, ``ttfts`` seconds from a request's start to its first piece, ``itls`` the gaps between its pieces.
A failed request has an ``errors`` text. The file has no count of tokens by piece: the first piece is one token (all of
them where it is the only one), the rest is spread over the others as evenly as whole tokens allow. It says nothing of
the client's lateness, and there is no log of the server, so only what a client sees can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draftcast.calibration.live.journal import tables
from draftcast.calibration.live.run_directory import LiveRun, LiveRunWriter
from draftcast.errors import InputError
from draftcast.files import read_json

_LISTS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "errors")
_BAD = (TypeError, ValueError, OverflowError)


def import_bench_result(file: Path, out: Path, **manifest: Any) -> LiveRun:
    """Write the result in ``file`` as a live run into ``out``; ``manifest``: more of it, such as the scenario.

    Raises:
        InputError: no such result, or one without ``--save-detailed``; the key is named. ``out`` is not empty.
        LiveError: the disk refuses.
    """
    result = read_json(file)
    count = len(result["input_lens"]) if isinstance(result.get("input_lens"), list) else -1
    for key in _LISTS:
        if not isinstance(result.get(key), list):
            message = "missing; write the file with vllm bench serve --save-result --save-detailed"
            raise InputError(message, file=str(file), key=key)
        if len(result[key]) != count:
            raise InputError(f"{count} values are needed, as input_lens has", file=str(file), key=key)
    requests, chunks = tables(_lines(file, result))
    values = {
        "server": {"command": [], "url": "", "version": "", "log": False, "config": {}},
        "client": {"source": f"vllm bench serve, {file.name}"},
        "acceptance": _acceptance(file, result),
    }
    writer = LiveRunWriter.create(out, **{"name": str(result.get("label") or file.stem), **values, **manifest})
    failed = sum(bool(error) for error in result["errors"])
    return writer.finish(f"{failed} of {count} requests failed" if failed else "", requests, chunks)


def _acceptance(file: Path, result: dict[str, Any]) -> dict[str, Any] | None:
    counts = [result.get(f"spec_decode_{name}") for name in ("num_drafts", "draft_tokens", "accepted_tokens")]
    rates = result.get("spec_decode_per_position_acceptance_rates")
    if not all(counts) or not isinstance(rates, list):
        return None
    drafts, drafted, accepted = counts
    try:
        per_position = [round(float(rate) * int(drafts or 0)) for rate in rates]
    except _BAD:
        message = "its counts and rates are no numbers"
        raise InputError(message, file=str(file), key="spec_decode_per_position_acceptance_rates") from None
    return {
        "num_drafts": drafts,
        "num_draft_tokens": drafted,
        "num_accepted_tokens": accepted,
        "per_position": per_position,
    }


def _lines(file: Path, result: dict[str, Any]) -> Iterator[list[Any]]:
    """The result as lines of a journal."""
    # A request that failed before it was sent has no start.
    pairs = zip(result["start_times"], result["errors"], strict=True)
    try:
        zero = min((float(start) for start, error in pairs if not error), default=0.0)
    except _BAD:
        raise InputError("must be numbers", file=str(file), key="start_times") from None
    rows = zip(*(result[key] for key in _LISTS), strict=True)
    for number, (prompt, output, start, ttft, itls, error) in enumerate(rows):
        try:
            due_s = max(float(start) - zero, 0.0)
            yield ["r", number, "default", due_s, int(prompt), int(output)]
            yield ["s", number, due_s]
            if error:
                yield ["e", number, due_s, " ".join(str(error).split())[:300]]
                continue
            at = due_s + float(ttft)
            yield ["c", number, at, 1 if itls else int(output)]
            rest = int(output) - 1
            for piece, gap in enumerate(itls):
                at += float(gap)
                yield ["c", number, at, rest * (piece + 1) // len(itls) - rest * piece // len(itls)]
            if not math.isfinite(at) or int(output) < 1:
                raise ValueError
            yield ["f", number, at, -1]
        except _BAD:
            message = "its lengths, times and gaps do not fit together"
            raise InputError(message, file=str(file), key=f"request {number}") from None
