"""One engine replica: vLLM V1's scheduler and step loop over plain arrays, compiled."""
