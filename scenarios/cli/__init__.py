"""The command line: flags to arguments, errors to exit codes."""
