"""`Forgetting`: what was deleted is unknown at once, wherever it may still be remembered.

That is: among what runs or can be picked up again, in the connections of this process, and in the other workers. It is
for speed and tidiness: whether a stored response can be continued is the store's word in the end (see `ParentGone`).
"""

from collections.abc import Callable, Collection

from responses_app.runs.log.others import OtherWorkers
from responses_app.runs.registry.registry import RunRegistry

Forget = Callable[[Collection[str]], None]

DELETED = "it was deleted"


class Forgetting:
    """One per process."""

    def __init__(self, registry: RunRegistry, *, others: OtherWorkers | None = None) -> None:
        self._registry = registry
        self._others = others
        self._memories: set[Forget] = set()

    def add_memory(self, forget: Forget) -> None:
        """Call `forget` with the ids of what is deleted from now on."""
        self._memories.add(forget)

    def remove_memory(self, forget: Forget) -> None:
        """Call it no more."""
        self._memories.discard(forget)

    async def everywhere(self, response_ids: Collection[str], *, reason: str = DELETED) -> None:
        """Forget responses here, and tell the other workers."""
        if not response_ids:
            return
        self.here(response_ids, reason=reason)
        if self._others is not None and self._others.reaches_others:
            await self._others.ask_to_forget(response_ids)

    def here(self, response_ids: Collection[str], *, reason: str = DELETED) -> None:
        """Forget responses in this process; those that run are cancelled, and nothing is kept of them."""
        gone = frozenset(response_ids)
        for response_id in gone:
            run = self._registry.remembered(response_id)
            if run is not None and run.plan.stored:
                self._registry.forget(run, reason=reason)
        for forget in self._memories:
            forget(gone)
