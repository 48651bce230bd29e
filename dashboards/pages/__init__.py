"""The pages, one file a page."""
