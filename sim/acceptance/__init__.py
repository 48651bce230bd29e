"""How many draft tokens the target accepts: models, their formulas, and the arrays the compiled engine reads."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from draftcast.sim.acceptance.chain import Chain, respelled
from draftcast.sim.acceptance.model import Trace, Tree

Acceptance = Annotated[Chain | Tree | Trace, Field(discriminator="model"), BeforeValidator(respelled)]
