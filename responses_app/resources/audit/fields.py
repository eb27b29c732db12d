"""The audit trail: who did what. `Action` names all that is recorded, each with a line that people read.

No entry holds text of a user or of a model: only names, ids, numbers and addresses. As OpenAI's SDK reads the trail, an
action has OpenAI's event type where one fits, and else `respsite.` before its own name: no entry is left out. Each has
the field `recorded`, the entry as `respsite audit export` writes it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, NotRequired, cast

from typing_extensions import TypedDict

from responses_app.protocol.errors import ApiError, JsonObject


class Action(StrEnum):
    """An action that is recorded. `about` is the sentence that the docs and the admin show."""

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
    """The kind of an actor."""

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


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One thing that was done."""

    actor: Actor
    action: Action
    subject: str = ""  # the id or name of what it was done to
    project: str = ""  # whose that is; "" where it is no project's
    detail: Mapping[str, object] = field(default_factory=dict)  # small JSON, without any content

    def columns(self) -> dict[str, str]:
        """Return the columns of text, but for the detail."""
        actor = self.actor
        return {
            "action": self.action,
            "actor_kind": actor.kind,
            "actor_id": actor.id,
            "actor_name": actor.name,
            "project": self.project,
            "subject": self.subject,
            "address": actor.address,
        }


NO_HASH = "0" * 64  # stands before the first entry


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
    """A part of the trail, the newest entries first. Each of the sequences leaves out all others, None nothing.

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
    """The entries of a part of the trail, and the names of whose they are."""

    entries: Sequence[Mapping[str, object]]  # as they are exported
    emails: Mapping[str, str]  # of users that have one, by their ids
    names: Mapping[str, str]  # of projects that are there, by their ids
    has_more: bool


class AuditUnavailable(ApiError):
    """An action cannot be recorded, so it is not done (503)."""

    def __init__(self) -> None:
        super().__init__(
            "This cannot be recorded in the audit trail now, so it was not done. Try again in a moment; if it happens "
            "again, the operator should check the database.",
            status=503,
            type="server_error",
            code="audit_unavailable",
            retry_after=2,
        )


def microseconds(at: datetime) -> int:
    """Return a time as whole Unix microseconds, which every database keeps."""
    return int(at.replace(microsecond=0).timestamp()) * 1_000_000 + at.microsecond


def hashed_time(at: object) -> object:
    """Return a time as it was hashed; SQLite has text, and somebody may have put anything there."""
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at).replace(tzinfo=UTC)
        except ValueError:
            return at
    return microseconds(at) if isinstance(at, datetime) else str(at)


def as_json(row: Mapping[str, Any]) -> JsonObject:
    """Return an entry as it is exported; `row` is by columns."""
    at = hashed_time(row["created_at"])
    return {
        "number": row["number"],
        "at": datetime.fromtimestamp(at / 1e6, UTC).isoformat() if isinstance(at, int) else at,
        "action": row["action"],
        "actor": {"kind": row["actor_kind"], "id": row["actor_id"], "name": row["actor_name"]},
        "address": row["address"],
        "project": row["project"],
        "subject": row["subject"],
        "detail": detail_of(row["detail"]),
        "hash": row["hash"],
    }


def detail_of(text: object) -> object:
    """Return the detail of a row; as it stands where somebody has made no JSON of it."""
    try:
        return json.loads(str(text))
    except ValueError:
        return str(text)


OWN = "respsite."  # stands before the name of an action for which OpenAI has no event type
ID = "audit_log-"  # and the number of an entry
TYPES: Mapping[Action, str] = {
    Action.SIGNED_IN: "login.succeeded",
    Action.SIGN_IN_FAILED: "login.failed",
    Action.SIGNED_OUT: "logout.succeeded",
    Action.KEY_CREATED: "api_key.created",
    Action.KEY_CHANGED: "api_key.updated",
    Action.KEY_REVOKED: "api_key.deleted",
    Action.PROJECT_CREATED: "project.created",
    Action.PROJECT_CHANGED: "project.updated",
    Action.PROJECT_ARCHIVED: "project.archived",
    Action.LIMITS_CHANGED: "rate_limit.updated",
}
# The first words of OpenAI's event types. Those of which nothing is recorded here find nothing.
FAMILIES = (
    *("api_key", "certificate", "certificates", "checkpoint", "external_key", "external_storage", "group", "invite"),
    *("ip_allowlist", "login", "logout", "organization", "project", "rate_limit", "resource", "role", "scim"),
    *("service_account", "tenant", "tunnel", "user", "workload_identity_provider"),
    "workload_identity_provider_mapping",
)


class AuditLogUser(TypedDict):
    """A user of the admin."""

    id: str
    email: str | None


class AuditLogSession(TypedDict):
    """The session of a user of the admin; without a user one that did not come about."""

    user: AuditLogUser | None
    ip_address: str | None


class AuditLogKey(TypedDict):
    """An admin key."""

    id: str
    type: Literal["user"]


class AuditLogActor(TypedDict):
    """Who did it."""

    type: Literal["session", "api_key"]
    session: NotRequired[AuditLogSession]
    api_key: NotRequired[AuditLogKey]


class AuditLogProject(TypedDict):
    """The project that it was about."""

    id: str
    name: str


class AuditLogSubject(TypedDict):
    """What it was done to."""

    id: str


# The names of the details of an event are those of its type, which no class can have.
AuditLog = TypedDict(
    "AuditLog",
    {
        "id": str,
        "effective_at": int,
        "type": str,
        "actor": AuditLogActor | None,
        "project": AuditLogProject | None,
        "recorded": JsonObject,
        "api_key.created": NotRequired[AuditLogSubject],
        "api_key.updated": NotRequired[AuditLogSubject],
        "api_key.deleted": NotRequired[AuditLogSubject],
        "project.created": NotRequired[AuditLogSubject],
        "project.updated": NotRequired[AuditLogSubject],
        "project.archived": NotRequired[AuditLogSubject],
        "rate_limit.updated": NotRequired[AuditLogSubject],
        "login.succeeded": NotRequired[JsonObject],
        "login.failed": NotRequired[JsonObject],
        "logout.succeeded": NotRequired[JsonObject],
    },
)


class AuditLogList(TypedDict):
    """A part of the audit trail. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[AuditLog]
    first_id: str
    last_id: str
    has_more: bool


def type_of(action: str) -> str:
    """Return the event type of an action."""
    return next((name for each, name in TYPES.items() if each == action), f"{OWN}{action}")


def shown(entry: Mapping[str, Any], part: TrailPart) -> AuditLog:
    """Return an entry of a part of the trail as clients see it."""
    type_, project = type_of(entry["action"]), str(entry["project"])
    log: dict[str, object] = {
        "id": f"{ID}{entry['number']}",
        "effective_at": int(datetime.fromisoformat(entry["at"]).timestamp()),
        "type": type_,
        "actor": _actor(entry, part),
        "project": {"id": project, "name": part.names.get(project, project)} if project else None,
        "recorded": dict(entry),
    }
    if not type_.startswith(OWN):
        log[type_] = {} if type_.startswith("log") else {"id": entry["subject"]}
    return cast(AuditLog, log)


def _actor(entry: Mapping[str, Any], part: TrailPart) -> AuditLogActor | None:
    """Return who did it; None for a command and the server itself, which `recorded` names."""
    actor = entry["actor"]
    if actor["kind"] == ActorKind.KEY:
        return {"type": "api_key", "api_key": {"id": actor["id"], "type": "user"}}
    if actor["kind"] not in (ActorKind.USER, ActorKind.NOBODY):
        return None
    is_user = actor["kind"] == ActorKind.USER
    user: AuditLogUser | None = {"id": actor["id"], "email": part.emails.get(actor["id"])} if is_user else None
    return {"type": "session", "session": {"user": user, "ip_address": entry["address"] or None}}
