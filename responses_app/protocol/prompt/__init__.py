"""What the model reads: a chain and its items as the prompt of one generation."""
