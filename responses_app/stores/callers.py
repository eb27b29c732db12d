"""The contract of what finds callers by their API keys, and what is known of those who come in by a session."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from responses_app.protocol.api_keys import KeyRecord
from responses_app.protocol.rate_limits import LimitedSubject


class BaseKeyStore(ABC):
    """Finds keys by their digests. One object serves one worker process."""

    @abstractmethod
    async def find(self, digests: Sequence[str]) -> Mapping[str, KeyRecord]:
        """Return the keys that are kept under these digests, revoked and expired ones too. Raises `StoreError`."""

    @abstractmethod
    async def get(self, key_id: str) -> KeyRecord | None:
        """Return the key with this id, also if it is revoked or has expired. Raises `StoreError`."""

    @abstractmethod
    async def limits_of_project(self, project: str) -> Sequence[LimitedSubject]:
        """Return whose limits hold for who asks in a project without a key of it. Raises `StoreError`."""

    @abstractmethod
    async def note_use(self, key_ids: Sequence[str], at: float) -> None:
        """Keep when keys were used last, in Unix seconds. Raises `StoreError`."""

    @abstractmethod
    async def has_keys(self) -> bool:
        """Whether there is any key, of any project. Raises `StoreError`."""

    @abstractmethod
    async def make_first(self, secret: str) -> bool:
        """Keep this key for the default project if there is no key at all, of any project; return whether it is kept.

        Of several workers that do so at once, one does. Raises `StoreError`.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""


SIGN_ON_BACKEND = "responses_app.admin.sign_on.backend.SignOnBackend"  # as Django's settings and sessions name it

SCOPES = (  # what the pages need; keys and what they may do are made in the admin
    "api.model.read",
    "api.responses.read",
    "api.responses.write",
    "api.containers.read",
    "api.containers.write",
    "api.files.read",
    "api.files.write",  # what is attached in the playground
    "api.vector_stores.read",
    "api.vector_stores.write",
)


@dataclass(frozen=True, slots=True)
class SessionPass:
    """A session that a page of this server means to come in by, and the project it wants to be in."""

    key: str = field(repr=False)  # of Django's session; a secret
    project: str  # "" for the default one
