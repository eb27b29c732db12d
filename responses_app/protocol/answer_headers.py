"""The headers that every answer of the API has, whatever it says: OpenAI's, and Azure's where a region is set."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from responses_app.protocol.setting import RoomSettings, setting

REQUEST_ID, ORGANIZATION, VERSION = "x-request-id", "openai-organization", "openai-version"
API_VERSIONS = "v1"  # Azure's name for this API
_PRINTABLE = re.compile(r"[\x20-\x7e]{1,128}")


def is_printable(given: str) -> bool:
    """Whether a client's own text may be echoed in a header: if it is printable and short."""
    return _PRINTABLE.fullmatch(given) is not None


def header_value(value: str) -> str:
    """What an HTTP header can say."""
    if not is_printable(value):
        raise ValueError("up to 128 printable ASCII characters")
    return value


@dataclass(frozen=True, kw_only=True)
class HeaderSettings(RoomSettings):
    """The settings of headers that every answer has."""

    default_openai_organization: str = setting(
        "", header_value,
        "the header `openai-organization` of answers, where the request has none",
        default_text="unset",
    )  # fmt: skip
    default_openai_version: str = setting(
        "", header_value, "the header `openai-version` of answers, where the request has none", default_text="unset"
    )
    azure_region: str = setting(
        "", header_value,
        "answer with Azure's headers, too: this value as `x-ms-region`, and `x-ms-request-id`",
        default_text="unset",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class AnswerHeaders:
    """The headers as `settings` want them. `new_id` makes ids of requests."""

    settings: HeaderSettings
    new_id: Callable[[], str]

    def request_id(self, given: Mapping[str, str]) -> str:
        """Return the id of a request with these headers: its client's own, or a new one."""
        own = given.get(REQUEST_ID, "")
        return own if own and is_printable(own) else self.new_id()

    def of(self, given: Mapping[str, str], request_id: str, *, seconds: float = 0.0) -> dict[str, str]:
        """Return the headers of the answer to a request that had these, and took so long until its answer began."""
        headers = {REQUEST_ID: request_id, "openai-processing-ms": str(round(seconds * 1000))}
        settings = self.settings
        defaults = ((ORGANIZATION, settings.default_openai_organization), (VERSION, settings.default_openai_version))
        for name, default in defaults:
            own = given.get(name, "")
            value = own if own and is_printable(own) else default
            if value:
                headers[name] = value
        if settings.azure_region:
            headers["x-ms-region"] = settings.azure_region
            headers["x-ms-request-id"] = request_id
            headers["api-supported-versions"] = API_VERSIONS
        return headers
