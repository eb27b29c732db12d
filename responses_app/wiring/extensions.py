"""`ExtensionWork`: what extensions do in a worker beside its requests."""

import asyncio
import logging
from contextlib import AsyncExitStack

from responses_app.kit.duty import end_tasks, keep_looking
from responses_app.kit.extension import extensions

logger = logging.getLogger("respsite.extensions")


class ExtensionWork:
    """Enters what each extension wants entered, and does its duties until the worker stops."""

    def __init__(self) -> None:
        self._entered = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, site: object) -> None:
        """Begin. Raises what an extension raises: a worker that lacks one does not serve."""
        for extension in extensions():
            await self._entered.enter_async_context(extension.serving(site))
            self._tasks += [
                keep_looking(duty.look, asyncio.Event(), seconds=duty.seconds, what=duty.name, logger=logger)
                for duty in extension.duties(site)
            ]

    async def aclose(self) -> None:
        """End the duties, then leave what was entered. Safe to call twice."""
        await end_tasks(self._tasks)
        await self._entered.aclose()
