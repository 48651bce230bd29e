"""Keeps freed memory in the process while kernels are timed, as an engine's allocator does.

glibc returns large blocks to the system, so a kernel that allocates its work space faults every page of it in every
launch, or in none, depending on what the process did before: twice the time or not, by chance. Knows only glibc;
elsewhere nothing is changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

# malloc.h: parameters of mallopt and their defaults.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_DEFAULT_TRIM_THRESHOLD, _DEFAULT_MMAP_MAX = 128 * 1024, 65536


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Within it, blocks of any size come from the heap and stay there when freed; after it, the heap is trimmed."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        yield
        return
    libc.mallopt(_MMAP_MAX, 0)
    libc.mallopt(_TRIM_THRESHOLD, -1)  # never
    try:
        yield
    finally:
        libc.mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)
        libc.mallopt(_TRIM_THRESHOLD, _DEFAULT_TRIM_THRESHOLD)
        libc.malloc_trim(ctypes.c_size_t(0))
