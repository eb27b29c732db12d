"""Tests on a real llama-server: only they find a behaviour in which it differs from the double in `tests/unit`."""
