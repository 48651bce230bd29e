"""``draftcast cutover``: options to a question, the answer to text, JSON or a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftcast.errors import InputError
from draftcast.scenarios.cli.terminal import asked_changes, print_json, progress_bar

if TYPE_CHECKING:
    from draftcast.scenarios.compare.price import Price
    from draftcast.scenarios.cutover.answer import Cutover
    from draftcast.scenarios.schema import Scenario

CANNOT_TELL = 5


def cutover(
    scenario: Annotated[str, typer.Argument(help="A YAML file, or an embedded scenario (draftcast scenarios).")],
    over: Annotated[
        str, typer.Option(help="Where to look for it: rate, concurrency, batch, context or acceptance.")
    ] = "rate",
    metric: Annotated[
        str, typer.Option(help="What speculation is to improve: e2e, tpot, token_goodput, slo_goodput or cost.")
    ] = "e2e",
    k: Annotated[
        str | None, typer.Option("--k", metavar="K,K,...", help="Draft lengths; without it each method's own.")
    ] = None,
    candidate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JSON|FILE",
            help='Another method: {"speculative_config": {...}, "acceptance": {...}}; repeatable.',
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="X,X,...|A..B:N", help="Where to look first; without it over the whole range."),
    ] = None,
    map_against: Annotated[
        str | None,
        typer.Option("--map", metavar="k|acceptance", help="The speed-up map instead: load against one of these."),
    ] = None,
    acceptance: Annotated[
        str | None, typer.Option(metavar="A,A,...|A..B:N", help="With --map acceptance: the values looked at.")
    ] = None,
    target: Annotated[float, typer.Option(help="Stop when the interval is this share of the value.")] = 0.05,
    budget: Annotated[
        int | None, typer.Option(help="Requests simulated at most for each setting (600,000), or a map (2,000,000).")
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=AMOUNT@DATE", help="For --metric cost, e.g. h100-sxm=2.49@2026-11-01."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. engine.block_size=32.")
    ] = None,
    speculative_config: Annotated[
        str | None, typer.Option(metavar="JSON", help="vLLM's --speculative-config, verbatim; null turns it off.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Take arrivals and lengths from a trace.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random numbers.")] = None,
    replications: Annotated[
        int | None, typer.Option(help="Repetitions at a first look; more where it matters.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="HTML", help="Write the picture here.")] = None,
) -> None:
    """Find where speculation stops paying: the load, context length or acceptance, with its interval and the reason."""
    from draftcast.scenarios.cli.recommend import alternative_method
    from draftcast.scenarios.cutover.search import cutover as find
    from draftcast.scenarios.run.error_places import naming
    from draftcast.scenarios.schema.load import load_scenario

    changes = asked_changes(overrides, seed, replications)
    question = load_scenario(scenario, overrides=changes, speculative_config=speculative_config, trace=trace)
    if plot is not None:
        from draftcast.scenarios.show.plots import check_picture

        check_picture(plot, "--plot")
    asked_price = _price(question, price or [])
    common: dict[str, Any] = {"over": over, "metric": metric, "at": _values(at, "--at"), "price": asked_price}
    if budget is not None:
        common["budget_requests"] = budget
    lengths = _whole(k)
    if map_against is not None:
        if candidate:
            raise InputError("is of the scenario's own method; give another with --speculative-config", file="--map")
        _map(scenario, question, map_against, lengths, _values(acceptance, "--acceptance"), common, plot, as_json)
        return
    if acceptance is not None:
        raise InputError("is for --map acceptance", file="--acceptance", value=acceptance)
    others = [alternative_method(text) for text in candidate or []]
    with naming(scenario), progress_bar() as progress:
        answers = find(question, lengths=lengths, alternatives=others, target=target, progress=progress, **common)
    if plot is not None:
        from draftcast.scenarios.show.cutover_plots import cutover_figure
        from draftcast.scenarios.show.plots import write_figure

        write_figure(cutover_figure(answers), plot)
    if as_json:
        print_json({"cutovers": [answer.summary() for answer in answers]})
    else:
        _print_tables(question, answers, asked_price)
    if all(answer.verdict == "cannot tell" for answer in answers):
        raise typer.Exit(CANNOT_TELL)


def _map(
    scenario: str,
    question: Scenario,
    against: str,
    lengths: list[int],
    acceptances: list[float],
    common: dict[str, Any],
    plot: Path | None,
    as_json: bool,
) -> None:
    from draftcast.scenarios.cutover.map import speedup_map
    from draftcast.scenarios.cutover.search import with_length
    from draftcast.scenarios.run.error_places import naming

    values: list[float] = [float(length) for length in lengths]
    if against == "acceptance":
        if len(lengths) > 1:
            raise InputError("a map over acceptance is of one draft length", file="--k", value=lengths)
        question = with_length(question, lengths[0]) if lengths else question
        values = acceptances
    elif acceptances:
        raise InputError("is for --map acceptance", file="--acceptance", value=acceptances)
    with naming(scenario), progress_bar() as progress:
        found = speedup_map(question, against=against, values=values, progress=progress, **common)
    if plot is not None:
        from draftcast.scenarios.show.cutover_map_plot import map_figure
        from draftcast.scenarios.show.plots import write_figure

        write_figure(map_figure(found), plot)
    if as_json:
        print_json(found.summary())
        return
    from draftcast.scenarios.show.cutover_report import contour_lines, map_table
    from draftcast.scenarios.show.tables import make_console, title

    console = make_console()
    console.print(title(question))
    console.print(map_table(found))
    console.print(f"Advantage in {found.metric.label}; * its {found.confidence:.0%} interval excludes 1.")
    for line in contour_lines(found):
        console.print(line)


def _values(text: str | None, place: str) -> list[float]:
    from draftcast.scenarios.schema.numbers import parse_values

    return parse_values(text, place) if text is not None else []


def _whole(text: str | None) -> list[int]:
    values = _values(text, "--k")
    if any(value != round(value) for value in values):
        raise InputError("must be whole numbers from 1", file="--k", value=text)
    return [round(value) for value in values]


def _price(question: Scenario, texts: list[str]) -> Price | None:
    from draftcast.scenarios.cli.plan import parse_prices

    prices = parse_prices(texts)
    other = sorted(set(prices) - {question.hardware})
    if other:
        raise InputError(f"the scenario runs on {question.hardware}", file="--price", value=other[0])
    return prices.get(question.hardware)


def _print_tables(question: Scenario, answers: tuple[Cutover, ...], price: Price | None) -> None:
    from draftcast.scenarios.show.cutover_report import cost_lines, detail_lines, headline, points_table, settings_table
    from draftcast.scenarios.show.tables import make_console, title

    console = make_console()
    console.print(title(question))
    if len(answers) == 1:
        console.print(points_table(answers[0]))
    else:
        console.print(settings_table(answers))
    for answer in answers:
        console.print(headline(answer), soft_wrap=True)
        if len(answers) == 1:
            for line in [*detail_lines(answer), *(cost_lines(answer, price.date) if price is not None else [])]:
                console.print(line, soft_wrap=True)
