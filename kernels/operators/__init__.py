"""The operators of a transformer step: what each costs and how to run it."""
