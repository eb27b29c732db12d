"""The settings: read once, from the environment, and nowhere else."""
