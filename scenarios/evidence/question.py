"""From a row to scenarios: the setting without and with speculation, or why it cannot be expressed, field by field.

Of a row's own figures only those with speculation are used, and only for its acceptance. What the row does not give and
was assumed is said. Runs are finite, as the measurements were: every request counts.
"""

import math
import re
from itertools import accumulate
from typing import Any

from draftcast.calibration.acceptance.references import conditional_rate, continued
from draftcast.errors import CapacityError, InputError
from draftcast.kernels.model.catalog import is_bundled_model, load_model
from draftcast.kernels.model.heads import has_head, is_bundled_head, public_head
from draftcast.scenarios.evidence.point import EvidencePoint, GivenAcceptance, Spec
from draftcast.scenarios.evidence.settings import NAMES, Reading, flags_of, model_name, read_engine, read_lengths
from draftcast.scenarios.run.deployment import cached_deployment
from draftcast.scenarios.schema import METHODS, Scenario
from draftcast.scenarios.schema.load import load_scenario
from draftcast.scenarios.schema.scenario import MATCHING_METHODS

_ASSUMED_WINDOW, _ASSUMED_SHARE = 16384, 0.92
_MOST_ROWS = 65536  # of a roofline's tables; larger limits differ in nothing that a row measures
_ENOUGH_TOKENS = 100_000  # of outputs of all replications together: chance then moves a mean by less than 1 %
_MOST_REPLICATIONS = 8
# Requests of a closed loop whose number is not given: so many a client, at least the prompts of MT-Bench.
_ROUNDS, _PROMPTS = 4, 80


def scenarios_of(point: EvidencePoint) -> Reading:
    """The scenarios of a point; never raises."""
    reading = Reading.of(point)
    point = reading.point
    engine, hardware = read_engine(reading)
    workload = _workload(reading)
    if not point.load.num_prompts:
        reading.assumed.setdefault("load.num_prompts", "not given")
    if workload is None or reading.reasons:
        return reading
    if "request_rate_rps" in workload["arrivals"] and point.load.kind == "concurrency":
        # Clients that hold back at so many requests and an engine that lets no more run decode alike.
        engine["max_num_seqs"] = min(engine.get("max_num_seqs") or math.inf, round(point.load.value or 0))
    has_ratio = point.speedup is not None or point.ratio_range is not None
    raw = {"schema_version": 1, "name": point.id, "engine": engine, "hardware": hardware, "workload": workload}
    for name, figure, spec, facts in (
        ("off", point.off, point.off_spec, point.off_acceptance),
        ("on", point.on, point.spec, point.acceptance),
    ):
        if figure is None and not has_ratio:
            continue
        side = Reading(point, reading.assumed)
        drafting = _drafting(side, spec, facts, engine) if name == "on" or spec.is_on else {}
        if drafting is not None:
            setattr(reading, name, _scenario(side, raw, drafting))
        reading.reasons = tuple(dict.fromkeys(reading.reasons + side.reasons))
    return reading


def _longest(lengths: dict[str, Any]) -> int:
    """Tokens of the longest request that `read_lengths` can give."""
    return sum(int(v if isinstance(v, int) else v.get("high", v.get("max", 0))) for v in lengths.values())


def _scenario(reading: Reading, raw: dict[str, Any], drafting: dict[str, Any]) -> Scenario | None:
    engine, workload = raw["engine"] | {"speculative_config": drafting.get("speculative_config")}, raw["workload"]
    window, length = load_model(engine["model"]).max_position_embeddings, engine.get("max_model_len")
    if length is None:
        length = min(window, max(_ASSUMED_WINDOW, _longest(workload["lengths"])))
        reading.assumed["max_model_len"] = f"{length:,}; it decides only whether the engine starts"
    engine["max_model_len"] = length = min(length, window)
    tokens = engine.get("max_num_batched_tokens")
    if tokens is not None and not 1 <= tokens <= _MOST_ROWS:
        engine["max_num_batched_tokens"] = tokens = _MOST_ROWS
    if not engine.get("enable_chunked_prefill", True) and (tokens or length) < length:
        engine["max_num_batched_tokens"] = length
    statistics = {"replications": _replications(workload), "warmup": "none"}
    values = raw | {"engine": engine, "acceptance": drafting.get("acceptance"), "statistics": statistics}
    try:
        scenario = load_scenario(values)
        if scenario.engine.version.startswith("sglang") and scenario.engine.gpu_memory_utilization is None:
            try:
                cached_deployment(scenario)
            except CapacityError:  # the model does not fit into the memory that SGLang takes by default
                share = engine["gpu_memory_utilization"] = _ASSUMED_SHARE
                reading.assumed["gpu_memory_utilization"] = f"{share}; with the engine's own default it does not start"
                scenario = load_scenario(values)
        return scenario
    except InputError as error:
        reading.missing("scenario", str(error).removeprefix("scenario: "))
        return None


def _replications(workload: dict[str, Any]) -> int:
    output = workload["lengths"]["output_tokens"]
    mean = output if isinstance(output, int) else output.get("mean", (output.get("low", 0) + output.get("high", 0)) / 2)
    return min(_MOST_REPLICATIONS, max(1, math.ceil(_ENOUGH_TOKENS / float(workload["num_requests"] * mean))))


def _workload(reading: Reading) -> dict[str, Any] | None:
    point = reading.point
    kind, value, count = point.load.kind, point.load.value, point.load.num_prompts
    lengths, pages = read_lengths(reading), reading.pages
    if value is None and not (kind == "burst" and count is not None):
        reading.missing("load.value", "not given")
    if lengths is None or reading.reasons:
        return None
    stated = re.match(r"\d+(\.\d+)?", str(flags_of(point).get("request_rate")))
    rate: Any = value if kind == "rate" else float(stated[0]) if stated and kind == "concurrency" else math.inf
    if math.isfinite(rate):
        arrivals: dict[str, Any] = {"process": "poisson", "request_rate_rps": rate}
        requests = count or _PROMPTS * _ROUNDS
    else:
        clients = max(1, round(value or count or 1))
        if kind == "burst":
            clients = requests = count or clients
        elif kind == "batch" and count is None and re.search(r"fixed|static", point.dataset or ""):
            requests = clients
        elif count is None and "prompts_a_client" in pages:
            requests = pages["prompts_a_client"] * clients
            reading.note({"load.num_prompts": requests})
        else:
            requests = count or max(_PROMPTS, _ROUNDS * clients)
        clients = min(clients, requests)
        arrivals = {"process": "closed_loop", "concurrency": clients}
    if point.temperature is None:
        reading.assumed["temperature"] = "0, as vLLM's and SGLang's load clients send"
    load = {"arrivals": arrivals, "num_requests": requests, "lengths": lengths, "max_model_len_action": "clip"}
    prompt, share = lengths["prompt_tokens"], pages.get("cached_share", {}).get(kind, 0)
    if share and isinstance(prompt, int):
        # A text at the start of all prompts: the first request reads it, and the others find it in the cache.
        cached = min(round(share * prompt), prompt - 1)
        load["lengths"] = lengths | {"prompt_tokens": prompt - cached}
        load["system_prompt"] = {"tokens": cached, "variants": 1}
        reading.note({"input_tokens": f"{cached} of {prompt} in the prefix cache"})
    return load | {"temperature": point.temperature or 0.0}


def _drafting(reading: Reading, spec: Spec, facts: GivenAcceptance, engine: dict[str, Any]) -> dict[str, Any] | None:
    """``speculative_config`` and ``acceptance``; None and reasons where a part is not known."""
    k, flags = spec.k, flags_of(reading.point)
    named = (spec.method or "").lower().replace("-", "_")
    method = NAMES["methods"].get(named, "mtp" if named.endswith("_mtp") else named)  # vLLM names MTP by the target too
    if method == "draft_model" and "PARD" in (spec.draft_model or ""):
        method = "pard"
    if method == "eagle_tree" or method not in ("tree", *METHODS):
        reading.missing("spec.method", "not given" if spec.method is None else f"{spec.method} is not simulated")
        return None
    if not k:
        reading.missing("spec.k", "not given" if k is None else "0: a schedule that drafts nothing is not in the row")
        return None
    keys: dict[str, Any] = {"method": method, "num_speculative_tokens": k}
    keys |= {name: flags[name] for name in ("prompt_lookup_max", "prompt_lookup_min") if name in flags}
    if flags.get("speculative_model_quantization"):
        keys["quantization"] = flags["speculative_model_quantization"]
    if spec.draft_tp not in (None, engine["tensor_parallel_size"]):
        keys["draft_tensor_parallel_size"] = spec.draft_tp
    if method == "tree":
        # SGLang's: ``topk`` nodes a level; its number of draft tokens counts the root, which is no draft.
        width, tokens = flags.get("speculative_eagle_topk"), flags.get("speculative_num_draft_tokens")
        if width is None or tokens is None:
            reading.missing("flags.speculative_eagle_topk", "the shape of the tree is not given")
        else:
            keys |= {"method": "eagle_tree", "tree_width": int(width), "max_tree_nodes": max(k, int(tokens) - 1)}
    if has_head(keys["method"]) and method != "mtp":
        keys |= _head(reading, spec, engine["model"], keys["method"])
    if method in ("draft_model", "pard"):
        keys |= _draft_model(reading, spec, method)
    mean = _mean_length(reading, facts, k)
    if mean is None or reading.reasons:
        return None
    return {"speculative_config": keys, "acceptance": _acceptance(reading, keys, facts, k, mean)}


def _head(reading: Reading, spec: Spec, model: str, method: str) -> dict[str, Any]:
    """The head that is named; of a tree whose head is not bundled, a public EAGLE-3 head for the target.

    A tree's method does not tell EAGLE's head from EAGLE-3's; the name does, and nearly all are EAGLE-3's.
    """
    head = spec.draft_model
    if method == "eagle_tree" and (head is None or not is_bundled_head(head)):
        if not re.search(r"eagle-?3", head or "eagle3", re.IGNORECASE):
            return {}
        head = public_head("eagle3", model)
        reading.assumed["spec.draft_model"] = f"{head}, a public head for this target; served: {spec.draft_model}"
    return {"model": head} if head is not None else {}


def _draft_model(reading: Reading, spec: Spec, method: str) -> dict[str, Any]:
    name = (spec.draft_model or "").split(" (")[0]
    model = model_name(name) if name else None
    if model is None and method == "pard" and reading.point.model is not None:
        family = next((base for part, base in NAMES["pard"].items() if part in reading.point.model.lower()), None)
        if family is not None:
            reading.assumed["spec.draft_model"] = f"{family}, which PARD's drafter of this family was made of"
            model = family
    if model is None or not is_bundled_model(model):
        reading.missing("spec.draft_model", f"{name} is not among the bundled models" if name else "not given")
        return {}
    remark = re.search(r"\((fp8|bf16)\)", spec.draft_model or "")
    return {"model": model} | ({"quantization": "fp8" if remark[1] == "fp8" else None} if remark else {})


def _mean_length(reading: Reading, facts: GivenAcceptance, k: int) -> float | None:
    """Mean acceptance length, bonus token included; None (and a reason) where it can be had from nothing."""
    point = reading.point
    if facts.mean_length is not None:
        excludes = re.search(r"exclud\w+ (the )?bonus|without (the )?bonus", facts.definition or "")
        return facts.mean_length + 1 if excludes else facts.mean_length
    if facts.rate is not None:
        return 1 + facts.rate * k
    if facts.per_position is not None and len(facts.per_position) >= k:
        return 1 + sum(facts.per_position[:k])
    chunks = point.more.get("chunks_per_request_on")
    if chunks and point.output_tokens is not None:
        return point.output_tokens / float(chunks)
    # A streamed chunk is a step: the gap between two over the time per token is the tokens of a step.
    gap_ms = point.more.get("itl_on_ms") or point.more.get("on_itl_mean_ms")
    if gap_ms and point.metric == "tpot_ms" and point.on is not None:
        return max(1.0, float(gap_ms) / point.on)
    reading.missing("acceptance", "not given")
    return None


def _acceptance(reading: Reading, keys: dict[str, Any], facts: GivenAcceptance, k: int, mean: float) -> dict[str, Any]:
    alpha = conditional_rate(mean - 1.0, [1.0] * k)
    of_drafts: dict[str, Any] = {"model": "constant", "alpha": alpha}
    if facts.per_position is not None and len(facts.per_position) >= k:
        of_drafts = {"model": "per_position", "rates": list(accumulate(facts.per_position[:k], min))}
    if keys["method"] == "eagle_tree":
        rates = of_drafts.get("rates", [alpha ** (index + 1) for index in range(k)])
        return {"model": "tree", "rates": rates, **{name: keys[name] for name in ("tree_width", "max_tree_nodes")}}
    if keys["method"] not in MATCHING_METHODS:
        return of_drafts
    # Of n-gram and suffix, how often a draft is found, and how much of one is accepted.
    more = reading.point.more
    drafts, accepted = more.get("on_spec_decode_num_drafts_total"), more.get("on_spec_decode_num_accepted_tokens_total")
    emitted = more.get("on_generation_tokens_total")
    if facts.match_probability is not None:
        share = facts.match_probability
    elif drafts and accepted and emitted:
        share = min(1.0, float(drafts) / (float(emitted) - float(accepted)))
    else:
        matched = list(continued(NAMES["matched_rates"], k))
        share = min(1.0, (mean - 1) / sum(matched))
        reading.assumed["acceptance"] = f"{sum(matched):.2f} accepted tokens in a round with a match"
        of_drafts = {"rates": matched}
    return {**of_drafts, "model": "ngram", "match_probability": share}
