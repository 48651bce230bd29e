"""The time of an engine step and the memory of a replica."""
