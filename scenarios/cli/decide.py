"""``draftcast cutover``, ``recommend`` and ``plan``: where speculation stops paying, what to set, how many GPUs."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from draftcast.errors import InputError
from draftcast.files import write_text
from draftcast.scenarios.cli import options
from draftcast.scenarios.cli.terminal import SLO_UNMET, UNDECIDED, UNSTABLE, progress_bar


@dataclass(frozen=True, kw_only=True)
class CutoverOptions:
    over: str = "rate"
    metric: str = "e2e"
    at: str | None = None
    target: float = 0.05
    budget: int | None = None
    price: list[str] | None = None


def cutover(
    question: options.QuestionOptions,
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
        price, at = mean_price(prices, gpus) if prices else None, options.values_of(search.at, "--at")
        query = CutoverQuestion(scenario, search.over, search.metric, at, search.budget, price)
    if map_against is not None:
        if candidate:
            raise InputError("is of the scenario's own method; give another with --speculative-config", file="--map")
        values = options.values_of(acceptance, "--acceptance")
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


def recommend(
    question: options.QuestionOptions,
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
    options.check_target("--out", out, question)
    scenario = question.load()
    with question.naming(), progress_bar() as progress:
        if rates is not None and concurrency is not None:
            raise InputError("give --rates or --concurrency, not both", file="--concurrency", value=concurrency)
        loads = [ComparedLoad(f"{rate:g} req/s", {"rate": rate}) for rate in options.values_of(rates, "--rates")]
        clients = options.whole_values_of(concurrency, "--concurrency")
        loads += [ComparedLoad(f"{count} clients", {"concurrency": count}) for count in clients]
        methods = [options.method_of(text) for text in candidate or []]
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


@dataclass(frozen=True, kw_only=True)
class Candidates:
    hardware: str | None = None
    tp: str | None = None
    method: list[str] | None = None
    price: list[str] | None = None
    max_gpus: int = 1024


def plan(
    question: options.QuestionOptions,
    candidates: Candidates,
    rate: float | None = None,
    slo: str | None = None,
    headroom: float = 0.0,
    spare: int = 0,
) -> None:
    """Plan capacity: fewest GPUs (or least cost) that meet an SLO at a rate, and the largest rate they hold."""
    from draftcast.scenarios.plan.question import GIVEN, PlanQuestion, parse_objectives
    from draftcast.scenarios.plan.sizing import plan as size
    from draftcast.scenarios.run.choices import OFF
    from draftcast.scenarios.show.plan_report import answer_line, basis_line, plan_rows
    from draftcast.scenarios.show.tables import make_table, title

    scenario, texts = question.load(), candidates.method or []
    with question.naming(), progress_bar() as progress:
        query = PlanQuestion(
            scenario,
            rate_rps=rate,
            objectives=parse_objectives(slo) if slo is not None else (),
            headroom=headroom,
            spare=spare,
            hardware=_names(candidates.hardware, "--hardware"),
            tensor_parallel_sizes=_sizes(candidates.tp),
            methods=[text if text in (OFF, GIVEN) else options.method_of(text, "--method") for text in texts],
            prices=options.parse_prices(candidates.price or []),
            max_gpus=candidates.max_gpus,
        )
        answer = size(query, progress)
    parts = (title(scenario), make_table(plan_rows(answer)), answer_line(answer), basis_line(answer))
    question.print_answer(scenario, answer.summary, parts)
    if answer.best is None:
        raise typer.Exit(SLO_UNMET)


def _names(text: str | None, option: str) -> list[str]:
    if text is None:
        return []
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise InputError("must be names separated by commas", file=option, value=text)
    return list(dict.fromkeys(names))


def _sizes(text: str | None) -> list[int]:
    names = _names(text, "--tp")
    if unfit := [name for name in names if not name.isdigit() or int(name) < 1]:
        raise InputError("must be whole numbers from 1, separated by commas", file="--tp", value=unfit[0])
    return [int(name) for name in names]
