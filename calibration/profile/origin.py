"""How far a predicted time can be trusted: the tag every seconds figure of draftcast carries."""

from __future__ import annotations

from enum import IntEnum


class Origin(IntEnum):
    """Where a time comes from. The larger the value, the less it is worth.

    The values are the columns of every ``(n, 3)`` seconds table of ``sim.step_cost``, so they never change.
    """

    MEASURED = 0
    """This very shape was timed on this device."""
    INTERPOLATED = 1
    """The shape lies between timed shapes, or inside the range a fit was made on."""
    EXTRAPOLATED = 2
    """Outside every timed range: a fit or an assumed efficiency stretched to this shape."""

    @property
    def label(self) -> str:
        """Lower-case name as it stands in profile files and in results."""
        return self.name.lower()

    @classmethod
    def parse(cls, label: str) -> Origin:
        """Inverse of `label`. Raises ``ValueError`` that lists the choices."""
        for origin in cls:
            if origin.label == label:
                return origin
        raise ValueError(f"must be one of {', '.join(origin.label for origin in cls)}")
