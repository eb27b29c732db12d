"""What embeds for file search: its contract, its settings, and what is told of its outages."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from responses_app.protocol.setting import RoomSettings, seconds, setting, text, whole

logger = logging.getLogger("respsite.tools")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between attempts, while the model does not answer
OFF = "off"


@dataclass(frozen=True, kw_only=True)
class MeaningSettings(RoomSettings):
    """Whether file search uses an embedding model, and how long that may take."""

    file_search_embedding_model: str = setting(
        "", text,
        "the embedding model that file search uses, by the name that clients know; `off`: words alone are searched "
        "(see File search)",
        default_text="the first embedding model that is not the demo's",
    )  # fmt: skip
    file_search_query_seconds: float = setting(
        2.0, seconds(0.01), "how long a search may wait for the vector of its query; then words alone are searched"
    )
    file_search_embedding_seconds: float = setting(
        60.0, seconds(0.1),
        "how long the embedding model may take for some chunks of a file, after waiting as long for its turn; the "
        "chunks of a worker that died are another's after twice this time and 10 s",
    )  # fmt: skip
    file_search_embedding_at_once: int = setting(
        1, whole(1, 64), "files whose chunks a worker embeds at once, in the background"
    )


class EmbedderFailed(Exception):
    """The model does not answer, or not with what can be used; the message says why, for the log."""


class TextRefused(Exception):
    """The model does not take a text: it is too long for it."""


class BaseEmbedder(ABC):
    """One embedding model, as file search uses it."""

    @property
    @abstractmethod
    def model(self) -> str | None:
        """What its vectors are kept under: its name and how long they are; None until it has started."""

    @property
    @abstractmethod
    def dimensions(self) -> int:
        """How long its vectors are; known once it has started."""

    @abstractmethod
    async def embed(
        self, texts: Sequence[str], project: str, *, behind_all: bool, seconds: float
    ) -> Sequence[Sequence[float]]:
        """Return a vector of `dimensions` numbers for each text.

        It waits for a turn of the engine at most `seconds`, and as long for the answer. `behind_all`: as the lines of
        batches do. Raises `EmbedderFailed`, and `TextRefused` for a text that is too long.
        """


class Outage:
    """When the model is not asked, since it failed; each outage is logged once, each failure counted."""

    def __init__(self, purpose: str, count: Callable[[], None], *, now: Callable[[], float]) -> None:
        """Begin without one. `purpose` says in the log what is not possible meanwhile."""
        self._purpose = purpose
        self._count = count
        self._now = now
        self._until = 0.0  # by `now`
        self.pause = 0.0  # seconds, until the next attempt; 0 without an outage

    @property
    def holds(self) -> bool:
        """Whether it is too early to try again."""
        return self.pause > 0 and self._now() < self._until

    def failed(self, reason: str) -> None:
        """Note a failure: the pause until the next attempt grows."""
        self._count()
        if not self.pause:
            logger.warning("%s: the embedding model failed: %s", self._purpose, reason)
        self.pause = min(LONGEST_PAUSE, 2 * self.pause) or FIRST_PAUSE
        self._until = self._now() + self.pause

    def worked(self) -> None:
        """Note that it answers."""
        if self.pause:
            self.pause = 0.0
            logger.info("%s: the embedding model answers again", self._purpose)
