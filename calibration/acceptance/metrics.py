"""Acceptance from a server's own counters: vLLM's Prometheus text, or the JSON that ``vllm bench serve`` saves.

Metric names and definitions are vLLM 0.32's (``v1/spec_decode/metrics.py``, ``benchmarks/serve.py``): a position's rate
is accepted tokens at that position over rounds with a draft, the mean acceptance length 1 + accepted / rounds with a
draft. Counters run since the server started; two snapshots give what happened between them. Counters hold no requests,
so there are no intervals here; `draftcast.calibration.acceptance.measure` has them where token logs exist.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from draftcast.errors import InputError
from draftcast.files import parse_json, read_text

PREFIX = "vllm:spec_decode_"
NUM_DRAFTS = f"{PREFIX}num_drafts_total"
NUM_DRAFT_TOKENS = f"{PREFIX}num_draft_tokens_total"
NUM_ACCEPTED = f"{PREFIX}num_accepted_tokens_total"
NUM_ACCEPTED_PER_POS = f"{PREFIX}num_accepted_tokens_per_pos_total"
COUNTERS = (NUM_DRAFTS, NUM_DRAFT_TOKENS, NUM_ACCEPTED)
BENCH_KEYS = ("spec_decode_num_drafts", "spec_decode_draft_tokens", "spec_decode_accepted_tokens")
BENCH_RATES = "spec_decode_per_position_acceptance_rates"
# A scrape is not taken between two engine steps: counters of one step may be caught half updated.
_SLACK = 0.005

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')


@dataclass(frozen=True)
class ServerAcceptance:
    """What a server counted.

    num_drafts: rounds with a draft; num_draft_tokens, num_accepted_tokens: tokens, without the bonus.
    rates: unconditional acceptance by draft position, non-increasing.
    """

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    rates: tuple[float, ...]

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per round with a draft, bonus included."""
        return 1.0 + self.num_accepted_tokens / self.num_drafts

    def report(self) -> dict[str, Any]:
        """Plain data for JSON."""
        drafted = self.num_draft_tokens
        return {
            "num_drafts": self.num_drafts,
            "num_draft_tokens": drafted,
            "num_accepted_tokens": self.num_accepted_tokens,
            "mean_acceptance_length": self.mean_acceptance_length,
            "mean_draft_tokens": drafted / self.num_drafts,
            "draft_acceptance_rate": self.num_accepted_tokens / drafted if drafted else None,
            "per_position_acceptance_rates": list(self.rates),
        }


def read_metrics(path: str | Path, before: str | Path | None = None) -> ServerAcceptance:
    """Acceptance in a metrics file, or since the snapshot ``before``.

    Raises:
        InputError: unreadable, no speculative decoding in it, no drafts counted, counters that contradict each other
            or went down; file, line and metric are named.
    """
    file, text = str(path), read_text(path)
    if text.lstrip().startswith(("{", "[")):
        if before is not None:
            raise InputError("a bench result counts its own run already; leave --before out", file=file)
        return _from_bench(text, file)
    counts = _Counts.parse(text, file)
    if before is not None:
        if read_text(before).lstrip().startswith(("{", "[")):
            raise InputError("must be Prometheus text, as the later snapshot is", file=str(before))
        counts = counts.since(_Counts.parse(read_text(before), str(before)), file)
    return counts.acceptance(file)


@dataclass(frozen=True)
class _Counts:
    totals: dict[str, int]
    per_position: dict[int, int]
    models: frozenset[str]

    @classmethod
    def parse(cls, text: str, file: str) -> _Counts:
        """Sums over the engines of one model, as ``vllm bench serve`` takes them."""
        totals: dict[str, int] = {}
        per_position: dict[int, int] = {}
        models: set[str] = set()
        for number, name, text_value, labels in samples(text, file, (*COUNTERS, NUM_ACCEPTED_PER_POS)):
            count = _count(text_value, file, number, name)
            models.add(labels.get("model_name", ""))
            if name != NUM_ACCEPTED_PER_POS:
                totals[name] = totals.get(name, 0) + count
                continue
            position = labels.get("position", "")
            if not (position.isascii() and position.isdigit()):
                message = "needs a label position with the draft position, 0 or more"
                raise InputError(message, file=file, line=number, key=name)
            per_position[int(position)] = per_position.get(int(position), 0) + count
        for name in COUNTERS:
            if name not in totals:
                message = "not found: not vLLM's metrics, or a server without speculative decoding"
                raise InputError(message, file=file, key=name)
        if sorted(per_position) != list(range(len(per_position))) or not per_position:
            found = ", ".join(map(str, sorted(per_position))) or "none"
            message = f"positions must be 0, 1, 2, ... without a gap; found {found}"
            raise InputError(message, file=file, key=NUM_ACCEPTED_PER_POS)
        if len(models) > 1:
            message = f"counts several models ({', '.join(sorted(models))}); keep the lines of one"
            raise InputError(message, file=file, key="model_name")
        return cls(totals, per_position, frozenset(models))

    def since(self, before: _Counts, file: str) -> _Counts:
        if before.models != self.models:
            names = (*sorted(before.models), *sorted(self.models))
            raise InputError(f"the snapshots are of different models: {', '.join(names)}", file=file, key="model_name")
        if len(before.per_position) != len(self.per_position):
            message = f"{len(before.per_position)} positions before, {len(self.per_position)} after: different servers"
            raise InputError(message, file=file, key=NUM_ACCEPTED_PER_POS)
        totals = {name: _since(name, before.totals[name], count, file) for name, count in self.totals.items()}
        per_position = {
            position: _since(f'{NUM_ACCEPTED_PER_POS}{{position="{position}"}}', before.per_position[position], n, file)
            for position, n in self.per_position.items()
        }
        return _Counts(totals, per_position, self.models)

    def acceptance(self, file: str) -> ServerAcceptance:
        drafts = self.totals[NUM_DRAFTS]
        _check_drafts(drafts, file, NUM_DRAFTS)
        rates = [self.per_position[position] / drafts for position in range(len(self.per_position))]
        accepted = self.totals[NUM_ACCEPTED]
        if abs(sum(self.per_position.values()) - accepted) > _SLACK * max(accepted, drafts):
            message = f"must add up to {NUM_ACCEPTED} = {accepted}"
            raise InputError(message, file=file, key=NUM_ACCEPTED_PER_POS, value=sum(self.per_position.values()))
        rates = _checked_rates(rates, file, NUM_ACCEPTED_PER_POS)
        return ServerAcceptance(drafts, self.totals[NUM_DRAFT_TOKENS], accepted, tuple(rates))


def samples(text: str, file: str, names: Collection[str]) -> Iterator[tuple[int, str, str, dict[str, str]]]:
    """Line number, name, value as text and labels of every sample of these names in Prometheus text.

    Raises:
        InputError: a line of such a name that is no sample; file, line and name are given.
    """
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        name = re.split(r"[{\s]", line, maxsplit=1)[0]
        if name not in names:
            continue
        sample = _SAMPLE.match(line)
        if sample is None:
            raise InputError("not a sample of Prometheus text", file=file, line=number, key=name)
        yield number, name, sample["value"], _labels(sample["labels"] or "", file, number, name)


def _from_bench(text: str, file: str) -> ServerAcceptance:
    result = parse_json(text, file)
    if not isinstance(result, dict):
        raise InputError("must be the JSON object that vllm bench serve saves", file=file)
    counts = []
    for key in BENCH_KEYS:
        if key not in result:
            raise InputError("not found: no bench result, or a server without speculative decoding", file=file, key=key)
        if not isinstance(result[key], int) or isinstance(result[key], bool) or result[key] < 0:
            raise InputError("must be a whole number, 0 or more", file=file, key=key, value=result[key])
        counts.append(result[key])
    _check_drafts(counts[0], file, BENCH_KEYS[0])
    rates = result.get(BENCH_RATES)
    if not isinstance(rates, list) or not rates or not all(_is_rate(rate) for rate in rates):
        raise InputError("must be a list of rates from 0 to 1", file=file, key=BENCH_RATES, value=rates)
    drafts, drafted, accepted = counts
    if abs(sum(rates) * drafts - accepted) > _SLACK * max(accepted, drafts):
        message = f"must add up to accepted / drafts = {accepted / drafts:.4f}"
        raise InputError(message, file=file, key=BENCH_RATES, value=round(sum(rates), 4))
    return ServerAcceptance(drafts, drafted, accepted, tuple(_checked_rates(rates, file, BENCH_RATES)))


def _labels(text: str, file: str, number: int, name: str) -> dict[str, str]:
    labels, at = {}, 0
    while at < len(text):
        label = _LABEL.match(text, at)
        if label is None:
            raise InputError("labels cannot be read", file=file, line=number, key=name)
        labels[label[1]] = label[2]
        at = label.end()
    return labels


def _count(text: str, file: str, number: int, name: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or value != int(value):
        raise InputError("a counter is a whole number, 0 or more", file=file, line=number, key=name, value=text)
    return int(value)


def _since(name: str, before: int, after: int, file: str) -> int:
    if after < before:
        message = f"went down from {before} to {after}: the server restarted between, or the files are swapped"
        raise InputError(message, file=file, key=name)
    return after - before


def _check_drafts(drafts: int, file: str, key: str) -> None:
    if drafts == 0:
        raise InputError("no round with a draft was counted, so there is no rate", file=file, key=key, value=0)


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= 1.0 + _SLACK


def _checked_rates(rates: list[float], file: str, key: str) -> list[float]:
    for position, rate in enumerate(rates):
        above = 1.0 if position == 0 else rates[position - 1]
        if rate > above + _SLACK:
            message = f"unconditional rates never rise: {rate:.4f} at position {position} exceeds {above:.4f} before it"
            raise InputError(message, file=file, key=key)
    return list(accumulate((min(1.0, float(rate)) for rate in rates), min))
