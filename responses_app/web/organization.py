"""What the endpoints of the organization share: who asks, and times."""

from functools import partial

from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import invalid_value
from responses_app.protocol.fields import whole_number
from responses_app.resources.audit.fields import Actor, ActorKind
from responses_app.web.endpoint import Endpoint
from responses_app.web.http import ApiRequest

MAX_TIME = 32_503_680_000  # the year 3000, in Unix seconds

organization = partial(Endpoint, tag="Organization", scope=Area.MANAGEMENT)


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
