"""Responses: create, read, cancel, delete."""
