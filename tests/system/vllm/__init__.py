"""Tests on a real vLLM: only they find a behaviour in which vLLM differs from its double in `tests.kit`."""
