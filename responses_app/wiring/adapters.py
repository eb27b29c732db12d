"""`Adapters`: which adapters a server uses: its stores, its door, and what counts limits. Objects that do I/O.

Models can be imported only where Django has its settings, so each store is imported where it is made.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings
from django.db import DEFAULT_DB_ALIAS

from responses_app.auth.door import Door
from responses_app.auth.keyring import KeyRing
from responses_app.kit.clock import StoreClock
from responses_app.kit.retention import Retentions
from responses_app.kit.threads import DatabaseReaders
from responses_app.limits.ledger import BaseLedger
from responses_app.limits.memory import MemoryLedger
from responses_app.limits.rates import ConnectionLimit, Rates
from responses_app.runs.plan.stores import Stores
from responses_app.runs.spending import Spending
from responses_app.settings.conf import Settings
from responses_app.stores.base import BaseChatStore, BasePictureStore, BaseResponseStore
from responses_app.stores.nothing import NoChatStore, NoPictureStore
from responses_app.wiring.parts import Made, Parts, duty, part
from responses_app.wiring.relay import Relay

if TYPE_CHECKING:
    from responses_app.resources.audit.store import AuditTrail
    from responses_app.resources.batches.store import Batches
    from responses_app.resources.conversations.store import Conversations
    from responses_app.resources.files.store import Files, Uploads
    from responses_app.resources.projects.store import Projects
    from responses_app.resources.rollouts.store import RolloutStore
    from responses_app.resources.skills.store import Skills
    from responses_app.resources.usage.store import UsageStore
    from responses_app.resources.webhooks.store import Webhooks
    from responses_app.stores.approvals import ApprovalStore
    from responses_app.stores.database.transfer.retention import DatabaseRetentions
    from responses_app.stores.database.words import DatabaseWords
    from responses_app.stores.engines import EngineStore
    from responses_app.stores.idempotency import IdempotencyStore
    from responses_app.stores.redis_turns import RedisTurns


class Adapters(Parts):
    """The adapters of one process, all of whose times are those of `clock`; nothing is started."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings  # all of them; each room knows its own part only
        self.clock = StoreClock()
        self.retentions = Retentions()  # of projects, as this process knows them
        self._timeout = settings.database_timeout_seconds

    # What workers share, through the Redis of CHANNEL_LAYERS if there is one: it has no other setting.

    @property
    def _redis_host(self) -> Mapping[str, Any] | None:
        hosts = django_settings.CHANNEL_LAYERS["default"].get("CONFIG", {}).get("hosts") or ()
        return next(iter(hosts), None)

    @part
    def ledger(self) -> BaseLedger:  # counts all that is limited
        if (host := self._redis_host) is None:
            return MemoryLedger()
        from responses_app.limits.redis import RedisLedger

        return RedisLedger(lambda: _redis(host))

    @part
    def shared_turns(self) -> "RedisTurns | None":  # without Redis each worker knows its own turns only
        if (host := self._redis_host) is None:
            return None
        from responses_app.stores.redis_turns import RedisTurns

        return RedisTurns(lambda: _redis(host))

    @duty
    def relay(self) -> Relay:  # to the other workers
        return Relay()

    @part
    def connection_limit(self) -> ConnectionLimit:  # of open WebSockets, of all workers together
        return ConnectionLimit(self.ledger, self.settings.max_websocket_connections)

    @part
    def rates(self) -> Rates:  # the limits of keys and projects
        return Rates(self.ledger, self.spending.check)

    @duty
    def spending(self) -> Spending:  # what those have spent who may not spend more than so much
        prices, currency = self.settings.prices, self.settings.prices_currency
        limit_of_all = self.projects.organization_spend_limit
        return Spending(self.usage.sums, limit_of_all, prices=prices, currency=currency, now=self.clock)

    # Stores. Each has threads of its own, so that a slow one keeps nobody else waiting; those that are asked seldom
    # share some. The connections are of all of them together.

    @part
    def shared(self) -> DatabaseReaders:
        return DatabaseReaders(DEFAULT_DB_ALIAS, timeout=self._timeout).held()

    @part
    def polls(self) -> DatabaseReaders:
        """What workers ask every second is asked together, on one thread that nothing else keeps busy."""
        return DatabaseReaders(DEFAULT_DB_ALIAS, timeout=self._timeout, urgent=True).held()

    @part
    def stores(self) -> Stores:
        return Stores(
            self.store,
            self.chat_store,
            self.conversations,
            self.files,
            self.approvals,
            self.pictures,
            self.rollout_store,
        )

    @part
    def store(self) -> BaseResponseStore:  # of responses; with RESPONSES_STORE=off none is kept or found
        if not self.settings.responses_store:
            from responses_app.stores.database.responses.workers import WorkersAlone

            return WorkersAlone(timeout=self._timeout, now=self.clock)
        from responses_app.stores.database.responses.store import DatabaseResponseStore

        return DatabaseResponseStore(
            settings=self.settings,
            clock=self.clock,
            timeout=self._timeout,
            keeper=self.rollout_store.keeper,
            retentions=self.retentions,
            polls=self.polls,
        )

    @part
    def chat_store(self) -> BaseChatStore:
        if not self.settings.responses_store:
            return NoChatStore()
        from responses_app.stores.database.responses.chats import DatabaseChatStore

        return self._own(DatabaseChatStore)

    @part
    def pictures(self) -> BasePictureStore:
        if not self.settings.responses_store:
            return NoPictureStore()
        from responses_app.stores.database.pictures import DatabasePictureStore

        return DatabasePictureStore(timeout=self._timeout, now=self.clock)

    @part
    def rollout_store(self) -> "RolloutStore":
        from responses_app.resources.rollouts.store import RolloutStore

        return self._own(RolloutStore)

    @part
    def approvals(self) -> "ApprovalStore":
        from responses_app.stores.approvals import ApprovalStore

        return ApprovalStore(timeout=self._timeout, now=self.clock)

    @part
    def conversations(self) -> "Conversations":
        from responses_app.resources.conversations.store import Conversations

        return self._own(Conversations)

    @part
    def files(self) -> "Files":
        from responses_app.resources.files.store import Files

        return self._own(Files)

    @part
    def uploads(self) -> "Uploads":  # of files that come in parts
        from responses_app.resources.files.store import Uploads

        return self._own(Uploads)

    @part
    def skills(self) -> "Skills":
        from responses_app.resources.skills.store import Skills

        return self._own(Skills, bounds=self.settings)

    @part
    def idempotency_store(self) -> "IdempotencyStore":
        from responses_app.stores.idempotency import IdempotencyStore

        return self._own(IdempotencyStore)

    @part
    def batches(self) -> "Batches":
        from responses_app.resources.batches.store import Batches

        return self._own(Batches, polls=self.polls)

    @part
    def webhooks(self) -> "Webhooks":  # endpoints, and what is sent to them
        from responses_app.resources.webhooks.store import Webhooks

        return Webhooks(settings=self.settings, now=self.clock, timeout=self._timeout, polls=self.polls)

    @part
    def usage(self) -> "UsageStore":  # what was used, and when
        from responses_app.resources.usage.store import UsageStore

        return UsageStore(now=self.clock, shared=self.shared)

    @part
    def projects(self) -> "Projects":  # projects and their keys, for who manages them
        from responses_app.resources.projects.store import Projects

        return Projects(now=self.clock, shared=self.shared)

    @part
    def audit(self) -> "AuditTrail":  # of what users of the admin do over the API
        from responses_app.resources.audit.store import AuditTrail

        return AuditTrail(shared=self.shared)

    @part
    def engine_store(self) -> "EngineStore":  # what trainers have done to engines
        from responses_app.stores.engines import EngineStore

        return EngineStore(shared=self.shared, polls=self.polls)

    @part
    def words(self) -> "DatabaseWords":  # the index that the admin searches
        from responses_app.stores.database.words import DatabaseWords

        return DatabaseWords(shared=self.shared, polls=self.polls)

    @part
    def retention_store(self) -> "DatabaseRetentions":  # how long projects keep things, as it is set
        from responses_app.stores.database.transfer.retention import DatabaseRetentions

        return DatabaseRetentions(shared=self.shared, polls=self.polls)

    @part
    def door(self) -> Door:  # who may come in
        from responses_app.resources.projects.callers import KeyStore, Staff

        keys = KeyRing(KeyStore(timeout=self._timeout), now=self.clock)
        staff, exposed = Staff(shared=self.shared), self.settings.serves_others
        # Lines that are JSON are for programs, which keep them.
        return Door(self.settings.auth, keys, staff, is_exposed=exposed, shows_first=self.settings.log_format == "line")

    def _own(self, store: Callable[..., Made], **more: object) -> Made:
        """Return a store with threads of its own."""
        own = {"settings": self.settings, "now": self.clock, "timeout": self._timeout, "retentions": self.retentions}
        return store(**own, **more)


def _redis(host: Mapping[str, Any]) -> Any:
    from redis.asyncio import Redis

    options = {name: value for name, value in host.items() if name != "address"}
    return Redis.from_url(host["address"], **options)
