"""Finding drafts in text: n-gram and suffix."""
