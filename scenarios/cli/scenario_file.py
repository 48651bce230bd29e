"""``draftcast init`` and ``draftcast schema``: a scenario file to begin with, and what such a file may hold."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from draftcast.errors import InputError
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


def schema(
    command: Annotated[
        list[str] | None, typer.Argument(help="A command, for the schema of its --json. Default: a scenario file.")
    ] = None,
) -> None:
    """Print the JSON Schema of a scenario file, or of a command's --json, for editors and checks."""
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema_of(" ".join(command or ()))})


def schema_of(command: str) -> dict[str, Any]:
    """Of a command's ``--json``, inferred from real answers (``answers.json``); of a scenario file for "".

    Raises:
        InputError: no such command, or one without --json.
    """
    if not command:
        from draftcast.scenarios.schema import Scenario

        return Scenario.model_json_schema()
    known = json.loads(files("draftcast.scenarios").joinpath("cli/answers.json").read_text("utf-8"))
    if command not in known["commands"]:
        raise InputError(f"has no schema; choose from {', '.join(known['commands'])}", file="schema", value=command)
    return {"title": f"draftcast {command} --json", "$defs": known["$defs"], **known["commands"][command]}
