"""The audit trail: what is recorded of who did what; `Action` names it all, each with a line that people read.

The trail is a chain: each entry has the hash of itself and of the entry before, and nothing of this server changes or
removes one. No entry holds text of a user or of a model: only names, ids, numbers and addresses.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock

from engine import orjson
from responses_app.protocol.errors import ApiError


class Action(StrEnum):
    """What is recorded. `about` is the sentence that the docs and the admin show."""

    about: str

    def __new__(cls, value: str, about: str) -> "Action":
        """Make one of its name and its sentence."""
        action = str.__new__(cls, value)
        action._value_, action.about = value, about
        return action

    SIGNED_IN = "signed_in", "A user signed in to the admin or the playground."
    SIGNED_OUT = "signed_out", "A user signed out."
    SIGN_IN_FAILED = (
        "sign_in_failed",
        "Somebody failed to sign in. The subject is the user name that was tried. "
        "Attempts while it is locked are not recorded one by one.",
    )
    CONTENT_VIEWED = (
        "content_viewed",
        "A signed-in user was shown content: a response, a conversation, a roll-out, a list with first words, "
        "titles or names of files; in the admin, on a watch page, or in the playground.",
    )
    CONTENT_SEARCHED = (
        "content_searched",
        "A signed-in user searches what was asked and answered, in the list of responses. The entry has the "
        "filters and the number found, not the words.",
    )
    CONTENT_EXPORTED = (
        "content_exported",
        "Content was downloaded in the admin, or written to a file by `respsite export` or `forget --export`.",
    )
    CONTENT_IMPORTED = "content_imported", "`respsite import` began to read a file. The subject is its name."
    CONTENT_DELETED = (
        "content_deleted",
        "A signed-in user deleted content. Recorded before it is done; if it then fails over the API, a second entry "
        "has the status of the answer as `failed`.",
    )
    CONTENT_PURGED = "content_purged", "`purge_responses` removed what is past its time. Recorded before it is done."
    RESPONSE_CANCELLED = "response_cancelled", "A response that runs was to be cancelled, by a user in the admin."
    PROJECT_FORGOTTEN = "project_forgotten", "`forget` erased a project, or what one key asked for."
    KEY_CREATED = "key_created", "An API key was created. The subject is its id."
    KEY_CHANGED = "key_changed", "An API key was given another name, other scopes or another end."
    KEY_REVOKED = "key_revoked", "An API key was revoked."
    PROJECT_CREATED = "project_created", "A project was created."
    PROJECT_CHANGED = "project_changed", "A project was given another name."
    PROJECT_ARCHIVED = "project_archived", "A project was archived, and its keys were revoked."
    RETENTION_CHANGED = "retention_changed", "How long a project keeps what it stores was changed."
    LIMITS_CHANGED = "limits_changed", "Limits of a project, a key or all projects together were changed."
    WEBHOOK_CHANGED = "webhook_changed", "A webhook endpoint was enabled or disabled, or deliveries were sent again."
    ROLES_CHANGED = "roles_changed", "A user who signed in has other roles now. The detail has them, and those before."
    ADMIN_CHANGED = "admin_changed", "Something else was changed in the admin: a user, a group, permissions."
    AUDIT_EXPORTED = "audit_exported", "The audit trail was exported, or read with an admin key."


class ActorKind(StrEnum):
    """What kind of actor did it."""

    USER = "user"  # of the admin, signed in
    KEY = "key"  # an admin key, over the API
    COMMAND = "command"  # of the command line; its name is that of the operating system's user
    SERVER = "server"  # by itself, such as the first key
    NOBODY = "nobody"  # who is not signed in: a failed attempt


@dataclass(frozen=True, slots=True)
class Actor:
    """Who did it."""

    kind: ActorKind
    id: str = ""  # of a user or a key
    name: str = ""
    address: str = ""  # from which they came, as far as it is known


SERVER = Actor(ActorKind.SERVER)
Detail = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What is recorded of one thing that was done."""

    actor: Actor
    action: Action
    subject: str = ""  # the id or name of what it was done to
    project: str = ""  # whose that is; "" where it is no project's
    detail: Detail = field(default_factory=dict)  # small JSON, without any content


@dataclass(frozen=True, slots=True)
class Head:
    """The last entry of a trail: its number and its hash. All before it is bound by it."""

    number: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"

    @classmethod
    def parsed(cls, text: str) -> "Head":
        """Read one as `verify` prints it. Raises `ValueError`."""
        number, _, digest = text.strip().partition(":")
        if not (number.isascii() and number.isdigit() and len(number) < 19 and len(digest) == len(NO_HASH)):
            raise ValueError(text)
        int(digest, 16)
        return cls(int(number), digest.lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class TrailQuery:
    """Which entries are wanted, the newest first. Each of the sequences leaves out all others; None leaves out nothing.

    Times are Unix seconds.
    """

    actions: Sequence[str] | None = None
    actors: Sequence[str] | None = None  # ids of users and keys
    emails: Sequence[str] | None = None  # of users
    subjects: Sequence[str] | None = None
    projects: Sequence[str] | None = None
    since: int | None = None  # inclusive
    until: int | None = None  # exclusive
    after: int | None = None  # the number of an entry: the list goes on behind it, with older ones
    before: int | None = None  # the same: the list ends before it
    limit: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TrailPart:
    """A part of the trail."""

    entries: Sequence[Mapping[str, object]]  # as they are exported
    emails: Mapping[str, str]  # of users that have one, by their ids
    names: Mapping[str, str]  # of projects that are there, by their ids
    has_more: bool


NO_HASH = "0" * 64  # stands before the first entry


def hash_of(before: str, fields: Sequence[object]) -> str:
    """Return the hash of an entry with these fields, behind one with the hash `before`."""
    return hashlib.sha256(orjson.dumps([before, *fields])).hexdigest()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verification found."""

    entries: int  # that were read
    head: Head  # the last of them
    problems: Sequence[str] = ()  # the first `MAX_PROBLEMS`, in their order
    has_more: bool = False  # problems


MAX_PROBLEMS = 20


class AuditUnavailable(ApiError):
    """What is to be recorded cannot be, so it is not done (503)."""

    def __init__(self) -> None:
        super().__init__(
            "This cannot be recorded in the audit trail now, so it was not done. Try again in a moment; if it happens "
            "again, the operator should check the database.",
            status=503,
            type="server_error",
            code="audit_unavailable",
            retry_after=2,
        )


VIEW_SECONDS = 600.0  # for which a view of the same thing in the same session is the same view
MAX_VIEWS = 10_000  # that a process remembers; the oldest go


class RecentViews:
    """The views that were recorded lately, so that a live page that is polled is recorded once in a while."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._views: OrderedDict[tuple[str, str], float] = OrderedDict()  # by session and subject; the oldest first
        self._lock = Lock()  # views are recorded by many threads

    def has(self, session: str, subject: str) -> bool:
        """Whether this was recorded lately."""
        with self._lock:
            at = self._views.get((session, subject))
        return at is not None and self._now() - at < VIEW_SECONDS

    def add(self, session: str, subject: str) -> None:
        """Remember what was recorded."""
        with self._lock:
            self._views.pop((session, subject), None)
            self._views[session, subject] = self._now()
            while len(self._views) > MAX_VIEWS:
                self._views.popitem(last=False)
