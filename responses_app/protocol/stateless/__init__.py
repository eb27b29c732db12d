"""Completions, decisions and embeddings: a request and its answer, of which nothing is kept."""
