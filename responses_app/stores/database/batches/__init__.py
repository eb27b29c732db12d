"""Batches in Django's database."""
