"""Roll-outs in Django's database."""
