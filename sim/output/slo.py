"""Service-level objectives and which requests meet them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from draftcast.errors import InputError
from draftcast.sim.output.request_columns import RequestColumns

__all__ = ["Slo", "good_requests"]

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Slo:
    """Objectives of a request class with vLLM's ``--goodput`` names and units; None: no such objective.

    A request is good when it finished and every objective holds (<=). TPOT counts as 0 for one-token outputs, as there.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None

    def __post_init__(self) -> None:
        for key in ("ttft_ms", "tpot_ms", "e2el_ms"):
            value = getattr(self, key)
            if value is not None and not value >= 0:
                raise InputError("must be a number of milliseconds, 0 or more", key=f"slo.{key}", value=value)


def good_requests(requests: pd.DataFrame, c: RequestColumns, slo: Slo | Mapping[str, Slo] | None) -> BoolArray:
    """Per request: finished and every objective met; ``slo`` for all requests or per class name.

    A class without objectives is good when it finishes; objectives for a class that drew no request have no effect.
    """
    good = c.finished.copy()
    if slo is None:
        return good
    if isinstance(slo, Slo):
        return good & _meets(c, slo)
    codes, names = pd.factorize(requests["class"])
    for code, name in enumerate(names):
        if str(name) in slo:
            good &= (codes != code) | _meets(c, slo[str(name)])
    return good


def _meets(c: RequestColumns, slo: Slo) -> BoolArray:
    met = np.ones(c.arrival_s.shape, dtype=np.bool_)
    for limit_ms, value_s in (
        (slo.ttft_ms, c.ttft_s),
        (slo.tpot_ms, np.where(c.output > 1, c.tpot_s, 0.0)),
        (slo.e2el_ms, c.e2el_s),
    ):
        if limit_ms is not None:
            met &= value_s <= limit_ms / 1000
    return met
