"""Acceptance from a server's own counters: Prometheus text of vLLM or SGLang, or JSON of vLLM's bench or TensorRT-LLM.

Metric names and definitions are vLLM 0.32's (``v1/spec_decode/metrics.py``, ``benchmarks/serve.py``): a position's rate
is accepted tokens at that position over rounds with a draft, the mean acceptance length 1 + accepted / rounds with a
draft. Counters run since the server started and hold no requests, so there are no intervals here.

SGLang (``--enable-metrics``) and TensorRT-LLM (``enable_iter_perf_stats``, JSON of ``/metrics``) count no positions:
all get the one conditional rate that gives the mean. SGLang's own means (``sglang:spec_accept_length``,
``sglang:spec_accept_rate``) are gauges of the last interval; they say how long drafts are, and the counters how many
tokens a verification gave: those generated less each request's first, which its prompt gives.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from draftcast.calibration.acceptance.references import conditional_rate
from draftcast.errors import InputError
from draftcast.files import parse_json, picked, read_text

PREFIX = "vllm:spec_decode_"
NUM_DRAFTS = f"{PREFIX}num_drafts_total"
NUM_DRAFT_TOKENS = f"{PREFIX}num_draft_tokens_total"
NUM_ACCEPTED = f"{PREFIX}num_accepted_tokens_total"
NUM_ACCEPTED_PER_POS = f"{PREFIX}num_accepted_tokens_per_pos_total"
COUNTERS = (NUM_DRAFTS, NUM_DRAFT_TOKENS, NUM_ACCEPTED)
BENCH_KEYS = ("spec_decode_num_drafts", "spec_decode_draft_tokens", "spec_decode_accepted_tokens")
BENCH_RATES = "spec_decode_per_position_acceptance_rates"
SGLANG_COUNTERS = ("sglang:spec_verify_calls_total", "sglang:generation_tokens_total", "sglang:num_requests_total")
SGLANG_MEANS = ("sglang:spec_accept_length", "sglang:spec_accept_rate")
TRTLLM_KEYS = ("numRequestsWithDraftTokens", "numDraftTokens", "numAcceptedTokens")
# A scrape is not taken between two engine steps: counters of one step may be caught half updated.
_SLACK = 0.005

_NO_ROUND = "no round with a draft was counted, so there is no rate"
# Model, and counts over its engines by name, as ``vllm bench serve`` takes them: `COUNTERS`, then each position's.
_Counts = tuple[str, dict[str, int]]

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$")
_NUMBER = re.compile(r"\d+(\.\d*)?(e[+-]?\d{1,3})?", re.IGNORECASE | re.ASCII)
_LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_LABELS = re.compile(f"(?:{_LABEL.pattern})*")


@dataclass(frozen=True)
class ServerAcceptance:
    num_drafts: int  # rounds with a draft
    num_draft_tokens: int
    num_accepted_tokens: int  # without the bonus
    rates: tuple[float, ...]  # unconditional acceptance by draft position, non-increasing
    server: str = "vLLM"

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per round with a draft, bonus included."""
        return 1.0 + self.num_accepted_tokens / self.num_drafts

    def counts(self) -> dict[str, Any]:
        """As a live run's manifest holds them; ``per_position``: accepted tokens by draft position."""
        per_position = [round(rate * self.num_drafts) for rate in self.rates]
        return picked(self, "num_drafts num_draft_tokens num_accepted_tokens") | {"per_position": per_position}

    def report(self) -> dict[str, Any]:
        drafted = self.num_draft_tokens
        return {
            **picked(self, "num_drafts num_draft_tokens num_accepted_tokens mean_acceptance_length"),
            "mean_draft_tokens": drafted / self.num_drafts,
            "draft_acceptance_rate": self.num_accepted_tokens / drafted if drafted else None,
            "per_position_acceptance_rates": list(self.rates),
        }


def read_metrics(path: str | Path, before: str | Path | None = None) -> ServerAcceptance:
    """Acceptance in a metrics file, or since the snapshot ``before``.

    Raises InputError: unreadable, no speculative decoding in it, no drafts counted, counters that contradict each other
    or went down; file, line and metric are named.
    """
    file, text = str(path), read_text(path)
    if text.lstrip().startswith(("{", "[")) and not is_range(text):
        if before is not None:
            raise InputError("a bench result counts its own run already; leave --before out", file=file)
        return _from_trtllm(text, file) if '"specDecodingStats"' in text else _from_bench(text, file)
    if SGLANG_MEANS[0] in text:
        return _from_sglang(text, file, before)
    counts = _counters(text, file)
    if before is not None:
        earlier = read_text(before)
        if earlier.lstrip().startswith(("{", "[")):
            raise InputError("must be Prometheus text, as the later snapshot is", file=str(before))
        counts = _difference(_counters(earlier, str(before)), counts, file)
    drafts, drafted, accepted, *per_position = counts[1].values()
    if not drafts:
        raise InputError(_NO_ROUND, file=file, key=NUM_DRAFTS, value=0)
    rates = [count / drafts for count in per_position]
    return _acceptance([drafts, drafted, accepted], rates, file, NUM_ACCEPTED_PER_POS)


def _counters(text: str, file: str) -> _Counts:
    model, values = counted(text, file, (*COUNTERS, NUM_ACCEPTED_PER_POS), whole=True)
    if missing := [name for name in COUNTERS if name not in values]:
        message = "not found: not vLLM's metrics, or a server without speculative decoding"
        raise InputError(message, file=file, key=missing[0])
    positions = sorted(int(name.split('"')[1]) for name in values if name not in COUNTERS)
    if positions != list(range(len(positions))) or not positions:
        listed = ", ".join(map(str, positions)) or "none"
        message = f"positions must be 0, 1, 2, ... without a gap; found {listed}"
        raise InputError(message, file=file, key=NUM_ACCEPTED_PER_POS)
    return model, {name: int(sum(values[name])) for name in (*COUNTERS, *map(_at_position, positions))}


def _at_position(position: int) -> str:
    return f'{NUM_ACCEPTED_PER_POS}{{position="{position}"}}'


def counted(text: str, file: str, names: Collection[str], *, whole: bool = False) -> tuple[str, dict[str, list[float]]]:
    """The model, and values of all samples (with ``whole`` no fractions) by name, accepted drafts' by position too.

    Raises InputError: as of `samples`, a value that is no number or negative, no position, several models.
    """
    values: dict[str, list[float]] = {}
    models: set[str] = set()
    for number, name, value, labels in samples(text, file, names):
        at: dict[str, Any] = {"file": file, "line": number, "key": name}
        count = float(value) if _NUMBER.fullmatch(value) else math.nan
        if not (count.is_integer() if whole else math.isfinite(count)):
            raise InputError(f"must be a {'whole ' * whole}number, 0 or more", **at, value=value)
        models.add(labels.get("model_name", ""))
        position = labels.get("position", "")
        if name == NUM_ACCEPTED_PER_POS and not re.fullmatch("[0-9]+", position):
            raise InputError("needs a label position with the draft position, 0 or more", **at)
        key = name if name != NUM_ACCEPTED_PER_POS else _at_position(int(position))
        values.setdefault(key, []).append(count)
    if len(models) > 1:
        message = f"counts several models ({', '.join(sorted(models))}); keep the lines of one"
        raise InputError(message, file=file, key="model_name")
    return (models or {""}).pop(), values


def samples(text: str, file: str, names: Collection[str]) -> Iterator[tuple[int, str, str, dict[str, str]]]:
    """Line number, name, value as text and labels of every sample of these names in Prometheus text.

    Of a range query (`is_range`): the number of the series, and its growth. Raises InputError: a line is no sample.
    """
    if is_range(text):
        for number, (labels, _, values) in enumerate(_series(text, file), 1):
            if labels.get("__name__") in names:
                # A counter that went down has begun again at 0, as in Prometheus' ``increase``.
                grown = sum(after - before if after >= before else after for before, after in pairwise(values))
                yield number, labels["__name__"], repr(grown), labels
        return
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        name = re.split(r"[{\s]", line, maxsplit=1)[0]
        if name not in names:
            continue
        sample = _SAMPLE.match(line)
        if sample is None:
            raise InputError("not a sample of Prometheus text", file=file, line=number, key=name)
        if not _LABELS.fullmatch(sample["labels"] or ""):
            raise InputError("labels cannot be read", file=file, line=number, key=name)
        yield number, name, sample["value"], dict(_LABEL.findall(sample["labels"] or ""))


def is_range(text: str) -> bool:
    """Whether this is what Prometheus answers to ``/api/v1/query_range``: an object with ``data.resultType``."""
    return text.lstrip().startswith("{") and '"resultType"' in text[:300]


def _series(text: str, file: str) -> list[tuple[dict[str, str], list[float], list[float]]]:
    """Labels, seconds and values of every series. Raises InputError: no matrix, a value that is no number."""
    try:
        result = parse_json(text, file)["data"]["result"]
        series = [(entry["metric"], *zip(*entry["values"], strict=True)) for entry in result]
        return [(labels, [float(at) for at in at_s], [float(v) for v in values]) for labels, at_s, values in series]
    except (KeyError, TypeError, ValueError):
        raise InputError("must be the answer of query_range, a matrix", file=file, key="data.result") from None


def range_seconds(text: str, file: str) -> float:
    """From the first to the last moment of a range query. Raises InputError: there are not two."""
    moments = [at for _, at_s, _ in _series(text, file) for at in at_s]
    if not moments or max(moments) <= min(moments):
        raise InputError("must hold two moments or more", file=file, key="data.result")
    return max(moments) - min(moments)


def _difference(before: _Counts, after: _Counts, file: str) -> _Counts:
    (earlier_model, was), (model, now) = before, after
    if earlier_model != model:
        message = f"the snapshots are of different models: {earlier_model}, {model}"
        raise InputError(message, file=file, key="model_name")
    if len(was) != len(now):
        positions = [len(counts) - len(COUNTERS) for counts in (was, now)]
        message = f"{positions[0]} positions before, {positions[1]} after: different servers"
        raise InputError(message, file=file, key=NUM_ACCEPTED_PER_POS)
    for name, count in now.items():
        if count < was[name]:
            message = f"went down from {was[name]} to {count}: the server restarted between, or the files are swapped"
            raise InputError(message, file=file, key=name)
    return model, {name: count - was[name] for name, count in now.items()}


def _from_sglang(text: str, file: str, before: str | Path | None) -> ServerAcceptance:
    names = (*SGLANG_COUNTERS, *SGLANG_MEANS)
    _, values = counted(text, file, names)
    for name in names:
        if name not in values:
            raise InputError("not found: older than SGLang 0.5, or without speculation", file=file, key=name)
    was = counted(read_text(before), str(before), SGLANG_COUNTERS)[1] if before is not None else {}
    rounds, generated, requests = (round(sum(values[name]) - sum(was.get(name, ()))) for name in SGLANG_COUNTERS)
    # Ranks that have not drafted show 0.
    length, rate = (max(values[name]) for name in SGLANG_MEANS)
    if rounds <= 0 or length <= 1.0 or rate <= 0.0:
        raise InputError(_NO_ROUND, file=file, key=SGLANG_COUNTERS[0], value=rounds)
    drafts = max(round((length - 1.0) / rate), 1)
    return _without_positions("SGLang", rounds, rounds * drafts, generated - requests - rounds, file)


def _from_trtllm(text: str, file: str) -> ServerAcceptance:
    lines = [parse_json(line, file, line=n) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    sums = Counter(dict.fromkeys(TRTLLM_KEYS, 0))
    for step in lines[0] if len(lines) == 1 and isinstance(lines[0], list) else lines:
        stats = (step.get("specDecodingStats") if isinstance(step, dict) else None) or {}
        counts = {key: stats.get(key, 0) for key in TRTLLM_KEYS}
        if not all(isinstance(count, int) and count >= 0 for count in counts.values()):
            raise InputError("must hold whole numbers, 0 or more", file=file, key="specDecodingStats", value=stats)
        if counts["numDraftTokens"]:
            sums.update(counts)
    rounds, drafted, accepted = sums.values()
    if not rounds:
        raise InputError(_NO_ROUND, file=file, key=TRTLLM_KEYS[0], value=0)
    return _without_positions("TensorRT-LLM", rounds, drafted, accepted, file)


def _without_positions(server: str, rounds: int, drafted: int, accepted: int, file: str) -> ServerAcceptance:
    drafts = max(round(drafted / rounds), 1)
    if not 0 <= accepted <= drafts * rounds * (1.0 + _SLACK):
        message = f"must be 0 to {drafts} a round of {rounds}; without --before, counters run since the server started"
        raise InputError(message, file=file, key="accepted tokens", value=accepted)
    share = conditional_rate(accepted / rounds, [1.0] * drafts)
    rates = tuple(share**position for position in range(1, drafts + 1))
    return ServerAcceptance(rounds, drafted, accepted, rates, server)


def _from_bench(text: str, file: str) -> ServerAcceptance:
    result = parse_json(text, file)
    if not isinstance(result, dict):
        raise InputError("must be the JSON object that vllm bench serve saves", file=file)
    for key in BENCH_KEYS:
        if key not in result:
            raise InputError("not found: no bench result, or a server without speculative decoding", file=file, key=key)
        if type(result[key]) is not int or result[key] < 0:
            raise InputError("must be a whole number, 0 or more", file=file, key=key, value=result[key])
    if not result[BENCH_KEYS[0]]:
        raise InputError(_NO_ROUND, file=file, key=BENCH_KEYS[0], value=0)
    rates = result.get(BENCH_RATES)
    are_rates = isinstance(rates, list) and all(type(r) in (int, float) and 0.0 <= r <= 1.0 + _SLACK for r in rates)
    if not rates or not are_rates:
        raise InputError("must be a list of rates from 0 to 1", file=file, key=BENCH_RATES, value=rates)
    return _acceptance([result[key] for key in BENCH_KEYS], rates, file, BENCH_RATES)


def _acceptance(counts: list[int], rates: list[float], file: str, key: str) -> ServerAcceptance:
    """The counts with their rates, which have to fit them."""
    drafts, drafted, accepted = counts
    if abs(sum(rates) * drafts - accepted) > _SLACK * max(accepted, drafts):
        message = f"must add up to accepted / drafts = {accepted} / {drafts}"
        raise InputError(message, file=file, key=key, value=round(sum(rates), 4))
    for position, (above, rate) in enumerate(pairwise([1.0, *rates])):
        if rate > above + _SLACK:
            message = f"unconditional rates never rise: {rate:.4f} at position {position} exceeds {above:.4f} before it"
            raise InputError(message, file=file, key=key)
    falling = accumulate((min(1.0, float(rate)) for rate in rates), min)
    return ServerAcceptance(drafts, drafted, accepted, tuple(falling))
