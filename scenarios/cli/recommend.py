"""``draftcast recommend``: options to a question, the answer to text or JSON."""

import json
from pathlib import Path

import typer

from draftcast.errors import InputError
from draftcast.files import write_text
from draftcast.scenarios.cli.options import QuestionOptions, check_target, method_of, values_of, whole_values_of
from draftcast.scenarios.cli.terminal import UNDECIDED, UNSTABLE, progress_bar


def recommend(
    question: QuestionOptions,
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
