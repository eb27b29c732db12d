"""The Responses API server."""

__version__ = "0.1.0"  # the one place: the package's metadata is made of it
