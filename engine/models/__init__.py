"""What is known of a model: its family, and the format that it speaks."""
