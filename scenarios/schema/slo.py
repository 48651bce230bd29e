"""Service level objectives, in milliseconds as in ``vllm bench serve --goodput``."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from draftcast.scenarios.schema.base import Frozen, Positive, wrong


class Slo(Frozen):
    """A request is good when it meets every given bound; the run meets its SLO when ``attainment`` of requests are."""

    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None
    e2el_ms: Positive | None = None
    attainment: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.99

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.ttft_ms is None and self.tpot_ms is None and self.e2el_ms is None:
            raise wrong("ttft_ms", None, "give at least one of ttft_ms, tpot_ms, e2el_ms")
        return self
