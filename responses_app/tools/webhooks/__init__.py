"""Webhooks are sent."""
