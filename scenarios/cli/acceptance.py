"""``draftcast acceptance``: what share of draft tokens is accepted, from token logs or from a server's counters.

The answer is the ``acceptance:`` section of a scenario. Measuring itself is ``draftcast.calibration``'s; here are only
options, text and exit codes.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from draftcast.errors import InputError
from draftcast.files import check_new, write_text
from draftcast.scenarios.cli.terminal import progress_bar

if TYPE_CHECKING:
    from draftcast.calibration.acceptance.measure import Measurement

app = typer.Typer(
    help="Measure how many draft tokens are accepted, and write it as the acceptance: section of a scenario.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_JSON = typer.Option("--json", help="Print one JSON object instead of text.")
_OUT = typer.Option(metavar="FILE", help="Write the acceptance: section here (.json: JSON, else YAML).")
_LABELS = {
    "mean_acceptance_length": "mean acceptance length (with bonus, rounds with a draft)",
    "draft_share": "rounds with a draft",
    "tokens_per_round": "tokens per round (all rounds)",
    "mean_draft_tokens": "draft tokens per round with a draft",
    "draft_acceptance_rate": "draft tokens accepted",
    "match_share": "output positions with a match",
    "match_autocorrelation": "lag-1 autocorrelation of matches, by output position",
    "round_autocorrelation": "lag-1 autocorrelation of matches, by round",
}


@app.command()
def measure(
    method: Annotated[Literal["ngram", "suffix"], typer.Option(help="The matcher to run.")],
    tokens: Annotated[
        Path, typer.Option(metavar="FILE", help="JSONL: prompt_token_ids, generated_token_ids or output_token_ids.")
    ],
    num_speculative_tokens: Annotated[
        int | None, typer.Option(help="Draft tokens per round at most; suffix: the tree depth when absent.")
    ] = None,
    prompt_lookup_max: Annotated[int | None, typer.Option(help="ngram: longest n, as in vLLM (5).")] = None,
    prompt_lookup_min: Annotated[int | None, typer.Option(help="ngram: shortest n, as in vLLM (5).")] = None,
    suffix_max_tree_depth: Annotated[
        int | None, typer.Option(help="suffix: as vLLM's suffix_decoding_ key (24).")
    ] = None,
    suffix_max_spec_factor: Annotated[float | None, typer.Option(help="suffix: as in vLLM (1.0).")] = None,
    suffix_min_token_prob: Annotated[float | None, typer.Option(help="suffix: as in vLLM (0.1).")] = None,
    suffix_max_cached_requests: Annotated[
        int | None, typer.Option(help="suffix: earlier outputs searched as well, as in vLLM (10000); 0 none.")
    ] = None,
    max_model_len: Annotated[int | None, typer.Option(help="No draft stands beyond this many tokens.")] = None,
    model: Annotated[
        Literal["ngram", "per_position"], typer.Option(help="The acceptance model to write with --out.")
    ] = "ngram",
    bootstrap: Annotated[int, typer.Option(help="Resamples of the requests behind the 95 % intervals.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the resampling.")] = 0,
    as_json: Annotated[bool, _JSON] = False,
    out: Annotated[Path | None, _OUT] = None,
) -> None:
    """Run the real matcher over logged prompts and outputs: exact for greedy decoding, no model needed."""
    from draftcast.calibration.acceptance import fit
    from draftcast.calibration.acceptance.measure import measure_ngram, measure_suffix
    from draftcast.calibration.acceptance.token_logs import read_token_log
    from draftcast.kernels.search.suffix import SuffixSettings

    lookup = {"--prompt-lookup-min": prompt_lookup_min, "--prompt-lookup-max": prompt_lookup_max}
    suffix: dict[str, Any] = {
        "max_tree_depth": suffix_max_tree_depth,
        "max_spec_factor": suffix_max_spec_factor,
        "min_token_prob": suffix_min_token_prob,
        "max_cached_requests": suffix_max_cached_requests,
    }
    if method == "ngram":
        _only_with("suffix", {f"--suffix-{name.replace('_', '-')}": value for name, value in suffix.items()})
        if num_speculative_tokens is None:
            raise InputError("required with --method ngram", file="--num-speculative-tokens")
    else:
        _only_with("ngram", lookup)
    if out is not None:
        check_new(out)
    requests = read_token_log(tokens)
    common: dict[str, Any] = {"bootstrap": bootstrap, "seed": seed}
    if max_model_len is not None:
        common["max_model_len"] = max_model_len
    with progress_bar("measuring"):
        if num_speculative_tokens is not None and method == "ngram":
            low, high = _lookup(prompt_lookup_min, prompt_lookup_max)
            measured = measure_ngram(requests, num_speculative_tokens, low, high, **common)
        else:
            settings = SuffixSettings(**{name: value for name, value in suffix.items() if value is not None})
            measured = measure_suffix(requests, num_speculative_tokens, settings, **common)
    share = measured.figures["draft_share"].value
    if model == "per_position" and share == 0:
        raise InputError("no round has a draft, so there is no rate by position", file="--model", value=model)
    section = (
        fit.ngram_model(measured)
        if model == "ngram"
        else fit.per_position_model([rate.value for rate in measured.rates])
    )
    _answer(
        {"tokens": str(tokens), **measured.report(), "acceptance": section},
        _measured_text(measured),
        _notes(measured, tokens, model),
        as_json,
        out,
    )


@app.command("from-metrics")
def from_metrics(
    file: Annotated[Path, typer.Argument(help="vLLM's /metrics text, or the JSON vllm bench serve saved.")],
    before: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An earlier /metrics text: count only what came after it.")
    ] = None,
    as_json: Annotated[bool, _JSON] = False,
    out: Annotated[Path | None, _OUT] = None,
) -> None:
    """Acceptance rates from a server's spec_decode counters."""
    from draftcast.calibration.acceptance import fit
    from draftcast.calibration.acceptance.metrics import read_metrics

    if out is not None:
        check_new(out)
    found = read_metrics(file, before)
    section = fit.per_position_model(found.rates)
    lines = [
        f"rounds with a draft           {found.num_drafts}",
        f"draft tokens                  {found.num_draft_tokens}",
        f"accepted tokens               {found.num_accepted_tokens}",
        f"mean acceptance length        {found.mean_acceptance_length:.4f} (with bonus)",
        *(f"position {position:<3}                  {rate:.4f}" for position, rate in enumerate(found.rates)),
    ]
    span = f"{file.name} since {before.name}" if before is not None else file.name
    notes = [f"vLLM's spec_decode counters of {span}: {found.num_drafts} rounds with a draft."]
    _answer({"file": str(file), **found.report(), "acceptance": section}, lines, notes, as_json, out)


def _lookup(low: int | None, high: int | None) -> tuple[int, int]:
    """vLLM's defaults: both 5; one given is both."""
    if low is None and high is None:
        return 5, 5
    known = low if low is not None else high
    assert known is not None
    return known if low is None else low, known if high is None else high


def _only_with(method: str, options: dict[str, Any]) -> None:
    for option, value in options.items():
        if value is not None:
            raise InputError(f"only with --method {method}", file=option, value=value)


def _measured_text(measured: Measurement) -> list[str]:
    def row(label: str, value: float, low: float, high: float) -> str:
        interval = f"   [{low:.4f}, {high:.4f}]" if math.isfinite(low) else ""
        return f"{label:<58}" + (f"{value:.4f}{interval}" if math.isfinite(value) else "not defined")

    report = measured.report()
    spread = report["per_request"]["mean_acceptance_length"]
    quantiles = _quantiles(spread) if spread["mean"] is not None else "no request drafts"
    return [
        f"{report['num_requests']} requests, {report['num_rounds']} rounds, {report['num_drafts']} with a draft; "
        f"in [] the {measured.confidence:.0%} interval over requests",
        *(row(label, *measured.figures[name]) for name, label in _LABELS.items()),
        *(
            row(f"accepted up to position {position}", *rate)
            for position, rate in enumerate(measured.rates[: _told(measured)])
        ),
        f"mean acceptance length by request: {quantiles}",
        f"rounds cut by a record's end: {report['rounds_cut_by_end']} (drafts beyond it count as rejected)",
    ]


def _told(measured: Measurement) -> int:
    """Positions worth a line: those up to the last that any draft reached, and one more."""
    reached = sum(rate.value > 0 for rate in measured.rates)
    return min(reached + 1, len(measured.rates))


def _quantiles(spread: dict[str, float]) -> str:
    return ", ".join(f"{name} {spread[name]:.3f}" for name in ("std", "p10", "p50", "p90"))


def _notes(measured: Measurement, tokens: Path, model: str) -> list[str]:
    settings = ", ".join(f"{name} {value:g}" for name, value in measured.settings.items())
    length, share = measured.figures["mean_acceptance_length"], measured.figures["draft_share"]
    drafts = measured.figures["mean_draft_tokens"]
    notes = [
        f"Measured with {measured.method}, k {measured.num_speculative_tokens}, {settings}, on {len(measured.sums)} "
        f"requests of {tokens.name}.",
        f"Mean acceptance length {length.value:.4f} [{length.low:.4f}, {length.high:.4f}], rounds with a draft "
        f"{share.value:.4f} [{share.low:.4f}, {share.high:.4f}], {drafts.value:.2f} draft tokens in each.",
    ]
    bounds = ", ".join(f"[{rate.low:.4f}, {rate.high:.4f}]" for rate in measured.rates[: _told(measured)])
    if bounds:
        notes.append(f"{measured.confidence:.0%} intervals of the rates, over requests: {bounds}.")
    lag = measured.figures["match_autocorrelation"]
    if math.isfinite(lag.value):
        notes.append(f"Lag-1 autocorrelation of matches {lag.value:.4f} [{lag.low:.4f}, {lag.high:.4f}].")
    spread = measured.report()["per_request"]["mean_acceptance_length"]
    if spread["mean"] is not None:
        notes.append(f"Mean acceptance length of single requests: {_quantiles(spread)}.")
    if model == "per_position":
        notes.append("Rates of the rounds with a draft; under this model the simulator drafts in every round.")
    return notes


def _answer(report: dict[str, Any], lines: list[str], notes: list[str], as_json: bool, out: Path | None) -> None:
    import json

    from draftcast.calibration.acceptance.fit import acceptance_text

    if out is not None:
        write_text(out, acceptance_text(report["acceptance"], notes, as_json=out.suffix == ".json"))
    if as_json:
        typer.echo(json.dumps(report, allow_nan=False))
        return
    typer.echo("\n".join(lines))
    typer.echo("\nacceptance:\n" + _indent(acceptance_text(report["acceptance"], [], as_json=False)), nl=False)


def _indent(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())
