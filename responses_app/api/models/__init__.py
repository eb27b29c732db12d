"""The models that are served."""
