"""The contract of what finds users of the admin by their sessions; `auth.sessions` reads those of a request."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from responses_app.protocol.api_keys import Caller

SCOPES = (  # what the pages need; keys and what they may do are made in the admin
    "api.model.read",
    "api.responses.read",
    "api.responses.write",
    "api.containers.read",
    "api.files.read",
    "api.vector_stores.read",
)


@dataclass(frozen=True, slots=True)
class SessionPass:
    """A session that a page of this server means to come in by, and the project it wants to be in."""

    key: str = field(repr=False)
    project: str


class BaseStaff(ABC):
    """Finds out who a session is. One object serves one worker process."""

    @abstractmethod
    async def caller(self, given: SessionPass) -> Caller | None:
        """Return who comes in by a session, None where it opens nothing: it is over, or its user may not.

        Raises `ApiError` (403) for a project that the user may not choose, and `StoreError`.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
