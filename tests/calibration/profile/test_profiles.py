"""Profiles: bundled files, what they say, checksums, and every fault named by file and key."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from draftcast.calibration.profile.hardware import HardwareSpec, hardware_names, load_hardware
from draftcast.calibration.profile.load import PROFILE_FOLDER, assumed_profile, load_profile, profile_names
from draftcast.calibration.profile.roofline import Origin
from draftcast.calibration.profile.roofline_fit import _sections
from draftcast.calibration.profile.spec import OPERATORS, AffineProfile, FrontEnd, Host, RooflineProfile
from draftcast.errors import HardwareError
from draftcast.kernels.operators.cost import Work

H100 = load_hardware("h100-sxm")
AFFINE = "h100-llama-3.1-8b-affine"


def default_text() -> str:
    return (PROFILE_FOLDER / "default.yaml").read_text(encoding="utf-8")


def default_values() -> dict:
    return yaml.safe_load(default_text())


def written(tmp_path: Path, values: dict) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def loaded(tmp_path: Path, values: dict) -> RooflineProfile:
    profile = load_profile(written(tmp_path, values), H100)
    assert isinstance(profile, RooflineProfile)
    return profile


def default_profile() -> RooflineProfile:
    profile = load_profile("default", H100)
    assert isinstance(profile, RooflineProfile)
    return profile


def test_bundled_names() -> None:
    assert {"default", AFFINE} <= set(profile_names())


@pytest.mark.parametrize("device", hardware_names())
def test_default_fits_every_device_and_is_a_guess(device: str) -> None:
    hardware = load_hardware(device)
    profile = load_profile("default", hardware)
    assert isinstance(profile, RooflineProfile)
    assert profile.hardware == hardware
    for family in OPERATORS:
        entry = profile.operator(family, "bf16")
        assert entry.origin is Origin.EXTRAPOLATED
        assert entry.source
        for dtype in ("bf16", "fp16", "fp8", "int4", "mxfp4", "fp32"):
            assert float(profile.seconds_of(family, dtype)(Work(np.asarray(1e9), np.asarray(1e9)))) > 0


def test_affine_coefficients_are_the_published_ones() -> None:
    profile = load_profile(AFFINE, H100)
    assert isinstance(profile, AffineProfile)
    assert (profile.target.fixed_s, profile.target.row_s, profile.target.kv_token_s) == (
        5.88590713e-03,
        2.10103129e-05,
        3.92645679e-08,
    )
    assert (profile.draft.fixed_s, profile.draft.draft_token_s, profile.draft.kv_token_s) == (
        2.13526175e-03,
        8.41429603e-07,
        2.37768493e-09,
    )
    assert (profile.ngram.fraction_of_target, profile.overhead_s) == (0.005875, 1.20683946e-03)
    assert profile.fitted_sequences == (1, 64)
    assert "2601.11580" in profile.source
    assert (profile.target.sequence_s, profile.draft.pass_s, profile.enforce_eager) == (0.0, 0.0, False)


def affine_with(tmp_path: Path, **sections: object) -> AffineProfile:
    values = yaml.safe_load((PROFILE_FOLDER / f"{AFFINE}.yaml").read_text())
    for section, changes in sections.items():
        values[section] = values.get(section, {}) | changes
    values["date"] = str(values["date"])
    path = tmp_path / "affine.yaml"
    path.write_text(yaml.safe_dump(values))
    profile = load_profile(path, H100)
    assert isinstance(profile, AffineProfile)
    return profile


def test_what_a_live_calibration_adds_to_an_affine_fit(tmp_path: Path) -> None:
    plain = affine_with(tmp_path)
    assert (plain.target.rows, plain.target.logit_row_s, plain.draft.row_s, plain.front_end) == ((), 0.0, 0.0, None)
    target = {"rows": [[1, 0.0], [8, 0.25]], "query_kv_s": 1e-9, "prefill_query_kv_s": 2e-9, "logit_row_s": 3e-9}
    front_end = {"request_s": 0.002, "output_s": 0.001, "output_sequence_s": 1e-4, "turnaround_s": 0.003}
    search = {"step_s": 4e-9, "sequence_s": 5e-9, "token_s": 6e-9}
    profile = affine_with(tmp_path, target=target, draft={"row_s": 7e-9}, ngram=search, front_end=front_end)
    assert profile.target.rows == ((1.0, 0.0), (8.0, 0.25))
    assert profile.front_end == FrontEnd(**front_end)
    found = [
        profile.target.query_kv_s, profile.target.prefill_query_kv_s, profile.target.logit_row_s, profile.ngram.step_s,
        profile.ngram.sequence_s, profile.ngram.token_s, profile.draft.row_s,
    ]  # fmt: skip
    assert found == [1e-9, 2e-9, 3e-9, 4e-9, 5e-9, 6e-9, 7e-9]


@pytest.mark.parametrize(
    ("ranks", "points"), [("2", []), ("2", [[1024, 0.0]]), ("2", [[8, 2e-6], [4, 3e-6]]), ("1", [[8, 2e-6]]), ("x", [])]
)
def test_published_all_reduces_are_checked(tmp_path: Path, ranks: str, points: list[list[float]]) -> None:
    file = tmp_path / "amd.yaml"
    document = yaml.safe_load((PROFILE_FOLDER / "default-amd.yaml").read_text())
    file.write_text(yaml.safe_dump({**document, "all_reduce": {ranks: points}}))
    with pytest.raises(HardwareError, match=r"amd\.yaml: all_reduce"):
        load_profile(file, load_hardware("mi300x"))


def test_a_fitted_profile_keeps_the_published_all_reduces() -> None:
    assumed = load_profile("default-amd", load_hardware("mi300x"))
    written = _sections({}, load_hardware("mi300x"))["all_reduce"]
    assert {int(ranks): tuple(map(tuple, points)) for ranks, points in written.items()} == assumed.all_reduce
    assert "all_reduce" not in _sections({}, load_hardware("h100-sxm"))


@pytest.mark.parametrize("rows", [[[1, 0.0], [1, 0.1]], [[1, 0.2], [8, 0.1]]])
def test_a_curve_over_rows_never_falls(tmp_path: Path, rows: list[list[float]]) -> None:
    with pytest.raises(HardwareError, match=r"target\.rows = .*ascending sizes and seconds that never fall"):
        affine_with(tmp_path, target={"rows": rows})


def test_affine_is_for_one_device() -> None:
    with pytest.raises(HardwareError, match=r"hardware = 'h100-sxm': .*runs on a100-80g"):
        load_profile(AFFINE, load_hardware("a100-80g"))


def test_operator_time_hand_computed(tmp_path: Path) -> None:
    values = default_values()
    values["operators"]["linear"] |= {"t0_s": 1e-6, "e_c": 0.5, "e_m": 0.5, "p": 1}
    profile = loaded(tmp_path, values)
    seconds = profile.seconds_of("linear", "bf16")(Work(np.asarray(989.4e9), np.asarray(3.35e9)))
    # 1 ms of the peak at half of it, 1 ms of the bandwidth at half of it, added.
    assert float(seconds) == pytest.approx(1e-6 + 2e-3 + 2e-3, rel=1e-3)


def test_collectives_use_the_link(tmp_path: Path) -> None:
    values = default_values()
    values["operators"]["all_reduce"] |= {"t0_s": 0.0, "e_m": 0.5, "p": math.inf}
    seconds = loaded(tmp_path, values).seconds_of("all_reduce", "bf16")(Work(np.asarray(0.0), np.asarray(1e9)))
    assert float(seconds) == pytest.approx(1e9 / (0.5 * H100.link_bandwidth_bytes_per_s))


def test_dtype_entry_replaces_the_family(tmp_path: Path) -> None:
    values = default_values()
    values["operators"]["linear"]["dtypes"] = {
        "fp8": {"t0_s": 0.0, "e_c": 0.6, "e_m": 0.6, "p": 2, "origin": "measured", "source": "a test"}
    }
    profile = loaded(tmp_path, values)
    assert profile.operator("linear", "fp8").e_c == 0.6
    assert profile.operator("linear", "fp8").origin is Origin.MEASURED
    assert profile.operator("linear", "bf16").e_c == 0.79


def test_unknown_operator_lists_the_choices() -> None:
    with pytest.raises(HardwareError, match="operator = 'conv': must be one of linear, attention_decode"):
        default_profile().operator("conv", "bf16")


def test_graph_ceiling_follows_the_device() -> None:
    ceilings = {}
    for device in ("h100-sxm", "b200", "cpu"):
        profile = load_profile("default", load_hardware(device))
        assert isinstance(profile, RooflineProfile)
        ceilings[device] = profile.cuda_graph_ceiling
    assert ceilings == {"h100-sxm": 512, "b200": 1024, "cpu": 0}


def test_checksum_is_stable_and_sees_every_number(tmp_path: Path) -> None:
    profile = default_profile()
    assert profile.checksum() == default_profile().checksum()
    assert len(profile.checksum()) == 64
    changed = [
        dataclasses.replace(profile, host=Host(2e-3, 5e-6)),
        dataclasses.replace(profile, source="elsewhere"),
        dataclasses.replace(profile, hardware=load_hardware("h200")),
    ]
    values = default_values()
    values["operators"]["moe"]["p"] = 5
    changed.append(loaded(tmp_path, values))
    assert len({item.checksum() for item in [profile, *changed]}) == 5
    affine = load_profile(AFFINE, H100)
    assert isinstance(affine, AffineProfile)
    assert affine.checksum() != dataclasses.replace(affine, overhead_s=0.0).checksum()


def test_profiles_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        default_profile().name = "other"  # type: ignore[misc]


def test_unknown_name_lists_the_choices() -> None:
    with pytest.raises(HardwareError, match=r"profile = 'h1000': must be one of .*default, .*, the path of a YAML"):
        load_profile("h1000", H100)


def edited(old: str, new: str) -> str:
    text = default_text()
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (edited("date:", "dat:"), r"date: required, but missing"),
        (edited("date:", "colour: red\ndate:"), r"colour = 'red': unknown key"),
        (
            edited("launch:", "host: {h0_s: -1.0, h1_s: 0}\nlaunch:"),
            r"host\.h0_s = -1\.0: .*greater than or equal to 0",
        ),
        (edited("launch:", "host: {h0_s: .nan, h1_s: 0}\nlaunch:"), r"host\.h0_s = nan"),
        (edited("launch:", "host: {h0_s: soon, h1_s: 0}\nlaunch:"), r"host\.h0_s = 'soon'"),
        (edited("e_c: 0.79", "e_c: 1.2"), r"operators\.linear\.e_c = 1\.2"),
        (edited("p: 1.9", "p: .nan"), r"operators\.linear\.p = nan"),
        (edited("p: 1.9", "p: 0.5"), r"operators\.linear\.p = 0\.5"),
        (
            edited("origin: extrapolated", "origin: guessed"),
            r"operators\.linear\.origin = 'guessed': must be one of measured",
        ),
        (
            edited("p: 1.9", "p: 1.9\n    fitted_rows: [2, 9]"),
            r"operators\.linear\.fitted_rows = \[2, 9\]: unknown key",
        ),
        (edited("  linear:", "  convolution:"), r"operators\.convolution: unknown operator, must be one of linear"),
        (edited("  moe:", "  lm_head:"), r"yaml:\d+: lm_head: duplicate key, first given in line"),
        (edited("kind: roofline", "kind: table"), r"kind"),
        (edited("schema_version: 1", "schema_version: 2"), r"schema_version = 2"),
        (edited("hardware: any", "hardware: a100-80g"), r"hardware = 'a100-80g': .*runs on h100-sxm"),
        ("operators: [1", r"not valid YAML"),
        ("just text", r"must hold a mapping"),
        ("", r"must hold a mapping"),
        (edited("kind: roofline", "kind: [roofline]"), r"kind = \['roofline'\]: must be one of roofline, affine"),
        (edited("date:", "measured: null\ndate:"), r"measured = None: unknown key"),
        (edited("p: 4,", "p: 4, dtypes: {fp9: {}},"), r"dtypes\.fp9 = 'fp9': unknown format; choose from fp32, bf16, "),
    ],
)
def test_bad_file_is_one_line_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(HardwareError, match=message) as caught:
        load_profile(path, H100)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_range_of_the_fit_ascends(tmp_path: Path) -> None:
    path = tmp_path / "affine.yaml"
    text = (PROFILE_FOLDER / f"{AFFINE}.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace("fitted_sequences: [1, 64]", "fitted_sequences: [9, 2]"), encoding="utf-8")
    with pytest.raises(HardwareError, match=r"fitted_sequences = \[9, 2\]: must be \[low, high"):
        load_profile(path, H100)


def test_missing_operator_is_named(tmp_path: Path) -> None:
    values = default_values()
    del values["operators"]["sampler"]
    with pytest.raises(HardwareError, match=r"operators\.sampler: required, but missing"):
        load_profile(written(tmp_path, values), H100)


def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("name: caf\xe9".encode("latin-1"))
    with pytest.raises(HardwareError, match="not UTF-8 text"):
        load_profile(path, H100)


def test_assumed_efficiencies_go_by_vendor() -> None:
    """ROCm's kernels reach less of the data sheet: every family is slower than on NVIDIA's terms, at every size."""
    mi300x = load_hardware("mi300x")
    own, other = (load_profile(name, mi300x) for name in (assumed_profile(mi300x), "default"))
    assert own.name == "default-amd"
    assert load_profile(None, dataclasses.replace(H100, name="own")).name == "default"
    assert isinstance(own, RooflineProfile)
    assert isinstance(other, RooflineProfile)
    for family in ("linear", "attention_decode", "attention_prefill", "elementwise", "moe", "lm_head"):
        for flops, moved in ((0.0, 1e3), (0.0, 1e9), (1e13, 1e3)):
            if family == "attention_prefill" and moved > flops:
                continue  # bound by compute; what its fits say of the memory is not of prompts
            work = Work(np.array(flops), np.array(moved))
            assert own.seconds_of(family, "bf16")(work) > other.seconds_of(family, "bf16")(work)


def test_assumed_efficiencies_that_are_none_are_refused_by_the_device_s_key() -> None:
    device = dataclasses.replace(load_hardware("mi355x"), name="own", assumed_profile="h200")
    with pytest.raises(HardwareError, match=r"assumed_profile = 'h200': .*default-cdna4; set in .* own"):
        load_profile(None, device)


@pytest.mark.parametrize("device", ["mi350x", "mi355x"])
def test_a_device_s_file_may_name_its_assumed_efficiencies(device: str) -> None:
    """CDNA 4's kernels reach more of its memory than those of MI300X do of theirs."""
    hardware = load_hardware(device)
    own, other = (load_profile(name, hardware) for name in (assumed_profile(hardware), "default-amd"))
    assert own.name == "default-cdna4"
    assert isinstance(own, RooflineProfile)
    assert isinstance(other, RooflineProfile)
    reading = Work(np.array(0.0), np.array(1e10))
    for family in ("attention_decode", "mla_decode", "dsa_decode", "moe"):
        assert own.seconds_of(family, "bf16")(reading) < other.seconds_of(family, "bf16")(reading)


H200 = load_hardware("h200")
QWEN_MATRIX = (4096, 12288)


def seconds_on(hardware: HardwareSpec, rows: int, nearest: str = "h200") -> tuple[float, int]:
    """Of a matrix by the profile that the device takes, with its origin."""
    profile = load_profile(None, dataclasses.replace(hardware, name="own", nearest_timed=nearest))
    assert isinstance(profile, RooflineProfile)
    (times,) = profile.times_for("vllm")
    curves = times.curves("linear", "bf16", profile.seconds_of("linear", "bf16"))
    assert curves is not None
    seconds, origins = curves.seconds(np.array([rows]), QWEN_MATRIX)
    return float(seconds[0]), int(origins[0])


@pytest.mark.parametrize("rows", [1, 64, 8192])
def test_a_device_that_nobody_timed_takes_the_times_of_the_nearest_one_at_its_own_rates(rows: int) -> None:
    timed = load_profile(None, H200)
    assert isinstance(timed, RooflineProfile)
    assert timed.measured is not None
    curves = timed.measured.curves("linear", "bf16", timed.seconds_of("linear", "bf16"))
    assert curves is not None
    measured = float(curves.seconds(np.array([rows]), QWEN_MATRIX)[0][0])
    same, origin = seconds_on(H200, rows)
    assert same == pytest.approx(measured)
    assert origin == Origin.EXTRAPOLATED
    half_memory = dataclasses.replace(H200, memory_bandwidth_bytes_per_s=H200.memory_bandwidth_bytes_per_s / 2)
    half_peaks = dataclasses.replace(H200, peak_flops={name: rate / 2 for name, rate in H200.peak_flops.items()})
    by_memory, by_peaks = seconds_on(half_memory, rows)[0] / same, seconds_on(half_peaks, rows)[0] / same
    if rows == 8192:
        assert by_memory < 1.1
        assert 1.8 < by_peaks < 2.0
    else:
        assert 1.7 < by_memory < 2.0
        assert by_peaks < 1.1


@pytest.mark.parametrize(("dtype", "least", "most"), [("fp8", 1.5, 2.5), ("bf16", 1.1, 1.4)])
def test_few_rows_of_experts_fill_tiles_that_little_compute_multiplies_longer(
    dtype: str, least: float, most: float
) -> None:
    """8 rows of DeepSeek-V3's experts, one each: the kernels multiply tiles of 64 rows in fp8, of 16 in bf16."""

    def seconds(share: float) -> float:
        peaks = {name: rate * share for name, rate in H200.peak_flops.items()}
        profile = load_profile(None, dataclasses.replace(H200, name="own", nearest_timed="h200", peak_flops=peaks))
        assert isinstance(profile, RooflineProfile)
        (times,) = profile.times_for("vllm")
        experts = times.curves("moe", dtype, profile.seconds_of("moe", dtype), num_experts=256, top_k=8)
        assert experts is not None
        return float(experts.seconds(np.array([8]), (7168, 256))[0][0])

    assert least < seconds(0.25) / seconds(1.0) < most


def test_a_tile_of_attention_takes_as_long_however_full_it_is() -> None:
    """4 heads a KV head: one query fills a 16th of a tile, 16 queries all of it. An H20 has 15 % of an H200's FLOPs."""

    def seconds(share: float, queries: float) -> float:
        peaks = {name: rate * share for name, rate in H200.peak_flops.items()}
        profile = load_profile(None, dataclasses.replace(H200, name="own", nearest_timed="h200", peak_flops=peaks))
        assert isinstance(profile, RooflineProfile)
        (times,) = profile.times_for("vllm")
        roofline = profile.seconds_of("attention_decode", "bf16")
        grid = times.grid("attention_decode", "bf16", "bf16", roofline, heads=32, kv_heads=8, head_dim=128)
        assert grid is not None
        return float(np.exp(grid.log_seconds(np.array([queries]), np.array([16.0]), np.array([4096.0])))[0])

    ratio = seconds(0.15, 1.0) / seconds(1.0, 1.0)
    assert ratio > 1.5
    assert seconds(0.15, 16.0) / seconds(1.0, 16.0) == pytest.approx(ratio)


def test_what_stands_in_for_a_device_is_said() -> None:
    h20 = load_profile(None, load_hardware("h20"))
    assert isinstance(h20, RooflineProfile)
    assert h20.name == "h200"
    assert h20.timed_on == H200
    assert not h20.is_timed
    assert h20.source.startswith("the times of h200 at the rates of this device's data sheet: ")
    assert load_profile("h200", load_hardware("h20")).checksum() == h20.checksum()
    assert load_profile("h200", load_hardware("h20-141g")).checksum() != h20.checksum()
    grid = h20.measured.grid(  # type: ignore[union-attr]
        "attention_decode",
        "bf16",
        "bf16",
        h20.seconds_of("attention_decode", "bf16"),
        heads=32,
        kv_heads=8,
        head_dim=128,
    )
    assert grid is not None
    assert not grid.measured.any()
    with pytest.raises(HardwareError, match="the profile was made for this device, the scenario runs on h20"):
        load_profile("h100-sxm", load_hardware("h20"))


def test_the_nearest_timed_device_is_one_of_the_timed() -> None:
    with pytest.raises(HardwareError, match=r"nearest_timed = 'h20': must be a timed device: a100-80g, b200, "):
        seconds_on(H200, 1, nearest="h20")
