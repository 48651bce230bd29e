"""``draftcast plan``: options to a question, the answer to text or JSON."""

from dataclasses import dataclass

import typer

from draftcast.errors import InputError
from draftcast.scenarios.cli.options import QuestionOptions, method_of, parse_prices
from draftcast.scenarios.cli.terminal import SLO_UNMET, progress_bar


@dataclass(frozen=True, kw_only=True)
class Candidates:
    hardware: str | None = None
    tp: str | None = None
    method: list[str] | None = None
    price: list[str] | None = None
    max_gpus: int = 1024


def plan(
    question: QuestionOptions,
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

    scenario = question.load()
    with question.naming(), progress_bar() as progress:
        query = PlanQuestion(
            scenario,
            rate_rps=rate,
            objectives=parse_objectives(slo) if slo is not None else (),
            headroom=headroom,
            spare=spare,
            hardware=_names(candidates.hardware, "--hardware"),
            tensor_parallel_sizes=_sizes(candidates.tp),
            methods=[text if text in (OFF, GIVEN) else method_of(text, "--method") for text in candidates.method or []],
            prices=parse_prices(candidates.price or []),
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
    for name in names:
        if not name.isdigit() or int(name) < 1:
            raise InputError("must be whole numbers from 1, separated by commas", file="--tp", value=name)
    return [int(name) for name in names]
