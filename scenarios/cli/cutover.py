"""``draftcast cutover``: options to a question, the answer to text, JSON or a plot."""

from dataclasses import dataclass, replace
from pathlib import Path

import typer

from draftcast.errors import InputError
from draftcast.scenarios.cli import options
from draftcast.scenarios.cli.options import QuestionOptions, values_of
from draftcast.scenarios.cli.terminal import UNDECIDED, progress_bar


@dataclass(frozen=True, kw_only=True)
class CutoverOptions:
    over: str = "rate"
    metric: str = "e2e"
    at: str | None = None
    target: float = 0.05
    budget: int | None = None
    price: list[str] | None = None


def cutover(
    question: QuestionOptions,
    search: CutoverOptions,
    k: str | None = None,
    candidate: list[str] | None = None,
    map_against: str | None = None,
    acceptance: str | None = None,
    plot: Path | None = None,
) -> None:
    """Find where speculation stops paying: the load, length or acceptance, with its interval and the reason."""
    from draftcast.scenarios.compare.candidate import with_length
    from draftcast.scenarios.compare.metric import mean_price
    from draftcast.scenarios.cutover.map import speedup_map
    from draftcast.scenarios.cutover.search import CutoverQuestion
    from draftcast.scenarios.cutover.search import cutover as find
    from draftcast.scenarios.schema.load import gpus_by_device
    from draftcast.scenarios.show import cutover_report as report
    from draftcast.scenarios.show.plots import check_picture, write_figure

    scenario = question.load()
    check_picture(plot, "--plot")
    lengths = options.whole_values_of(k, "--k")
    with question.naming():
        prices, gpus = options.parse_prices(search.price or []), gpus_by_device(scenario)
        if other := sorted(set(prices) - set(gpus)):
            raise InputError(f"the scenario runs on {' and '.join(gpus)}", file="--price", value=other[0])
        price, at = mean_price(prices, gpus) if prices else None, values_of(search.at, "--at")
        query = CutoverQuestion(scenario, search.over, search.metric, at, search.budget, price)
    if map_against is not None:
        if candidate:
            raise InputError("is of the scenario's own method; give another with --speculative-config", file="--map")
        values = values_of(acceptance, "--acceptance")
        if map_against != "acceptance":
            if values:
                raise InputError("is for --map acceptance", file="--acceptance", value=values)
            values = [float(length) for length in lengths]
        elif len(lengths) > 1:
            raise InputError("a map over acceptance is of one draft length", file="--k", value=lengths)
        elif lengths:
            query = replace(query, scenario=with_length(query.scenario, lengths[0]))
        with question.naming(), progress_bar() as progress:
            speedups = speedup_map(query, against=map_against, values=values, progress=progress)
        if plot is not None:
            write_figure(report.map_figure(speedups), plot)
        question.print_answer(scenario, speedups.summary, report.map_parts(speedups))
        return
    if acceptance is not None:
        raise InputError("is for --map acceptance", file="--acceptance", value=acceptance)
    alternatives = [options.method_of(text) for text in candidate or []]
    with question.naming(), progress_bar() as progress:
        answers = find(query, lengths=lengths, alternatives=alternatives, target=search.target, progress=progress)
    if plot is not None:
        write_figure(report.cutover_figure(answers), plot)
    parts = report.answer_parts(scenario, answers, query.price)
    question.print_answer(scenario, lambda: {"cutovers": [answer.summary() for answer in answers]}, parts)
    if all(answer.verdict == "cannot tell" for answer in answers):
        raise typer.Exit(UNDECIDED)
