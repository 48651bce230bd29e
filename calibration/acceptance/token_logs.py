"""Token logs: what requests asked and what the model answered, as token ids. Knows the files, not what is measured.

One JSON object per line with ``prompt_token_ids`` and ``generated_token_ids`` (SpecDecode-Bench) or
``output_token_ids``; other keys are ignored. Blank lines are skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftcast.errors import TraceError
from draftcast.files import parse_json, read_text

PROMPT_KEY = "prompt_token_ids"
OUTPUT_KEYS = ("generated_token_ids", "output_token_ids")


class TokenRequest(NamedTuple):
    """One request: prompt and output token ids, int32."""

    prompt: NDArray[np.int32]
    output: NDArray[np.int32]


def read_token_log(path: str | Path) -> list[TokenRequest]:
    """The requests of a token log, in the order of the file.

    Raises:
        TraceError: the file cannot be read, is empty, or a line is not such an object; file, line and key are named.
    """
    file = str(path)
    requests = []
    for number, line in enumerate(read_text(path, TraceError).split("\n"), start=1):
        if line.strip():
            requests.append(_request(line, file, number))
    if not requests:
        raise TraceError("holds no request", file=file)
    return requests


def _request(line: str, file: str, number: int) -> TokenRequest:
    entry = parse_json(line, file, TraceError, number)
    if not isinstance(entry, dict):
        raise TraceError("must be a JSON object", file=file, line=number)
    given = [key for key in OUTPUT_KEYS if key in entry]
    if len(given) != 1:
        wanted = " or ".join(OUTPUT_KEYS)
        raise TraceError(f"needs exactly one of {wanted}, has {len(given)}", file=file, line=number)
    if PROMPT_KEY not in entry:
        raise TraceError("missing", file=file, line=number, key=PROMPT_KEY)
    return TokenRequest(*(_tokens(entry[key], file, number, key) for key in (PROMPT_KEY, given[0])))


def _tokens(value: Any, file: str, number: int, key: str) -> NDArray[np.int32]:
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise TraceError("must be a list of token ids (whole numbers)", file=file, line=number, key=key)
    for token in value:
        if not 0 <= token < 2**31:
            raise TraceError("token ids are 0 to 2147483647", file=file, line=number, key=key, value=token)
    return np.array(value, dtype=np.int32)
