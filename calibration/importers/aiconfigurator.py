"""NVIDIA's kernel timings, as the package aiconfigurator-core ships them: Parquet, one file an operator.

Layout: ``systems/data/<system>/<family>/<engine>/<engine version>/<operator>_perf.parquet``; of several versions the
newest is taken. What a row means is `draftcast.calibration.importers.aiconfigurator_rows`'s.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path

import pandas as pd

from draftcast.calibration.importers.aiconfigurator_rows import FILES, FileKind
from draftcast.calibration.importers.imported import Imported, complete, table_of
from draftcast.calibration.importers.plausible import plausible
from draftcast.calibration.profile.folder import sha256
from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.errors import HardwareError
from draftcast.files import read_frame
from draftcast.kernels.extras import require

PACKAGE = "aiconfigurator_core"
LICENCE = "Apache-2.0"
SYSTEMS = {
    "a100-80g": "a100_sxm",
    "b200": "b200_sxm",
    "h100-pcie": "h100_pcie",
    "h100-sxm": "h100_sxm",
    "h200": "h200_sxm",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""Device of draftcast -> system folder of the package."""
ENGINES = ("vllm", "sglang", "trtllm")


def read_aiconfigurator(
    path: Path | None, hardware: HardwareSpec, *, system: str | None = None, engine: str = "vllm"
) -> Imported:
    """Every row of one device and engine that has a counterpart in the latency table, implausible ones dropped.

    Args:
        path: the package's folder, the one it stands in, its ``systems/data`` or one system's folder; None takes the
            installed package.
        hardware: the device, for the floor that no time may undercut.
        system: the package's name of the device; absent: by the name of ``hardware``.
        engine: whose kernels, one of `ENGINES`.

    Raises:
        HardwareError: no package, no such system or engine, a file that is unreadable or not of this format.
    """
    if engine not in ENGINES:
        raise HardwareError(f"unknown engine; known: {', '.join(ENGINES)}", key="engine", value=engine)
    folder = find_system(path, hardware, system)
    frames: list[pd.DataFrame] = []
    left_out: dict[str, int] = {}
    sources: dict[str, str] = {}
    versions: dict[str, str] = {}
    devices: set[str] = set()
    for kind in FILES:
        file = newest(folder / kind.family / engine, f"{kind.name}_perf.parquet")
        if file is None:
            continue
        raw = read_file(file, kind, engine)
        devices |= set(raw["device"])
        versions[f"{engine} {kind.name}"] = ", ".join(sorted(set(raw["version"])))
        sources[file.relative_to(folder.parent).as_posix()] = sha256(file)
        frames.append(complete(kind.rows(raw, left_out)))
    if not frames:
        raise HardwareError(f"holds no times of {engine}", file=str(folder))
    if len(devices) > 1:
        raise HardwareError(f"times of several devices: {', '.join(sorted(devices))}", file=str(folder))
    frame, dropped = plausible(pd.concat(frames, ignore_index=True), hardware)
    return Imported(
        table=table_of(frame, folder),
        device=devices.pop(),
        source=f"derived from aiconfigurator-core's timings of {engine}'s kernels on this device, by NVIDIA",
        licence=LICENCE,
        versions={"aiconfigurator-core": _package_version(folder), **versions},
        sources=sources,
        left_out=left_out | dropped,
    )


def find_system(path: Path | None, hardware: HardwareSpec, system: str | None = None) -> Path:
    """Folder of one system's times; arguments and errors of `read_aiconfigurator`."""
    name = system or SYSTEMS.get(hardware.name)
    if name is None:
        known = ", ".join(SYSTEMS)
        raise HardwareError(
            f"aiconfigurator-core's name of it is not known (known: {known}); name the system",
            key="hardware",
            value=hardware.name,
        )
    if path is None:
        require("profiles", PACKAGE, place="--import aiconfigurator without a path")
        found = importlib.util.find_spec(PACKAGE)
        path = Path(next(iter((found and found.submodule_search_locations) or ())))
    below = (Path(PACKAGE, "systems", "data"), Path("systems", "data"), Path("data"), Path())
    folders = [path / part / name for part in below]
    if path.name == name:
        folders.append(path)
    for folder in folders:
        if folder.is_dir():
            return folder
    raise HardwareError(f"holds no times of the system {name}", file=str(path))


def newest(folder: Path, name: str) -> Path | None:
    """File ``name`` of the newest version folder below ``folder``; None when there is none."""
    found = [file for file in folder.glob(f"*/{name}") if re.fullmatch(r"\d+(\.\d+)*", file.parent.name)]
    return max(found, key=lambda file: [int(part) for part in file.parent.name.split(".")], default=None)


def _package_version(folder: Path) -> str:
    """Version of the package that holds ``folder``, from the metadata installed beside it."""
    for parent in folder.parents:
        if parent.name == PACKAGE:
            for found in importlib.metadata.distributions(path=[str(parent.parent)]):
                if found.metadata["Name"].replace("-", "_") == PACKAGE:
                    return found.version
    return "unknown"


def read_file(file: Path, kind: FileKind, engine: str) -> pd.DataFrame:
    """Checked rows of one file.

    Raises:
        HardwareError: not Parquet, a column missing or of the wrong kind, another engine's times.
    """
    name = str(file)
    frame: pd.DataFrame = read_frame(file, kind=HardwareError)
    for column in ("framework", "version", "device", "kernel_source", *kind.texts, *kind.numbers, "latency"):
        if column not in frame:
            raise HardwareError(f"is no {kind.name} table of aiconfigurator: column missing", file=name, key=column)
    if frame.empty:
        raise HardwareError("holds no row", file=name)
    for column in (*kind.numbers, "latency"):
        if not pd.api.types.is_numeric_dtype(frame[column]):
            raise HardwareError("numbers are needed", file=name, key=column, value=frame[column].tolist()[0])
    for column in kind.numbers:
        low = 0 if column == "step" else 1
        bad = frame[~((frame[column] >= low) & (frame[column] % 1 == 0))]
        if len(bad):
            raise HardwareError(
                f"whole numbers >= {low} are needed", file=name, key=column, value=bad[column].tolist()[0]
            )
    bad = frame[~((frame["latency"] > 0.0) & (frame["latency"] < float("inf")))]
    if len(bad):
        value = bad["latency"].tolist()[0]
        raise HardwareError("positive milliseconds are needed", file=name, key="latency", value=value)
    foreign = sorted(set(frame["framework"].str.lower()) - {engine})
    if foreign:
        raise HardwareError(f"times of {engine} are needed", file=name, key="framework", value=foreign[0])
    return frame
