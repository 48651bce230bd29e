"""Compiled draft-length rules, a file per family; ``draftcast.sim.engine.decide`` picks the one in force."""
