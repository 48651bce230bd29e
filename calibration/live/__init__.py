"""Live runs: a testbed model, a server, a load client, and the run directory they leave behind."""
