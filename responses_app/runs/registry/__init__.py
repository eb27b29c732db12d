"""The runs of this worker."""
