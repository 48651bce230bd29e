"""Models: architectures, drafting heads, number formats, the bundled configs."""
