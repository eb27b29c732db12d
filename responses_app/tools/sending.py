"""The contract of what sends messages of webhooks: `tools.webhooks.sender` does so, and `runs.webhooks` calls it.

It is not beside the sender, since `runs` imports no folder inside of `tools`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from responses_app.stores.webhooks import EndpointRecord


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of an attempt."""

    status_code: int | None  # of the answer; None for none
    problem: str = ""  # why it did not arrive; "" where it did


class BaseWebhookSender(ABC):
    """Sends messages to receivers."""

    seconds: float  # that an attempt takes at most

    @abstractmethod
    async def send(self, endpoint: EndpointRecord, event_id: str, body: str, *, at: float) -> Sent:
        """Send a message. `at` is the Unix time; raises nothing that is the receiver's doing."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close all connections. Safe to call twice."""
