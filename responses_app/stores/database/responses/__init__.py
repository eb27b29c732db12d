"""Responses and stored chats, in Django's database."""
