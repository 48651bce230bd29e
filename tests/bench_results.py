"""A result of ``vllm bench serve --save-detailed`` by hand, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Three answers: the first in two pieces, the second in one, the third failed.
BENCH: dict[str, Any] = {
    "input_lens": [10, 20, 30],
    "output_lens": [5, 1, 0],
    "start_times": [100.0, 101.0, 102.0],
    "ttfts": [0.2, 0.4, 0.0],
    "itls": [[0.4], [], []],
    "errors": ["", "", "connection reset"],
    "spec_decode_num_drafts": 4,
    "spec_decode_draft_tokens": 12,
    "spec_decode_accepted_tokens": 6,
    "spec_decode_per_position_acceptance_rates": [0.75, 0.5, 0.25],
}


def bench_file(folder: Path, **changes: Any) -> Path:
    """The result as a file."""
    file = folder / "bench.json"
    file.write_text(json.dumps(BENCH | changes))
    return file
