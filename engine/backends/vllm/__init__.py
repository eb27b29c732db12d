"""Engines of vLLM: in this process, on a core that workers share, or on servers of their own."""
