"""Device files: datasheet values, aliases, and every way a file can be wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftcast.calibration.profile import hardware as module
from draftcast.calibration.profile.hardware import USUAL_SHARE, hardware_names, load_hardware, recognised
from draftcast.errors import HardwareError

GIB = 2**30
FOLDER = Path(module.__file__).parents[1] / "hardware"
# nameplate GB, GB/s, dense bf16 TFLOP/s, link GB/s in one direction, W: from the vendors' datasheets
DATASHEETS = {
    "a100-40g": (40, 1555, 312, 300, 400),
    "a100-80g": (80, 2039, 312, 300, 400),
    "h100-sxm": (80, 3350, 989, 450, 700),
    "h100-pcie": (80, 2000, 756, 64, 350),
    "h200": (141, 4800, 989, 450, 700),
    "b200": (180, 8000, 2250, 900, 1000),
    "l40s": (48, 864, 362, 32, 350),
    "a10g": (24, 600, 70, 32, 300),
    "rtx-4090": (24, 1008, 165, 32, 450),
    "rtx-pro-6000": (96, 1792, 503.8, 64, 600),
    "mi300x": (192, 5300, 1307, 448, 750),
    "mi325x": (256, 6000, 1307, 448, 1000),
    "mi350x": (288, 8000, 2309.6, 537.6, 1000),
    "mi355x": (288, 8000, 2516.6, 537.6, 1400),
    "b300": (288, 7750, 2250, 900, 1100),
    "gb200": (192, 8000, 2500, 900, 1200),
    "gb300": (288, 8000, 2500, 900, 1400),
    "h20": (96, 4000, 148, 450, 400),
    "h20-141g": (141, 4800, 148, 450, 400),
    "h100-nvl": (94, 3900, 835.5, 300, 400),
    "a10": (24, 600, 125, 32, 150),
    "a40": (48, 696, 149.7, 32, 300),
    "l4": (24, 300, 121, 32, 72),
    "l20": (48, 864, 119.5, 32, 275),
    "rtx-3090": (24, 936, 71, 32, 350),
    "rtx-5090": (32, 1792, 209.5, 64, 575),
    "rtx-pro-5000": (48, 1344, 258, 64, 300),
    "a100-pcie": (80, 1935, 312, 32, 300),
    "a800": (80, 2039, 312, 200, 400),
    "h800": (80, 3350, 989, 200, 700),
    "h200-nvl": (141, 4800, 835.5, 450, 600),
    "gh200": (96, 4000, 990, 450, 900),
    "l40": (48, 864, 181, 32, 300),
    "rtx-6000-ada": (48, 960, 364.25, 32, 300),
    "rtx-a6000": (48, 768, 154.8, 32, 300),
    "gb10": (128, 273, 125, 25, 140),
}


def test_the_list_is_complete() -> None:
    assert hardware_names() == sorted([*DATASHEETS, "cpu"])


@pytest.mark.parametrize("name", DATASHEETS)
def test_datasheet_values(name: str) -> None:
    memory_gb, bandwidth_gb, tflops, link_gb, watts = DATASHEETS[name]
    spec = load_hardware(name)
    # the driver reports the nameplate (in GB or GiB) less what it keeps for itself, ECC included
    assert 0.91 * memory_gb * GIB < spec.memory_bytes < 1.01 * memory_gb * GIB
    assert spec.memory_bandwidth_bytes_per_s == pytest.approx(bandwidth_gb * 1e9, rel=0.001)
    assert spec.peak_flops["bf16"] == pytest.approx(tflops * 1e12, rel=0.005)
    assert spec.peak_flops["fp16"] == spec.peak_flops["bf16"]
    assert spec.link_bandwidth_bytes_per_s == link_gb * 1e9
    assert spec.board_power_w == watts
    assert 0 < spec.link_latency_s < 1e-4


@pytest.mark.parametrize("name", [*DATASHEETS, "cpu"])
def test_every_device_names_its_sources(name: str) -> None:
    spec = load_hardware(name)
    assert spec.name == name
    assert any("http" in source for source in spec.sources)
    assert spec.peak_flops["fp32"] <= spec.peak_flops["bf16"]


@pytest.mark.parametrize("name", ["a10", "a10g", "a40", "l4", "l20", "l40", "rtx-6000-ada"])
def test_ecc_of_gddr6_shares_the_bus(name: str) -> None:
    card = load_hardware(name)
    assert card.ecc_share == (0.88 if name.startswith("a") else 0.9375)
    assert card.ceilings("linear", "bf16")[1] == card.ecc_share * card.memory_bandwidth_bytes_per_s
    assert card.ceilings("all_reduce", "bf16")[1] == card.link_bandwidth_bytes_per_s
    without = replace(card, ecc_share=1.0)
    assert without.ceilings("linear", "bf16")[1] == card.memory_bandwidth_bytes_per_s
    # what ECC takes of the bus it takes of the capacity
    assert card.memory_bytes < 15 / 16 * DATASHEETS[name][0] * GIB


@pytest.mark.parametrize(
    ("name", "whole"),
    [("h100-nvl", "h100-sxm"), ("h100-pcie", "h100-sxm"), ("h200-nvl", "h200"), ("rtx-6000-ada", "l40s")],
)
def test_a_board_of_little_power_computes_as_much_a_watt_as_the_full_board_of_its_chip(name: str, whole: str) -> None:
    board, full = load_hardware(name), load_hardware(whole)
    expected = full.ceilings("linear", "bf16")[0] / full.board_power_w
    assert board.ceilings("linear", "bf16")[0] / board.board_power_w == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("name", ["l4", "rtx-4090"])
def test_peaks_are_scaled_to_what_large_products_reach(name: str) -> None:
    board = load_hardware(name)
    usual = replace(board, large_product_share=USUAL_SHARE)
    assert usual.ceilings("linear", "fp8")[0] == board.peak_flops["fp8"]
    for family in ("linear", "attention_prefill"):
        flops, bandwidth = board.ceilings(family, "bf16")
        assert flops == pytest.approx(board.large_product_share / USUAL_SHARE * board.peak_flops["bf16"])
        assert bandwidth == usual.ceilings(family, "bf16")[1]


@pytest.mark.parametrize("name", [*DATASHEETS])
def test_dense_peaks_go_with_each_other(name: str) -> None:
    """Half the bits, twice the rate; where a sheet says otherwise, by name."""
    peaks = load_hardware(name).peak_flops
    geforce, ultra = name.startswith(("rtx-3090", "rtx-4090", "rtx-5090")), name in ("b300", "gb300")
    assert peaks["fp16"] == peaks["bf16"]
    if "fp8" in peaks:
        assert peaks["fp8"] == pytest.approx(2 * peaks["bf16"], rel=0.015)
    # GeForce cards halve products of floats that are summed in fp32, not those of integers; Blackwell Ultra gave the
    # area of its integer units to fp4.
    eight = peaks.get("fp8", 2 * peaks["bf16"])
    if ultra:
        assert peaks["int8"] < 0.05 * eight
    else:
        assert peaks["int8"] == pytest.approx((2 if geforce else 1) * eight, rel=0.015)
    if "fp4" in peaks:
        # On the RTX 5090 fp4 too is summed in fp32 at the full rate.
        assert peaks["fp4"] == pytest.approx((3 if ultra else 4 if geforce else 2) * peaks["fp8"], rel=0.015)


def test_ceilings_by_format_and_family() -> None:
    h100, a100 = load_hardware("h100"), load_hardware("a100")
    bf16, memory = h100.ceilings("linear", "bf16")
    assert (bf16, memory) == (h100.peak_flops["bf16"], h100.memory_bandwidth_bytes_per_s)
    assert h100.ceilings("linear", "fp8")[0] == pytest.approx(2 * bf16, rel=0.001)
    # Weight-only formats multiply in 16 bits, and so does fp8 without fp8 units.
    assert h100.ceilings("linear", "int4")[0] == h100.ceilings("moe", "mxfp4")[0] == bf16
    assert a100.ceilings("linear", "fp8")[0] == a100.peak_flops["bf16"]
    # MXFP8 needs units that scale groups, which came with those for fp4.
    assert h100.ceilings("moe", "mxfp8")[0] == bf16
    for name in ("b200", "mi355x", "rtx-pro-6000"):
        assert load_hardware(name).ceilings("moe", "mxfp8") == load_hardware(name).ceilings("moe", "fp8")
    # An fp8 cache is attended to in 16 bits; collectives cross the link.
    assert h100.ceilings("attention_decode", "fp8")[0] == bf16
    assert h100.ceilings("all_reduce", "bf16")[1] == h100.link_bandwidth_bytes_per_s


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("h100", "h100-sxm"),
        ("H100-80GB", "h100-sxm"),
        ("H100 SXM5", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("H100-NVL-94G", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("H200 NVL", "h200-nvl"),
        ("H20-96G", "h20"),
        ("H20 141GB", "h20-141g"),
        ("H20-3e", "h20-141g"),
        ("A100", "a100-80g"),
        ("NVIDIA A100-SXM4-80GB", "a100-80g"),
        ("A100-SXM4-40GB", "a100-40g"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA B200", "b200"),
        ("GB200 NVL72", "gb200"),
        ("DGX Spark", "gb10"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_a_device_goes_by_the_names_that_people_and_drivers_give_it(written: str, name: str) -> None:
    assert load_hardware(written) is load_hardware(name)


@pytest.mark.parametrize(
    "other",
    [
        "H100 94GB",
        "RTX PRO 5000 72GB",
        "NVIDIA A100-PCIE-40GB",
        "GH200 144GB",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "",
    ],
)
def test_another_size_of_memory_or_another_board_is_another_device(other: str) -> None:
    assert recognised(other) is None


def test_no_two_bundled_devices_have_a_name_in_common() -> None:
    specs = [load_hardware(path) for path in FOLDER.glob("*.yaml")]
    names = [key.lower() for spec in specs for key in (spec.name, *spec.aliases)]
    assert len(set(names)) == len(names)


def test_unknown_device_lists_the_names() -> None:
    with pytest.raises(HardwareError, match=r"h300.*a100-40g.*mi300x"):
        load_hardware("h300")


def test_own_file(tmp_path: Path) -> None:
    values = yaml.safe_load((FOLDER / "h100-sxm.yaml").read_text(encoding="utf-8"))
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**values, "name": "mine", "memory_bytes": 1e9}), encoding="utf-8")
    assert load_hardware(path) == replace(load_hardware("h100"), name="mine", memory_bytes=1e9)
    # A number as people write it, which YAML 1.1 takes for text.
    path.write_text(yaml.safe_dump({**values, "name": "mine"}).replace("link_latency_s:", "link_latency_s: 5e-6 #"))
    assert load_hardware(path).link_latency_s == 5e-6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"memory_bytes": -1}, "memory_bytes = -1"),
        ({"memory_bytes": "80 GB"}, "memory_bytes"),
        ({"memory_bytes": True}, "memory_bytes"),
        ({"memory_bandwidth_bytes_per_s": float("nan")}, "memory_bandwidth_bytes_per_s"),
        ({"memory_bandwidth_bytes_per_s": float("inf")}, "memory_bandwidth_bytes_per_s"),
        ({"link_bandwidth_bytes_per_s": 0}, "link_bandwidth_bytes_per_s"),
        ({"link_latency_s": -1e-6}, "link_latency_s"),
        ({"board_power_w": None}, "board_power_w"),
        ({"peak_flops": {}}, "peak_flops"),
        ({"peak_flops": [1]}, "peak_flops"),
        ({"peak_flops": {"bf16": 1e12, "int2": 1e12}}, "peak_flops.int2"),
        ({"peak_flops": {"bf16": 0}}, "peak_flops.bf16"),
        ({"sources": "a book"}, "sources"),
        ({"name": 4090}, "name"),
        ({"memory_gb": 80}, "memory_gb"),
        ({"memory_gb": 80}, "memory_gb: unknown key; known: name, vendor, memory_bytes, "),
        ({"peak_flops": {"int2": 1e12}}, "peak_flops.int2 = 'int2': unknown format; choose from fp32, bf16"),
        ({"peak_flops": [1]}, "peak_flops = [1]: must be a mapping"),
        ({"sources": "a book"}, "sources = 'a book': must be a list"),
    ],
)
def test_bad_values_name_file_and_key(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    values = yaml.safe_load((FOLDER / "h100-sxm.yaml").read_text(encoding="utf-8"))
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump({**values, **change}), encoding="utf-8")
    with pytest.raises(HardwareError) as error:
        load_hardware(path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"name: [", "bad.yaml"),
        (b"- 1", "mapping"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"name: a\nname: b\n", ":2: name: duplicate key, first given in line 1"),
        (b"", "mapping"),
        (b"name: a\n", "missing"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(HardwareError) as error:
        load_hardware(path)
    assert words in str(error.value)
    assert "bad.yaml" in str(error.value)
