"""All-reduce: every rank ends with the sum over the ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from draftcast.kernels.work import Work, as_array


def all_reduce_work(message_bytes: ArrayLike, ranks: int) -> Work:
    """A message of ``message_bytes`` on each of ``ranks``; the bytes are those a rank sends over the links.

    Ring all-reduce: ``2 (ranks-1)/ranks`` times the message (Patarasuk and Yuan, JPDC 69(2), 2009); 0 for one rank.
    """
    moved = as_array(message_bytes) * (2.0 * (ranks - 1) / ranks)
    return Work(np.zeros_like(moved), moved)
