"""Containers that the workers of one machine share."""
