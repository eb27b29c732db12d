"""The contract of a tool that the server runs inside a response."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from responses_app.protocol.builders import HostedBuilder


class ToolFailed(Exception):
    """The tool cannot give what it was asked for; the text is what the model reads, and may reach the client."""


class BaseTool(ABC):
    """One tool. `name` is what the model calls, `kind` the `type` by which a request's `tools` ask for it.

    A call may take `timeout` seconds.

    `idempotent`: a call that was under way when its worker died may be made again.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    timeout: float = 60.0
    idempotent: bool = False

    @abstractmethod
    def builder(self, new_id: Callable[[str], str]) -> HostedBuilder:
        """Return what writes the call's item."""

    @abstractmethod
    async def call(self, arguments: str) -> str:
        """Run it, and return what the model reads of the result. Raises `ToolFailed`; cancelling it ends its work."""
