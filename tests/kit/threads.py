"""Counterparts of tools that run in a thread of their own, for tests that share them."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from threading import Thread
from typing import TypeVar

Running = TypeVar("Running")


@contextmanager
def in_a_thread(server: AbstractAsyncContextManager[Running]) -> Iterator[Running]:
    """Run it on an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(30)
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(30)
    finally:
        asyncio.run_coroutine_threadsafe(_let_nothing_wait(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _let_nothing_wait() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
