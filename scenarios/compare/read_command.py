"""From a server's command back to a scenario's engine: vLLM's by its own flags, others' by ``servers.yaml``.

Knows what draftcast simulates; a flag beyond it (a port, a chat template) is named, not read.
"""

import difflib
import itertools
import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from draftcast.calibration.profile.engines import parse_version
from draftcast.errors import InputError, ScenarioError
from draftcast.files import parse_json, read_text
from draftcast.kernels.model.catalog import load_model
from draftcast.scenarios.compare.serve_command import DP, FORCED, flag_of
from draftcast.scenarios.compare.server_table import COMMANDS, TABLES, ServerField, ServerTable, Units, Words
from draftcast.scenarios.schema import Engine, SpeculativeConfig
from draftcast.yaml_text import parse_yaml, validated

FILE = "--serve-command"
_HEREDOC = re.compile(r"^cat > (\S+) <<'EOF'\n(.*?)^EOF$", re.MULTILINE | re.DOTALL)
_PROGRAMS: dict[str, str] = COMMANDS["programs"]
_SHORT: dict[str, str] = COMMANDS["short"]
_DOCUMENTS = ("speculative-config", "compilation-config")
_FILES = {"config", "extra_llm_api_options", "speculative-adaptive-config"}
MOST_SEQS = 2**20  # where a schedule's last range ends if the command gives no largest batch
BLOCK_UNIT = 16  # of ``--block-size`` in tokens, as FlashAttention's and Triton's backends need it
CLOSE = 0.87
"""Likeness from which an unknown flag is taken for a misspelt one; the servers' other flags are less alike, or among
those that may change times."""


@dataclass(frozen=True)
class ReadCommand:
    """What a command says."""

    engine: dict[str, Any]  # the section; what is left out has vLLM's default, but for
    silent: tuple[str, ...]  # fields that the server has no word for
    policy: dict[str, Any] | None  # where the server adapts the draft length to acceptance
    unread: tuple[str, ...]  # flags and keys that nothing simulated follows from
    assumed: tuple[str, ...] = ()  # sentences on what the command leaves open
    server: str = "vllm"

    def note_under(self, version: str) -> str:
        """What to know where a scenario's ``engine.version`` is another engine's; empty where it is the command's."""
        is_own = parse_version(version)[0] == self.server
        return "" if is_own else str(COMMANDS["other_engine"][self.server].format(version=version))

    @property
    def notes(self) -> list[str]:
        """A sentence for each flag that is not simulated, with what it means for speculation and times where known."""
        meant = COMMANDS["of_drafts"] if "speculative_config" in self.engine else {}
        meant = dict.fromkeys(COMMANDS["may_change_times"], ": it may change times, which draftcast leaves out") | meant
        unread = ((name, name.removeprefix("--").replace("_", "-")) for name in self.unread)
        return [
            *self.assumed,
            *(f"{name} of the command is not simulated{meant.get(name, meant.get(flag, ''))}" for name, flag in unread),
        ]


def read_command(text: str) -> ReadCommand:
    """The engine that ``vllm serve``, SGLang's launcher or ``trtllm-serve`` starts; comments, here-documents with its
    files and environment variables may stand before it. Raises ScenarioError: no such command, a file that is not
    there, or speculation that is not simulated."""
    documents = dict(_HEREDOC.findall(text))
    try:
        words = shlex.split(_HEREDOC.sub("", text).replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ScenarioError(f"cannot be split into words: {error}", file=FILE, value=text[:60]) from None
    environment = {}
    while words and re.match(r"[A-Z_][A-Z0-9_]*=", words[0]):
        name, _, environment[name] = words.pop(0).partition("=")
    start = next((index for index, word in enumerate(words[:3]) if word in _PROGRAMS), None)
    if start is None:
        raise ScenarioError(f"must be a command of {', '.join(_PROGRAMS)}", file=FILE, value=text[:60])
    server = _PROGRAMS[words[start]]
    if words[start + 1 : start + 2] == ["bench"]:
        raise ScenarioError("must start a server; bench is a client of one", file=FILE, value="bench")
    plain, flags = split_flags([word for word in words[start + 1 :] if word != "serve"])
    if server != "trtllm":
        file = flags.pop("config", None)
        # The command's own words come before its file's.
        flags = (_yaml(_content(file, documents), file) if file else {}) | flags
    if server == "vllm":
        return _read_vllm(plain, flags)
    table = TABLES[server]
    if server == "sglang":
        full_names = (_known(name.replace("_", "-"), table.names) for name in flags)
        flags = {name: value for name, value in zip(full_names, flags.values(), strict=True) if value is not False}
    flags = {table.also.get(name, name): value for name, value in flags.items()}
    for switch, meant in table.switches.items():  # of several the first counts, before all the flag itself
        name, _, value = switch.partition("=")
        if name in flags and value in ("", flags[name]):
            flags = meant | {word: argument for word, argument in flags.items() if word != name}
    if server == "sglang":
        _complete_sglang_drafts(flags)
        adaptive_tiers: Words | None = {} if flags.pop("speculative-adaptive", None) else None
        if tiers := flags.pop("speculative-adaptive-config", None):
            adaptive_tiers = _mapping(parse_json(_content(tiers, documents), tiers, ScenarioError), tiers)
        return _Reader(server, table, flags, flags, environment, adaptive_tiers, flags.pop("model-path", None)).answer()
    options = flags.pop("extra_llm_api_options", None) or flags.pop("config", None)
    keys = _yaml(_content(options, documents), options) if options else {}
    drafts = _mapping(keys.pop("speculative_config", None) or {}, "speculative_config")
    drafts = {table.also.get(name, name): value for name, value in drafts.items()}
    if drafts and "decoding_type" not in drafts:
        raise ScenarioError("needs decoding_type", file=FILE, key="speculative_config", value=list(drafts))
    for name, inside in keys.items():
        inner = inside.items() if isinstance(inside, dict) else [("", inside)]
        flags |= {f"{name}.{key}" if key else name: "none" if value is None else value for key, value in inner}
    return _Reader(server, table, flags, drafts, environment, None, plain[0] if plain else None).answer()


def split_flags(words: Sequence[str]) -> tuple[list[str], Words]:
    """Words that are no flag's, and flags without their dashes: True where no value follows, a list of whole numbers
    where several do."""
    plain, flags, index = [], Words(), 0
    while index < len(words):
        word, index = words[index], index + 1
        if not word.startswith("-"):
            plain.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals and index < len(words) and re.match(r"[^-]|-\d", words[index]):
            equals, value, index = "=", words[index], index + 1
        flags[name] = _plain(value) if equals else True
        numbers = [flags[name], *map(int, itertools.takewhile(str.isdecimal, words[index:]))]
        if type(flags[name]) is int and len(numbers) > 1:
            flags[name] = numbers
            index += len(numbers) - 1
    return plain, flags


def _plain(text: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def _content(name: Any, documents: Mapping[str, str]) -> str:
    if not isinstance(name, str):
        raise ScenarioError("must be the name of a file", file=FILE, value=name)
    return documents[name] if name in documents else read_text(name, ScenarioError)


def _mapping(value: Any, key: str) -> Words:
    if not isinstance(value, dict):
        raise ScenarioError("must be a mapping", file=FILE, key=key, value=value)
    return value


def _whole(words: Words, name: str, default: int = 1) -> int:
    value = words.get(name, default)
    if not isinstance(value, int) or value < 1:
        raise ScenarioError("must be a whole number from 1", file=FILE, key=name, value=value)
    return value


def _yaml(text: str, file: str) -> Words:
    # The loader takes words as keys; batch sizes are numbers.
    keys = parse_yaml(re.sub(r"^(\s*)(\d+):", r"\1'\2':", text, flags=re.MULTILINE), file, ScenarioError)
    return dict(_mapping(keys or {}, file))


def _known(name: str, names: Collection[str]) -> str:
    """The one of ``names`` that ``name`` begins, as argparse takes it; itself where there is none, or several."""
    completions = [full for full in names if full.startswith(name)]
    return completions[0] if len(completions) == 1 and name not in names else name


def _read_vllm(plain: Sequence[str], flags: Words) -> ReadCommand:
    """By the rules of vLLM's ``FlexibleArgumentParser`` (utils/argparse_utils.py of 0.32)."""
    fields = {flag_of(name): name for name in Engine.model_fields}
    words = {*fields, *_DOCUMENTS, *(name for name in _SHORT if "-" in name)} - {"version", "cudagraph-mode"}
    engine, unread, documents = Words(), list[str](), dict[str, Any]()
    level: Any = None
    assumed = list[str]()
    if plain and "model" not in flags:
        engine["model"] = plain[0]
    for written, value in flags.items():
        name, _, inside = written.partition(".")
        name = name.replace("_", "-")
        word, off = name.removeprefix("no-"), name.startswith("no-")
        word = word if word in _SHORT else _known(word, words)
        word, _, short = _SHORT.get(word, word).partition(".")
        inside = short or inside
        if not inside and not isinstance(value, str) and re.fullmatch(r"O\d?|optimization-level", name):
            level = _plain(name[1:]) if value is True else value
        elif word in _DOCUMENTS:
            _put_document(documents, word, inside, value)
        elif word in fields and word not in _DOCUMENTS and not inside:
            if value not in ("", "None") and not (word == "max-model-len" and value in ("auto", -1)):
                engine[fields[word]] = False if off else _readable(value) if word in COMMANDS["readable"] else value
        else:
            _refuse_misspelt(word, written, words)
            unread.append(f"--{written}")
    block_size = engine.get("block_size")
    if isinstance(block_size, int) and block_size % BLOCK_UNIT:
        message = f"must be a multiple of {BLOCK_UNIT}: vLLM's attention kernels take no other"
        raise ScenarioError(message, file=FILE, key="block-size", value=block_size)
    if "speculative-config" in documents:
        engine["speculative_config"] = documents["speculative-config"]
    largest = None
    for key, value in _mapping(documents.get("compilation-config") or {}, "compilation-config").items():
        if key in ("cudagraph_mode", "max_cudagraph_capture_size"):
            engine[key] = value
        elif key == "cudagraph_capture_sizes":
            sizes = value if isinstance(value, list) else [value]
            if not all(type(size) is int for size in sizes):
                raise ScenarioError("must be whole numbers", file=FILE, key=key, value=value)
            largest = max(sizes, default=0)
            assumed.append(f"of the command's {key} the largest, {largest}, is taken, with vLLM's own sizes up to it")
        else:
            unread.append(f"--compilation-config.{key}")
    if largest is not None:  # whatever stands beside it, the sizes decide
        engine["max_cudagraph_capture_size"] = largest
    if level == 0 and "cudagraph_mode" not in engine:
        engine["enforce_eager"] = True  # neither compiled nor in CUDA graphs
    elif level not in (None, 2, 3):  # 2 is the default, and 3 the same
        unread.append("--optimization-level")
    if "speculative_config" not in engine:
        _refuse_lost_drafts(flags)
    return ReadCommand(engine, ("version",), None, tuple(unread), tuple(assumed))


def _refuse_misspelt(flag: str, written: str, names: Collection[str]) -> None:
    near = difflib.get_close_matches(flag, names, n=1, cutoff=CLOSE)
    if near and near[0] != flag and flag.replace("_", "-") not in COMMANDS["may_change_times"]:
        raise ScenarioError(f"unknown flag; did you mean --{near[0]}?", file=FILE, value=f"--{written}")


def _put_document(documents: dict[str, Any], word: str, inside: str, value: Any) -> None:
    """A document as JSON, or one value of it by its keys with dots."""
    if not inside:
        documents[word] = value if isinstance(value, dict) else parse_json(str(value), FILE, ScenarioError)
        return
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        value = _readable(value)
    for key in reversed(inside.split(".")):
        value = {key: value}
    documents[word] = {**_mapping(documents.get(word) or {}, word), **value}


def _readable(value: Any) -> Any:
    """vLLM's numbers with a letter: 25.6k is 25,600, 8K is 8,192; anything else as it is."""
    matched = re.fullmatch(r"(\d+)([KMGT])|(\d+(?:\.\d+)?)([kmgt])", value) if isinstance(value, str) else None
    if matched is None:
        return value
    number, letter = float(matched[1] or matched[3]), matched[2] or matched[4]
    return int(number * (1000 if letter.islower() else 1024) ** ("kmgt".index(letter.lower()) + 1))


def _complete_sglang_drafts(flags: Words) -> None:
    """What SGLang makes of its draft flags before it starts (arg_groups/speculative_hook.py)."""
    algorithm, steps = flags.get("speculative-algorithm"), flags.get("speculative-num-steps")
    if isinstance(algorithm, str):
        flags["speculative-algorithm"] = algorithm.upper()
    if isinstance(steps, int) and flags.get("speculative-eagle-topk") == 1:
        flags["speculative-num-draft-tokens"] = steps + 1
    if flags.get("speculative-algorithm") == "NGRAM" and flags.get("speculative-ngram-max-bfs-breadth") != 1:
        for name, default in TABLES["sglang"].ngram_defaults.items():
            flags.setdefault(name, default)
        names = ("num-draft-tokens", "ngram-max-trie-depth", "ngram-min-bfs-breadth", "ngram-max-bfs-breadth")
        nodes, depth, least, most = (_whole(flags, f"speculative-{name}") for name in names)
        if least == most:  # no branch is longer than all nodes together, and the depth changes no breadth
            flags["speculative-ngram-max-trie-depth"] = min(nodes, depth)


def _refuse_lost_drafts(words: Words) -> None:
    """Words of speculation where none was read: they must not end in a forecast without it."""
    lost = next((name for name in words if "speculative" in name), None)
    if lost is not None:
        message = "no speculation that can be simulated follows from it: write the method as draftcast recommend does"
        raise ScenarioError(message, file=FILE, key=lost, value=words[lost])


def _take(name: str, row: ServerField, word: Any, units: Units, into: Words, read: set[str]) -> None:
    """Put the scenario's value for a server's word ``into`` a section, if it has one: else it is named, not read."""
    if word is None and not (row.resolved and row.values):
        return
    if row.times:
        word = _whole({row.name: word}, row.name)
    with suppress(LookupError):
        into[name] = row.read(word, units)
        read.add(row.name)


@dataclass
class _Reader:
    """One command in a table's words."""

    server: str
    table: ServerTable
    words: Words
    drafts: Words
    environment: Mapping[str, str]
    tiers: Mapping[str, Any] | None  # SGLang's adaptive file; empty: its defaults
    model: str | None

    def answer(self) -> ReadCommand:
        if self.model is None:
            raise ScenarioError("names no model", file=FILE, value=" ".join(self.words))
        engine, read = Words(model=self.model), {"model-path"}
        spec, policy = self._speculation(read), None
        config = validated(TypeAdapter(SpeculativeConfig), spec, FILE, ScenarioError) if spec is not None else None
        rows = 1 + (spec or {}).get("max_tree_nodes", config.k if config is not None else 0)
        units = {"block_size": 1.0, "per_rows": 1 / rows}
        for name, row in self.table.engine.items():
            _take(name, row, self.words.get(row.name, row.default), units, engine, read)
            units["block_size"] = _whole(engine, "block_size", 16)
        self._parallelism(engine, read)
        if spec is not None:
            policy = self._lengths(spec, _whole(engine, "max_num_seqs", MOST_SEQS))
            engine["speculative_config"] = spec
        worded = {*self.table.engine, *COMMANDS["said_apart"]}
        silent = tuple(name for name in Engine.model_fields if name not in worded)
        unread = tuple(name for name in {**self.words, **self.drafts} if name not in read)
        for name in unread:
            if "." not in name:  # sections of TensorRT-LLM's file have many more keys than are read
                _refuse_misspelt(name, name, self.table.names | read | _FILES)
        return ReadCommand(engine, silent, policy, unread, self._whole_prompts(engine), self.server)

    def _whole_prompts(self, engine: Words) -> tuple[str, ...]:
        """Without chunked prefill a step must hold a whole prompt, and the server refuses longer ones when they come.
        Where the command does not limit requests, they are limited to the tokens of a step; returns a note on it."""
        step = engine.get("max_num_batched_tokens")
        if engine.get("enable_chunked_prefill") is not False or "max_model_len" in engine or not isinstance(step, int):
            return ()
        with suppress(InputError):  # an unknown model is refused where the scenario is read
            if step < load_model(str(self.model)).max_position_embeddings:
                engine["max_model_len"] = step
                limit = self.table.engine["max_model_len"].name
                return (f"the command gives no {limit}: requests are limited to the {step} tokens of a step",)
        return ()

    def _speculation(self, read: set[str]) -> Words | None:
        """``speculative_config``, its schedule left out; None without one."""
        kind = "speculative-algorithm" if "speculative-algorithm" in self.drafts else "decoding_type"
        algorithm = self.drafts.get(kind)
        if algorithm is None or (isinstance(algorithm, str) and algorithm.lower() == "none"):
            if algorithm is None:
                _refuse_lost_drafts(self.words)
            read.add(kind)
            return None
        matched = self.table.method_of(self.drafts)
        if matched is None:
            needed = self.table.needed(self.drafts)
            message = f"speculation of {self.table.version} that is not simulated"
            if needed:
                message += f" without {' and '.join(needed)} in the command"
            raise ScenarioError(message, file=FILE, key=kind, value=algorithm)
        method, terms = matched
        read |= {*self.table.methods[method], "draft_len_schedule", "max_concurrency", "enable-dp-lm-head"}
        spec: Words = {"method": {"eagle3_tree": "eagle_tree", "ngram_tree": "ngram"}.get(method, method)}
        spec |= {COMMANDS["terms"][term]: value for term, value in terms.items()}
        if spec.get("min_tree_width") == spec.get("tree_width"):
            spec.pop("min_tree_width", None)
        for name, row in self.table.speculation.items():
            _take(name, row, self.drafts.get(row.name), {}, spec, read)
        draft_format = self.table.speculation.get("quantization")
        if draft_format is not None and self.drafts.get(draft_format.name) == "unquant":
            read.add(draft_format.name)
        if spec["method"] == "eagle" and "model" not in spec:
            spec["method"] = "mtp"  # SGLang takes the target's own layer
        for server, name in FORCED.items():
            if name in self.environment:
                try:
                    length = float(self.environment[name]) + (server == "trtllm")
                except ValueError:
                    raise ScenarioError("must be a number", file=FILE, key=name, value=self.environment[name]) from None
                spec |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": length}
        return spec

    def _parallelism(self, engine: Words, read: set[str]) -> None:
        words = self.words
        dp, tp = _whole(words, "dp-size"), _whole(engine, "tensor_parallel_size")
        attention = _whole(words, "attn-dp-size", dp if "enable-dp-attention" in words else 1)
        if words.get("enable_attention_dp"):
            attention = tp
        if attention > 1:
            engine["tensor_parallel_size"] = tp // attention
        if max(attention, dp) > 1:
            engine[DP] = max(attention, dp)
        for name in ("ep-size", "moe_expert_parallel_size"):
            ranks = _whole(words, name)
            if tp % ranks:
                raise ScenarioError(f"must divide the {tp} ranks of a layer", file=FILE, key=name, value=ranks)
            if ranks > 1:
                engine["enable_expert_parallel"] = True
            if 1 < ranks < tp:
                engine["expert_parallel_size"] = ranks
        if engine.get("max_num_batched_tokens") == -1:
            del engine["max_num_batched_tokens"]
            engine["enable_chunked_prefill"] = False
            if "max-prefill-tokens" in words:
                engine["max_num_batched_tokens"] = _whole(words, "max-prefill-tokens")
                read.add("max-prefill-tokens")
        read.update(COMMANDS["parallelism"])

    def _lengths(self, spec: Words, max_num_seqs: int) -> Words | None:
        """Put a schedule into ``spec``; the policy where lengths follow acceptance."""
        starts: dict[int, int] = {}
        if self.tiers is not None:
            sizes = {int(size): _mapping(tier, size) for size, tier in self.tiers.items() if size.isdecimal()}
            for size, tier in sizes.items():
                if not isinstance(tier.get("candidate_steps"), list) or not tier["candidate_steps"]:
                    raise ScenarioError("needs a list of candidate_steps", file=FILE, key=str(size), value=tier)
            if not sizes or any(len(tier["candidate_steps"]) > 1 for tier in sizes.values()):
                keys = {name: value for name, value in self.tiers.items() if not name.isdigit()}
                tiers = [
                    {"batch_size": size, "steps": tier["candidate_steps"]}
                    | {name: tier[name] for name in ("up_hysteresis", "down_hysteresis") if name in tier}
                    for size, tier in sizes.items()
                ]
                return {"name": "ema_tiers", "parameters": keys | ({"tiers": tiers} if tiers else {})}
            starts = {size: tier["candidate_steps"][0] for size, tier in sizes.items()}
        lengths_up_to = _mapping(self.drafts.get("draft_len_schedule") or {}, "draft_len_schedule")
        if not all(str(size).isdecimal() for size in lengths_up_to):
            raise ScenarioError("must be whole numbers", file=FILE, key="draft_len_schedule", value=list(lengths_up_to))
        ends = {int(size): k for size, k in lengths_up_to.items()}
        if self.drafts.get("max_concurrency") is not None:
            ends = {_whole(self.drafts, "max_concurrency"): spec["num_speculative_tokens"]}
        if ends:
            starts = dict(zip([1, *(end + 1 for end in ends)], [*ends.values(), 0], strict=True))
        starts = {first: k for first, k in sorted(starts.items()) if first <= max_num_seqs}
        if starts:
            lasts = [first - 1 for first in list(starts)[1:]] + [max_num_seqs]
            schedule = [[first, last, k] for (first, k), last in zip(starts.items(), lasts, strict=True)]
            spec["num_speculative_tokens_per_batch_size"] = schedule
        return None
