"""Intervals, and where a paired advantage crosses 1."""
