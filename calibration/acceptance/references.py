"""Acceptance that others measured (``references.yaml``), by model, method, head, data and temperature, each sourced."""

import difflib
import functools
import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field, TypeAdapter

from draftcast.errors import ScenarioError
from draftcast.frozen import Count, Faults, Frozen, Probability, wrong
from draftcast.yaml_text import yaml_beside


class Published(Frozen):
    """One published measurement; of its two ways to say how many drafts are accepted it has one."""

    model: str
    method: str
    head: str | None = None  # the draft's repository; None: the model's own
    data: str  # what was answered
    temperature: float | None = None  # as thinking, None where the source does not say
    thinking: bool | None = None
    note: str = ""
    rates: tuple[Probability, ...] = Field((), strict=False)  # unconditional, by position
    # Number of drafts and tokens a round, the bonus token among them; ascending
    mean_lengths: tuple[Annotated[tuple[Count, float], Field(strict=False)], ...] = Field((), strict=False)
    source: str
    url: str

    def faults(self) -> Faults:
        if bool(self.rates) == bool(self.mean_lengths):
            yield wrong("rates", self.rates, "needs rates or mean_lengths, and not both")

    @property
    def setting(self) -> str:
        head = f" and {self.head}" if self.head else ""
        at = f", temperature {self.temperature:g}" if self.temperature is not None else ""
        thinking = "" if self.thinking is None else ", thinking" if self.thinking else ", without thinking"
        return f"{self.model}{head} on {self.data}{at}{thinking}{', ' * bool(self.note)}{self.note}"

    @property
    def measured_to(self) -> int:
        return len(self.rates) or self.mean_lengths[-1][0]

    def unconditional(self, k: int) -> tuple[float, ...]:
        """Rates of k positions; beyond what was measured each goes on with the last conditional rate.

        Between two mean lengths all positions have one conditional rate, the one that gives the second. Chance makes
        measured lengths rise faster than rates that fall allow; the nearest that do not are taken.
        """
        from scipy.optimize import isotonic_regression

        rates = list(self.rates)
        if self.mean_lengths:
            drafts, lengths = np.transpose([(0.0, 1.0), *self.mean_lengths])
            positions = np.diff(drafts)
            gains = isotonic_regression(np.diff(lengths) / positions, weights=positions, increasing=False).x
            goals = np.cumsum(np.maximum(gains, 0.0) * positions)
            for count, goal in zip(positions.astype(int).tolist(), goals.tolist(), strict=True):
                last = rates[-1] if rates else 1.0
                share = conditional_rate((goal - sum(rates)) / last if last else 0.0, [1.0] * count)
                rates += [last * share**position for position in range(1, count + 1)]
        return continued(rates, k)


def continued(rates: Sequence[float], k: int) -> tuple[float, ...]:
    """The first k unconditional rates; beyond those given each goes on with the last conditional rate."""
    longer = list(rates[:k])
    before = [1.0, *rates][-2]
    share = rates[-1] / before if before > 0.0 else 0.0
    while len(longer) < k:
        longer.append(longer[-1] * share)
    return tuple(longer)


@functools.cache
def references() -> dict[str, Published]:
    """All of them by name, as ``qwen3-8b/eagle3/mt-bench/redhatai``."""
    return TypeAdapter(dict[str, Published]).validate_python(yaml_beside(__file__, "references.yaml")["references"])


def reference(name: object) -> Published:
    """Raises ScenarioError: no such name; it says which are like it."""
    by_name = references()
    if isinstance(name, str) and name in by_name:
        return by_name[name]
    near = ", ".join(difflib.get_close_matches(str(name).lower(), by_name, 4, 0.5))
    listed = "a name that draftcast acceptance list shows"
    raise ScenarioError(f"must be {listed}" + (f", as {near}" if near else ""), key="reference", value=name)


def conditional_rate(accepted: float, reached: Sequence[float]) -> float:
    """The acceptance q of every draft with which so many are accepted in the mean; 1 where not even that gives them.

    ``reached``: P(a position is drafted) by position; the mean is q + q^2 + ... where all always are.
    """
    from scipy.optimize import brentq  # here: everything else of acceptance runs without scipy

    def beyond(rate: float) -> float:
        return math.fsum(share * rate**position for position, share in enumerate(reached, 1)) - max(accepted, 0.0)

    return 1.0 if beyond(1.0) <= 0.0 else float(brentq(beyond, 0.0, 1.0, xtol=1e-15))
