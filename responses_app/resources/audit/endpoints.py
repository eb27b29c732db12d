"""`/v1/organization/audit_logs`: the audit trail. That it is read is recorded in it."""

import re
from collections.abc import Mapping, Sequence

from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, invalid_value
from responses_app.protocol.fields import whole_number
from responses_app.protocol.requests.pages import DEFAULT_LIMIT, MAX_LIMIT
from responses_app.resources.audit.fields import FAMILIES, ID, OWN, Action, AuditLogList, TrailQuery, shown, type_of
from responses_app.web.endpoint import AFTER, LIMIT, Parameter, text
from responses_app.web.http import ApiRequest
from responses_app.web.organization import organization, unix_seconds, who
from responses_app.wiring.site import get_site

_SEVERAL = ("event_types", "actor_ids", "actor_emails", "resource_ids", "project_ids")
_SINGLE = ("after", "before", "limit", "tenant_only")
_BOUNDS = ("gt", "gte", "lt", "lte")


async def _list(request: ApiRequest) -> AuditLogList:
    query = _query_of(request.query)
    audit = get_site().audit
    await audit.record_read(who(request))
    part = await audit.part(query)
    data = [shown(entry, part) for entry in part.entries]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else "",
        "last_id": data[-1]["id"] if data else "",
        "has_more": part.has_more,
    }


def _query_of(query: Mapping[str, Sequence[str]]) -> TrailQuery:
    """Return the part of the trail that a request names. Raises `ApiError`."""
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
        elif (match := re.fullmatch(r"effective_at\[(\w+)\]", name)) and match[1] in _BOUNDS:
            bounds[match[1]] = unix_seconds(name, values[-1])
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
        "GET",
        "/v1/organization/audit_logs",
        _list,
        "list-audit-logs",
        "List entries of the audit trail",
        takes=_TAKES,
    ),
)
