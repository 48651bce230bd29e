"""``draftcast cutover`` and ``draftcast recommend``: where speculation stops paying, and which setting to take."""

import json
from dataclasses import replace
from pathlib import Path

import typer

from draftcast.errors import InputError
from draftcast.files import write_text
from draftcast.scenarios.cli.options import Question, check_target, method_of, parse_prices, values_of, whole_values_of
from draftcast.scenarios.cli.terminal import UNDECIDED, UNSTABLE, progress_bar


def cutover(
    question: Question,
    over: str = "rate",
    metric: str = "e2e",
    at: str | None = None,
    target: float = 0.05,
    budget: int | None = None,
    price: list[str] | None = None,
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
    lengths = whole_values_of(k, "--k")
    with question.naming():
        prices, gpus = parse_prices(price or []), gpus_by_device(scenario)
        if other := sorted(set(prices) - set(gpus)):
            raise InputError(f"the scenario runs on {' and '.join(gpus)}", file="--price", value=other[0])
        cost, first = mean_price(prices, gpus) if prices else None, values_of(at, "--at")
        query = CutoverQuestion(scenario, over, metric, first, budget, cost)
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
    alternatives = [method_of(text) for text in candidate or []]
    with question.naming(), progress_bar() as progress:
        answers = find(query, lengths=lengths, alternatives=alternatives, target=target, progress=progress)
    if plot is not None:
        write_figure(report.cutover_figure(answers), plot)
    parts = report.answer_parts(scenario, answers, cost)
    question.print_answer(scenario, lambda: {"cutovers": [answer.summary() for answer in answers]}, parts)
    if all(answer.verdict == "cannot tell" for answer in answers):
        raise typer.Exit(UNDECIDED)


def recommend(
    question: Question,
    rates: str | None = None,
    concurrency: str | None = None,
    metric: str = "e2e",
    candidate: list[str] | None = None,
    max_k: int = 8,
    engine: str = "vllm",
    out: Path | None = None,
) -> None:
    """Recommend method, draft length and schedule for a load, against speculation off; print the command to paste."""
    from draftcast.scenarios.compare.recommend import ComparedLoad
    from draftcast.scenarios.compare.recommend import recommend as rank
    from draftcast.scenarios.compare.serve_command import SERVERS
    from draftcast.scenarios.show.recommend_report import answer_line, candidates_table, paste_lines
    from draftcast.scenarios.show.tables import title

    if engine not in SERVERS:
        raise InputError(f"must be one of {', '.join(SERVERS)}", file="--engine", value=engine)
    check_target("--out", out, question)
    scenario = question.load()
    with question.naming(), progress_bar() as progress:
        if rates is not None and concurrency is not None:
            raise InputError("give --rates or --concurrency, not both", file="--concurrency", value=concurrency)
        loads = [ComparedLoad(f"{rate:g} req/s", {"rate": rate}) for rate in values_of(rates, "--rates")]
        clients = whole_values_of(concurrency, "--concurrency")
        loads += [ComparedLoad(f"{count} clients", {"concurrency": count}) for count in clients]
        methods = [method_of(text) for text in candidate or []]
        answer = rank(scenario, metric=metric, loads=loads, alternatives=methods, max_k=max_k, progress=progress)
    if out is not None:
        write_text(out, json.dumps(answer.speculative_config) + "\n")
    question.print_answer(scenario, answer.summary, (title(scenario), candidates_table(answer), answer_line(answer)))
    if not question.as_json:
        typer.echo(paste_lines(answer, engine))
    if answer.chosen.keeps_up_nowhere:
        raise typer.Exit(UNSTABLE)
    if answer.is_undecided:
        raise typer.Exit(UNDECIDED)
