"""Where speculation stops paying."""
