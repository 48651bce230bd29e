"""How long a point's requests were: given, from its totals, or the typical lengths of the data set it names."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from draftcast.scenarios.evidence.point import Point
from draftcast.scenarios.evidence.settings import Reading


class Tokens(NamedTuple):
    """Typical tokens of a text: the mean, and the standard deviation over the mean."""

    mean: float
    spread: float


class DataSet(NamedTuple):
    """Typical lengths of a text set, and where they are from."""

    prompt: Tokens
    output: Tokens
    source: str


_CORPUS = "counted in rows of this corpus"
# The first pattern found in the name of the data set (any case).
_DATA_SETS = (
    (r"sharegpt", DataSet(Tokens(229.7, 1.3), Tokens(203.1, 1.0), "vLLM pull request 18566; the spread is assumed")),
    (r"cnn/dailymail", DataSet(Tokens(781, 0.0), Tokens(56, 0.0), "arXiv 1704.04368, section 4")),
    (r"mt-?bench.*2 turns", DataSet(Tokens(336, 0.5), Tokens(494, 0.5), f"{_CORPUS} (arXiv 2604.26469)")),
    (
        r"mt-?bench|spec-?bench",
        DataSet(Tokens(76, 0.7), Tokens(494, 0.5), f"prompts as vllm bench counts them; outputs {_CORPUS}"),
    ),
    (r"humaneval", DataSet(Tokens(165, 0.4), Tokens(400, 0.4), f"{_CORPUS} (arXiv 2604.26469)")),
    (r"gsm8k.*5.?shot", DataSet(Tokens(800, 0.1), Tokens(120, 0.4), "about five worked examples of GSM8K; assumed")),
    (r"gsm8k", DataSet(Tokens(100, 0.4), Tokens(310, 0.4), f"outputs {_CORPUS} (z-lab/dflash issue 119)")),
    (r"math-?500", DataSet(Tokens(110, 0.5), Tokens(735, 0.6), f"outputs {_CORPUS} (z-lab/dflash issue 119)")),
    (r"livecodebench", DataSet(Tokens(600, 0.5), Tokens(700, 0.6), "order of magnitude; assumed")),
    (r"gpqa", DataSet(Tokens(250, 0.5), Tokens(700, 0.5), "order of magnitude; assumed")),
    (r"financeqa", DataSet(Tokens(700, 0.5), Tokens(300, 0.5), "order of magnitude; assumed")),
    (r"canitedit", DataSet(Tokens(476, 0.5), Tokens(365, 0.5), f"{_CORPUS} (arXiv 2604.26469)")),
    (r"defects4j", DataSet(Tokens(2262, 0.5), Tokens(506, 0.5), f"{_CORPUS} (arXiv 2604.26469)")),
    (r"sonnet", DataSet(Tokens(550, 0.0), Tokens(150, 0.0), "defaults of vllm bench serve --dataset-name sonnet")),
)
_PROMPT_TOTALS = ("total_input_tokens", "off_total_input_tokens", "on_total_input_tokens")
_OUTPUT_TOTALS = (
    *("total_generated_tokens", "total_output_tokens", "off_total_output_tokens", "on_total_output_tokens"),
    "output_tokens",
)


def read_lengths(reading: Reading) -> dict[str, Any] | None:
    """``workload.lengths``; None (and a reason) where a length is neither given nor typical of the data set."""
    point = reading.point
    dataset = (point.dataset or "").lower()
    typical = next((each for pattern, each in _DATA_SETS if re.search(pattern, dataset)), None)
    lengths: dict[str, Any] = {}
    for key, name, given, totals, usual in (
        ("prompt_tokens", "input_tokens", point.input_tokens, _PROMPT_TOTALS, typical and typical.prompt),
        ("output_tokens", "output_tokens", point.output_tokens, _OUTPUT_TOTALS, typical and typical.output),
    ):
        mean = _counted(point, totals)
        if mean is None and given is None and typical is not None and usual is not None:
            lengths[key] = _spread(*usual)
            reading.assumed[name] = f"{usual.mean:g}, typical of the data set: {typical.source}"
        elif mean is None and given is None:
            reading.missing(name, "not given")
        elif "random" in dataset or usual is None:
            lengths[key] = _random(reading, name, mean, given)
        else:
            # A source that states the mean of its outputs cut them all at one limit; totals are of free lengths.
            spread = 0.0 if given is not None and name == "output_tokens" else usual.spread
            lengths[key] = _spread(given if given is not None else mean or 1.0, spread)
    return lengths if len(lengths) == 2 else None


def _counted(point: Point, names: tuple[str, ...]) -> float | None:
    """The mean of the requests that were sent, from a total in ``more``."""
    totals = [point.more[name] for name in names if isinstance(point.more.get(name), int | float)]
    count = point.load.num_prompts
    if count is None and point.load.kind == "burst" and point.load.value is not None:
        count = int(point.load.value)
    return totals[0] / count if totals and count else None


def _random(reading: Reading, name: str, mean: float | None, given: float | None) -> Any:
    """Lengths of generated prompts: fixed, or drawn up to a limit, see the notes of the collection."""
    point = reading.point
    dataset = (point.dataset or "").lower()
    ratio = re.search(r"ratio[ =]*([\d.]+)", dataset)
    lowest = float(ratio[1]) if ratio else None
    if lowest is None and point.engine == "sglang" and "random" in dataset and not re.search(r"\d/\d", dataset):
        lowest = 0.0
    if lowest is None and "uniform" in dataset:
        lowest = 0.0
    if lowest is None or lowest == 1.0 or (mean is not None and given is not None and abs(mean / given - 1) < 0.02):
        return max(1, round(mean if mean is not None else given or 1))
    if mean is None:
        limit = given or 1.0
        mean = max(1.0, limit * (1 + lowest) / 2)
        reading.assumed[name] = f"drawn between {lowest:g} and 1 of {limit:g}"
    high = 2 * mean / (1 + lowest)
    low, high = max(1, round(lowest * high)), max(1, round(high))
    return {"distribution": "uniform", "low": low, "high": max(low, high)}


def _spread(mean: float, spread: float) -> Any:
    if spread == 0.0:
        return max(1, round(mean))
    return {"distribution": "lognormal", "mean": mean, "std": mean * spread, "min": 1, "max": round(mean * 10)}


def longest(lengths: dict[str, Any]) -> int:
    """Tokens of the longest request that `read_lengths` can give."""
    return sum(
        value if isinstance(value, int) else int(value.get("high", value.get("max", 0))) for value in lengths.values()
    )
