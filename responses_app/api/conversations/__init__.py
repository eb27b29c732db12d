"""Conversations and their items."""
