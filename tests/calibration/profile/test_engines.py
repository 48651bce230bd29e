"""Engine generations: which file a version means, and what a bad file or version is told."""

import dataclasses

import pytest

from draftcast.calibration.profile import engines
from draftcast.calibration.profile.engines import generation_of, generations, since
from draftcast.errors import HardwareError
from draftcast.sim.cost.methods import METHODS


@pytest.mark.parametrize(
    ("version", "plain", "other"),
    [
        ("vllm 0.6.6", "vllm-v0", "vllm-v0"),
        ("vllm 0.7.3", "vllm-v0", "vllm-v0"),
        ("vLLM 0.8.0", "vllm-v1", "vllm-v1"),
        ("vllm 0.13.0rc1", "vllm-v1", "vllm-v1"),
        ("vllm 0.14", "vllm-v1-async", "vllm-v1-async"),
        ("vllm 0.25.1", "vllm-v2-runner", "vllm-v1-async"),
        ("vllm 0.28", "vllm-v2-runner", "vllm-v1-async"),
        ("vllm 0.29", "vllm-v2-runner", "vllm-v2-runner"),
        ("vllm 0.27.1 v1", "vllm-v1-async", "vllm-v1-async"),
        ("vllm 0.32 v2", "vllm-v2-runner", "vllm-v2-runner"),
        ("sglang 0.5.6.post2", "sglang", "sglang"),
    ],
)
def test_a_version_has_one_generation(version: str, plain: str, other: str) -> None:
    assert generation_of(version).name == plain
    assert generation_of(version, is_plain=False).name == other


@pytest.mark.parametrize(
    ("method", "last"),
    [("draft_model", "0.30"), ("ngram", "0.31"), ("suffix", "0.33"), ("medusa", "0.33"), ("pard", "0.33")],
)
def test_a_method_that_the_second_runner_lacks_runs_under_the_first(method: str, last: str) -> None:
    """vLLM 0.25.1 to 0.33.0, config/vllm.py: use_v2_model_runner."""
    assert generation_of(f"vllm {last}", method).name == "vllm-v1-async"
    assert generation_of(f"vllm {last}", "eagle3").name == "vllm-v2-runner"
    if last != "0.33":
        assert generation_of("vllm 0.32", method).name == "vllm-v2-runner"


@pytest.mark.parametrize(
    "version", ["vllm", "0.32", "vllm 0.34", "vllm 1", "vllm 0.10 v2", "sglang 0.3", "trtllm 1.0", "vllm x", ""]
)
def test_unknown_versions_are_refused_with_the_known_ones(version: str) -> None:
    with pytest.raises(HardwareError, match=r"known: vllm 0\.1 to 0\.7, vllm 0\.8 to 0\.13, .*sglang 0\.4 to 0\.5"):
        generation_of(version)


def test_the_default_mode_follows_the_version() -> None:
    modes = generation_of("vllm 0.10.1").cudagraph_mode
    assert (since(modes, "vllm 0.10.1"), since(modes, "vllm 0.11")) == ("PIECEWISE", "FULL_AND_PIECEWISE")


VLLM = {generation.name for generation in generations() if generation.engine == "vllm"}


def test_every_constant_tells_its_source() -> None:
    assert len(generations()) == 5
    for generation in generations():
        for name in (field.name for field in dataclasses.fields(generation.constants)):
            constant = getattr(generation.constants, name)
            if constant is None:  # nothing is compiled, or no more is known of verification
                among = ("sglang", "vllm-v0") if name == "uncaptured_launch_s" else VLLM
                assert generation.name in among, name
                continue
            assert constant.source, (generation.name, name)
            assert constant.provisional == (name in generation.provisional)


def test_every_method_that_a_file_names_is_known() -> None:
    for each in generations():
        of_constants = (constant.methods for constant in vars(each.constants).values() if constant)
        named = {
            *each.lacks_until,
            *each.async_since,
            *each.graphless_drafts,
            *each.full_drafts,
            *each.schedules_until,
            *(m for own in of_constants for m in own),
        }
        assert named <= METHODS.keys(), each.name


def test_a_bad_file_is_refused_by_name_and_key(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (engines.FOLDER / "vllm-v1.yaml").read_text()
    (tmp_path / "own.yaml").write_text(text.replace("host_step_s:\n    value: ", "host_step_s:\n    value: -1.0 #"))
    monkeypatch.setattr(engines, "FOLDER", tmp_path)
    for kept in (generations, generation_of):
        kept.cache_clear()
    try:
        with pytest.raises(HardwareError, match=r"own\.yaml.*constants\.host_step_s\.value = -1\.0"):
            generation_of("vllm 0.10")
    finally:
        monkeypatch.undo()
        for kept in (generations, generation_of):
            kept.cache_clear()


def test_the_checksum_covers_every_number() -> None:
    generation = generation_of("vllm 0.32")
    constants = generation.constants
    for name in (field.name for field in dataclasses.fields(constants)):
        constant = getattr(constants, name) or engines.Constant(0.0, "none")
        changed = dataclasses.replace(
            constants, **{name: dataclasses.replace(constant, value=2 * constant.value + 1e-6)}
        )
        assert dataclasses.replace(generation, constants=changed).checksum() != generation.checksum()


def test_which_versions_run_experts_by_triton() -> None:
    versions = (
        "vllm 0.7",
        "vllm 0.13.1",
        "vllm 0.14",
        "vllm 0.32",
        "sglang 0.5.4.post1",
        "sglang 0.5.7",
        "sglang 0.5.8",
    )
    found = [generation_of(version, is_plain=False).triton_experts(version) for version in versions]
    assert found == [("fp8", "bf16"), ("fp8", "bf16"), ("bf16",), (), ("fp8", "bf16"), ("bf16",), ()]


def test_which_versions_run_shared_experts_beside_the_routed_ones() -> None:
    asked = (("vllm 0.7", "NVIDIA"), ("vllm 0.11.0", "NVIDIA"), ("vllm 0.11.1", "AMD"), ("vllm 0.32", "NVIDIA"))
    asked += (("sglang 0.5.4", "NVIDIA"), ("sglang 0.5.4", "AMD"))
    found = [generation_of(version, is_plain=False).shared_rows(version, vendor) for version, vendor in asked]
    assert found == [0, 0, 256, 256, 1024, 0]
