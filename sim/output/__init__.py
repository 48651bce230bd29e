"""What a run leaves behind: rows, figures, SLO, the measured window."""
