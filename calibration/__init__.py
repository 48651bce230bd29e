"""Measured time: hardware, rooflines and profiles that turn an operator's work into seconds."""
