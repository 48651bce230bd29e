"""How many draft tokens the target accepts: models, their formulas, and the arrays the compiled engine reads."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from draftcast.sim.acceptance.compile import compile_acceptance
from draftcast.sim.acceptance.compiled import MAX_K, AcceptanceArrays, accepted_drafts, proposed_drafts
from draftcast.sim.acceptance.confidence import (
    describe_alike,
    describe_drafts,
    forecast_survival,
    has_confidence,
    rounds_are_alike,
    survivals,
)
from draftcast.sim.acceptance.model import (
    AcceptanceModel,
    Beta,
    Constant,
    PerPosition,
    Tree,
    tree_depth_probabilities,
)
from draftcast.sim.acceptance.trace import Trace
from draftcast.sim.acceptance.tree_shape import rates_in_another_tree, tree_rates
from draftcast.sim.acceptance.two_state import Markov, Ngram

Acceptance = Annotated[
    Constant | PerPosition | Beta | Markov | Ngram | Tree | Trace,
    Field(discriminator="model"),
]

__all__ = [
    "MAX_K",
    "Acceptance",
    "AcceptanceArrays",
    "AcceptanceModel",
    "Beta",
    "Constant",
    "Markov",
    "Ngram",
    "PerPosition",
    "Trace",
    "Tree",
    "accepted_drafts",
    "compile_acceptance",
    "describe_alike",
    "describe_drafts",
    "forecast_survival",
    "has_confidence",
    "proposed_drafts",
    "rates_in_another_tree",
    "rounds_are_alike",
    "survivals",
    "tree_depth_probabilities",
    "tree_rates",
]
