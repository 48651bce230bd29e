"""Every error draftcast raises on purpose.

DraftcastError
├── InputError            what the user gave is wrong; the CLI prints one line and exits with 2
│   ├── ScenarioError     a scenario file or an override: file, key, value, what is allowed
│   ├── TraceError        a trace file: file, line, field, what is allowed
│   ├── ModelError        an unknown model, an unknown architecture, a bad config.json
│   ├── HardwareError     an unknown device or profile, a bad profile file
│   └── CapacityError     the model or a request does not fit into the device's memory or the engine's limits
├── LiveError             a live run failed: the server, the load client or the disk; one line, exit code 6
└── SimulationError       an engine invariant broke: a bug in draftcast, please report it
"""

from __future__ import annotations

from typing import Self


class DraftcastError(Exception):
    """Root of every error that draftcast raises on purpose."""


class InputError(DraftcastError):
    """The user's input is wrong.

    Args:
        message: what is wrong and what is allowed, without the place.
        file: the file the input came from, or a name such as ``--set``.
        line: 1-based line number in ``file``.
        key: dotted key or field name.
        value: the offending value, shown as ``repr``.
    """

    _MISSING = object()

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        key: str | None = None,
        value: object = _MISSING,
    ) -> None:
        self.message = message
        self.file = file
        self.line = line
        self.key = key
        self.value = value
        place = []
        if file is not None:
            place.append(f"{file}:{line}" if line is not None else file)
        elif line is not None:
            place.append(f"line {line}")
        if key is not None:
            place.append(key if value is self._MISSING else f"{key} = {value!r}")
        elif value is not self._MISSING:
            place.append(repr(value))
        text = ": ".join([*place, message])
        super().__init__(" ".join(text.split()))

    def at(self, *, file: str | None = None, key: str | None = None) -> Self:
        """The same error with its file, or with another name for its key, known better where it is caught."""
        return type(self)(self.message, file=file or self.file, line=self.line, key=key or self.key, value=self.value)


class ScenarioError(InputError):
    """A scenario file or an override is wrong."""


class TraceError(InputError):
    """A trace file is wrong."""


class ModelError(InputError):
    """An unknown model, an unknown architecture or a bad ``config.json``."""


class HardwareError(InputError):
    """An unknown device or profile, or a bad profile file."""


class CapacityError(InputError):
    """The model or a request does not fit into the device or the engine's limits."""


class LiveError(DraftcastError):
    """A live run failed: the server, the load client or the disk."""


class SimulationError(DraftcastError):
    """An engine invariant broke: a bug in draftcast."""
