"""``draftcast compare``: options to a question, the answer to text or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftcast.scenarios.cli.terminal import asked_changes, print_json, progress_bar


def compare(
    scenario: Annotated[str, typer.Argument(help="A YAML file, or an embedded scenario (draftcast scenarios).")],
    policies: Annotated[
        str | None,
        typer.Option(
            metavar="A,B(KEY=VALUE),...",
            help="Policies, the first being the baseline; also file.py:Class. Default: all the scenario allows.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. engine.block_size=32.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Take arrivals and lengths from a trace.")] = None,
    metric: Annotated[str, typer.Option(help="What decides: e2e, tpot, token_goodput or slo_goodput.")] = "e2e",
    seed: Annotated[int | None, typer.Option(help="Seed of all random numbers.")] = None,
    replications: Annotated[int | None, typer.Option(help="Independent repetitions behind the intervals.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Compare draft-length policies on the same requests: paired differences, gap to the oracle, ranking with ties."""
    from draftcast.scenarios.compare.policy_comparison import compare_policies
    from draftcast.scenarios.run.error_places import naming
    from draftcast.scenarios.schema.load import load_scenario
    from draftcast.scenarios.show.policy_report import policies_table, ranking_lines
    from draftcast.scenarios.show.tables import make_console

    changes = asked_changes(overrides, seed, replications)
    question = load_scenario(scenario, overrides=changes, trace=trace)
    with naming(scenario), progress_bar() as progress:
        asked = [policies] if policies is not None else []
        answer = compare_policies(question, asked, metric=metric, progress=progress)
    if as_json:
        print_json(answer.summary())
        return
    console = make_console()
    console.print(policies_table(answer))
    for line in ranking_lines(answer):
        console.print(line)
