"""Which engine runs which method, from which version on and up to which; for what is not said nothing is known."""

from typing import Any

from draftcast.yaml_text import yaml_beside

_TABLES = yaml_beside(__file__, "support.yaml")
RESEARCH: dict[str, str] = _TABLES["research"]
"""Methods that are simulated for every engine, though none has a command for them, and why none has."""
LACKS: dict[tuple[str, str], dict[str, Any]]
LACKS = {(engine, method): lack for engine, lacks in _TABLES["lacks"].items() for method, lack in lacks.items()}


def cannot_run(engine: str, number: tuple[int, ...], method: str) -> str | None:
    """Why a version of an engine cannot run a method; None where it can, or nothing is known."""
    lack = LACKS.get((engine, method))
    if lack is None or [*number] < lack.get("since", []) or ("until" in lack and [*number] >= lack["until"]):
        return None
    return str(lack["why"])
