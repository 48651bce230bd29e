"""``draftcast published``: what others measured beside what we forecast."""

from __future__ import annotations

from typing import Annotated

import typer

from draftcast.errors import InputError
from draftcast.scenarios.cli.terminal import print_json, progress_bar
from draftcast.sim.progress import part_of


def published(
    names: Annotated[list[str] | None, typer.Argument(metavar="[CASE]...", help="Only these cases.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page docs/published.md.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Forecast published speed-ups and show the error and what had to be assumed."""
    from draftcast.scenarios.evidence.cases import published_cases
    from draftcast.scenarios.evidence.forecast import forecast_case

    known = published_cases()
    for name in names or []:
        if name not in known:
            raise InputError(f"no such case; there are {', '.join(known)}", file="published", value=name)
    cases = {name: case for name, case in known.items() if not names or name in names}
    forecasts = []
    with progress_bar("forecasting") as progress:
        for index, (name, case) in enumerate(cases.items()):
            forecasts += forecast_case(name, case, part_of(progress, index, len(cases)))
    if as_json:
        described = {name: case.model_dump(mode="json", include=DESCRIBED) for name, case in cases.items()}
        print_json({"cases": described, "forecasts": [forecast.summary() for forecast in forecasts]})
        return
    from draftcast.scenarios.show.published_report import assumption_lines, forecast_table, page, summary_line
    from draftcast.scenarios.show.tables import make_console

    if markdown:
        typer.echo(page(cases, forecasts), nl=False)
        return
    console = make_console()
    console.print(forecast_table(forecasts))
    console.print(summary_line(forecasts))
    for line in assumption_lines(cases):
        console.print(line)


DESCRIBED = {"title", "source", "url", "engine_version", "given", "assumed", "explanation"}
