"""A connection limit for a server of one process."""

from responses_app.limits.base import BaseConnectionLimit


class MemoryConnectionLimit(BaseConnectionLimit):
    """Count in this process alone: several workers would allow `limit` connections each."""

    async def acquire(self) -> bool:
        """Take a slot at once or not at all."""
        return self._accepts() and self._take()

    async def total(self) -> int:
        """Count this process's open connections."""
        return self._open
