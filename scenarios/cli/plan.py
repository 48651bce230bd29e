"""``draftcast plan``: options to a question, the answer to text or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftcast.errors import InputError
from draftcast.scenarios.cli.terminal import asked_changes, print_json, progress_bar

if TYPE_CHECKING:
    from draftcast.scenarios.compare.price import Price
    from draftcast.scenarios.plan.sizing import Method

INFEASIBLE = 3


def plan(
    scenario: Annotated[str, typer.Argument(help="A YAML file, or an embedded scenario (draftcast scenarios).")],
    rate: Annotated[
        float | None, typer.Option(metavar="REQ/S", help="Target rate; without it the scenario's, or the trace's, own.")
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            metavar="SLO", help="Objectives, e.g. 'ttft:p95<500ms;tpot:p95<30ms'; without it the scenario's slo."
        ),
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Devices to consider; without it the scenario's.")
    ] = None,
    tp: Annotated[
        str | None, typer.Option("--tp", metavar="N,...", help="Tensor parallelism; without it the scenario's.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="off|given|JSON|FILE",
            help='Methods to consider: off, given (the scenario\'s), or {"speculative_config": {...}, '
            '"acceptance": {...}}; repeatable. Without it off and given.',
        ),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=AMOUNT@DATE",
            help="What a GPU costs an hour and since when, e.g. h100-sxm=2.49@2026-11-01; ranks by cost. Repeatable.",
        ),
    ] = None,
    headroom: Annotated[float, typer.Option(help="Share beyond the target that must hold too (0.2: 20 %).")] = 0.0,
    spare: Annotated[int, typer.Option(help="Replicas that may fail (1: N+1).")] = 0,
    max_gpus: Annotated[int, typer.Option(help="Give a candidate up beyond so many GPUs.")] = 1024,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. engine.block_size=32.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Take arrivals and lengths from a trace.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random numbers.")] = None,
    replications: Annotated[int | None, typer.Option(help="Independent repetitions behind the figures.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Plan capacity: fewest GPUs (or least cost) that meet an SLO at a rate, and the largest rate they hold."""
    from draftcast.scenarios.plan.sizing import plan as size
    from draftcast.scenarios.plan.slo import parse_objectives
    from draftcast.scenarios.run.error_places import naming
    from draftcast.scenarios.schema.load import load_scenario
    from draftcast.scenarios.show.plan_report import answer_line, basis_line, plan_table
    from draftcast.scenarios.show.tables import make_console, title

    changes = asked_changes(overrides, seed, replications)
    question = load_scenario(scenario, overrides=changes, trace=trace)
    with naming(scenario), progress_bar() as progress:
        answer = size(
            question,
            rate_rps=rate,
            objectives=parse_objectives(slo) if slo is not None else (),
            hardware=_names(hardware, "--hardware"),
            tensor_parallel_sizes=_sizes(tp),
            methods=[_method(text) for text in method or []],
            prices=parse_prices(price or []),
            headroom=headroom,
            spare=spare,
            max_gpus=max_gpus,
            progress=progress,
        )
    if as_json:
        print_json(answer.summary())
    else:
        console = make_console()
        console.print(title(question))
        console.print(plan_table(answer))
        console.print(answer_line(answer))
        console.print(basis_line(answer))
    if answer.best is None:
        raise typer.Exit(INFEASIBLE)


def parse_prices(texts: list[str]) -> dict[str, Price]:
    """Prices by device, from ``h100-sxm=2.49@2026-11-01``.

    Raises:
        InputError: another form, a price that is not above 0, a day that is none, a device twice.
    """
    from draftcast.scenarios.compare.price import Price

    found: dict[str, Price] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        amount, at, date = rest.partition("@")
        try:
            value = float(amount)
        except ValueError:
            value = -1.0
        if not (equals and at and name.strip()) or value < 0.0:
            raise InputError("must look like h100-sxm=2.49@2026-11-01", file="--price", value=text)
        try:
            price = Price(value, date.strip())
        except InputError as error:
            raise error.at(file="--price") from None
        if name.strip() in found:
            raise InputError("is given twice", file="--price", value=name.strip())
        found[name.strip()] = price
    return found


def _names(text: str | None, place: str) -> list[str]:
    if text is None:
        return []
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise InputError("must be names separated by commas", file=place, value=text)
    return list(dict.fromkeys(names))


def _sizes(text: str | None) -> list[int]:
    sizes = []
    for part in _names(text, "--tp"):
        if not part.isdigit() or int(part) < 1:
            raise InputError("must be whole numbers from 1, separated by commas", file="--tp", value=part)
        sizes.append(int(part))
    return sizes


def _method(text: str) -> Method:
    from draftcast.scenarios.cli.recommend import alternative_method
    from draftcast.scenarios.plan.sizing import GIVEN, OFF

    return text if text in (OFF, GIVEN) else alternative_method(text)
