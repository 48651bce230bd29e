"""JSON Schemas of every command's ``--json``, inferred from real answers: ``python tests/answer_schemas.py``.

It runs the command lines of ``before_cases.COMMANDS`` and `LIVE` (minutes) and writes ``scenarios/cli/answers.json``,
which ``draftcast schema COMMAND`` prints. What all answers share is in a schema: types, keys, and as required the keys
of every object where three or more were seen. Numbers may be null, which stands for NaN. An object with a key that is
no name, such as one of models, is a map.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import before
from paths import ROOT, TESTS

FILE = ROOT / "scenarios/cli/answers.json"
ENOUGH = 3
ESTIMATE = before.INTERVAL | {"half_width", "n", "confidence"}
_NAME = re.compile("[a-z][a-z0-9_]*")
SHAPE = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2}
SHAPE |= {"num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 64, "vocab_size": 600}
SHAPE |= {"max_position_embeddings": 2048, "tie_word_embeddings": False}
_SWEEP = f"live sweep testbed-2/scenario.yaml --json --vllm '{sys.executable} {TESTS / 'fake_vllm.py'}'"
_SWEEP += " --cell-seconds 1 --warmup-requests 0 --set statistics.replications=1 --concurrency 2"
_SWEEP += " --set workload.lengths="
_LENGTHS = "'{prompt_tokens: 30, output_tokens: 10}'"
LIVE = (
    "live checkpoint testbed-0 --rates 0.7 --target shape.json --draft-layers 1 --json",
    "live checkpoint testbed-1 --rates 0.7,0.5 --target shape.json --draft-layers 1 --seed 1 --json",
    "live checkpoint testbed-2 --rates 0.7,0.5 --k 1,2 --target shape.json --draft-layers 1 --json",
    f"{_SWEEP}{_LENGTHS} --out sweep-0 --k 2 --rates 20",
    f"{_SWEEP}{_LENGTHS} --out sweep-1 --k 1,2 --rates 20 --calibration-concurrency 3 --calibration-lengths {_LENGTHS} "
    "--candidate '{speculative_config: {method: ngram, num_speculative_tokens: 2, prompt_lookup_min: 2}, "
    "acceptance: {model: ngram, match_probability: 0.3, alpha: 0.6}}'",
    f"{_SWEEP}{_LENGTHS} --out sweep-2 --k 1 --in-turn --calibration-concurrency 3 --calibration-lengths "
    "'{prompt_tokens: {distribution: uniform, low: 10, high: 20}, output_tokens: {distribution: uniform, low: 20, "
    "high: 30}}'",
)
"""Commands that write checkpoints and start servers, here of ``fake_vllm.py``."""


def command_of(line: str) -> str:
    """``acceptance list`` of a line; options and arguments left out."""
    words = line.split()
    return " ".join(words[:2] if words[0] in ("acceptance", "live", "profile") else words[:1])


def infer(samples: Sequence[Any]) -> dict[str, Any]:
    """The schema of what these values have in common; {} where nothing but null was seen."""
    objects = [value for value in samples if isinstance(value, dict)]
    lists = [value for value in samples if isinstance(value, list)]
    numbers = [value for value in samples if isinstance(value, int | float) and not isinstance(value, bool)]
    types = {
        "object": objects,
        "array": lists,
        "string": [value for value in samples if isinstance(value, str)],
        "boolean": [value for value in samples if isinstance(value, bool)],
        "number": numbers,
    }
    found = [name for name, values in types.items() if values]
    if not found:
        return {}
    if found == ["object"] and all(each.keys() == ESTIMATE for each in objects):
        return {"$ref": "#/$defs/estimate"}
    if numbers or any(value is None for value in samples):
        found.append("null")
    schema: dict[str, Any] = {"type": found[0] if len(found) == 1 else found}
    if objects:
        schema |= _of_objects(objects)
    if items := infer([item for value in lists for item in value]):
        schema["items"] = items
    return schema


def _of_objects(objects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    keys = dict.fromkeys(key for each in objects for key in each)
    if not all(map(_NAME.fullmatch, keys)):
        inside = infer([value for each in objects for value in each.values()])
        return {"additionalProperties": inside} if inside else {}
    schema: dict[str, Any] = {
        "properties": {key: infer([each[key] for each in objects if key in each]) for key in keys}
    }
    required = [key for key in keys if all(key in each for each in objects)]
    return schema | ({"required": required} if len(objects) >= ENOUGH and required else {})


def schemas(answers: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """By command, from the answers of command lines."""
    by_command: dict[str, list[Any]] = {}
    for line, answer in answers:
        by_command.setdefault(command_of(line), []).append(answer)
    if "live import" in by_command:
        by_command["live run"] = by_command["live import"]  # both print a run directory
    numbers = {"type": ["number", "null"]}
    estimate = {"type": ["object", "null"], "properties": dict.fromkeys(sorted(ESTIMATE), numbers)}
    estimate["required"] = sorted(ESTIMATE)
    return {"$defs": {"estimate": estimate}, "commands": {name: infer(found) for name, found in by_command.items()}}


def live_answers() -> Iterator[tuple[str, Any]]:
    """What the lines of `LIVE` print; of a sweep also what it prints when no run was complete."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "shape.json").write_text(json.dumps(SHAPE))
        for line in LIVE:
            code, text = before.run_command(line, Path(name))
            assert code == 0, (line, text)
            yield line, json.loads(text)
            if "report" in json.loads(text):
                yield line, json.loads(text) | {"report": None}


if __name__ == "__main__":
    before.run_commands()
    answers = [*before.ANSWERS.items(), *live_answers()]
    FILE.write_text(json.dumps(schemas(answers), separators=(",", ":")) + "\n")
