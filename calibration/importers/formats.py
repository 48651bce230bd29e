"""The formats that can be imported, and a profile folder made from one."""

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd

from draftcast.calibration.importers.aiconfigurator import read_aiconfigurator
from draftcast.calibration.importers.aiter import read_aiter
from draftcast.calibration.importers.llmservingsim import read_llmservingsim
from draftcast.calibration.importers.table_file import ImportedTable
from draftcast.calibration.importers.vidur import read_vidur
from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.load import ENGINE_TABLE, MANIFEST, TABLE, find_profile, has_profile, write_manifest
from draftcast.calibration.profile.roofline_fit import fit_profile
from draftcast.calibration.profile.table import checked_table, load_table, save_table
from draftcast.errors import HardwareError
from draftcast.files import made, picked

FORMATS = {"aiconfigurator": ("system",), "vidur": (), "llmservingsim": ("model", "tp", "dtype"), "aiter": ()}
"""What can be imported, and the options that it takes."""


def read(source: str, path: Path | None, hardware: HardwareSpec, **options: Any) -> ImportedTable:
    """Times of one of `FORMATS`, taken on ``hardware``.

    ``path``: file or folder; None only for aiconfigurator, whose package may be installed. ``options``: those of the
    format, as of `read_llmservingsim` and `read_aiconfigurator`; None where they are not given.

    Raises HardwareError: an unknown format, an option missing or not of it, an unreadable or foreign file.
    """
    if source not in FORMATS:
        raise HardwareError(f"must be one of {', '.join(FORMATS)}", key="format", value=source)
    chosen = {key: value for key, value in options.items() if value is not None}
    for key in chosen:
        if key not in FORMATS[source]:
            raise HardwareError(f"{source} does not take it", key=key)
    if source == "aiconfigurator":
        return read_aiconfigurator(path, hardware, **chosen)
    if path is None:
        raise HardwareError(f"the path of {source}'s files is needed", key="path")
    if source == "aiter":
        return read_aiter(path, hardware)
    if source == "vidur":
        return _with_all_reduces(read_vidur(path), hardware)
    if "model" not in chosen:
        raise HardwareError("llmservingsim's files name no sizes: the model is needed", key="model")
    return _with_all_reduces(read_llmservingsim(path, hardware=hardware, **chosen), hardware)


def _with_all_reduces(imported: ImportedTable, hardware: HardwareSpec) -> ImportedTable:
    """With the all-reduces of the profile that is bundled for the device: these tools time the kernels of one rank."""
    if not has_profile(hardware):
        return imported
    bundled = load_table(find_profile(hardware.name) / TABLE).query("operator == 'all_reduce'")
    table = checked_table(pd.concat([imported.table, bundled], ignore_index=True))
    source = f"{imported.source}; all-reduces of the bundled profile {hardware.name}"
    return dataclasses.replace(imported, table=table, source=source)


def write_profile(
    folder: Path, imported: ImportedTable, hardware: HardwareSpec, *, name: str, date: str, command: str
) -> None:
    """Write table, manifest and fit, all or none. Raises HardwareError: ``folder`` cannot be written, no fit."""
    tables = {TABLE: imported.table}
    tables |= {ENGINE_TABLE.format(engine): table for engine, table in imported.engines.items()}
    made(folder, HardwareError)
    try:
        for file, table in tables.items():
            save_table(table, folder / file)
        facts = {"name": name, "hardware": hardware.name, "date": date, "command": command}
        write_manifest(folder, **facts, **picked(imported, "device versions source licence left_out sources"))
        fit_profile(folder, hardware)
    except BaseException:  # a part of a profile would keep the next try out
        for file in (*tables, MANIFEST):
            (folder / file).unlink(missing_ok=True)
        raise
