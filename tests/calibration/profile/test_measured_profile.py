"""A measured profile from end to end: table, manifest, fit, held-out errors, loading, and the step cost it gives."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import FIT, MANIFEST, TABLE, load_profile, write_manifest
from draftcast.calibration.profile.roofline import Origin, Roofline
from draftcast.calibration.profile.roofline_fit import fit_profile, fit_roofline, held_out
from draftcast.calibration.profile.spec import AffineProfile, RooflineProfile
from draftcast.calibration.profile.table import SHAPE_FIELDS, checked_table, load_table, read_points, save_table
from draftcast.errors import HardwareError, InputError
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.operators import registry
from draftcast.scenarios.cli.main import app
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.step_cost import compile_step_cost

H100 = load_hardware("h100-sxm")
TRUE = {
    "linear": Roofline(3e-6, 0.7, 0.8, 2.5, Origin.MEASURED, "a test"),
    "attention_decode": Roofline(5e-6, 0.4, 0.6, 3.0, Origin.MEASURED, "a test"),
    "attention_prefill": Roofline(6e-6, 0.5, 0.5, 2.0, Origin.MEASURED, "a test"),
    "rmsnorm": Roofline(2e-6, 0.5, 0.7, 4.0, Origin.MEASURED, "a test"),
}
LAYERS = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096), (4096, 128256))
HEADS = {"heads": 32, "kv_heads": 8, "head_dim": 128}


def points(operator: str) -> pd.DataFrame:
    """Shapes of Llama-3.1-8B, timed by the true roofline."""
    rows: list[dict[str, int]] = []
    if operator == "linear":
        rows = [{"m": m, "k": k, "n": n} for k, n in LAYERS for m in (*range(1, 18), 32, 64, 128, 256, 512, 2048, 8192)]
    elif operator == "rmsnorm":
        rows = [{"m": m, "n": 4096} for m in (1, 4, 16, 64, 256, 1024, 8192)]
    elif operator == "attention_decode":
        grid = [(q, b, s) for q in (1, 2, 4, 5, 8) for b in (1, 8, 64, 256) for s in (128, 512, 1024, 2048, 8192)]
        rows = [{"q": q, "batch": b, "context": s, **HEADS} for q, b, s in grid]
    else:
        grid = [(c, b, r) for c in (16, 128, 1024, 8192) for b in (1, 4) for r in (1, 2, 8)]
        rows = [{"q": c, "batch": b, "context": c * r, **HEADS} for c, b, r in grid]
    frame = pd.DataFrame(rows)
    shape = {name: frame.get(name, pd.Series(0, index=frame.index)).to_numpy() for name in SHAPE_FIELDS[operator]}
    kv_dtype = "bf16" if operator.startswith("attention") else ""
    work = registry.operator(operator).work(shape, "bf16", kv_dtype)
    family = "elementwise" if operator == "rmsnorm" else operator
    seconds = TRUE[operator].seconds(work.flops, work.bytes, *H100.ceilings(family, "bf16"))
    return frame.assign(operator=operator, dtype="bf16", kv_dtype=kv_dtype, implementation="a test", seconds=seconds)


def write_profile(folder: Path, frame: pd.DataFrame | None = None, **fields: object) -> Path:
    folder.mkdir(exist_ok=True)
    whole = pd.concat([points(name) for name in TRUE], ignore_index=True).fillna(0) if frame is None else frame
    save_table(checked_table(whole), folder / TABLE)
    given = {"name": "a-test", "hardware": "h100-sxm", "device": "none", "date": "2026-11-21", "command": "-"}
    write_manifest(folder, **{**given, "source": "a test", **fields})
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_profile(tmp_path_factory.mktemp("profile"))
    fit_profile(path, H100)
    return path


def loaded(folder: Path) -> RooflineProfile:
    profile = load_profile(folder, H100)
    assert isinstance(profile, RooflineProfile)
    return profile


def test_the_fit_finds_the_roofline_the_times_came_from(folder: Path) -> None:
    fitted = loaded(folder).operator("linear", "bf16")
    true = TRUE["linear"]
    assert (fitted.t0_s, fitted.e_c, fitted.e_m) == pytest.approx((true.t0_s, true.e_c, true.e_m), rel=0.03)
    assert fitted.p == pytest.approx(true.p, rel=0.1)


def test_a_few_gross_outliers_do_not_bend_the_fit() -> None:
    true = TRUE["linear"]
    memory = np.tile(np.geomspace(1e-6, 1e-3, 30), 2)
    compute = memory * np.repeat([0.1, 10.0], 30)
    seconds = true.seconds(compute, memory, 1.0, 1.0)
    seconds[::12] *= 4.0
    found = fit_roofline(compute, memory, seconds)
    assert (found.e_c, found.e_m) == pytest.approx((true.e_c, true.e_m), rel=0.1)


def test_a_known_compute_efficiency_is_kept() -> None:
    memory = np.geomspace(1e-6, 1e-3, 20)
    seconds = TRUE["linear"].seconds(memory * 1e-3, memory, 1.0, 1.0)
    assert fit_roofline(memory * 1e-3, memory, seconds, e_c=0.37).e_c == pytest.approx(0.37, rel=1e-6)


def test_decode_of_single_queries_takes_its_compute_efficiency_from_prefill(tmp_path: Path) -> None:
    frame = pd.concat([points(name) for name in TRUE], ignore_index=True).fillna(0)
    only = frame[(frame["operator"] != "attention_decode") | (frame["q"] == 1)]
    fit_profile(write_profile(tmp_path / "q1", only), H100)
    profile = loaded(tmp_path / "q1")
    prefill = profile.operator("attention_prefill", "bf16").e_c
    assert profile.operator("attention_decode", "bf16").e_c == pytest.approx(prefill, rel=1e-4)


def test_held_out_points_are_inner_ones_and_always_the_same() -> None:
    frame = checked_table(points("linear"))
    drawn = held_out(frame)
    assert 0.08 < drawn.mean() < 0.3
    assert not drawn[(frame["m"] == 1) | (frame["m"] == 8192)].any()
    shuffled = frame.sample(frac=1.0, random_state=1)
    again = pd.Series(held_out(shuffled.reset_index(drop=True)), index=shuffled.index).sort_index()
    assert (again.to_numpy() == drawn).all()


def test_held_out_errors_are_reported_and_grow_with_noise(folder: Path, tmp_path: Path) -> None:
    _, clean = fit_profile(folder, H100)
    assert {entry.part.operator for entry in clean} == set(TRUE)
    linear = next(entry for entry in clean if entry.part.operator == "linear").interpolated
    assert linear.points > 10
    assert linear.median < 0.01
    frame = points("linear")
    noise = np.exp(np.random.default_rng(0).normal(0.0, 0.2, len(frame)))
    _, noisy = fit_profile(write_profile(tmp_path / "noisy", frame.assign(seconds=frame["seconds"] * noise)), H100)
    assert noisy[0].interpolated.median > 0.1
    assert noisy[0].interpolated.p90 > noisy[0].interpolated.median


def test_step_seconds_are_the_sum_of_the_measured_ones(folder: Path) -> None:
    profile = loaded(folder)
    model = load_model("Llama-3.1-8B")
    cost = compile_step_cost(EngineConfig(max_cudagraph_capture_size=64), model, None, profile)
    features, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    st.decode_features(cost, 64, 0, 1023.0, features)
    st.step_time(cost, features, out)

    def one(operator: str, **shape: int) -> float:
        kernel = registry.operator(operator)
        whole = dict.fromkeys(SHAPE_FIELDS[operator], 0) | shape
        work = kernel.work(whole, "bf16", "bf16" if "attention" in operator else "")
        family = "elementwise" if operator == "rmsnorm" else operator
        return float(TRUE[operator].seconds(work.flops, work.bytes, *H100.ceilings(family, "bf16")))

    linear = 32 * sum(one("linear", m=64, k=k, n=n) for k, n in LAYERS[:-1])
    attention = 32 * one("attention_decode", q=1, batch=64, context=1024, **HEADS)
    norms = 64 * one("rmsnorm", m=64, n=4096)
    measured = linear + attention + norms
    # What the table lacks (rotary, activation, embedding, the last norm) is the rest, from the assumed roofline.
    assert measured < out["target_s"] < measured + 1e-3
    assert out["by_origin_s"][0] == pytest.approx(linear + norms + one("linear", m=64, k=4096, n=128256), rel=1e-6)
    assert out["by_origin_s"][1] == pytest.approx(attention, rel=1e-6)
    assert out["by_origin_s"][2] > 0


def test_verification_comes_from_its_own_measured_points(folder: Path) -> None:
    grid, seconds = loaded(folder).measured, loaded(folder).seconds_of("attention_decode", "bf16")
    assert grid is not None
    found = grid.grid("attention_decode", "bf16", "bf16", seconds, **HEADS)
    assert found is not None
    assert list(found.axes[0]) == [1, 2, 4, 5, 8, 9, 12, 16, 17, 24, 32, 64]
    assert found.measured[:5].all()
    assert not found.measured[5:].any()
    other = grid.grid("attention_decode", "bf16", "bf16", seconds, heads=8, kv_heads=2, head_dim=128)
    assert other is not None
    assert not other.measured.any()
    assert (other.log_s < found.log_s).mean() > 0.5
    fp8 = loaded(folder).seconds_of("attention_decode", "fp8")
    assert grid.grid("attention_decode", "bf16", "fp8", fp8, **HEADS) is None


def test_the_measured_profile_of_a_device_is_its_default(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    import draftcast.calibration.profile.load as module

    bundled = folder.parent / "bundled"
    bundled.mkdir(exist_ok=True)
    (bundled / "h100-sxm").symlink_to(folder)
    (bundled / "default.yaml").write_text((module.PROFILE_FOLDER / "default.yaml").read_text())
    monkeypatch.setattr(module, "PROFILE_FOLDER", bundled)
    assert load_profile(None, H100).name == "a-test"
    assert load_profile("default", H100).name == "default"
    assert load_profile(None, load_hardware("l40s")).name == "default"


def test_ceilings_of_the_manifest_replace_the_data_sheet(tmp_path: Path) -> None:
    ceilings = {"memory_bandwidth_bytes_per_s": 1e12, "peak_flops": {"bf16": 5e14}}
    path = write_profile(tmp_path / "own", points("linear"), ceilings=ceilings)
    fit_profile(path, H100)
    assert loaded(path).hardware.ceilings("linear", "bf16") == (5e14, 1e12)


def test_a_text_search_is_kept_and_gets_no_roofline(tmp_path: Path) -> None:
    searches = [
        {"operator": "ngram", "dtype": "int32", "kv_dtype": "", "implementation": "torch", "batch": batch,
         "context": context, "seconds": 1e-5}
        for batch in (1, 8) for context in (128, 512, 2048)
    ]  # fmt: skip
    path = write_profile(tmp_path / "searched", pd.concat([points("linear"), pd.DataFrame(searches)]).fillna(0))
    fits, errors = fit_profile(path, H100)
    assert {family for family, _ in fits} == {"linear"}
    assert {entry.part.operator for entry in errors} == {"linear"}
    covered = json.loads(run("profile", "show", str(path), "--json"))["coverage"]
    assert [row["points"] for row in covered if row["operator"] == "ngram"] == [6]
    run("profile", "plot", str(path), "--out", str(tmp_path / "roof.html"))


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    target = tmp_path / "copy"
    target.mkdir()
    for name in (TABLE, MANIFEST, FIT):
        (target / name).write_bytes((folder / name).read_bytes())
    return target


AFFINE = """
schema_version: 1
kind: affine
name: whole
model: llama-3.1-8b
hardware: h100-sxm
tp: 1
dtype: bf16
date: 2026-11-21
source: a test
fitted_sequences: [1, 8]
target: {fixed_s: 0.001, row_s: 0.0, kv_token_s: 0.0, sequence_s: 0.0001}
draft: {fixed_s: 0.0, pass_s: 0.002, draft_token_s: 0.0, kv_token_s: 0.0, methods: {eagle: interpolated}}
ngram: {fraction_of_target: 0.0, methods: {}}
overhead_s: 0.0
"""
MADE = {"name": "a", "hardware": "h100-sxm", "device": "d", "date": "2026-11-21", "command": "-", "source": "a test"}


def test_a_whole_step_fit_stands_in_a_folder_without_a_table(tmp_path: Path, folder: Path) -> None:
    (tmp_path / FIT).write_text(AFFINE)
    manifest = write_manifest(tmp_path, **MADE)
    assert list(manifest.files) == [FIT]
    profile = load_profile(tmp_path, H100)
    assert isinstance(profile, AffineProfile)
    assert (profile.target.sequence_s, profile.draft.pass_s) == (1e-4, 2e-3)
    shown = CliRunner().invoke(app, ["profile", "show", str(tmp_path), "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["target_sequence_s"] == 1e-4
    (tmp_path / FIT).write_text(AFFINE.replace("0.001", "0.002"))
    with pytest.raises(HardwareError, match=r"profile.yaml: is not the file its manifest describes"):
        load_profile(tmp_path, H100)
    shutil.copy(folder / FIT, tmp_path / FIT)
    write_manifest(tmp_path, **MADE)
    with pytest.raises(HardwareError, match=r"kind = 'roofline': must be affine without a table"):
        load_profile(tmp_path, H100)
    shutil.copy(folder / TABLE, tmp_path / TABLE)
    (tmp_path / FIT).write_text(AFFINE)
    write_manifest(tmp_path, **MADE)
    with pytest.raises(HardwareError, match=r"kind = 'affine': must be roofline beside a table"):
        load_profile(tmp_path, H100)


def test_a_changed_table_is_refused_by_name(copy: Path) -> None:
    data = bytearray((copy / TABLE).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / TABLE).write_bytes(data)
    with pytest.raises(HardwareError, match=r"table\.parquet: is not the file its manifest describes"):
        load_profile(copy, H100)


def test_a_table_of_another_device_is_refused(copy: Path) -> None:
    with pytest.raises(HardwareError, match=r"h100-sxm.*runs on l40s"):
        load_profile(copy, load_hardware("l40s"))
    with pytest.raises(HardwareError, match=r"not on l40s"):
        fit_profile(copy, load_hardware("l40s"))


@pytest.mark.parametrize("name", [TABLE, MANIFEST, FIT])
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(HardwareError, match=name):
        load_profile(copy, H100)


def test_a_manifest_with_an_unknown_key_is_refused(copy: Path) -> None:
    raw = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps(raw | {"colour": "red"}))
    with pytest.raises(HardwareError, match=r"colour.*unknown key"):
        load_profile(copy, H100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": -1.0}, r"seconds = -1\.0: must be a positive"),
        ({"seconds": math.nan}, "must be a positive number of seconds"),
        ({"operator": "fft"}, "unknown operator"),
        ({"m": 0}, r"m = 0: must be at least 1 for linear"),
        ({"batch": 3}, r"batch = 3: must be 0 for linear"),
    ],
)
def test_a_row_out_of_range_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(HardwareError, match=message):
        checked_table(points("linear").assign(**change), "a.parquet")


def test_unknown_missing_and_double_rows_are_refused(tmp_path: Path) -> None:
    frame = points("linear")
    with pytest.raises(HardwareError, match=r"colour: unknown column"):
        checked_table(frame.assign(colour="red"))
    with pytest.raises(HardwareError, match=r"seconds: column required"):
        checked_table(frame.drop(columns="seconds"))
    with pytest.raises(HardwareError, match=r"the same point stands twice"):
        checked_table(pd.concat([frame, frame]))
    (tmp_path / "text").write_text("no parquet")
    with pytest.raises(HardwareError, match=r"text: damaged"):
        load_table(tmp_path / "text")


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    frame = points("linear")
    save_table(checked_table(frame), tmp_path / "a")
    save_table(checked_table(frame.sample(frac=1.0, random_state=2)), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert load_table(tmp_path / "a")["seconds"].sum() == pytest.approx(frame["seconds"].sum())


def test_points_are_read_alike_from_row_groups_in_order_and_from_one_that_mixes(folder: Path, tmp_path: Path) -> None:
    whole = load_table(folder / TABLE)
    mixed = tmp_path / "mixed.parquet"
    whole.sample(frac=1.0, random_state=3).to_parquet(mixed, index=False)
    assert whole["operator"].nunique() > 1
    for operator, rows in whole.groupby("operator"):
        some = rows.iloc[len(rows) // 2]
        shape = SHAPE_FIELDS[str(operator)][0]
        wanted = {"dtype": str(some["dtype"]), shape: int(some[shape])}
        chosen = rows[(rows["dtype"] == wanted["dtype"]) & (rows[shape] == wanted[shape])]
        for path in (folder / TABLE, mixed):
            found = read_points(path, str(operator), **wanted)
            assert list(found) == ["implementation", *SHAPE_FIELDS[str(operator)], "seconds"]
            assert sorted(found.itertuples(index=False)) == sorted(chosen[list(found)].itertuples(index=False))
        assert len(read_points(folder / TABLE, str(operator), dtype="fp4x")) == 0


def test_origins_say_what_was_measured(folder: Path) -> None:
    profile = loaded(folder)
    assert profile.measured is not None
    curves = profile.measured.curves("linear", "bf16", profile.seconds_of("linear", "bf16"))
    assert curves is not None
    _, origins = curves.seconds([64, 100, 20000], (4096, 4096))
    assert [Origin(int(value)).label for value in origins] == ["measured", "interpolated", "extrapolated"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_show_prints_provenance_fits_errors_and_coverage(folder: Path) -> None:
    text = run("profile", "show", str(folder))
    for expected in ("a-test", "rooflines", "held-out errors", "coverage", "m 1..8192 (24)", "attention_decode"):
        assert expected in text
    assert "verification (q > 1) was not measured" not in text
    assert max(map(len, text.splitlines())) <= 150
    shown = json.loads(run("profile", "show", str(folder), "--json", "--by-shape"))
    sizes = [row["size"] for row in shown["held-out errors"] if row["operator"] == "linear"]
    assert len(sizes) > 1
    shipped = run("profile", "show", "h100-sxm")
    assert "attention_decode bf16 KV bf16: 16,796 points, no interval known" in shipped
    assert "verification (q > 1) was not measured" in shipped
    assert "assumed" in run("profile", "show", "default", "--hardware", "h100")


def test_compare_sets_two_profiles_side_by_side(folder: Path) -> None:
    def rows(*more: str) -> dict[tuple[int, str], dict[str, float]]:
        found = json.loads(run("profile", "compare", str(folder), "default", "--hardware", "h100", "--json", *more))
        assert (found["first"], found["second"]) == ("a-test", "default")
        return {(row["batch"], row["part"]): row for row in found["rows"]}

    plain, drafted, long = rows(), rows("--num-speculative-tokens", "3"), rows("--context", "8192")
    entry = plain[64, "device"]
    assert entry["ratio"] == pytest.approx(entry["second_ms"] / entry["first_ms"])
    assert drafted[64, "draft"]["first_ms"] > plain[64, "draft"]["first_ms"] == 0.0
    assert plain[64, "draft"]["ratio"] is None
    attention = "target: attention"
    assert long[64, attention]["first_ms"] > 4 * plain[64, attention]["first_ms"]
    assert rows("--dtype", "fp8")[1, "device"]["first_ms"] < plain[1, "device"]["first_ms"]
    assert rows("--tp", "2")[256, "device"]["first_ms"] < plain[256, "device"]["first_ms"]
    assert rows("--model", "Llama-3.2-1B")[1, "device"]["first_ms"] < plain[1, "device"]["first_ms"]


def test_compare_says_whether_points_timed_twice_agree_within_their_intervals(tmp_path: Path) -> None:
    frame = points("rmsnorm").assign(repeats=9)
    timed = frame.assign(low_s=0.98 * frame["seconds"], high_s=1.02 * frame["seconds"])
    factor = np.array([1.0, 1.01, 1.03, 1.05, 1.1, 1.2, 1.3])  # intervals of 2 % on either side meet up to 4 %
    again = timed.assign(**{name: timed[name] * factor for name in ("seconds", "low_s", "high_s")})
    folders = []
    for name, table in (("first", timed), ("second", again)):
        whole = pd.concat([table, points("linear")]).fillna({"k": 0, "m": 0, "repeats": 0})
        folders.append(fit_and_name(write_profile(tmp_path / name, whole)))
    found = json.loads(run("profile", "compare", *folders, "--json"))["timed_in_both"]
    # Points without an interval, as imported ones are, say nothing of agreement.
    assert [row["operator"] for row in found] == ["rmsnorm"]
    assert (found[0]["points"], found[0]["intervals_meet"]) == (7, 3)
    assert found[0]["median"] == pytest.approx(0.05)
    assert (
        json.loads(run("profile", "compare", folders[0], "default", "--hardware", "h100", "--json"))["timed_in_both"]
        == []
    )


def fit_and_name(folder: Path) -> str:
    fit_profile(folder, H100)
    return str(folder)


def test_plot_writes_a_picture_that_stands_alone(folder: Path, tmp_path: Path) -> None:
    run("profile", "plot", str(folder), "--out", str(tmp_path / "roof.html"))
    text = (tmp_path / "roof.html").read_text()
    assert "achieved TFLOP" in text
    assert "ridge at" in text


def test_the_list_says_what_is_measured() -> None:
    lines = {line.split()[0]: line for line in run("profile", "list").splitlines()}
    assert "149,826 measured points" in lines["h100-sxm"]
    assert "assumed efficiencies" in lines["default"]
    listed = json.loads(run("profile", "list", "--json"))
    assert listed.keys() == lines.keys()
    assert (listed["default"]["hardware"], listed["default"]["points"]) == ("any", 0)
    assert listed["h100-llama-3.1-8b-affine"]["kind"] == "whole-step fit of one model"
    assert listed["h200"] == {"hardware": "h200", "date": "2026-11-21", "kind": "measured points", "points": 149659}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("show default", "profile fits any device: name one"),
        ("show h100-sxm --hardware l40s", "made for this device"),
        ("show no-such", "profile = 'no-such': must be one of a100-80g"),
        ("compare h100-sxm h200 --method telepathy --num-speculative-tokens 1", "method = 'telepathy': must be one of"),
        ("compare h100-sxm h200 --method draft_model --num-speculative-tokens 1", "required by method draft_model"),
        ("compare h100-sxm h200 --model no-such", "unknown model"),
        ("compare h100-sxm h200 --tp 3", "tensor_parallel_size = 3"),
        ("compare h100-sxm h200 --dtype int3", "unknown number format"),
        ("plot default --out x.html", "holds no measured table"),
        ("plot h100-llama-3.1-8b-affine --out x.html", "holds no measured table"),
        ("plot h100-sxm --out x.txt", "must end in .html"),
        ("plot h100-sxm --out no/such/x.html", "its folder does not exist"),
    ],
)
def test_what_cannot_be_shown_is_one_line(arguments: str, message: str) -> None:
    result = CliRunner().invoke(app, ["profile", *arguments.split()])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)
