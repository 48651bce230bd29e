"""``draftcast recommend``: options to a question, the answer to text or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftcast.errors import InputError
from draftcast.files import write_text
from draftcast.scenarios.cli.terminal import asked_changes, print_json, progress_bar

if TYPE_CHECKING:
    from draftcast.scenarios.compare.recommend import Load
    from draftcast.scenarios.schema import Scenario


def recommend(
    scenario: Annotated[str, typer.Argument(help="A YAML file, or an embedded scenario (draftcast scenarios).")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. engine.block_size=32.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Take arrivals and lengths from a trace.")] = None,
    rates: Annotated[
        str | None, typer.Option(metavar="R,R,...|A..B:N", help="Judge over these request rates per second.")
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option(metavar="C,C,...|A..B:N", help="Judge over these closed-loop concurrencies.")
    ] = None,
    metric: Annotated[str, typer.Option(help="What is to improve: e2e, tpot, token_goodput or slo_goodput.")] = "e2e",
    candidate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JSON|FILE",
            help='Another method: {"speculative_config": {...}, "acceptance": {...}}; repeatable.',
        ),
    ] = None,
    max_k: Annotated[
        int, typer.Option(min=1, max=64, help="Longest draft tried where acceptance is known for any.")
    ] = 8,
    server: Annotated[str, typer.Option(help="Whose flags to print: vllm or sglang.")] = "vllm",
    seed: Annotated[int | None, typer.Option(help="Seed of all random numbers.")] = None,
    replications: Annotated[int | None, typer.Option(help="Independent repetitions behind the intervals.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the --speculative-config JSON here (null: leave it off).")
    ] = None,
) -> None:
    """Recommend method, draft length and schedule for a load, against off, and print what to paste."""
    from draftcast.scenarios.compare.recommend import recommend as find
    from draftcast.scenarios.schema.load import load_scenario
    from draftcast.scenarios.show.recommend_report import answer_line, candidates_table, paste_lines
    from draftcast.scenarios.show.tables import make_console, title

    if server not in ("vllm", "sglang"):
        raise InputError("must be vllm or sglang", file="--server", value=server)
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise InputError("must be a file in a folder that exists", file="--out", value=str(out))
    changes = asked_changes(overrides, seed, replications)
    question = load_scenario(scenario, overrides=changes, trace=trace)
    others = [alternative_method(text) for text in candidate or []]
    with progress_bar() as progress:
        answer = find(
            question,
            metric=metric,
            loads=_loads(question, rates, concurrency),
            alternatives=others,
            max_k=max_k,
            progress=progress,
        )
    if out is not None:
        write_text(out, json.dumps(answer.speculative_config) + "\n")
    if as_json:
        print_json(answer.summary())
        return
    console = make_console()
    console.print(title(question))
    console.print(candidates_table(answer))
    console.print(answer_line(answer))
    typer.echo(paste_lines(answer, server))


def _loads(question: Scenario, rates: str | None, concurrency: str | None) -> list[Load]:
    from draftcast.scenarios.compare.recommend import Load
    from draftcast.scenarios.schema.load import with_rate
    from draftcast.scenarios.schema.numbers import parse_values

    if rates is not None and concurrency is not None:
        raise InputError("give --rates or --concurrency, not both", file="--concurrency", value=concurrency)
    if rates is not None:
        found = []
        for rate in parse_values(rates, "--rates"):
            arrivals = with_rate(question, rate).workload.arrivals.model_dump(mode="json")
            found.append(Load(f"{rate:g} req/s", {"workload.arrivals": arrivals}))
        return found
    if concurrency is None:
        return []
    found = []
    for value in parse_values(concurrency, "--concurrency"):
        if value != int(value) or value < 1:
            raise InputError("must be whole numbers from 1", file="--concurrency", value=value)
        arrivals = {"process": "closed_loop", "concurrency": int(value)}
        if question.workload.arrivals.process == "closed_loop":
            arrivals = {**question.workload.arrivals.model_dump(mode="json"), **arrivals}
        found.append(Load(f"{int(value)} clients", {"workload.arrivals": arrivals}))
    return found


def alternative_method(text: str) -> dict[str, Any]:
    """The mapping of a ``--candidate``, JSON or a YAML file.

    Raises:
        InputError: neither of the two.
    """
    from draftcast.calibration.yaml_text import parse_yaml

    path = Path(text)
    place = "--candidate"
    if not text.lstrip().startswith("{"):
        place = text
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            raise InputError("is neither JSON nor a readable file", file="--candidate", value=str(path)) from None
    found = parse_yaml(text, place)
    if not isinstance(found, dict):
        raise InputError("must be a mapping with speculative_config and acceptance", file=place)
    return found
