"""What one forward pass consists of."""
