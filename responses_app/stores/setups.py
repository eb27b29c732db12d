"""The contract of what keeps a project's named setups of the playground; `contracts/adapters/test_setups` tests it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from responses_app.protocol.errors import JsonObject
from responses_app.stores.base import StoreError

MAX_SETUPS = 200  # of a project
MAX_TOGETHER = 4 << 20  # characters of JSON of all of a project's, since they are read in one list


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupRecord:
    """A named setup. Times are Unix seconds."""

    id: str  # "pmpt_…"
    name: str  # no two of a project have the same
    setup: JsonObject  # as the page sent it
    created_at: int
    updated_at: int


class TooManySetups(StoreError):
    """A project has as many setups as it may have, or they would be larger than they may be together."""


class BaseSetups(ABC):
    """Keeps setups of projects. Every method raises `StoreError`; one object serves one worker process."""

    @abstractmethod
    async def listed(self, project: str) -> Sequence[SetupRecord]:
        """Return all setups, by their names."""

    @abstractmethod
    async def put(self, project: str, record: SetupRecord) -> SetupRecord:
        """Keep a setup, or replace the one of its name, which keeps its id and `created_at`; return what is kept.

        Raises `TooManySetups`.
        """

    @abstractmethod
    async def delete(self, project: str, setup_id: str) -> bool:
        """Forget a setup; return whether there was one."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
