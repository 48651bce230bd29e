"""``draftcast recommend``: options to a question, the answer to text or JSON."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from draftcast.errors import InputError
from draftcast.files import write_text
from draftcast.scenarios.cli import options
from draftcast.scenarios.cli.options import Question
from draftcast.scenarios.cli.terminal import progress_bar

if TYPE_CHECKING:
    from draftcast.scenarios.compare.recommend import ComparedLoad
    from draftcast.scenarios.schema import Scenario


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
    from draftcast.scenarios.compare.recommend import recommend as rank
    from draftcast.scenarios.compare.serve_command import SERVERS
    from draftcast.scenarios.show.recommend_report import answer_line, candidates_table, paste_lines
    from draftcast.scenarios.show.tables import title

    if engine not in SERVERS:
        raise InputError(f"must be one of {', '.join(SERVERS)}", file="--engine", value=engine)
    options.check_target("--out", out)
    scenario = question.load()
    with progress_bar() as progress:
        loads, methods = _loads(scenario, rates, concurrency), [options.method_of(text) for text in candidate or []]
        answer = rank(scenario, metric=metric, loads=loads, alternatives=methods, max_k=max_k, progress=progress)
    if out is not None:
        write_text(out, json.dumps(answer.speculative_config) + "\n")
    question.print_answer(scenario, answer.summary, (title(scenario), candidates_table(answer), answer_line(answer)))
    if not question.as_json:
        typer.echo(paste_lines(answer, engine))


def _loads(scenario: "Scenario", rates: str | None, concurrency: str | None) -> "list[ComparedLoad]":
    from draftcast.scenarios.compare.recommend import ComparedLoad
    from draftcast.scenarios.schema.load import with_rate

    if rates is not None and concurrency is not None:
        raise InputError("give --rates or --concurrency, not both", file="--concurrency", value=concurrency)
    arrivals = {
        f"{rate:g} req/s": with_rate(scenario, rate).workload.arrivals.model_dump(mode="json")
        for rate in options.values_of(rates, "--rates")
    }
    own = scenario.workload.arrivals.model_dump(mode="json") if scenario.is_closed_loop else {"process": "closed_loop"}
    for clients in options.whole_values_of(concurrency, "--concurrency"):
        arrivals[f"{clients} clients"] = own | {"concurrency": clients}
    return [ComparedLoad(label, {"workload.arrivals": section}) for label, section in arrivals.items()]
