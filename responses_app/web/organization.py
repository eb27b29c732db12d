"""What the resources of the organization share: their paths, lists, and the project that a path names."""

from functools import partial

from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import invalid_value
from responses_app.protocol.fields import whole_number
from responses_app.protocol.organization import Unchangeable, project_not_found
from responses_app.protocol.requests.pages import ListQuery, parse_list_query
from responses_app.resources.audit.fields import Actor, ActorKind
from responses_app.stores.organization import Part, ProjectRecord
from responses_app.web.endpoint import Endpoint, Refusals
from responses_app.web.http import ApiRequest, or_raise
from responses_app.wiring.site import get_site

PROJECTS = "/v1/organization/projects"
PROJECT = f"{PROJECTS}/{{project_id}}"
MAX_TIME = 32_503_680_000  # the year 3000, in Unix seconds
REFUSALS: Refusals = {Unchangeable: lambda problem, *_: problem.error}

organization = partial(Endpoint, tag="Organization", scope=Area.MANAGEMENT, refusals=REFUSALS)


def page_asked(request: ApiRequest) -> tuple[ListQuery, Part]:
    """Return what part of a list is asked for, and that with one row more, which tells whether there is more."""
    page = parse_list_query(request.query)
    return page, Part(after=page.after, descending=page.descending, limit=page.limit + 1)


async def found_project(project_id: str) -> ProjectRecord:
    """Return a project. Raises `ApiError` (404)."""
    return or_raise(await get_site().organization.project(project_id), project_not_found(project_id))


def who(request: ApiRequest) -> Actor:
    """Return who asks, for the audit trail."""
    key = request.caller.key
    assert key is not None, "the organization's paths always ask for a key"
    return Actor(ActorKind.KEY, id=key.id, name=key.name, address=str(request.META.get("REMOTE_ADDR") or ""))


def unix_seconds(name: str, value: str) -> int:
    """Return the time of a parameter. Raises `ApiError`."""
    seconds = whole_number(value, 0, MAX_TIME)
    if seconds is None:
        raise invalid_value(name, f"{value[:80]!r}. It takes whole Unix seconds.")
    return seconds


def redacted(prefix: str) -> str:
    """Return what a list shows of a key's value."""
    return f"{prefix}..."
