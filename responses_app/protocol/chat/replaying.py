"""What of a replayed chat the model has said itself: it reads that again as the tokens that it sampled.

Chat Completions has no ids of responses or items, and clients send the whole history with every request. But they give
back what the assistant said, with the ids of its calls, which were made here and cannot be guessed. So a message is
known by its calls (their ids, names and arguments, in order), or, where it has none, by its text:

    message with calls    all that was sampled for it: its thoughts too, which few clients give back
    message of text       its text as it was sampled, without thoughts: the same text may be said in other chats;
                          nothing, where its text is not that of one answer alone (preambles are text, too)

A message that its client has changed is rendered as it is now. It is not changed where its text or its thoughts are
left out, or where the arguments of its calls, which are JSON, are spelled otherwise, or say more that is null or false.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any

import orjson

from engine.formats.base import MessageKind, RenderedMessage, as_tokens
from responses_app.protocol.chat.messages import AssistantMessage, ChatText, content_of, reasoning_of
from responses_app.protocol.chat.request import ChatRequest
from responses_app.protocol.items.calls import canonical
from responses_app.protocol.items.items import Exact, Message, ParsedItem, SampledInput
from responses_app.protocol.prompt.sealed_items import from_planes, in_planes

_DIGEST_BYTES = 16  # 128 bits: nobody finds a text of the same digest


@dataclass(frozen=True, slots=True)
class KnownTurn:
    """What is known of a message of the assistant."""

    text: bytes  # a digest
    thought: bytes  # a digest
    exact: Exact  # what it was sampled as

    def as_bytes(self) -> bytes:
        """Write it, for `from_bytes`: the 4-byte length of a JSON array, that array, and the tokens in planes."""
        tokens = as_tokens()
        for message in self.exact.messages:
            tokens.extend(message.tokens)
        kinds = "".join(message.kind.value for message in self.exact.messages)
        lengths = [len(message.tokens) for message in self.exact.messages]
        planes = in_planes(tokens)
        head = orjson.dumps([self.exact.format, kinds, lengths, len(planes), self.text.hex(), self.thought.hex()])
        return b"".join((len(head).to_bytes(4, "big"), head, *planes))

    @classmethod
    def from_bytes(cls, data: bytes) -> "KnownTurn":
        """Read what `as_bytes` wrote. Raises `ValueError` for what another version wrote."""
        begin = 4 + int.from_bytes(data[:4], "big")
        name, kinds, lengths, planes, text, thought = orjson.loads(data[4:begin])
        tokens = from_planes(data[begin:], planes)
        bounds = pairwise(accumulate(lengths, initial=0))
        messages = tuple(
            RenderedMessage(MessageKind(kind), tokens[first:last])
            for kind, (first, last) in zip(kinds, bounds, strict=True)
        )
        return cls(bytes.fromhex(text), bytes.fromhex(thought), Exact(name, messages))


@dataclass(frozen=True, slots=True)
class SeenTurn:
    """What a client sees of a message of the assistant."""

    text: str
    thought: str
    calls: tuple[tuple[str, str, str], ...]  # id, name, and arguments or input
    key: bytes | None = field(init=False)  # what the message is known by; None where it says nothing
    digests: tuple[bytes, bytes] = field(init=False)  # of its text and its thought

    def __post_init__(self) -> None:
        """Compute the key and the digests, once: what they are of may be long."""
        object.__setattr__(self, "digests", (_digest(self.text), _digest(self.thought)))
        object.__setattr__(self, "key", _digest(self.calls or self.text) if self.calls or self.text else None)

    @classmethod
    def of_message(cls, message: AssistantMessage) -> "SeenTurn":
        """Return what a client gives back; nothing where there is more than text and calls, which is not remembered."""
        has_refused = message.refusal or any(not isinstance(part, ChatText) for part in message.content or ())
        if message.function_call is not None or has_refused:
            return cls("", "", ())
        calls = []
        for call in message.tool_calls or ():
            if call.custom is not None and call.type == "custom":
                calls.append((call.id, call.custom.name, call.custom.input))
            elif call.function is not None:
                calls.append((call.id, call.function.name, canonical(call.function.arguments)))
        return cls(content_of(message), reasoning_of(message), tuple(calls))

    @classmethod
    def of_choice(cls, choice: Mapping[str, Any]) -> "SeenTurn":
        """Return what a client gets, of a whole choice."""
        calls, message = [], choice["message"]
        for call in message.get("tool_calls") or ():
            called = call[call["type"]]
            text = called["input"] if call["type"] == "custom" else canonical(called["arguments"])
            calls.append((call["id"], called["name"], text))
        return cls(message["content"] or "", message.get("reasoning") or "", tuple(calls))

    def known(self, exact: Exact, *, texts: int) -> KnownTurn | None:
        """Return what is to be remembered of it, if anything; its text is that of so many messages of a response.

        Thoughts are kept with calls only. They are told by what they are not: in some formats they are COMMENTARY, as
        preambles are.
        """
        if not self.calls:
            own = tuple(each for each in exact.messages if each.kind is MessageKind.FINAL)
            if len(own) != 1 or texts != 1:
                return None
            exact = replace(exact, messages=own)
        return KnownTurn(*self.digests, exact)

    def is_replay(self, known: KnownTurn) -> bool:
        """Whether nothing of it was changed; text and thoughts of a message with calls may be left out."""
        if not self.calls:
            return True  # known by its text; a thought of it is an item of its own
        text, thought = self.digests
        return (not self.text or text == known.text) and (not self.thought or thought == known.thought)


def seen_turns(chat: ChatRequest) -> list[SeenTurn]:
    """Return what its client has seen of the assistant's messages, in their order: as long a work as they are."""
    return [SeenTurn.of_message(turn.message) for turn in chat.turns]


def keys_of(turns: Iterable[SeenTurn]) -> list[bytes]:
    """Return what messages are known by, in their order."""
    return [turn.key for turn in turns if turn.key is not None]


def as_sampled(
    chat: ChatRequest, turns: Sequence[SeenTurn], recall: Callable[[bytes], KnownTurn | None]
) -> ChatRequest:
    """Return a chat whose known messages the model reads as it has sampled them; `recall` finds them by their keys.

    `turns` are its `seen_turns`.
    """
    placed = [PlacedTurn(seen, turn.begin, turn.end) for turn, seen in zip(chat.turns, turns, strict=True)]
    items = sampled_items(chat.create.input, placed, recall)
    return replace(chat, create=chat.create.model_copy(update={"input": items}))


@dataclass(frozen=True, slots=True)
class PlacedTurn:
    """A message of the assistant, and which items it became."""

    seen: SeenTurn
    begin: int  # the place of its first item
    end: int  # and that behind its last one; the same where it has none


def sampled_items(
    items: Sequence[ParsedItem], turns: Iterable[PlacedTurn], recall: Callable[[bytes], KnownTurn | None]
) -> list[ParsedItem]:
    """Return items of which those of known turns are read as they were sampled; `recall` finds turns by their keys."""
    # A copy: the request stays as it was read.
    sampled = list(items)
    for place, exact in _found(items, turns, recall):
        item = sampled[place]
        assert isinstance(item, SampledInput), "the assistant's items are sampled ones"
        sampled[place] = item.with_exact(exact)
    return sampled


def _found(
    items: Sequence[ParsedItem], turns: Iterable[PlacedTurn], recall: Callable[[bytes], KnownTurn | None]
) -> Iterator[tuple[int, Exact]]:
    """Yield what items were sampled as, by their places: the first one of a message with calls stands for all of it."""
    for turn in turns:
        seen = turn.seen
        known = recall(seen.key) if seen.key is not None and turn.begin < turn.end else None
        if known is None or not seen.is_replay(known):
            continue
        if not seen.calls:
            yield next(place for place in range(turn.end - 1, -1, -1) if isinstance(items[place], Message)), known.exact
            continue
        yield turn.begin, known.exact
        # The others are there with no messages: the model must not read them twice.
        for place in range(turn.begin + 1, turn.end):
            yield place, replace(known.exact, messages=())


def _digest(seen: object) -> bytes:
    return blake2b(repr(seen).encode(), digest_size=_DIGEST_BYTES).digest()
