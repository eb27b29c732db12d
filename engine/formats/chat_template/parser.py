"""`ChatParser`: sampled tokens → items, each with the tokens it was sampled as."""

import codecs
from collections.abc import Callable, Collection, Iterable

from engine.formats.base import (
    ItemEnded,
    ItemKind,
    ItemStarted,
    MessageKind,
    RenderedMessage,
    Text,
    TurnEvent,
    TurnParser,
)
from engine.formats.chat_template.reader import TAGS, BaseReader, Ended, Kind, Read, Said, Started, Whole
from engine.formats.chat_template.records import record
from engine.formats.chat_template.vocabulary import Vocabulary

# The template decides about old reasoning, so the chain keeps it: see `MessageKind`.
KINDS = {
    Kind.REASONING: MessageKind.COMMENTARY,
    Kind.ANSWER: MessageKind.FINAL,
    Kind.CALL: MessageKind.COMMENTARY,
}
_ITEMS = {Kind.REASONING: ItemKind.REASONING, Kind.ANSWER: ItemKind.ANSWER}


def _tags(vocabulary: Vocabulary) -> frozenset[int]:
    """Return the special tokens that the reader is to see."""
    return frozenset(vocabulary.added[tag] for tag in TAGS if tag in vocabulary.added)


class ChatParser(TurnParser):
    """Reads one generation, token by token: so it reads the same however the tokens come.

    `functions` are those that the client has declared; None where calls are forbidden. `make_reader` makes what reads
    the text, given these names, and what tells whether a name may be a tool's.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        functions: Collection[str] | None,
        make_reader: Callable[[Collection[str], Callable[[str], bool]], BaseReader],
    ) -> None:
        self._vocabulary = vocabulary
        self._functions = functions
        self._reader = make_reader(functions or (), self._is_call)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._silent = set() if self._reader.takes_special_tokens else vocabulary.special - _tags(vocabulary)
        self._unread: list[int] = []  # tokens whose text is not whole yet
        self._ended = False
        self._started = Started(Kind.ANSWER)
        self._texts: list[str] = []  # of the open item
        self._tokens: list[int] = []  # that belong to no item which has ended
        self._whole = 0  # tokens up to the end of the open call

    @property
    def repairs(self) -> int:  # type: ignore[override]
        """How many items were malformed."""
        return self._reader.repairs

    def feed(self, token_ids: Iterable[int]) -> list[TurnEvent]:
        events: list[TurnEvent] = []
        for token in token_ids:
            if self._ended:
                break
            self._tokens.append(token)
            if token in self._vocabulary.ends:
                events += self._end(stopped=True)
            elif token not in self._silent:
                self._unread.append(token)
                text = self._decoder.decode(self._vocabulary.token_bytes(token))
                if text:
                    events += self._events(self._reader.feed(text, self._unread))
                    self._unread.clear()
        return events

    def close(self) -> list[TurnEvent]:
        return [] if self._ended else self._end(stopped=False)

    def is_end(self, token: int) -> bool:
        return token in self._vocabulary.ends

    def _end(self, *, stopped: bool) -> list[TurnEvent]:
        self._ended = True
        rest = self._decoder.decode(b"", final=True)
        events = self._events(self._reader.feed(rest)) if rest else []
        return events + self._events(self._reader.end(stopped=stopped))

    def _events(self, read: Iterable[Read]) -> list[TurnEvent]:
        events: list[TurnEvent] = []
        for each in read:
            match each:
                case Said(text):
                    self._texts.append(text)
                    events.append(Text(text))
                case Started():
                    self._started = each
                    self._texts.clear()
                    events.append(self._item())
                case Whole():
                    self._whole = len(self._tokens)
                case Ended():
                    events.append(self._item_ended(each))
        return events

    def _item(self) -> ItemStarted:
        """Decide what an item is: a name that the client has not declared is a tool of the server's, if any."""
        kind, name = self._started.kind, self._started.name
        if kind is not Kind.CALL:
            return ItemStarted(_ITEMS[kind])
        return ItemStarted(ItemKind.CALL if self._is_own(name) else ItemKind.HOSTED_CALL, name)

    def _is_own(self, name: str) -> bool:
        """Whether the client has declared a function of this name."""
        return self._functions is not None and name in self._functions

    def _item_ended(self, ended: Ended) -> ItemEnded:
        """End an item. What stands between it and the next one is the next one's, and the end of the turn its own."""
        kind = self._started.kind
        size = self._whole if self._whole and not ended.is_last else len(self._tokens)
        tokens, self._tokens, self._whole = self._tokens[:size], self._tokens[size:], 0
        said: dict[str, object] = {"is": kind.value, "text": "".join(self._texts)}
        if kind is Kind.CALL:
            said["name"] = self._started.name
            if not self._is_own(self._started.name):
                said["hosted"] = True
        if ended.freeform:
            said["freeform"] = True
        return ItemEnded(
            RenderedMessage(KINDS[kind], record(said, tokens, vocabulary=self._vocabulary.fingerprint)),
            reasoning_tokens=len(tokens) if kind is Kind.REASONING else 0,
            truncated=ended.truncated,
            called=ended.is_last,
        )

    def _is_call(self, name: str) -> bool:
        """Whether a JSON object with this name may be a call: of a declared function, or of a tool of the server's."""
        return self._functions is not None and (bool(self._functions) or "." in name)
