"""A live run beside its forecast: the same requests simulated, the error measured and put down to its causes."""
