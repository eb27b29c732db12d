"""What engines share is loaded once."""

import asyncio

from engine.backends.base import load_vocabulary
from engine.formats.harmony import encoding


async def test_engines_that_start_at_once_load_the_vocabulary_once() -> None:
    encoding._tokenizer.cache_clear()
    await asyncio.gather(*(load_vocabulary() for _ in range(3)))
    assert encoding._tokenizer.cache_info().misses == 1
