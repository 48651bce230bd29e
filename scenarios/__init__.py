"""Questions: the scenario schema and files, simulate, run directories and the command line."""
