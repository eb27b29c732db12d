"""Files and uploads, in Django's database."""
