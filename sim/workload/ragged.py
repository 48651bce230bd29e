"""Assembling a ragged column of many requests out of rows of several tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from draftcast.sim.workload.request_table import take_ragged

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class _Part:
    requests: IntArray  # which requests
    rows: IntArray  # take which rows
    values: NDArray[Any]  # of this ragged column
    offsets: IntArray
    owner: int  # tells the tables apart


class RaggedParts:
    """Collects, for n requests, which row of which ragged column each one takes. Requests without one own nothing."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.parts: list[_Part] = []
        self._taken = np.zeros(n, dtype=np.bool_)

    def __bool__(self) -> bool:
        return bool(self.parts)

    def add(self, requests: IntArray, rows: IntArray, values: NDArray[Any], offsets: IntArray, owner: int) -> None:
        """Requests ``requests`` (int64[m]) take rows ``rows`` (int64[m]). ``owner`` identifies the column's table."""
        self.parts.append(_Part(requests, rows, values, offsets, owner))
        self._taken[requests] = True

    def has(self, requests: IntArray) -> bool:
        """Whether all of these requests have a row already (and there are some)."""
        return bool(len(requests)) and bool(self._taken[requests].all())

    def gather_fresh(self, limits: IntArray) -> tuple[IntArray, IntArray]:
        """Prefix hashes, each request's cut to ``limits`` (int64[n]); returns (ids, offsets).

        The first requests that take a row share blocks as in the trace. When a row is taken again, it belongs to the
        next copy of the trace, whose blocks are its own: a repeated trace must not hit the cache for every block.
        """
        lengths = np.zeros(self.n, dtype=np.int64)
        pieces = []
        first_id = 0
        for owner in dict.fromkeys(part.owner for part in self.parts):
            parts = [part for part in self.parts if part.owner == owner]
            requests = np.concatenate([part.requests for part in parts])
            order = np.argsort(requests, kind="stable")
            requests, rows = requests[order], np.concatenate([part.rows for part in parts])[order]
            known, dense = np.unique(parts[0].values, return_inverse=True)  # ids may be any 64-bit numbers
            ids, offsets = take_ragged(dense.reshape(-1), parts[0].offsets, rows, limits[requests])
            copies = pd.Series(rows).groupby(rows).cumcount().to_numpy()  # how often a row was taken before
            ids = ids + np.repeat(copies, np.diff(offsets)) * len(known) + first_id
            first_id += len(known) * (int(copies.max(initial=0)) + 1)
            lengths[requests] = np.diff(offsets)
            pieces.append((requests, offsets, ids))
        out = np.zeros(self.n + 1, dtype=np.int64)
        np.cumsum(lengths, out=out[1:])
        values = np.zeros(int(out[-1]), dtype=np.int64)
        for requests, offsets, ids in pieces:
            values[_spread(out[requests], offsets)] = ids
        return values, out

    def gather_cyclic(self, output_tokens: NDArray[np.int32]) -> tuple[NDArray[np.uint8], IntArray]:
        """Recorded acceptance for positions 0 .. output_tokens, repeated from position 1 on where the record ends.

        Returns (lengths uint8, offsets); a request without a record owns nothing.
        """
        lengths = np.zeros(self.n, dtype=np.int64)
        for part in self.parts:
            lengths[part.requests] = output_tokens[part.requests].astype(np.int64) + 1
        out = np.zeros(self.n + 1, dtype=np.int64)
        np.cumsum(lengths, out=out[1:])
        values = np.zeros(int(out[-1]), dtype=np.uint8)
        for part in self.parts:
            counts = lengths[part.requests]
            offsets = np.zeros(len(counts) + 1, dtype=np.int64)
            np.cumsum(counts, out=offsets[1:])
            position = np.arange(offsets[-1], dtype=np.int64) - np.repeat(offsets[:-1], counts)
            recorded = np.repeat((part.offsets[part.rows + 1] - part.offsets[part.rows]) - 1, counts)
            source = np.where(position == 0, 0, 1 + (position - 1) % recorded)
            source += np.repeat(part.offsets[part.rows], counts)
            values[_spread(out[part.requests], offsets)] = part.values[source]
        return values, out


def _spread(starts: IntArray, offsets: IntArray) -> IntArray:
    """Flat target index of every value of ragged pieces that begin at ``starts``."""
    counts = np.diff(offsets)
    return np.arange(offsets[-1], dtype=np.int64) + np.repeat(starts - offsets[:-1], counts)
