"""Profiles: measured times of a device, their interpolation and the roofline fitted to them."""
