"""`web_search` as requests declare it."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from responses_app.protocol.errors import JsonObject, invalid_request
from responses_app.protocol.fields import ClientModel, ToolModel
from responses_app.protocol.validation import validate

MAX_DOMAINS = 100
_MAX_PLACE = 200  # characters

_Place = Annotated[str, StringConstraints(max_length=_MAX_PLACE)]


class _Filters(ClientModel):
    """Which pages may be found and opened."""

    allowed_domains: list[str] | None = Field(default=None, max_length=MAX_DOMAINS)


class _UserLocation(ClientModel):
    """About where the user is."""

    type: Literal["approximate"] | None = None
    city: _Place | None = None
    region: _Place | None = None
    country: _Place | None = None
    timezone: _Place | None = None


class WebSearch(ToolModel):
    """The tool; fields that only other versions have are accepted and echoed."""

    filters: _Filters | None = None
    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: _UserLocation | None = None
    external_web_access: bool | None = None

    idle: ClassVar = {
        "search_content_types": "A search gives text.",
    }
    told: ClassVar = ("search_content_types",)


def echoed_search(tool: JsonObject, at: str) -> JsonObject:
    """Validate a web search as a tool of a request; return it as it is echoed. Raises `ApiError`."""
    search = validate(WebSearch, tool, at=at)
    domains = (search.filters.allowed_domains if search.filters else None) or ()
    for index, domain in enumerate(domains):
        if not domain or any(each in domain for each in "/: @\n"):
            param = f"{at}.filters.allowed_domains[{index}]"
            raise invalid_request(
                f"Invalid value for '{param}': it is a domain without 'https://' and without a path, like example.com.",
                param=param,
                code="invalid_value",
            )
    return tool
