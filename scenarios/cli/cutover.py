"""``draftcast cutover``: options to a question, the answer to text, JSON or a plot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from draftcast.errors import InputError, naming
from draftcast.scenarios.cli import options
from draftcast.scenarios.cli.options import Question, values_of
from draftcast.scenarios.cli.terminal import UNDECIDED, progress_bar

if TYPE_CHECKING:
    from draftcast.scenarios.cutover.search import CutoverQuestion
    from draftcast.scenarios.schema import Scenario


@dataclass(frozen=True, kw_only=True)
class Search:
    over: str = "rate"
    metric: str = "e2e"
    at: str | None = None
    target: float = 0.05
    budget: int | None = None
    price: list[str] | None = None

    def question(self, scenario: Scenario) -> CutoverQuestion:
        """As the search and the map take it. Raises InputError where a price is missing or of another device."""
        from draftcast.scenarios.compare.metric import mean_price
        from draftcast.scenarios.cutover.search import CutoverQuestion
        from draftcast.scenarios.schema.load import gpus_by_device

        prices = options.parse_prices(self.price or [])
        gpus = gpus_by_device(scenario)
        if other := sorted(set(prices) - set(gpus)):
            raise InputError(f"the scenario runs on {' and '.join(gpus)}", file="--price", value=other[0])
        price = mean_price(prices, gpus) if prices else None
        return CutoverQuestion(scenario, self.over, self.metric, values_of(self.at, "--at"), self.budget, price)


def cutover(
    question: Question,
    search: Search,
    k: str | None = None,
    candidate: list[str] | None = None,
    map_against: str | None = None,
    acceptance: str | None = None,
    plot: Path | None = None,
) -> None:
    """Find where speculation stops paying: the load, length or acceptance, with its interval and the reason."""
    from draftcast.scenarios.cutover.search import cutover as find
    from draftcast.scenarios.show import cutover_report as report
    from draftcast.scenarios.show.plots import check_picture, write_figure

    scenario = question.load()
    if plot is not None:
        check_picture(plot, "--plot")
    lengths = options.whole_values_of(k, "--k")
    with naming(question.scenario):
        asked = search.question(scenario)
    if map_against is not None:
        if candidate:
            raise InputError("is of the scenario's own method; give another with --speculative-config", file="--map")
        asked, values = _map_values(asked, map_against, lengths, values_of(acceptance, "--acceptance"))
        from draftcast.scenarios.cutover.map import speedup_map

        with naming(question.scenario), progress_bar() as progress:
            speedups = speedup_map(asked, against=map_against, values=values, progress=progress)
        if plot is not None:
            write_figure(report.map_figure(speedups), plot)
        question.print_answer(scenario, speedups.summary, report.map_parts(speedups))
        return
    if acceptance is not None:
        raise InputError("is for --map acceptance", file="--acceptance", value=acceptance)
    alternatives = [options.method_of(text) for text in candidate or []]
    with naming(question.scenario), progress_bar() as progress:
        answers = find(asked, lengths=lengths, alternatives=alternatives, target=search.target, progress=progress)
    if plot is not None:
        write_figure(report.cutover_figure(answers), plot)
    parts = report.answer_parts(scenario, answers, asked.price)
    question.print_answer(scenario, lambda: {"cutovers": [answer.summary() for answer in answers]}, parts)
    if all(answer.verdict == "cannot tell" for answer in answers):
        raise typer.Exit(UNDECIDED)


def _map_values(
    asked: CutoverQuestion, against: str, lengths: list[int], acceptances: list[float]
) -> tuple[CutoverQuestion, list[float]]:
    """The question of a map and the values of its second axis; none: the axis' own."""
    from draftcast.scenarios.compare.candidate import with_length

    if against != "acceptance":
        if acceptances:
            raise InputError("is for --map acceptance", file="--acceptance", value=acceptances)
        return asked, [float(length) for length in lengths]
    if len(lengths) > 1:
        raise InputError("a map over acceptance is of one draft length", file="--k", value=lengths)
    if lengths:
        asked = replace(asked, scenario=with_length(asked.scenario, lengths[0]))
    return asked, acceptances
