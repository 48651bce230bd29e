"""What a GPU costs."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass

from draftcast.errors import InputError


@dataclass(frozen=True)
class Price:
    """What one GPU costs an hour, in the user's currency, and the day (ISO) it was asked for."""

    per_gpu_hour: float
    date: str

    def __post_init__(self) -> None:
        if not 0.0 < self.per_gpu_hour < math.inf:
            raise InputError("must be above 0 and finite", key="price", value=self.per_gpu_hour)
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError:
            raise InputError("must be a day such as 2026-11-21", key="price.date", value=self.date) from None
