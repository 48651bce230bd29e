"""A result of ``vllm bench serve --save-result --save-detailed`` as a live run: somebody else's client, our comparison.

Facts as of vLLM 0.32 (``vllm/benchmarks/serve.py``): lists with one value per request; ``start_times`` in seconds of
the client's clock, ``ttfts`` seconds from a request's start to its first piece, ``itls`` the gaps between its pieces.
A failed request has an ``errors`` text. The file has no count of tokens by piece: the first piece is one token (all of
them where it is the only one), the rest is spread over the others as evenly as whole tokens allow. It says nothing of
the client's lateness, and there is no log of the server, so only what a client sees can be compared.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from draftcast.calibration.live.journal import Journal
from draftcast.calibration.live.run_directory import JOURNAL, LiveRun, LiveRunWriter
from draftcast.errors import InputError
from draftcast.files import read_json

_LISTS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "errors")


def import_bench_result(file: Path, out: Path, **manifest: Any) -> LiveRun:
    """Write the result in ``file`` as a live run into ``out``; ``manifest``: more of it, such as the scenario.

    Raises:
        InputError: no such result, or one without ``--save-detailed``; the key is named. ``out`` is not empty.
        LiveError: the disk refuses.
    """
    result = _read(file)
    lines = _lines(file, result)
    writer = LiveRunWriter.create(out, **{"name": str(result.get("label") or file.stem), **manifest})
    journal = Journal(out / JOURNAL)
    for line in lines:
        journal.append(*line)
    journal.close()
    counts = [result.get(f"spec_decode_{name}") for name in ("num_drafts", "draft_tokens", "accepted_tokens")]
    rates = result.get("spec_decode_per_position_acceptance_rates")
    if all(counts) and isinstance(rates, list):
        names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        per_position = _counts(file, counts, rates)
        writer.update(acceptance={**dict(zip(names, counts, strict=True)), "per_position": per_position})
    writer.update(
        server={"command": [], "url": "", "version": "", "log": False, "config": {}},
        client={"source": f"vllm bench serve, {file.name}"},
    )
    failed = sum(bool(error) for error in result["errors"])
    return writer.finish(f"{failed} of {len(result['errors'])} requests failed" if failed else "")


def _counts(file: Path, counts: list[Any], rates: list[Any]) -> list[int]:
    """Accepted drafts by position."""
    try:
        return [round(float(rate) * int(counts[0])) for rate in rates]
    except (TypeError, ValueError, OverflowError):
        message = "its counts and rates are no numbers"
        raise InputError(message, file=str(file), key="spec_decode_per_position_acceptance_rates") from None


def _read(file: Path) -> dict[str, Any]:
    result = read_json(file)
    count = len(result["input_lens"]) if isinstance(result.get("input_lens"), list) else -1
    for key in _LISTS:
        values = result.get(key)
        if not isinstance(values, list):
            message = "missing; write the file with vllm bench serve --save-result --save-detailed"
            raise InputError(message, file=str(file), key=key)
        if len(values) != count:
            raise InputError(f"{count} values are needed, as input_lens has", file=str(file), key=key)
    return result


def _lines(file: Path, result: dict[str, Any]) -> list[list[Any]]:
    """The result as a journal."""
    lines: list[list[Any]] = []
    # A request that failed before it was sent has no start.
    pairs = zip(result["start_times"], result["errors"], strict=True)
    try:
        zero = min((float(start) for start, error in pairs if not error), default=0.0)
    except (TypeError, ValueError, OverflowError):
        raise InputError("must be numbers", file=str(file), key="start_times") from None
    rows = zip(*(result[key] for key in _LISTS), strict=True)
    for number, (prompt, output, start, ttft, itls, error) in enumerate(rows):
        try:
            due_s = max(float(start) - zero, 0.0)
            lines.append(["r", number, "default", due_s, int(prompt), int(output)])
            lines.append(["s", number, due_s])
            if error:
                lines.append(["e", number, due_s, " ".join(str(error).split())[:300]])
                continue
            at = due_s + float(ttft)
            lines.append(["c", number, at, 1 if itls else int(output)])
            pieces = _spread(int(output) - 1, len(itls))
            for gap, tokens in zip(itls, pieces, strict=True):
                at += float(gap)
                lines.append(["c", number, at, tokens])
            if not math.isfinite(at) or int(output) < 1:
                raise ValueError
            lines.append(["f", number, at, -1])
        except (TypeError, ValueError, OverflowError):
            message = "its lengths, times and gaps do not fit together"
            raise InputError(message, file=str(file), key=f"request {number}") from None
    return lines


def _spread(tokens: int, pieces: int) -> list[int]:
    """``tokens`` over ``pieces``, as evenly as whole numbers allow."""
    return [tokens * (i + 1) // pieces - tokens * i // pieces for i in range(pieces)]
