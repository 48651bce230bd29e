"""How many draft tokens the target accepts: models, their formulas, and the arrays the compiled engine reads."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from draftcast.sim.acceptance.model import Beta, Constant, PerPosition, Tree
from draftcast.sim.acceptance.trace import Trace
from draftcast.sim.acceptance.two_state import Markov, Ngram

Acceptance = Annotated[Constant | PerPosition | Beta | Markov | Ngram | Tree | Trace, Field(discriminator="model")]
