"""How many draft tokens the target accepts: models, their formulas, and the arrays the compiled engine reads."""

from __future__ import annotations

from draftcast.sim.acceptance.beta import Beta
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
from draftcast.sim.acceptance.fixed_rates import Constant, PerPosition, Tree, tree_depth_probabilities
from draftcast.sim.acceptance.model import AcceptanceModel
from draftcast.sim.acceptance.trace import Trace
from draftcast.sim.acceptance.tree_shape import rates_in_another_tree, tree_rates
from draftcast.sim.acceptance.two_state import Markov, Ngram

# By the name a scenario gives them.
ACCEPTANCE_MODELS: dict[str, type[AcceptanceModel]] = {
    "constant": Constant,
    "per_position": PerPosition,
    "beta": Beta,
    "markov": Markov,
    "ngram": Ngram,
    "tree": Tree,
    "trace": Trace,
}

__all__ = [
    "ACCEPTANCE_MODELS",
    "MAX_K",
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
