"""Batches: their input is read, their lines are run behind all else, and their output is written."""
