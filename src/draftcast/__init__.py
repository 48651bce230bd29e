"""draftcast: forecasts whether speculative decoding pays on an LLM serving cluster."""

from __future__ import annotations

from draftcast.errors import DraftcastError, InputError

__version__ = "0.1.0"
__all__ = ["DraftcastError", "InputError", "__version__"]
