"""Batches: requests that are run behind all else; those of OpenAI's API and of Anthropic's."""
