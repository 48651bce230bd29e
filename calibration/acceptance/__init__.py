"""Measured acceptance: matchers over token logs, server counters, and the scenario section they make."""
