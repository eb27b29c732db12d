"""Containers of the code interpreter, and their files."""
