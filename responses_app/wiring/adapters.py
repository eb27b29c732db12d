"""Which adapters a server uses: its stores, its door, and what counts limits. Settings → objects that do I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from responses_app.resources.batches.records import BaseBatchStore
from responses_app.runs.spending import Spending
from responses_app.settings.conf import Settings
from responses_app.stores.engines import BaseEngineStore
from responses_app.stores.idempotency import BaseIdempotencyStore
from responses_app.stores.nothing import NoChatStore, NoKeptChats, NoPictureStore
from responses_app.stores.stores import BaseSharedTurns, Stores

if TYPE_CHECKING:
    from responses_app.resources.audit.store import AuditTrail
    from responses_app.resources.setups.store import Setups
    from responses_app.resources.skills.store import Skills
    from responses_app.resources.usage.store import UsageStore
    from responses_app.resources.webhooks.store import Webhooks
    from responses_app.stores.database.files.uploads import DatabaseUploads
    from responses_app.stores.database.organization import DatabaseOrganization
    from responses_app.stores.database.transfer.retention import DatabaseRetentions
    from responses_app.stores.database.words import DatabaseWords


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """The adapters of one process."""

    stores: Stores  # of responses, conversations, files and approvals
    uploads: "DatabaseUploads"  # of files that come in parts
    idempotency: BaseIdempotencyStore  # of keys
    batches: BaseBatchStore
    engines: BaseEngineStore  # what trainers have done to them
    setups: "Setups"  # of the playground, under names
    usage: "UsageStore"  # what was used, and when
    skills: "Skills"
    webhooks: "Webhooks"  # endpoints, and what is sent to them
    organization: "DatabaseOrganization"  # projects and their keys, for who manages them
    door: Door  # who may come in
    ledger: BaseLedger  # counts all that is limited
    connection_limit: ConnectionLimit  # of open WebSockets, of all workers together
    rates: Rates  # the limits of keys and projects
    spending: Spending  # what those have spent who may not spend more than so much
    audit: "AuditTrail"  # of what users of the admin do over the API
    words: "DatabaseWords"  # the index that the admin searches
    retentions: Retentions  # of projects, as this process knows them
    retention_store: "DatabaseRetentions"  # as they are set
    shared_turns: BaseSharedTurns | None  # None without Redis: then each worker knows its own turns only


def build_adapters(settings: Settings, clock: StoreClock) -> Adapters:
    """Build them; nothing is started."""
    hosts: Sequence[Mapping[str, Any]] = django_settings.CHANNEL_LAYERS["default"].get("CONFIG", {}).get("hosts") or ()
    # The Redis of CHANNEL_LAYERS is the one that counts limits, too: there is no other setting for it.
    host = next(iter(hosts), None)
    # Each store has threads of its own, so that a slow one keeps nobody else waiting; those that are asked seldom share
    # some. The connections are of all of them together.
    shared = DatabaseReaders(DEFAULT_DB_ALIAS, timeout=settings.database_timeout_seconds)
    # What workers ask every second is asked together, on one thread that nothing else keeps busy.
    polls = DatabaseReaders(DEFAULT_DB_ALIAS, timeout=settings.database_timeout_seconds, urgent=True)
    ledger, usage, organization = _ledger(host), _usage(clock, shared), _organization(clock, shared)
    limit_of_all = organization.organization_spend_limit
    spending = Spending(usage.sums, limit_of_all, prices=settings.prices, currency=settings.prices_currency, now=clock)
    retentions = Retentions()
    return Adapters(
        stores=_stores(settings, clock, retentions, polls),
        uploads=_uploads(settings, clock, retentions),
        idempotency=_idempotency(settings, clock, retentions),
        batches=_batches(settings, clock, retentions, polls),
        engines=_engines(shared, polls),
        setups=_setups(clock, retentions, shared),
        skills=_skills(settings, clock, retentions),
        usage=usage,
        webhooks=_webhooks(settings, clock, polls),
        organization=organization,
        door=_door(settings, clock, shared),
        ledger=ledger,
        connection_limit=ConnectionLimit(ledger, settings.max_websocket_connections),
        rates=Rates(ledger, spending.check),
        spending=spending,
        audit=_audit(shared),
        words=_words(shared, polls),
        retentions=retentions,
        retention_store=_retention_store(shared, polls),
        shared_turns=_shared_turns(host),
    )


def _retention_store(shared: DatabaseReaders, polls: DatabaseReaders) -> "DatabaseRetentions":
    from responses_app.stores.database.transfer.retention import DatabaseRetentions

    return DatabaseRetentions(shared=shared, polls=polls)


def _stores(settings: Settings, clock: StoreClock, retentions: Retentions, polls: DatabaseReaders) -> Stores:
    """Return the stores; with RESPONSES_STORE=off no response is kept or found, and conversations stay."""
    from responses_app.stores.database.approvals import DatabaseApprovalStore
    from responses_app.stores.database.conversations import DatabaseConversationStore
    from responses_app.stores.database.files.files import DatabaseFileStore
    from responses_app.stores.database.pictures import DatabasePictureStore
    from responses_app.stores.database.responses.chats import DatabaseChatStore
    from responses_app.stores.database.responses.kept_chats import DatabaseKeptChats
    from responses_app.stores.database.responses.store import DatabaseResponseStore
    from responses_app.stores.database.responses.workers import WorkersAlone
    from responses_app.stores.database.rollouts.store import DatabaseRollouts

    timeout = settings.database_timeout_seconds
    rollouts = DatabaseRollouts(settings=settings, now=clock, timeout=timeout, retentions=retentions)
    conversations = DatabaseConversationStore(
        max_entries=settings.conversations_max_entries, timeout=timeout, now=clock, retentions=retentions
    )
    files = DatabaseFileStore(settings=settings, now=clock, timeout=timeout, retentions=retentions)
    approvals = DatabaseApprovalStore(timeout=timeout, now=clock)
    if not settings.responses_store:
        none = WorkersAlone(timeout=timeout, now=clock), NoChatStore(), NoKeptChats()
        return Stores(*none, conversations, files, approvals, NoPictureStore(), rollouts)
    responses = DatabaseResponseStore(
        settings=settings, clock=clock, timeout=timeout, keeper=rollouts.keeper, retentions=retentions, polls=polls
    )
    chats = DatabaseChatStore(settings=settings, now=clock, timeout=timeout, retentions=retentions)
    kept_chats = DatabaseKeptChats(settings=settings, now=clock, timeout=timeout, retentions=retentions)
    pictures = DatabasePictureStore(timeout=timeout, now=clock)
    return Stores(responses, chats, kept_chats, conversations, files, approvals, pictures, rollouts)


def _uploads(settings: Settings, clock: StoreClock, retentions: Retentions) -> "DatabaseUploads":
    from responses_app.stores.database.files.uploads import DatabaseUploads

    return DatabaseUploads(
        settings=settings, now=clock, timeout=settings.database_timeout_seconds, retentions=retentions
    )


def _idempotency(settings: Settings, clock: StoreClock, retentions: Retentions) -> BaseIdempotencyStore:
    from responses_app.stores.database.idempotency import DatabaseIdempotencyStore

    return DatabaseIdempotencyStore(
        settings=settings, now=clock, timeout=settings.database_timeout_seconds, retentions=retentions
    )


def _batches(settings: Settings, clock: StoreClock, retentions: Retentions, polls: DatabaseReaders) -> BaseBatchStore:
    from responses_app.resources.batches.store import DatabaseBatches

    timeout = settings.database_timeout_seconds
    return DatabaseBatches(settings=settings, now=clock, timeout=timeout, retentions=retentions, polls=polls)


def _engines(shared: DatabaseReaders, polls: DatabaseReaders) -> BaseEngineStore:
    from responses_app.stores.database.engines import DatabaseEngines

    return DatabaseEngines(shared=shared, polls=polls)


def _setups(clock: StoreClock, retentions: Retentions, shared: DatabaseReaders) -> "Setups":
    from responses_app.resources.setups.store import Setups

    return Setups(now=clock, retentions=retentions, shared=shared)


def _skills(settings: Settings, clock: StoreClock, retentions: Retentions) -> "Skills":
    from responses_app.resources.skills.store import Skills

    return Skills(
        settings, settings=settings, now=clock, timeout=settings.database_timeout_seconds, retentions=retentions
    )


def _usage(clock: StoreClock, shared: DatabaseReaders) -> "UsageStore":
    from responses_app.resources.usage.store import UsageStore

    return UsageStore(now=clock, shared=shared)


def _words(shared: DatabaseReaders, polls: DatabaseReaders) -> "DatabaseWords":
    from responses_app.stores.database.words import DatabaseWords

    return DatabaseWords(shared=shared, polls=polls)


def _webhooks(settings: Settings, clock: StoreClock, polls: DatabaseReaders) -> "Webhooks":
    from responses_app.resources.webhooks.store import Webhooks

    timeout = settings.database_timeout_seconds
    return Webhooks(settings=settings, now=clock, timeout=timeout, polls=polls)


def _organization(clock: StoreClock, shared: DatabaseReaders) -> "DatabaseOrganization":
    from responses_app.stores.database.organization import DatabaseOrganization

    return DatabaseOrganization(now=clock, shared=shared)


def _door(settings: Settings, clock: StoreClock, shared: DatabaseReaders) -> Door:
    from responses_app.stores.database.callers import DatabaseKeyStore, DatabaseStaff

    keys = KeyRing(DatabaseKeyStore(timeout=settings.database_timeout_seconds), now=clock)
    staff = DatabaseStaff(shared=shared)
    # Lines that are JSON are for programs, which keep them.
    shows = settings.log_format == "line"
    return Door(settings.auth, keys, staff, is_exposed=settings.serves_others, shows_first=shows)


def _audit(shared: DatabaseReaders) -> "AuditTrail":
    from responses_app.resources.audit.store import AuditTrail

    return AuditTrail(shared=shared)


def _ledger(host: Mapping[str, Any] | None) -> BaseLedger:
    if host is None:
        return MemoryLedger()
    from responses_app.limits.redis import RedisLedger

    return RedisLedger(lambda: _redis(host))


def _shared_turns(host: Mapping[str, Any] | None) -> BaseSharedTurns | None:
    if host is None:
        return None
    from responses_app.stores.redis_turns import RedisTurns

    return RedisTurns(lambda: _redis(host))


def _redis(host: Mapping[str, Any]) -> Any:
    from redis.asyncio import Redis

    options = {name: value for name, value in host.items() if name != "address"}
    return Redis.from_url(host["address"], **options)
