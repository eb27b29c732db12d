"""What was decided before a run starts."""
