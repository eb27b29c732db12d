"""Vector stores, in Django's database."""
