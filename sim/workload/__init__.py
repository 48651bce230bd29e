"""What arrives: lengths, arrival times, traces, and the table of requests they make."""
