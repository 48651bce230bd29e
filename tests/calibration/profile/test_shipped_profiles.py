"""What the shipped profiles say of whole steps: the floors of physics, a published fit, every bundled model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from active_parameters import active_parameters
from typer.testing import CliRunner

from draftcast.calibration.importers.build_shipped import DEVICES
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import load_profile
from draftcast.errors import ModelError
from draftcast.kernels.model.catalog import load_model, model_names
from draftcast.kernels.model.spec import ModelSpec
from draftcast.scenarios.cli.main import app
from draftcast.scenarios.show.profile_view import Step, open_profile, step_cost, step_parts
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.step_cost import compile_step_cost

LLAMA = "Llama-3.1-8B"


def parts(batch: int, k: int = 0, context: int = 1024, profile: str = "h100-sxm") -> dict[str, float]:
    """Seconds of a Llama-3.1-8B step on one H100."""
    opened, step = open_profile(profile), Step(LLAMA, "ngram", k, context=context)
    return step_parts(opened, step_cost(opened, step), step, batch)


def degrees_of(model: ModelSpec) -> Iterator[int]:
    for tp in (1, 2, 4, 8):
        with contextlib.suppress(ModelError):
            model.check_tensor_parallel(tp)
            yield tp


@pytest.mark.parametrize(("batch", "floor_ms"), [(1, 4.52), (8, 4.80), (64, 7.04), (256, 14.73)])
def test_a_decode_step_stands_between_its_floor_and_1_6_times_it(batch: int, floor_ms: float) -> None:
    """Floor: weights and KV read once at 3.35 TB/s (16.06 GB less the embedding, 131,072 B a token)."""
    device_ms = 1e3 * parts(batch)["device"]
    assert floor_ms < device_ms < 1.6 * floor_ms


def test_verification_reads_the_cache_once() -> None:
    off, on = parts(256), parts(256, k=4)
    assert on["device + host"] < 0.055
    attention = "target: attention"
    # Five queries a sequence: five times the arithmetic, the same cache.
    assert off[attention] < on[attention] < 1.3 * off[attention]
    cache_s = 256 * 1024 * 131_072 / 3.35e12
    assert cache_s < on[attention] < 2.0 * cache_s


@pytest.mark.parametrize("context", [128, 1024, 4096])
@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16, 32, 64, 128])
def test_the_published_fit_is_reproduced(batch: int, context: int) -> None:
    """arXiv 2601.11580 fitted whole steps of vLLM 0.10.1; ours with their exposed host time beside them."""
    host_s = 1.207e-3
    ours = parts(batch, context=context)["device"] + host_s
    theirs = parts(batch, context=context, profile="h100-llama-3.1-8b-affine")["device + host"]
    by_hand = 5.886e-3 + 2.101e-5 * batch + 3.926e-8 * batch * context + host_s
    assert theirs == pytest.approx(by_hand, rel=1e-3), "published with four digits"
    assert ours == pytest.approx(theirs, rel=0.2)


def test_parts_add_up_and_the_comparison_names_operators() -> None:
    for model, tp in (("Llama-3.1-8B", 2), ("Qwen3-30B-A3B", 1)):
        opened, step = open_profile("h100-sxm"), Step(model, tp=tp)
        found = step_parts(opened, step_cost(opened, step), step, 64)
        target = [value for name, value in found.items() if name.startswith("target: ")]
        # What a generation adds for a graph may be nothing.
        assert all(found[name] > 0 for name in found if name.startswith("target: ") and "graph" not in name)
        assert min(target) >= 0
        assert sum(target) == pytest.approx(found["target"])
        assert ("target: all-reduce" in found) == (tp > 1)
        assert found["sample: lm_head"] + found["sample: sampler"] == pytest.approx(found["lm_head and sampler"])
        assert found["host: step"] + found["host: requests"] == pytest.approx(found["host"])
    drafting = Step("Llama-3.1-8B", method="eagle3", k=3, version="sglang 0.5.6")
    opened = open_profile("h100-sxm")
    found = step_parts(opened, step_cost(opened, drafting), drafting, 8)
    host = [value for name, value in found.items() if name.startswith("host: ")]
    assert len(host) == 3
    assert min(host) > 0
    assert sum(host) == pytest.approx(found["host"])
    # One row of lm_head was timed slower than eight are.
    opened, step = open_profile("h100-sxm"), Step("Llama-3.1-8B")
    assert step_parts(opened, step_cost(opened, step), step, 1)["sample: sampler"] > 0
    arguments = ["profile", "compare", "h100-llama-3.1-8b-affine", "h100-sxm", "--json"]
    rows = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)["rows"]
    linear = [row for row in rows if row["part"] == "target: linear"]
    assert [row["batch"] for row in linear] == [1, 8, 64, 128, 256]
    assert {(row["first_ms"], row["ratio"]) for row in linear} == {(None, None)}


@pytest.mark.parametrize("name", DEVICES)
def test_every_bundled_model_has_a_step_cost_at_every_degree(name: str) -> None:
    """Every model on every device; each of its degrees on some of them, a dense Llama's on all."""
    hardware = load_hardware(name)
    profile = load_profile(None, hardware)
    assert profile.name == name
    features, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    measured_by_degree: dict[tuple[str, int], float] = {}
    # Models of one shape, such as a base and what was distilled into it, have one cost.
    shapes = {repr(replace(m, name="", max_position_embeddings=1)): m for m in map(load_model, model_names())}
    for number, model in enumerate(shapes.values(), start=DEVICES.index(name)):
        degrees = [*degrees_of(model)]
        if model.name not in (LLAMA, "Llama-3.1-70B"):
            degrees = degrees[number % len(degrees) :][:1]
        for tp in degrees:
            config = EngineConfig(tensor_parallel_size=tp, max_num_batched_tokens=64, max_num_seqs=64)
            cost = compile_step_cost(config, model, None, profile)
            st.decode_features(cost, 16, 0, 1024.0, features)
            st.step_time(cost, features, out)
            device_s = out["target_s"] + out["sample_s"]
            looked_up = model.vocab_size * model.num_hidden_layers * model.per_layer_input_size
            weights_s = 2.0 * (active_parameters(model) - looked_up) / tp / hardware.memory_bandwidth_bytes_per_s
            assert np.isfinite(device_s)
            assert device_s > 0.9 * weights_s, f"{model.name} tp {tp}"
            # What the engine adds to its kernels is no profile's.
            extrapolated_s, kernels_s = out["by_origin_s"][2] - out["overhead_s"], device_s - out["overhead_s"]
            measured_by_degree[model.name, tp] = 1.0 - extrapolated_s / kernels_s
    assert {model for model, _ in measured_by_degree} == {model.name for model in shapes.values()}
    # Most of a dense Llama's kernels rest on measured times, straight or interpolated.
    for tp in (1, 2, 4, 8):
        assert measured_by_degree[LLAMA, tp] > 0.8
        assert measured_by_degree["Llama-3.1-70B", tp] > 0.8


def test_verification_is_marked_extrapolated() -> None:
    """The source timed single queries: the share that no measurement backs grows with k by the attention's."""
    opened = open_profile("h100-sxm")
    features, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    extrapolated = {}
    for k in (0, 4):
        step = Step(LLAMA, "ngram", k)
        cost = step_cost(opened, step)
        st.decode_features(cost, 64, k, 1024.0, features)
        st.step_time(cost, features, out)
        attention = step_parts(opened, cost, step, 64)["target: attention"]
        extrapolated[k] = out["by_origin_s"][2]
    assert extrapolated[4] - extrapolated[0] > 0.9 * attention


def test_no_part_of_a_step_gets_shorter_with_more_rows() -> None:
    found = [parts(batch) for batch in (1, 8, 64, 128, 256)]
    for name in ("target: norms, rotary, activations", "target: linear", "target: attention"):
        assert all(np.diff([each[name] for each in found]) > -1e-9), name
