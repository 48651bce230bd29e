"""vLLM's iteration log: reading it, and estimating step times from it."""
