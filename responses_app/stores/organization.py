"""What is known of projects and keys by those who manage them; `stores.database.organization` keeps it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRecord:
    """A project. Times are Unix seconds."""

    id: str  # the name that operators and logs know it by
    name: str  # for people; the id where it has no other
    created_at: int
    archived_at: int | None  # from then on its keys open no more; None: they do
    retention_hours: int | None = None  # how long it keeps what it stores: see `protocol.retention`
    monthly_spend_cents: int | None = None  # what it may spend in a month; None: as much as it likes


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedKey:
    """A key that is not revoked: of a project, or an admin key. Times are Unix seconds."""

    id: str
    name: str
    prefix: str  # the beginning of its secret
    created_at: int
    expires_at: int | None  # None: never
    last_used_at: int | None  # to a minute; None: never
    scopes: Sequence[str] = ()  # of a project's key; none: everything but what only keys made for it may


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that was just made."""

    key: ManagedKey
    secret: str  # shown this once


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Which part of a list is asked for, by age."""

    after: str | None  # the id of the row behind which it begins; None: at the beginning
    descending: bool  # the newest first
    limit: int  # how many rows, at most
