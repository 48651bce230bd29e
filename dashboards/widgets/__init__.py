"""What pages are made of: controls, tiles, tables, the sidebar."""
