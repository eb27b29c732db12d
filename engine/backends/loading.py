"""Loads what several engines of a process share."""

import asyncio
import threading

from engine.formats.harmony.encoding import load_encoding

_loading = threading.Lock()  # two threads that miss a cache at once would both do the work


async def load_vocabulary() -> None:
    """Load Harmony's vocabulary, on a thread: 0.7 s the first time in a process, and nothing later.

    A model and its embeddings start beside each other: the second waits for what the first loads.
    """
    await asyncio.to_thread(_load)


def _load() -> None:
    with _loading:
        load_encoding()
