"""How many GPUs a load needs."""
