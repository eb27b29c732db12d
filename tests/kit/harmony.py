"""Harmony as its library has it, the oracle of our tokens and renderings; and our parser of it without items.

The product takes only the vocabulary of oss-harmony.
"""

from collections.abc import Iterable
from functools import lru_cache

from openai_harmony import HarmonyEncoding, HarmonyEncodingName, load_harmony_encoding

from engine.formats.base import Text
from engine.formats.harmony.parser import HarmonyParser, Header, MessageCompleted

HarmonyEvent = Header | Text | MessageCompleted


@lru_cache(maxsize=1)
def harmony_encoding() -> HarmonyEncoding:
    """Return the library's encoding, loaded once a process."""
    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


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
