"""Profiles read once: reading and checking one takes longer than simulating two thousand requests.

A profile is frozen and remembers what it read of its table, so one object serves every scenario. Files are read again
when one of them changed.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from threading import Lock

from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.load import HardwareProfile, find_profile, has_profile, load_profile

MOST_KEPT = 16
_kept: OrderedDict[tuple[object, ...], HardwareProfile] = OrderedDict()
_lock = Lock()


def cached_profile(name_or_path: str | Path | None, hardware: HardwareSpec) -> HardwareProfile:
    """`load_profile`, or what it gave for the same files and device before; errors as there."""
    place = find_profile(hardware.name if name_or_path is None and has_profile(hardware) else name_or_path)
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    stamps = tuple((str(file), (found := file.stat()).st_mtime_ns, found.st_size) for file in files)
    wanted = (stamps, repr(hardware))
    with _lock:
        if wanted in _kept:
            _kept.move_to_end(wanted)
            return _kept[wanted]
    profile = load_profile(name_or_path, hardware)
    with _lock:
        _kept[wanted] = profile
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return profile
