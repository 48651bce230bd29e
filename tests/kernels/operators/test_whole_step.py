"""The whole-step benchmark runs what a model's step consists of, in order, on this CPU."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch
from paths import benchmark_module

from draftcast.calibration.microbench.device import Device
from draftcast.calibration.profile.table import SHAPE_FIELDS
from draftcast.errors import HardwareError
from draftcast.kernels.model.catalog import load_model

CPU = Device("cpu", "a processor", 1, 1, 1 << 20, 8 << 30)


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return benchmark_module("whole_step")


def test_kernels_of_a_step_hold_the_models_weights_and_cache(benchmark: ModuleType) -> None:
    model = load_model("Llama-3.1-8B")
    kinds = list(benchmark.kinds(model, 8, 4, 1024))
    linear = sum(count * shape["k"] * shape["n"] for name, shape, count in kinds if name == "linear")
    norms = model.hidden_size * (2 * model.num_hidden_layers + 1)
    assert linear == model.num_parameters - model.vocab_size * model.hidden_size - norms
    counts = Counter({name: count for name, _, count in kinds if name != "linear"})
    assert counts == {
        "embedding": 1, "rmsnorm": 64, "rotary": 32, "swiglu": 32, "attention_decode": 32, "rejection_sampler": 1
    }  # fmt: skip
    assert {name for name, _, _ in benchmark.kinds(model, 8, 1, 1024)} >= {"sampler"}
    for name, shape, _ in kinds:
        assert set(shape) == set(SHAPE_FIELDS[name])
    experts = {name: shape for name, shape, _ in benchmark.kinds(load_model("Qwen3-30B-A3B"), 8, 1, 64)}["moe"]
    assert experts == {"m": 8, "k": 2048, "n": 768, "num_experts": 128, "top_k": 8}


def test_layers_run_one_after_the_other(benchmark: ModuleType) -> None:
    ran: list[str] = []
    kernels = [[lambda name=f"{kind}{layer}": ran.append(name) for layer in range(3)] for kind in "ab"]
    for launch in benchmark.in_order([*kernels, [lambda: ran.append("head")]]):
        launch()
    assert [name for name in ran if name != "head"] == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_a_step_is_measured_and_one_that_does_not_fit_is_refused(benchmark: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 256,
              "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
              "max_position_embeddings": 512, "tie_word_embeddings": False}  # fmt: skip
    path.write_text(json.dumps(config))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    whole, alone = benchmark.measure(load_model(str(path)), CPU, 2, 1, 32, False)
    torch.set_num_threads(threads)
    assert whole > 0
    assert alone > 0
    with pytest.raises(HardwareError, match="GB needed"):
        benchmark.measure(load_model("Llama-3.1-8B"), CPU, 1, 0, 32, False)
