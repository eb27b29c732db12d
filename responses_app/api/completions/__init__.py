"""Completions of raw prompts."""
