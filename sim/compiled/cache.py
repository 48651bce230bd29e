"""Keeps numba's on-disk cache honest, and knows when it is being filled.

numba recompiles a cached function when the file it stands in changed, not when a function or array layout that it
uses changed elsewhere; a stale caller would then run on the new layout. So the cached code of this package is dropped
whenever a source file that compiled code depends on differs from when the cache was last known to be good.
"""

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Where compiled functions stand, and all that they import (`tests/sim/compiled/test_cache.py` holds this).
COMPILED = (
    "calibration/profile/roofline.py",
    "kernels/arrays.py",
    "kernels/search",
    "sim/acceptance",
    "sim/compiled",
    "sim/cost",
    "sim/engine",
    "sim/policies",
    "sim/state",
)
STAMP = "draftcast-sources"
COMPILING = "compiling the engine, once (half a minute to a minute)"


def source_stamp(package: Path) -> str:
    """Digest of name, size and time of change of every source file that compiled code depends on."""
    digest = hashlib.sha256()
    for place in COMPILED:
        path = package / place
        for source in [path] if path.suffix else sorted(path.rglob("*.py")):
            status = source.stat()
            digest.update(f"{source.relative_to(package)}:{status.st_size}:{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def drop_stale_code(package: Path) -> bool:
    """Delete cached machine code beside the sources if these changed since; whether something was dropped.

    In a package folder that cannot be written to there is none: numba then uses the user's own folder.
    """
    stamp = package / "sim" / "__pycache__" / STAMP
    now = source_stamp(package)
    with contextlib.suppress(OSError):
        if stamp.is_file() and stamp.read_text() == now:
            return False
        stamp.parent.mkdir(exist_ok=True)
        for place in COMPILED:
            path = package / place
            for cached in (path.parent if path.suffix else path).rglob("__pycache__/*.nb[ic]"):
                cached.unlink(missing_ok=True)
        fresh = stamp.with_name(f"{STAMP}.{os.getpid()}")
        fresh.write_text(now)
        fresh.replace(stamp)
        return True
    return False


class EngineCompilation:
    """Whether the engine is being compiled in this process, for those who wait: of cached code it never is."""

    def __init__(self) -> None:
        self.running = False  # it is being compiled now
        self.tell: Callable[[str], None] = lambda text: None  # called with `COMPILING` before that begins

    def watch(self, engine: Any) -> None:
        """Notice when ``engine``, the engine's outermost compiled function, is compiled."""
        from numba.core import event

        compilation = self

        class Listener(event.Listener):
            def on_start(self, event: Any) -> None:
                if event.data["dispatcher"] is engine:
                    compilation.running = True
                    compilation.tell(COMPILING)

            def on_end(self, event: Any) -> None:
                if event.data["dispatcher"] is engine:
                    compilation.running = False

        register: Any = event.register  # untyped
        register("numba:compile", Listener())


engine_compilation = EngineCompilation()


def tell_of_compiling() -> None:
    """Say on standard error when the engine is compiled, before that takes its minute."""
    engine_compilation.tell = lambda text: print(f"draftcast: {text}", file=sys.stderr, flush=True)
