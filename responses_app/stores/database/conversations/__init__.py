"""Conversations, in Django's database."""
