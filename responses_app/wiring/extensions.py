"""`ExtensionWork`: what extensions do in a worker beside its requests."""

import asyncio
import logging
from contextlib import AsyncExitStack

from responses_app.kit.duty import keep_looking
from responses_app.kit.extension import extensions

logger = logging.getLogger("respsite.extensions")

ENDING_SECONDS = 2.0  # that duties may take to end, and then what was entered: a stop goes on without them


class ExtensionWork:
    """Enters what each extension wants entered, and does its duties until the worker stops."""

    def __init__(self) -> None:
        self._ends = asyncio.Event()
        self._serving: list[asyncio.Task[None]] = []  # one at most: libraries want to be left by the task that entered
        self._duties: list[asyncio.Task[None]] = []

    async def start(self, site: object) -> None:
        """Begin. Raises `SystemExit` where an extension does not start: a worker that lacks one does not serve."""
        entered = asyncio.get_running_loop().create_future()
        self._serving = [asyncio.create_task(self._serve(site, entered), name="extensions")]
        await entered

    async def aclose(self) -> None:
        """End the duties, then leave what was entered. What fails there, or takes long, holds up no other part.

        Safe to call twice.
        """
        for duty in self._duties:
            duty.cancel()
        await self._ended(self._duties)
        self._ends.set()
        await self._ended(self._serving)

    async def _serve(self, site: object, entered: "asyncio.Future[None]") -> None:
        try:
            async with AsyncExitStack() as stack:
                for extension in extensions():
                    await stack.enter_async_context(extension.serving(site))
                duties = [duty for extension in extensions() for duty in extension.duties(site)]
                self._duties = [
                    keep_looking(duty.look, asyncio.Event(), seconds=duty.seconds, what=duty.name, logger=logger)
                    for duty in duties
                ]
                entered.set_result(None)
                await self._ends.wait()
        except Exception as error:
            logger.exception("extensions did not %s", "end cleanly" if entered.done() else "start")
            if not entered.done():
                entered.set_exception(SystemExit(f"respsite: an extension does not start: {error}"))

    async def _ended(self, tasks: "list[asyncio.Task[None]]") -> None:
        if tasks and (late := (await asyncio.wait(tasks, timeout=ENDING_SECONDS))[1]):
            names = ", ".join(sorted(task.get_name() for task in late))
            logger.warning("extensions have not ended within %g s: %s", ENDING_SECONDS, names)
