"""The contract of a response store; `tests/contracts/store.py` runs over every one."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from responses_app.protocol.chain import ChainLink
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items import SampledItem


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A finished response as it is kept.

    `response` is the object its terminal event carried. `link` is its part of the chain, None for one that cannot be
    continued. `sampled` are the output items with their tokens, so that a client may replay them.
    """

    project: str
    response: JsonObject
    link: ChainLink | None
    input_items: tuple[JsonObject, ...] = ()
    sampled: tuple[SampledItem, ...] = ()


class StoreError(Exception):
    """The store could not keep or find something, for a reason of its own; the text is for logs."""


class BaseResponseStore(ABC):
    """Keeps responses. What `save` returned from survives the process; everything is seen per project."""

    async def start(self) -> None:  # noqa: B027 - most stores have nothing to start
        """Get ready. Raises `StoreError`."""

    async def aclose(self) -> None:  # noqa: B027
        """Finish what was asked and let go of everything. Safe to call twice."""

    @abstractmethod
    async def save(self, stored: StoredResponse) -> None:
        """Keep a finished response; it is committed when this returns. Raises `StoreError`."""

    @abstractmethod
    async def chain(self, project: str, response_id: str) -> ChainLink | None:
        """Return the chain that ends in this response, None if it is unknown or cannot be continued."""

    @abstractmethod
    async def sampled_items(self, project: str, item_ids: Collection[str]) -> Mapping[str, SampledItem]:
        """Return what is known of these output items, by id; ids that are not known are left out."""

    @abstractmethod
    async def check(self) -> str | None:
        """Return None if the store can be used, else one sentence that says what to do (a migration to apply)."""
