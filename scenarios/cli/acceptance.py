"""``draftcast acceptance``: a scenario's ``acceptance:`` section from token logs or a server's counters, as text."""

import math
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from draftcast.errors import InputError
from draftcast.files import check_new, write_text
from draftcast.scenarios.cli.options import Commands
from draftcast.scenarios.cli.terminal import print_lines, progress_bar

if TYPE_CHECKING:
    from draftcast.calibration.acceptance.measure import Measurement

app = Commands(
    help="Measure how many draft tokens are accepted, and write the acceptance section of a scenario.",
    no_args_is_help=True,
)


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    as_json: bool = False
    out: Path | None = None

    def check(self) -> None:
        """Refuse a file that exists before anything is measured."""
        if self.out is not None:
            check_new(self.out)

    def print(self, report: dict[str, Any], lines: list[str], notes: list[str]) -> None:
        """Print the report, as JSON or as ``lines`` and the section; write the section with ``notes`` as comments."""
        from draftcast.calibration.acceptance.fit import acceptance_text

        if self.out is not None:
            write_text(self.out, acceptance_text(report["acceptance"], notes, as_json=self.out.suffix == ".json"))
        section = textwrap.indent(acceptance_text(report["acceptance"], [], as_json=False), "  ").rstrip("\n")
        print_lines(self.as_json, report, [*lines, "", "acceptance:", section])


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """vLLM's keys of the same names: ``prompt_lookup_*`` of method ngram, ``suffix_*`` of suffix and arctic."""

    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    suffix_max_tree_depth: int | None = None
    suffix_max_spec_factor: float | None = None
    suffix_min_token_prob: float | None = None
    suffix_max_cached_requests: int | None = None

    def bounds(self) -> tuple[int, int]:
        """Of the lookup; vLLM's defaults: both 5, one given is both."""
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        default = next((value for value in (low, high) if value is not None), 5)
        return default if low is None else low, default if high is None else high


# Which methods an option of `measure` goes with, by the first word of its name.
_METHODS = {"prompt": ("ngram",), "suffix": ("suffix", "arctic"), "head": ("arctic",)}
_METHODS |= dict.fromkeys(("num", "model"), ("ngram", "suffix"))


@dataclass(frozen=True, kw_only=True)
class Sampling:
    max_model_len: int | None = None
    bootstrap: int = 1000
    seed: int = 0


@app.command()
def measure(
    *,
    method: Literal["ngram", "suffix", "arctic"],
    tokens: Path,
    num_speculative_tokens: int | None = None,
    head_rates: str | None = None,
    model: Literal["ngram", "along_output", "per_position"] = "ngram",
    search: SearchOptions,
    sampling: Sampling,
    output: OutputOptions,
) -> None:
    """Run the real matcher over logged prompts and outputs: exact for greedy decoding, no model needed."""
    from draftcast.calibration.acceptance import fit
    from draftcast.calibration.acceptance import measure as matchers

    # Options of the other methods are refused, not ignored.
    given = {**vars(search), "head_rates": head_rates, "num_speculative_tokens": num_speculative_tokens}
    for name, value in {**given, "model": None if model == "ngram" else model}.items():
        option, methods = f"--{name.replace('_', '-')}", _METHODS[name.partition("_")[0]]
        if value is not None and method not in methods:
            raise InputError(f"only with --method {' or '.join(methods)}", file=option, value=value)
        if value is None and name == {"ngram": "num_speculative_tokens", "arctic": "head_rates"}.get(method):
            raise InputError(f"required with --method {method}", file=option)
    head = _rates(head_rates or "")
    output.check()
    requests = matchers.read_token_log(tokens)
    settings = {name: value for name, value in vars(sampling).items() if value is not None}
    keys = {name.removeprefix("suffix_"): value for name, value in vars(search).items() if value is not None}
    with progress_bar("measuring"):
        if method == "arctic":
            measured = matchers.measure_arctic(requests, head, matchers.ARCTIC._replace(**keys), **settings)
        elif num_speculative_tokens is not None and method == "ngram":
            measured = matchers.measure_ngram(requests, num_speculative_tokens, *search.bounds(), **settings)
        else:
            options = matchers.SUFFIX._replace(**keys)
            measured = matchers.measure_suffix(requests, num_speculative_tokens, options, **settings)
    if model == "per_position":
        if measured.figures["draft_share"].value == 0:
            raise InputError("no round has a draft, so there is no rate by position", file="--model", value=model)
        section = fit.per_position_model([rate.value for rate in measured.rates])
    else:
        section = fit.arctic_model(measured, head) if method == "arctic" else fit.ngram_model(measured)
    if model == "along_output":
        from draftcast.sim.acceptance.chain import Chain
        from draftcast.sim.acceptance.fit import with_positions

        changing = with_positions(Chain(**section), measured.rounds, measured.num_speculative_tokens)
        section |= changing.model_dump(mode="json", include={"factors"}, exclude_defaults=True)
    report = {"tokens": str(tokens), **measured.report(), "acceptance": section}
    lines = _measured_lines(measured)
    if method == "arctic":
        lines.insert(0, "rounds with a draft: those that suffix decoding takes over; the LSTM's are in all rounds")
    named = ", ".join(f"{name} {value:g}" for name, value in measured.settings.items())
    notes = [f"Measured with {method}, k {measured.num_speculative_tokens}, {named}, on {tokens.name}.", *lines]
    if model == "per_position":
        notes.append("Rates of the rounds with a draft; under this model the simulator drafts in every round.")
    output.print(report, lines, notes)


@app.command("fit")
def fit_record(file: Path, *, num_speculative_tokens: int, record: str = "acc_eagle", output: OutputOptions) -> None:
    """Fit rates, spread between requests and stretches to a recorded acceptance."""
    from draftcast.sim.acceptance.fit import fit_chain, recorded_rounds, round_moments
    from draftcast.sim.workload.traces import TraceSpec, load_trace

    output.check()
    table = load_trace(TraceSpec(path=str(file)), record)
    assert table.acceptance_offsets is not None
    assert table.acceptance_lengths is not None
    k = num_speculative_tokens
    moments = round_moments(recorded_rounds(table.acceptance_offsets, table.acceptance_lengths, k), k)
    with progress_bar("fitting"):
        section = fit_chain(moments).model_dump(mode="json", exclude_defaults=True)
    lines = [
        f"mean acceptance length        {1.0 + moments.rates.sum():.4f} (with bonus)",
        *(f"position {position:<3}                  {rate:.4f}" for position, rate in enumerate(moments.rates)),
        f"std of the requests' means    {moments.spread**0.5:.4f}",
        f"lag-1 autocorrelation         {moments.lag_1:.4f}",
    ]
    named = {"file": str(file), "record": record, "num_speculative_tokens": k}
    report = {**named, "acceptance": {"model": "chain", **section}}
    output.print(report, lines, [f"Fitted to {record} of {file.name}, replayed in rounds of {k}.", *lines])


@app.command("from-metrics")
def from_metrics(file: Path, output: OutputOptions, before: Path | None = None) -> None:
    """Read acceptance rates from a server's spec_decode counters."""
    from draftcast.calibration.acceptance import fit
    from draftcast.calibration.acceptance.metrics import read_metrics

    output.check()
    counters = read_metrics(file, before)
    lines = [
        f"rounds with a draft           {counters.num_drafts}",
        f"draft tokens                  {counters.num_draft_tokens}",
        f"accepted tokens               {counters.num_accepted_tokens}",
        f"mean acceptance length        {counters.mean_acceptance_length:.4f} (with bonus)",
        *(f"position {position:<3}                  {rate:.4f}" for position, rate in enumerate(counters.rates)),
    ]
    span = f"{file.name} since {before.name}" if before is not None else file.name
    notes = [f"{counters.server}'s spec_decode counters of {span}: {counters.num_drafts} rounds with a draft."]
    if counters.server != "vLLM":
        notes.append(f"{counters.server} counts no positions: one conditional rate that gives the mean.")
    section = fit.per_position_model(counters.rates)
    output.print({"file": str(file), **counters.report(), "acceptance": section}, lines, notes)


@app.command("list")
def list_references(*, text: str = "", num_speculative_tokens: int = 3, as_json: bool = False) -> None:
    """List acceptance that others measured, for acceptance: {reference: NAME} in a scenario."""
    from draftcast.calibration.acceptance.references import references
    from draftcast.scenarios.show.tables import aligned

    k, matching = num_speculative_tokens, {name: one for name, one in references().items() if text.lower() in name}
    if not matching:
        raise InputError("no published measurement has this in its name", key="TEXT", value=text)
    data, rows = {}, [["name", f"tokens a round, k = {k}", "measured to k", "temperature", "source"]]
    for name, one in matching.items():
        rates = one.unconditional(k)
        data[name] = {**one.model_dump(mode="json"), "rates": rates, "mean_length": 1.0 + sum(rates)}
        heat = "-" if one.temperature is None else f"{one.temperature:g}"
        rows.append([name, f"{1.0 + sum(rates):.2f}", str(one.measured_to), heat, one.source])
    print_lines(as_json, data, aligned(rows))


def _rates(text: str) -> list[float]:
    try:
        return [float(rate) for rate in text.split(",") if rate.strip()]
    except ValueError:
        raise InputError("must be rates by position, like 0.7,0.5,0.35", file="--head-rates", value=text) from None


def _measured_lines(measured: "Measurement") -> list[str]:
    from draftcast.scenarios.show.tables import LOOKS

    def row(label: str, value: float, low: float, high: float) -> str:
        interval = f"   [{low:.4f}, {high:.4f}]" if math.isfinite(low) else ""
        return f"{label:<58}" + (f"{value:.4f}{interval}" if math.isfinite(value) else "not defined")

    report = measured.report()
    spread = report["per_request"]["mean_acceptance_length"]
    quantiles = [f"{name} {spread[name]:.3f}" for name in ("std", "p10", "p50", "p90") if spread[name] is not None]
    # Positions up to the last that any draft reached, and one more.
    rates = measured.rates[: 1 + sum(rate.value > 0 for rate in measured.rates)]
    return [
        f"{report['num_requests']} requests, {report['num_rounds']} rounds, {report['num_drafts']} with a draft; "
        f"in [] the {report['confidence']:.0%} interval over requests",
        *(row(label, *measured.figures[name]) for name, label in LOOKS["acceptance"].items()),
        *(row(f"accepted up to position {position}", *rate) for position, rate in enumerate(rates)),
        f"mean acceptance length by request: {', '.join(quantiles) or 'no request drafts'}",
        f"rounds cut by a record's end: {report['rounds_cut_by_end']} (drafts beyond it count as rejected)",
    ]
