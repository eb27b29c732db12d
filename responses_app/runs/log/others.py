"""What a worker can say to the others; the relay does it."""

from collections.abc import Collection
from typing import Protocol

from responses_app.protocol.errors import JsonObject


class OtherWorkers(Protocol):
    """What reaches the other workers."""

    @property
    def reaches_others(self) -> bool:
        """Whether there is a way to them."""

    async def ask_to_cancel(self, response_id: str) -> bool:
        """Tell them to cancel a response; return whether the word went out."""

    async def ask_to_take(self, told: JsonObject) -> JsonObject | None:
        """Give them an output of a tool; return what the one that runs its response says, None where none answers."""

    async def ask_to_follow(self, response_id: str) -> bool:
        """Tell them that somebody here follows a response of theirs; return whether the word went out."""

    async def ask_to_forget(self, response_ids: Collection[str]) -> bool:
        """Tell them that responses were deleted; return whether the word went out."""

    async def tell_followers(self, response_ids: Collection[str]) -> bool:
        """Tell them that there is more of these responses in the store; return whether the word went out."""
