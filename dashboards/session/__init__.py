"""What a browser session asks, its uploads, and the answers kept for it."""
