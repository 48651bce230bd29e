"""A simulated server: OpenAI's interface in front of simulated engines that keep up with the clock."""
