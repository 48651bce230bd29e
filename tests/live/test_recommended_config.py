"""What draftcast recommends, read by vLLM itself: flags, SpeculativeConfig, and the lookup of a schedule."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

from draftcast.scenarios.compare.read_command import read_command
from draftcast.scenarios.compare.recommend import recommend
from draftcast.scenarios.compare.serve_command import ServerCommand, server_command
from draftcast.scenarios.schema.load import load_scenario
from draftcast.sim.cost.methods import get_method
from draftcast.sim.policies.schedule import BatchSchedule

pytestmark = pytest.mark.live
pytest.importorskip("vllm")
MODELS = ROOT / "kernels/models"
SMALL = ("workload.num_requests=300", "statistics.replications=2")


def checkpoint(folder: Path, source: str, **changes: Any) -> str:
    """A folder with the config.json of a bundled model; vLLM asks for no weights to check a configuration."""
    config = json.loads((MODELS / f"{source}.json").read_text())
    for key in ("source", "aliases"):
        config.pop(key)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return str(folder)


def vllm_reads(command: str) -> Any:
    """VllmConfig that ``vllm serve`` would build from the command, its own argument parser included."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    words = shlex.split(command)
    assert words[:2] == ["vllm", "serve"]
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    arguments = parser.parse_args(["--model", words[2], "--skip-tokenizer-init", *words[3:]])
    return EngineArgs.from_cli_args(arguments).create_engine_config()


def scenario(target: str, spec: dict[str, Any], rates: list[float], *overrides: str) -> Any:
    accepted = {"model": "ngram", "match_probability": 0.6, "rates": rates}
    if spec["method"] != "ngram":
        accepted = {"model": "per_position", "rates": rates}
    return load_scenario(
        "default",
        overrides=[*SMALL, f"engine.model={target}", f"acceptance={json.dumps(accepted)}", *overrides],
        speculative_config=spec,
    )


@pytest.mark.parametrize("method", ["eagle3", "draft_model", "ngram"])
def test_vllm_accepts_the_recommendation(tmp_path: Path, method: str) -> None:
    target = checkpoint(tmp_path / "target", "Llama-3.1-8B")
    spec: dict[str, Any] = {"method": method, "num_speculative_tokens": 3}
    if method == "eagle3":
        one_layer = {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000}
        spec["model"] = checkpoint(tmp_path / "draft", "Llama-3.1-8B", **one_layer)
    if method == "draft_model":
        spec["model"] = checkpoint(tmp_path / "draft", "Llama-3.2-1B")
    answer = recommend(scenario(target, spec, [0.8, 0.6, 0.5], "workload.arrivals.request_rate_rps=10"))
    assert answer.speculative_config is not None
    assert isinstance(answer.commands["vllm"], ServerCommand)
    read = vllm_reads(answer.commands["vllm"].line).speculative_config
    assert read.method == method
    assert read.num_speculative_tokens == answer.speculative_config["num_speculative_tokens"]
    assert read.uses_dynamic_speculative_decoding() is (
        "num_speculative_tokens_per_batch_size" in answer.speculative_config
    )


@pytest.mark.parametrize(
    "words",
    [
        "-sc.method ngram -sc.num_speculative_tokens 3 -cc.cudagraph_mode=FULL -dcp 2 -ep -q fp8 -tp 4",
        '--speculative_config \'{"method":"ngram","num_speculative_tokens":3}\' --max_num_seqs 64 --max-model-len 8k',
        "--speculative-config.method ngram --max_num_batched_tokens 16K --tensor-parallel 2 --no_enable_prefix_caching",
        "--max-model-len 25.6k --quantization None --max-num-se 32",
    ],
)
def test_spellings_are_read_as_vllms_parser_reads_them(words: str) -> None:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    theirs = parser.parse_args(["--model", "x", *shlex.split(words)])
    ours = read_command(f"vllm serve x {words}")
    assert ours.unread == ()
    assert len(ours.engine) > 1
    for name, value in ours.engine.items():
        if name == "cudagraph_mode":
            found = getattr(theirs.compilation_config, name, None)
            assert getattr(found, "name", found) == value
        else:
            assert getattr(theirs, name) == value


LLAMA, QWEN, HEAD = "Llama-3.1-8B", "Qwen3-8B", {"num_hidden_layers": 1, "draft_vocab_size": 32000}
# Of each method: the target, the draft's shape, and what its configuration says besides.
METHODS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "eagle": (LLAMA, LLAMA, {"num_hidden_layers": 1}),
    "eagle3": (LLAMA, LLAMA, {**HEAD, "architectures": ["LlamaForCausalLMEagle3"]}),
    "p_eagle": (LLAMA, LLAMA, {**HEAD, "architectures": ["LlamaForCausalLMEagle3"], "ptd_token_id": 5}),
    "draft_model": (LLAMA, "Llama-3.2-1B", {}),
    "pard": (LLAMA, "Llama-3.2-1B", {"pard_token": 5}),
    "medusa": (LLAMA, LLAMA, {"architectures": ["MedusaModel"], "model_type": "medusa", "num_heads": 3}),
    "mtp": ("DeepSeek-V3", None, {}),
    "dflash": (QWEN, QWEN, {"architectures": ["DFlashDraftModel"], "num_hidden_layers": 5, "block_size": 16}),
    "dspark": (QWEN, QWEN, {"architectures": ["Qwen3DSparkModel"], "num_hidden_layers": 5, "block_size": 8}),
    "ngram": (LLAMA, None, {}),
    "ngram_gpu": (LLAMA, None, {}),
    "suffix": (LLAMA, None, {}),
}


@pytest.mark.parametrize("method", METHODS)
def test_vllm_reads_every_method(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm.config.speculative
    from vllm.config.vllm import VllmConfig

    # Its search is another package, which reading a configuration does not need.
    monkeypatch.setattr(vllm.config.speculative, "has_arctic_inference", lambda: True)
    # A draft that only the runner for GPUs has: a CPU's reads the configuration and refuses to run it.
    monkeypatch.setattr(VllmConfig, "_get_v1_model_runner_unsupported_features", lambda _self: [], raising=True)
    target, draft, says = METHODS[method]
    spec: dict[str, Any] = {"method": method, "num_speculative_tokens": 3}
    if draft is not None:
        spec["model"] = checkpoint(tmp_path / "draft", draft, **says)
    accepted = {"model": "constant", "alpha": 0.6}
    model = checkpoint(tmp_path / "target", target)
    overrides = [f"engine.model={model}", "engine.max_model_len=2048", f"acceptance={json.dumps(accepted)}"]
    asked = load_scenario("default", overrides=overrides, speculative_config=spec)
    read = vllm_reads(server_command(asked, "vllm").line).speculative_config
    assert (read.method, read.num_speculative_tokens) == (get_method(method).vllm_method, 3)
    assert read.parallel_drafting is (method in ("p_eagle", "pard", "dflash", "dspark"))


def test_the_schedules_lookup_is_vllms(tmp_path: Path) -> None:
    """The schedule draftcast makes for a batch range, expanded by vLLM as its engine does."""
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    target = checkpoint(tmp_path / "target", "Llama-3.1-8B")
    one_layer = {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000}
    draft = checkpoint(tmp_path / "draft", "Llama-3.1-8B", **one_layer)
    spec = {"method": "eagle3", "model": draft, "num_speculative_tokens": 3}
    asked = scenario(target, spec, [0.73, 0.52, 0.35], "workload.arrivals.request_rate_rps=40")
    answer = recommend(asked)
    [tuned] = [o.candidate.scenario for o in answer.outcomes if "schedule" in o.candidate.label]
    read = vllm_reads(server_command(tuned, "vllm").line)
    schedule = read.speculative_config.num_speculative_tokens_per_batch_size
    k, most = read.speculative_config.num_speculative_tokens, 1024
    theirs = build_dynamic_sd_schedule_lookup(schedule, most, k)
    own = tuned.speculative_config
    assert own is not None
    assert own.num_speculative_tokens_per_batch_size is not None
    ours = BatchSchedule(own.num_speculative_tokens_per_batch_size).lookup(k, most)
    assert list(ours[1:]) == theirs[1:]
    assert len(set(theirs[1:])) > 1
