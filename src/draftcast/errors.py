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

import reprlib
from dataclasses import KW_ONLY, dataclass
from typing import Self


class _Shortened(reprlib.Repr):
    """``repr`` of what a user gave, in a line: long texts and lists are cut, no integer is too large to be told."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 120
        self.maxlist = self.maxtuple = self.maxset = self.maxdict = 12
        self.maxlevel = 4

    def repr_int(self, x: int, level: int) -> str:
        bits = x.bit_length()
        return repr(x) if bits <= 256 else f"an integer of about {int(bits * 0.30103) + 1} digits"

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x[: self.maxstring])


_SHORTENED = _Shortened()
_MOST_CHARACTERS = 2000
_MISSING = object()


def shown(value: object) -> str:
    """``value`` as an error shows it: its ``repr``, at most about 200 characters of it."""
    return cut(_SHORTENED.repr(value), 200)


def cut(text: str, most: int) -> str:
    """At most so many characters, the last of them dots where some are left out."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


@dataclass(eq=False, repr=False)
class DraftcastError(Exception):
    """Root of every error that draftcast raises on purpose: what is wrong with which value, and where it came from."""

    message: str  # what is wrong and what is allowed, without the place
    _: KW_ONLY
    file: str | None = None  # the file the input came from, or a name such as ``--set``
    line: int | None = None  # 1-based line number in ``file``
    key: str | None = None  # dotted key or field name
    value: object = _MISSING  # the offending value, shown by `shown`

    def __post_init__(self) -> None:
        where = self.file
        if self.line is not None:
            where = f"{self.file}:{self.line}" if self.file is not None else f"line {self.line}"
        offending = [cut(self.key, 200)] if self.key is not None else []
        if self.value is not _MISSING:
            offending.append(shown(self.value))
        super().__init__(": ".join(filter(None, [where, " = ".join(offending), self.message])))


class InputError(DraftcastError):
    """The user's input is wrong; told in one line."""

    def __str__(self) -> str:
        # One line without control characters: what a file holds must not steer the terminal.
        line = " ".join(super().__str__().split())
        return cut("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line), _MOST_CHARACTERS)

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
