"""The user's own runs without speculation, as ``--calibrate-to`` takes them: a file or an address.

``vllm bench serve --save-result`` or SGLang's ``bench_serving`` (one run, or one a line), AIPerf, GenAI-Perf and
InferenceX (``bench_fields.yaml``), a GuideLLM report (a run a benchmark), the text of ``/metrics`` (a server's whole
life), a Prometheus range query of it (a deployment's history, which also tells the rate), and an iteration log
(`read_engine_log`). Means over requests; names and definitions are vLLM 0.32's and GuideLLM 0.8's. Refused: a run with
speculation, with fewer than `LEAST_REQUESTS` requests, or of which many failed.
"""

import math
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from draftcast.calibration.acceptance.metrics import NUM_DRAFTS, counted, is_range, range_seconds
from draftcast.calibration.live.server import fetched
from draftcast.errors import InputError, LiveError
from draftcast.files import parse_json, read_text, value_at
from draftcast.yaml_text import yaml_beside

LEAST_REQUESTS = 10
URL_SECONDS, URL_BYTES = 5.0, 5_000_000
_MOST_FAILED = 0.02  # of a run's requests; with more, the others saw another load than the file says
_LARGEST = 1e12
_NOT_ONE = (
    "is none of: a result of vllm bench serve, SGLang's bench_serving, GuideLLM, AIPerf, GenAI-Perf or InferenceX "
    "(JSON), the text of /metrics, a Prometheus range query of it, a log with --enable-logging-iteration-details"
)
_FIELDS: dict[str, dict[str, Any]] = yaml_beside(__file__, "bench_fields.yaml")
_WORDS = ("model_id", "spec_decoding", "arrival_pattern")
_NO_KEYS = ("mark", "scale", "random_lengths", "requests_per_client")
_RAMP_UP = "ramp_up_strategy"
_SPECULATION = ("spec_decode_num_drafts", "accept_length", "spec_decoding")


@dataclass(frozen=True)
class RunLengths:
    """Token counts of a run's prompts or outputs: their mean, and each or their spread where the file has it."""

    mean: float
    each: tuple[int, ...] = ()
    deviation: float | None = None

    @property
    def section(self) -> int | dict[str, Any] | None:
        """As a scenario's lengths; None where only the mean is known."""
        if self.each:
            return {"distribution": "empirical", "values": list(self.each)}
        if self.deviation is None:
            return None
        if self.deviation < 0.01 * self.mean:
            return max(1, round(self.mean))
        return {"distribution": "lognormal", "mean": self.mean, "std": self.deviation}


@dataclass(frozen=True)
class OffRun:
    source: str  # file or address, and which run of it
    load: str  # in words, e.g. ``16 clients``
    requests: int  # answered
    figures: Mapping[str, float]  # in seconds, by a simulation's name: ``mean_tpot_s``, ``mean_ttft_s``, ...
    errors: Mapping[str, float]  # relative standard error of a figure, from the spread of its requests where known
    arrivals: Mapping[str, Any] | None  # the load as a scenario's section; None: the file does not say
    prompt_tokens: RunLengths | None  # None: the scenario's
    output_tokens: RunLengths | None
    model: str = ""  # as the server names it; "" where the file does not say
    per_engine: bool = False  # rate and requests are of one data-parallel rank, not of a server
    engines: int = 1  # whose counters they are


@contextmanager
def local_copy(source: str) -> Iterator[Path]:
    """``source`` as a file: its own path, or what is at an address, fetched now.

    Raises InputError: another scheme than http and https, no answer within `URL_SECONDS`, more than `URL_BYTES`, a
    redirect, an error status; also what is raised inside, with the address for the file.
    """
    if "://" not in source:
        yield Path(source)
        return
    with tempfile.TemporaryDirectory(prefix="draftcast-") as folder:
        file = Path(folder) / "fetched"
        file.write_bytes(_fetched(source))
        try:
            yield file
        except InputError as error:
            raise error.at(file=(error.file or "").replace(str(file), source) or source) from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        raise InputError(f"redirects to {newurl}; give that address if it is the right one", file=req.full_url)


def _fetched(url: str) -> bytes:
    """What is at ``url``; in a thread, because a socket's own limit holds for each piece and not for the whole."""
    scheme = urlsplit(url).scheme
    if scheme not in ("http", "https"):
        raise InputError("must be a file, or an http or https address", file=url, value=scheme)
    outcome: Future[bytes] = Future()

    def fetch() -> None:
        try:
            outcome.set_result(fetched(url, URL_SECONDS, urllib.request.build_opener(_NoRedirect), URL_BYTES + 1))
        except BaseException as error:  # raised below, in the thread that asked
            outcome.set_exception(error)

    threading.Thread(target=fetch, daemon=True).start()
    try:
        content = outcome.result(URL_SECONDS)
    except (LiveError, TimeoutError) as error:
        reason = error.message if isinstance(error, LiveError) else f"no answer within {URL_SECONDS:g} s"
        raise InputError(reason, file=url) from None
    if len(content) > URL_BYTES:
        raise InputError(f"holds more than {URL_BYTES / 1e6:g} MB", file=url)
    return content


def is_engine_log(file: Path) -> bool:
    """Whether ``read_engine_log`` reads it. Raises InputError as of `read_text`."""
    return "Iteration(" in read_text(file)


def read_off_runs(file: Path, source: str) -> list[OffRun]:
    """The runs in a file that is no engine log; ``source`` is what errors and results call it.

    Raises InputError: none of the formats, a figure that is missing or no number, speculation, too few requests.
    """
    text = read_text(file)
    if not text.lstrip().startswith(("{", "[")) or is_range(text):
        return [_from_metrics(text, source)]
    lines = [line for line in text.splitlines() if line.strip()]
    appended = len(lines) > 1 and all(line.startswith("{") and line.rstrip().endswith("}") for line in lines)
    parts = [parse_json(line, source, line=number) for number, line in enumerate(lines, 1)] if appended else None
    whole = parts or parse_json(text, source)
    results = whole if isinstance(whole, list) else [whole]
    if len(results) == 1 and isinstance(results[0], dict) and isinstance(results[0].get("benchmarks"), list):
        return _from_guidellm(results[0], source)
    places = [source if len(results) == 1 else f"{source}#{number}" for number in range(1, len(results) + 1)]
    return [_from_bench(_as_bench(result, place), place) for result, place in zip(results, places, strict=True)]


def _check_answered(requests: int, failed: float, source: str) -> None:
    if requests < LEAST_REQUESTS:
        message = f"{requests} answered requests say too little; {LEAST_REQUESTS} or more are needed"
        raise InputError(message, file=source)
    if failed > _MOST_FAILED * (requests + failed):
        raise InputError(f"{failed:.0f} requests failed beside {requests} that were answered", file=source)


def without_rate(result: Mapping[str, Any]) -> bool:
    """Whether a result of ``vllm bench serve`` is of requests that nothing but the number of clients held back."""
    return result.get("request_rate", "inf") in ("inf", None, math.inf) and result.get(_RAMP_UP) is None


def closed_loop(result: Mapping[str, Any], source: str, key: str = "max_concurrency") -> tuple[str, dict[str, Any]]:
    """So many clients in words and as a scenario's arrivals. Raises InputError: no whole number of them."""
    clients = _number_at(result, source, key)
    if clients != int(clients) or not 1 <= clients <= 2**20:
        raise InputError("must be a whole number of clients", file=source, key=key, value=clients)
    return f"{clients:.0f} client{'s' * (clients > 1)}", {"process": "closed_loop", "concurrency": int(clients)}


def _as_bench(result: Any, source: str) -> Any:
    """A result of a tool of `_FIELDS` with the keys of ``vllm bench serve``; any other as it is."""
    tools = _FIELDS["tools"].values()
    fields = next((fields for fields in tools if value_at(result, fields["mark"]) is not None), None)
    if fields is None:
        return result
    values: dict[str, Any] = {"duration": 0.0}
    for key in fields.keys() - set(_NO_KEYS):
        path = next((path for path in fields[key] if value_at(result, path) is not None), None)
        if path is not None:
            scale = fields["scale"] if key.endswith("_ms") else 1.0
            values[key] = value_at(result, path) if key in _WORDS else scale * _number_at(result, source, path)
    if "requests_per_client" in fields:
        values.setdefault("completed", fields["requests_per_client"] * values.get("max_concurrency", 0.0))
    for key in ("mean_tpot_ms", "mean_ttft_ms", "completed", "input_len", "output_len"):
        if key not in values:
            raise InputError("not found", file=source, key=fields[key][0])
    low, high = fields.get("random_lengths", (1.0, 1.0))
    for kind in ("input", "output"):
        nominal = values[f"{kind}_len"]
        values[f"total_{kind}_tokens"] = values["completed"] * (low + high) / 2 * nominal
        if high > low:
            values[f"{kind}_len_std"] = (high - low) / math.sqrt(12.0) * nominal
    return values


def _number_at(data: Mapping[str, Any], source: str, key: str, least: float = 0.0) -> float:
    """The number at a dotted key, at least ``least``. Raises InputError: there is none."""
    value = value_at(data, key)
    if type(value) not in (int, float) or not least <= value <= _LARGEST:
        raise InputError(f"must be a number from {least:g} to {_LARGEST:g}", file=source, key=key, value=value)
    return float(value)


def _from_bench(result: Any, source: str) -> OffRun:
    if not isinstance(result, dict) or "mean_tpot_ms" not in result or "completed" not in result:
        raise InputError(_NOT_ONE, file=source)
    for key in _SPECULATION:
        if result.get(key) not in (None, 0, False, "", "none", "off", "false"):
            message = "a run with speculation; calibrate to one without (off is measured, on is forecast)"
            raise InputError(message, file=source, key=key, value=result[key])
    if result.get(_RAMP_UP) is not None:
        message = "a run whose rate grew; calibrate to one with a constant rate or with clients"
        raise InputError(message, file=source, key=_RAMP_UP, value=result[_RAMP_UP])
    requests = int(_number_at(result, source, "completed"))
    failed = result.get("failed") or 0
    _check_answered(requests, float(failed) if isinstance(failed, int | float) else 0.0, source)
    means = {name: _number_at(result, source, f"mean_{name}_ms") for name in ("tpot", "ttft")}
    seconds = _number_at(result, source, "duration")
    mean_output = _number_at(result, source, "total_output_tokens") / requests
    in_system = requests * (means["ttft"] + means["tpot"] * mean_output) / 1e3 / (seconds or math.inf)
    clients = result.get("max_concurrency")
    if without_rate(result):
        key = "max_concurrency" if clients is not None else "num_prompts" if "num_prompts" in result else "completed"
        load, arrivals = closed_loop(result, source, key)
    else:
        rate_rps = _number_at(result, source, "request_rate")
        if not rate_rps:
            raise InputError("must be above 0", file=source, key="request_rate", value=result["request_rate"])
        if clients is not None and in_system > 0.8 * _number_at(result, source, "max_concurrency"):
            message = f"the limit of {clients} clients held back the rate of {rate_rps:g} req/s: give one of both"
            raise InputError(message, file=source, key="max_concurrency", value=clients)
        burstiness = _number_at(result, source, "burstiness") if "burstiness" in result else 1.0
        load = f"{rate_rps:g} req/s"
        arrivals = {"process": "gamma", "request_rate_rps": rate_rps, "burstiness": burstiness}
        if result.get("arrival_pattern") == "constant":
            arrivals = {"process": "deterministic", "request_rate_rps": rate_rps}
    errors = {}
    for name, mean in means.items():
        deviation: Any = result.get(f"std_{name}_ms")
        has_spread = mean > 0.0 and type(deviation) in (int, float) and math.isfinite(deviation)
        errors[f"mean_{name}_s"] = float(deviation) / math.sqrt(requests) / mean if has_spread else 0.0
    figures = {f"mean_{name}_s": mean / 1e3 for name, mean in means.items()}
    prompt, output = (_lengths(result, source, kind, requests) for kind in ("input", "output"))
    return OffRun(source, load, requests, figures, errors, arrivals, prompt, output, str(result.get("model_id") or ""))


def _lengths(result: Mapping[str, Any], source: str, kind: str, requests: int) -> RunLengths:
    """Of every request where the file lists them (``--save-detailed``), else the mean, and the spread where known."""
    mean = _number_at(result, source, f"total_{kind}_tokens", least=1.0) / requests
    lengths = result.get(f"{kind}_lens")
    if isinstance(lengths, list):
        bad = next((n for n in lengths if type(n) is not int or n < 0), None)
        if bad is not None:
            raise InputError("must be whole numbers of tokens", file=source, key=f"{kind}_lens", value=bad)
        answered = tuple(n for n in lengths if n > 0)  # 0: a request that failed
        if len(answered) >= requests:
            return RunLengths(mean, answered)
    spread = f"{kind}_len_std"
    return RunLengths(mean, deviation=_number_at(result, source, spread) if spread in result else None)


def _from_guidellm(report: Mapping[str, Any], source: str) -> list[OffRun]:
    """The benchmarks of a report, but those of the ``throughput`` strategy, which has no load to be simulated."""
    runs, strategies = [], _FIELDS["strategies"]
    for number, benchmark in enumerate(report["benchmarks"], 1):
        place = f"{source}#{number}"
        if not isinstance(value_at(benchmark, "metrics"), dict):
            raise InputError("must be a benchmark with metrics", file=place)
        result = _as_bench(benchmark, place)
        kind = result.get("arrival_pattern")
        if kind == "throughput":
            continue
        if kind not in strategies:
            raise InputError(f"must be {' or '.join(strategies)}", file=place, key="config.strategy.type_", value=kind)
        if kind == "synchronous":
            result["max_concurrency"] = 1.0
        _number_at(result, place, strategies[kind])
        runs.append(_from_bench(result, place))
    if not runs:
        raise InputError(f"holds no benchmark with a load; run it with {' or '.join(strategies)}", file=source)
    return runs


def _from_metrics(text: str, source: str) -> OffRun:
    """A server's life so far: counters hold no load, so the scenario's own is taken. A range holds the mean rate."""
    histograms = _FIELDS["histograms"]
    names = [f"{name}_{part}" for aliases in histograms.values() for name in aliases for part in ("sum", "count")]
    model, values = counted(text, source, [*names, NUM_DRAFTS])
    totals = {name: sum(by_engine) for name, by_engine in values.items()}
    if not totals:
        raise InputError(_NOT_ONE, file=source)
    if totals.get(NUM_DRAFTS):
        raise InputError("a server with speculation; calibrate to one without", file=source, key=NUM_DRAFTS)
    means = {}
    for figure, candidates in histograms.items():
        histogram = next((name for name in candidates if totals.get(f"{name}_count")), None)
        if histogram is None:
            raise InputError("not found, or nothing was counted yet", file=source, key=f"{candidates[0]}_count")
        means[figure] = totals[f"{histogram}_sum"] / totals[f"{histogram}_count"]
    requests = int(totals["vllm:request_generation_tokens_count"])
    figures = {name: means[name] for name in ("mean_tpot_s", "mean_ttft_s")}
    prompt, output = RunLengths(means["prompt_tokens"]), RunLengths(means["output_tokens"])
    load, arrivals = "the scenario's load", None
    engines = len(values["vllm:request_generation_tokens_count"])
    if per_engine := is_range(text):
        rate_rps = requests / engines / range_seconds(text, source)  # how many engines are a server, the scenario knows
        load = f"{rate_rps:.4g} req/s" + " an engine" * (engines > 1)
        arrivals = {"process": "poisson", "request_rate_rps": rate_rps}
        requests //= engines
    _check_answered(requests, 0.0, source)
    return OffRun(source, load, requests, figures, {}, arrivals, prompt, output, model, per_engine, engines)
