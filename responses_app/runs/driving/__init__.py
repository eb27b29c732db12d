"""A run: does what the machine of a response wants, and tells it what came of that."""
