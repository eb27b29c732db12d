"""Vector stores, their files, and searches."""
