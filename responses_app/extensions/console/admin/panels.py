"""The tables of the dashboard beside its charts: errors, the slowest responses, engines, and the stores.

Each costs the same whatever there is: it looks at the newest few, or stops to count.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, QuerySet, TextField
from django.db.models.functions import Cast

from responses_app.extensions.console.watch.text import in_bytes, milliseconds, response_link, visible
from responses_app.kit.extension import extensions
from responses_app.limits.suspects import Stage
from responses_app.models import Response
from responses_app.protocol.requests.resources import Status

if TYPE_CHECKING:
    from responses_app.wiring.site import Site

logger = logging.getLogger("respsite.admin")

MAX_FAILED = 200  # failed responses whose errors are read: the newest
MAX_ERROR_BYTES = 256 << 10  # of a response whose error is read
MAX_SLOWEST = 8
MAX_SUSPECTS = 20  # that are shown
MAX_ROWS = 100_000  # of a table of SQLite that are counted; PostgreSQL estimates all of them
STORES: Mapping[str, Sequence[str]] = {  # what is kept, by the tables that hold it: rows are counted in the first
    "responses": ("response", "chainpart", "sampleditem", "logpart", "publicname", "chatchoice"),
    "search of the admin": ("responsewords", "wordstoread"),
    "conversations": ("conversation", "conversationitem"),
    "files": ("storedfile", "filepart", "upload", "uploadpart"),
    "vector stores": ("vectorstorechunk", "vectorstorefile", "vectorstorevector", "vectorstorecodes"),
    "images": ("picture", "pictureuse"),
    "batches": ("batch", "batchline"),
    "roll-outs": ("rollout",),
    "webhooks": ("webhookdelivery", "webhookevent"),
    "usage": ("usage",),
    "audit trail": ("auditrow",),
}


@dataclass(frozen=True, slots=True)
class Errors:
    """Why responses have failed."""

    codes: Sequence[tuple[str, int]]  # the most frequent first
    looked_at: int  # failed responses
    is_full: bool  # there are older ones, which were not looked at


def errors(rows: "QuerySet[Response]") -> Errors:
    """Return the error codes of the newest failed ones of these responses."""
    failed = rows.filter(status=Status.FAILED.value).order_by("-created_at")
    ids = list(failed.values_list("pk", flat=True)[: MAX_FAILED + 1])
    bodies = Response.objects.filter(pk__in=ids[:MAX_FAILED], size__lte=MAX_ERROR_BYTES)
    counted = Counter(_code(text) for text in bodies.values_list(Cast("body", TextField()), flat=True))
    looked_at = counted.total()
    if unread := min(len(ids), MAX_FAILED) - looked_at:
        counted["too large to be read"] += unread
    return Errors(counted.most_common(), min(len(ids), MAX_FAILED), is_full=len(ids) > MAX_FAILED)


def _code(body: str) -> str:
    try:
        error = json.loads(body).get("error")
    except (ValueError, AttributeError, RecursionError):
        return "cannot be read"
    code = error.get("code") if isinstance(error, dict) else None
    return visible(code)[:60] if isinstance(code, str) and code else "no code"


@dataclass(frozen=True, slots=True)
class Slow:
    """A response that took long, as the page shows it."""

    link: str
    shown_model: str
    shown_project: str
    shown_output: str
    shown_duration: str


def slowest(rows: "QuerySet[Response]") -> list[Slow]:
    """Return those of these responses that took longest."""
    known = rows.exclude(duration_ms=None).order_by(F("duration_ms").desc())
    # The index of the lists has when and how long, but not the id: to read every row would take five times as long.
    longest = known.filter(created_at__in=known.values("created_at")[:MAX_SLOWEST])
    columns = longest.values_list("pk", "model", "project", "output_tokens", "duration_ms")
    return [
        Slow(response_link(pk), visible(model), visible(project), f"{output:,}", milliseconds(duration))
        for pk, model, project, output, duration in columns[:MAX_SLOWEST]
    ]


@dataclass(frozen=True, slots=True)
class EngineRow:
    """An engine, as this worker sees it."""

    model: str
    state: str  # "ok", or what is the matter
    waiting: int  # turns that wait for it

    @property
    def is_ok(self) -> bool:
        """Whether it takes requests."""
        return self.state == "ok"


@dataclass(frozen=True, slots=True)
class Here:
    """What this worker says of itself: others have queues and engines of their own."""

    engines: Sequence[EngineRow] = ()
    background: int = 0  # responses in the background that wait
    figures: Mapping[str, str] = field(default_factory=dict)  # of extensions, by the words in front of them
    suspects: Sequence["SuspectRow"] = ()  # of all workers of its supervisor


@dataclass(frozen=True, slots=True)
class SuspectRow:
    """A request that was running when a worker died."""

    name: str
    project: str
    state: str
    left: str  # how long it stays so


def here(site: "Site") -> Here:
    """Ask the worker that serves the page."""

    async def ask() -> Mapping[str, str]:
        return await site.engines.troubles()

    troubles = async_to_sync(ask)()
    waiting = {model.name: model.turns.waiting.total() for model in site.service.models}
    engines = [EngineRow(visible(name), troubles.get(name) or "ok", waiting.get(name, 0)) for name in site.engines]
    return Here(engines, site.registry.queue.waiting, _figures(site), _suspects(site))


def _figures(site: "Site") -> dict[str, str]:
    """Return what extensions say of the worker; of one that fails, nothing: the rest of the page is shown."""
    figures: dict[str, str] = {}
    for extension in extensions():
        try:
            figures |= extension.figures(site)
        except Exception:
            logger.exception("the extension %r did not give its figures of the dashboard", extension.label)
    return figures


def _suspects(site: "Site") -> list[SuspectRow]:
    now = time.monotonic()
    found = sorted(site.service.running.table.suspects(now), key=lambda each: (-each.stage, -each.until))
    return [
        SuspectRow(
            each.name.hex(),
            visible(each.project),
            "refused: two workers died of it" if each.stage is Stage.CONDEMNED else "ran when a worker died",
            f"{ceil((each.until - now) / 60)} min",
        )
        for each in found[:MAX_SUSPECTS]
    ]


@dataclass(frozen=True, slots=True)
class StoredAmount:
    """How much of something is stored."""

    name: str
    rows: str
    bytes: str  # "" where the database does not say


def stores(connection: BaseDatabaseWrapper) -> tuple[list[StoredAmount], str]:
    """Return what is stored, and how large the database is."""
    return _on_postgres(connection) if connection.vendor == "postgresql" else _on_sqlite(connection)


def _on_postgres(connection: BaseDatabaseWrapper) -> tuple[list[StoredAmount], str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname, GREATEST(reltuples, 0)::bigint, pg_total_relation_size(oid) FROM pg_class "
            "WHERE relkind = 'r' AND relname LIKE 'responses_app_%' AND relnamespace = current_schema()::regnamespace"
        )
        sizes = {name.removeprefix("responses_app_"): (rows, size) for name, rows, size in cursor.fetchall()}
        cursor.execute("SELECT pg_database_size(current_database())")
        whole = int(cursor.fetchone()[0])
    kept = []
    for name, tables in STORES.items():
        size = sum(sizes.get(table, (0, 0))[1] for table in tables)
        rows = sizes.get(tables[0], (0, 0))[0]
        kept.append(StoredAmount(name, f"about {rows:,}" if rows else "few", in_bytes(size)))
    return kept, in_bytes(whole)


def _on_sqlite(connection: BaseDatabaseWrapper) -> tuple[list[StoredAmount], str]:
    counts = [
        f"(SELECT COUNT(*) FROM (SELECT 1 FROM responses_app_{tables[0]} LIMIT {MAX_ROWS + 1}) some)"
        for tables in STORES.values()
    ]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(counts)}")
        rows: Sequence[Any] = cursor.fetchone()
        cursor.execute("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
        whole = int(cursor.fetchone()[0])
    shown = (f"more than {MAX_ROWS:,}" if count > MAX_ROWS else f"{count:,}" for count in rows)
    return [StoredAmount(name, count, "") for name, count in zip(STORES, shown, strict=True)], in_bytes(whole)
