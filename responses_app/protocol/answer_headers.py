"""The headers that every answer of the API has, whatever it says: OpenAI's, and Azure's where a region is set."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

REQUEST_ID, ORGANIZATION, VERSION = "x-request-id", "openai-organization", "openai-version"
API_VERSIONS = "v1"  # Azure's name for this API
_PRINTABLE = re.compile(r"[\x20-\x7e]{1,128}")


def is_printable(given: str) -> bool:
    """Whether a client's own text may be echoed in a header: if it is printable and short."""
    return _PRINTABLE.fullmatch(given) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHeaders:
    """`organization` and `version` are told where the client names none; empty ones are not. `new_id` makes ids."""

    new_id: Callable[[], str]
    organization: str = ""
    version: str = ""
    azure_region: str = ""

    def request_id(self, given: Mapping[str, str]) -> str:
        """Return the id of a request with these headers: its client's own, or a new one."""
        own = given.get(REQUEST_ID, "")
        return own if own and is_printable(own) else self.new_id()

    def of(self, given: Mapping[str, str], request_id: str, *, seconds: float = 0.0) -> dict[str, str]:
        """Return the headers of the answer to a request that had these, and took so long until its answer began."""
        headers = {REQUEST_ID: request_id, "openai-processing-ms": str(round(seconds * 1000))}
        for name, default in ((ORGANIZATION, self.organization), (VERSION, self.version)):
            own = given.get(name, "")
            value = own if own and is_printable(own) else default
            if value:
                headers[name] = value
        if self.azure_region:
            headers["x-ms-region"] = self.azure_region
            headers["x-ms-request-id"] = request_id
            headers["api-supported-versions"] = API_VERSIONS
        return headers
