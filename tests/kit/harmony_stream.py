"""`HarmonyStream`: Harmony's parser with its messages as they are, before it is decided which items they are."""

from collections.abc import Iterable

from engine.formats.base import Text
from engine.formats.harmony.parser import HarmonyParser, Header, MessageCompleted

HarmonyEvent = Header | Text | MessageCompleted


class HarmonyStream(HarmonyParser):
    """Reads one generation. Feed it chunks of any size; the events do not depend on how the tokens were cut."""

    def __init__(self) -> None:
        super().__init__(None)

    def feed(self, token_ids: Iterable[int]) -> list[HarmonyEvent]:  # type: ignore[override]
        return super().feed(token_ids)  # type: ignore[return-value]

    def close(self) -> list[HarmonyEvent]:  # type: ignore[override]
        return super().close()  # type: ignore[return-value]

    def _started(self, header: Header) -> Header:  # type: ignore[override]
        return header

    def _ended(self, completed: MessageCompleted) -> MessageCompleted:  # type: ignore[override]
        return completed
