"""``draftcast init`` and ``draftcast schema``: a scenario file to begin with, and what such a file may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftcast.files import check_new, write_text
from draftcast.scenarios.cli.options import AsJson
from draftcast.scenarios.cli.terminal import print_json, print_lines


def init(
    file: Annotated[Path, typer.Argument(help="File to write; nothing is overwritten.")] = Path("scenario.yaml"),
    as_json: AsJson = False,
) -> None:
    """Write the default scenario with a comment at every key, to be changed."""
    from draftcast.scenarios.schema.describe import commented_scenario

    check_new(file)
    write_text(file, commented_scenario())
    print_lines(as_json, {"written": str(file)}, [f"written: {file}", f"next: draftcast simulate {file}"])


def schema() -> None:
    """Print the JSON Schema of a scenario file, for editors and checks."""
    from draftcast.scenarios.schema import Scenario

    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **Scenario.model_json_schema()})
