"""Settings compared on the same requests: verdict, capacity, limits, recommendation."""
