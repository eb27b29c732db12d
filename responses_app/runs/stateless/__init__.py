"""Completions, decisions and embeddings: what runs without a response."""
