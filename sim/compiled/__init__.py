"""What compiled code shares: borrowed arrays, the cache of machine code, random numbers."""
