"""How an owner ends its tasks."""

import asyncio
from collections.abc import Iterable
from typing import Any


async def end_tasks(tasks: Iterable["asyncio.Task[Any] | None"]) -> None:
    """Cancel tasks, and return when they have ended; whatever they raise is not raised here."""
    present = [task for task in tasks if task is not None]
    for task in present:
        task.cancel()
    if present:
        await asyncio.wait(present)
