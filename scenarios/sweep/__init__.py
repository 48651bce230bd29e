"""Every point of a grid, simulated once."""
