"""Tables of measured times that other tools publish, read into draftcast's latency table; no code of theirs is used."""
