"""The contract of stores of webhooks and their deliveries; `tests/contracts/adapters/test_webhooks.py` is its suite.

Events come in with the transactions of what they tell, which are other stores' (`stores.database.webhooks.outbox`).
`dispatch` makes of each event a delivery for every endpoint that wants it. An endpoint is served by one worker at a
time: `claim` gives it for a while with messages that are due, of each object the oldest alone, and `settle` takes what
came of them. So the messages of an object arrive in order, and a worker that dies is replaced when its time is over.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from responses_app.kit.errors import StoreError
from responses_app.protocol.setting import RoomSettings, seconds, setting, whole
from responses_app.protocol.webhooks import EndpointStatus, EventName


@dataclass(frozen=True, kw_only=True)
class WebhookSettings(RoomSettings):
    """How much is kept of webhooks, and for how long."""

    webhook_endpoints_max: int = setting(10, whole(), "webhook endpoints that one project may have; 0 = none")
    webhook_max_waiting: int = setting(
        20_000, whole(1),
        "events that may wait for one webhook endpoint, parked ones included; further ones are not sent to it, "
        "and counted in the admin",
    )  # fmt: skip
    webhook_retry_seconds: float = setting(
        259_200.0, seconds(1), "how long a webhook event is sent again to a receiver that fails; then it is parked"
    )
    webhook_kept_seconds: float = setting(
        86_400.0, seconds(0),
        "how long delivered webhook events are kept, so that the admin can show them; parked ones are kept for 30 "
        "days",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRecord:
    """An endpoint. Times are Unix seconds."""

    id: str  # "we_…"
    project: str
    name: str
    url: str
    event_types: Sequence[EventName]
    created_at: int
    updated_at: int  # when it was configured, or its secret rotated
    secret: str = field(repr=False)  # sealed
    secret_hint: str
    old_secret: str = field(default="", repr=False)  # sealed; "" where none is good beside `secret`
    status: EndpointStatus = "enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointChanges:
    """What is to be changed of an endpoint; None leaves it."""

    name: str | None = None
    url: str | None = None
    event_types: Sequence[EventName] | None = None
    status: EndpointStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSecret:
    """A secret that replaces another."""

    sealed: str = field(repr=False)
    hint: str
    keep_old_seconds: float = 0.0  # how long the old one stays good; 0: it is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class DueMessage:
    """A message that is to be sent now."""

    key: int  # of its row
    event_id: str
    body: str  # the JSON that is sent
    attempts: int  # that were made before


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """An endpoint that this worker serves, and what is due there."""

    endpoint: EndpointRecord
    due: Sequence[DueMessage]
    failures: int  # how often in a row nothing arrived there


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of sending a message."""

    key: int  # of its row
    status_code: int | None  # of the answer; None for none
    problem: str = ""  # why it counts as failed; "" for a message that arrived
    pause: float = 0.0  # seconds until the next attempt of one that failed


class EndpointsFull(StoreError):
    """A project has as many endpoints as it may have."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the project has {most} webhook endpoints already")
        self.most = most


class BaseWebhooks(ABC):
    """Keeps endpoints of projects, and what is sent to them. Every method raises `StoreError`."""

    @abstractmethod
    async def create(self, record: EndpointRecord) -> None:
        """Keep a new endpoint. Raises `EndpointsFull`."""

    @abstractmethod
    async def get(self, project: str, endpoint_id: str) -> EndpointRecord | None:
        """Return an endpoint."""

    @abstractmethod
    async def listed(
        self, project: str, *, after: str | None, descending: bool, limit: int
    ) -> Sequence[EndpointRecord]:
        """Return up to `limit` endpoints by their age, behind `after`, which may be gone."""

    @abstractmethod
    async def update(self, project: str, endpoint_id: str, changes: EndpointChanges) -> EndpointRecord | None:
        """Change an endpoint; its `updated_at` only where something is another then. None for no such endpoint."""

    @abstractmethod
    async def rotate(self, project: str, endpoint_id: str, secret: NewSecret) -> EndpointRecord | None:
        """Give an endpoint another secret."""

    @abstractmethod
    async def delete(self, project: str, endpoint_id: str) -> bool:
        """Forget an endpoint, and all that waits for it; return whether there was one."""

    @abstractmethod
    async def has_work(self) -> bool:
        """Return whether there may be anything for `dispatch` or `claim`."""

    @abstractmethod
    async def dispatch(self) -> bool:
        """Make deliveries of events; return whether there may be more. One worker does so at a time."""

    @abstractmethod
    async def claim(self, worker: str, *, lease_seconds: float, most: int, without: Collection[str]) -> Claimed | None:
        """Return an endpoint that nobody serves, with up to `most` messages that are due; it is this worker's now.

        Who waits longest is next. `without` are projects of which this worker serves as many as it may.
        """

    @abstractmethod
    async def settle(self, claimed: Claimed, attempts: Sequence[Attempt], *, worker: str, pause: float) -> None:
        """Keep what came of messages, and let go of their endpoint; nothing is sent there for `pause` seconds.

        What arrived has arrived, whoever serves the endpoint by now. What failed counts only for who serves it.
        """

    @abstractmethod
    async def purge(self) -> int:
        """Forget what was delivered or parked long ago; return how many there were of it in this step."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
