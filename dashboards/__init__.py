"""Pages over scenarios: the what-if dashboard lives here."""
