"""The audit trail, `/v1/organization/audit_logs`, as OpenAI's SDK reads it: the newest entries first.

An action has OpenAI's event type where one fits, and else `respsite.` before its own name: no entry is left out. Each
has the field `recorded`, the entry as `respsite audit export` writes it. That the trail is read is recorded in it.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NotRequired, cast

from typing_extensions import TypedDict

from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, invalid_value
from responses_app.protocol.fields import whole_number
from responses_app.protocol.requests.pages import DEFAULT_LIMIT, MAX_LIMIT
from responses_app.stores.audit import Action, ActorKind, TrailPart, TrailQuery
from responses_app.web.endpoint import AFTER, LIMIT, Parameter, text
from responses_app.web.http import ApiRequest
from responses_app.web.organization import organization, who
from responses_app.wiring.site import get_site

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
_SEVERAL = ("event_types", "actor_ids", "actor_emails", "resource_ids", "project_ids")
_SINGLE = ("after", "before", "limit", "tenant_only")
_BOUNDS = ("gt", "gte", "lt", "lte")
_MAX_TIME = 32_503_680_000  # the year 3000, in Unix seconds


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


async def _list(request: ApiRequest) -> AuditLogList:
    query = _asked(request.query)
    audit = get_site().audit
    await audit.record_read(who(request))
    part = await audit.part(query)
    data = [_shown(entry, part) for entry in part.entries]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else "",
        "last_id": data[-1]["id"] if data else "",
        "has_more": part.has_more,
    }


def type_of(action: str) -> str:
    """Return the event type of an action."""
    return next((name for each, name in TYPES.items() if each == action), f"{OWN}{action}")


def _shown(entry: Mapping[str, Any], part: TrailPart) -> AuditLog:
    type_, project = type_of(entry["action"]), str(entry["project"])
    shown: dict[str, object] = {
        "id": f"{ID}{entry['number']}",
        "effective_at": int(datetime.fromisoformat(entry["at"]).timestamp()),
        "type": type_,
        "actor": _actor(entry, part),
        "project": {"id": project, "name": part.names.get(project, project)} if project else None,
        "recorded": dict(entry),
    }
    if not type_.startswith(OWN):
        shown[type_] = {} if type_.startswith("log") else {"id": entry["subject"]}
    return cast(AuditLog, shown)


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


def _asked(query: Mapping[str, Sequence[str]]) -> TrailQuery:
    """Return what is asked for. Raises `ApiError`."""
    several: dict[str, list[str]] = {}
    single: dict[str, str] = {}
    bounds: dict[str, int] = {}
    for name, values in query.items():
        plain = name.removesuffix("[]")
        if any("\0" in value for value in values):
            raise invalid_value(plain[:80], "It has a NUL character.")
        if plain in _SEVERAL:
            several[plain] = [*several.get(plain, ()), *values]
        elif name in _SINGLE:
            single[name] = values[-1]
        elif (found := re.fullmatch(r"effective_at\[(\w+)\]", name)) and found[1] in _BOUNDS:
            bounds[found[1]] = _time(name, values[-1])
        else:
            raise _unknown(name)
    if single.get("tenant_only", "false") != "false":
        raise invalid_value("tenant_only", "This server has no tenants. Leave it out.")
    limit = whole_number(single.get("limit", str(DEFAULT_LIMIT)), 1, MAX_LIMIT)
    if limit is None:
        raise invalid_value("limit", f"{single['limit'][:80]!r}. It takes a whole number from 1 to {MAX_LIMIT}.")
    # Times are told in whole seconds, so that "later than 5" begins with 6.
    since = [bounds[name] + more for name, more in (("gte", 0), ("gt", 1)) if name in bounds]
    until = [bounds[name] + more for name, more in (("lt", 0), ("lte", 1)) if name in bounds]
    return TrailQuery(
        actions=_actions(several["event_types"]) if "event_types" in several else None,
        actors=several.get("actor_ids"),
        emails=several.get("actor_emails"),
        subjects=several.get("resource_ids"),
        projects=several.get("project_ids"),
        since=max(since, default=None),
        until=min(until, default=None),
        after=_number("after", single.get("after")),
        before=_number("before", single.get("before")),
        limit=limit,
    )


def _actions(types: Sequence[str]) -> list[str]:
    by_type: dict[str, str] = {type_of(action): str(action) for action in Action}
    for name in types:
        family, _, event = name.partition(".")
        if name not in by_type and not (family in FAMILIES and re.fullmatch(r"[a-z_.]{1,80}", event)):
            own = ", ".join(by_type)
            raise invalid_value("event_types", f"{name[:80]!r} is not an event type. This server records {own}.")
    return [by_type[name] for name in types if name in by_type]


def _time(name: str, value: str) -> int:
    found = whole_number(value, 0, _MAX_TIME)
    if found is None:
        raise invalid_value(name, f"{value[:80]!r}. It takes whole Unix seconds.")
    return found


def _number(name: str, value: str | None) -> int | None:
    if not value:
        return None
    number = whole_number(value.removeprefix(ID), 1, 2**63 - 1) if value.startswith(ID) else None
    if number is None:
        raise invalid_value(name, f"{value[:80]!r}. It takes the id of an entry, which begins with '{ID}'.")
    return number


def _unknown(name: str) -> ApiError:
    bounds = ", ".join(f"effective_at[{each}]" for each in _BOUNDS)
    return invalid_request(
        f"Unknown parameter: '{name[:80]}'. This path takes {', '.join((*_SEVERAL, *_SINGLE))}, {bounds}.",
        param=name[:80],
        code="unknown_parameter",
    )


_texts: JsonObject = {"type": "array", "items": {"type": "string"}}
_ABOUT = {
    "event_types": f"Only events of these types: OpenAI's, or '{OWN}' and an action of this server.",
    "actor_ids": "Only of these users or keys.",
    "actor_emails": "Only of users with these email addresses.",
    "resource_ids": "Only what was done to these.",
    "project_ids": "Only of these projects.",
}
_times: JsonObject = {
    "type": "object",
    "properties": {name: {"type": "integer", "minimum": 0} for name in _BOUNDS},
    "additionalProperties": False,
}
_TAKES = (
    LIMIT,
    AFTER,
    Parameter("before", "The id of the entry before which the list ends.", text()),
    Parameter("tenant_only", "There are no tenants: only `false` is taken.", {"type": "boolean", "const": False}),
    Parameter("effective_at", "Only events in this time, in Unix seconds.", _times),
    *(Parameter(f"{name}[]", about, _texts) for name, about in _ABOUT.items()),
)

ENDPOINTS = (
    organization(
        *("GET", "/v1/organization/audit_logs", _list, "list-audit-logs", "List entries of the audit trail"),
        takes=_TAKES,
    ),
)
