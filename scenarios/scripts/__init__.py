"""Ready capacity-planning scripts, each run with ``python -m draftcast.scenarios.scripts.NAME --help``."""

from __future__ import annotations

import sys
from collections.abc import Callable

from draftcast.errors import InputError
from draftcast.sim.compiled_cache import tell_of_compiling


def run(main: Callable[[], None]) -> None:
    """A script's life: bad input is one line on standard error and exit code 2, as of the ``draftcast`` command."""
    tell_of_compiling()
    try:
        main()
    except InputError as error:
        print(f"draftcast: error: {error}", file=sys.stderr)
        sys.exit(2)
