"""Reasoning items that carry tokens: what a client gives back, the model reads as exactly what it had sampled.

Where a request asks for `reasoning.encrypted_content`, each reasoning item has in its `encrypted_content` a seal with:

    its own tokens, and digests of what a client sees of it (its content, its summary)

The turn's other items (answers, preambles, calls) are rendered when they come back, which nearly always gives the
tokens that were sampled. Where it does not (the recipient before the channel, another split of a word, a preamble that
says its thought again and would be taken for a client's echo), or where the model read something that no item shows
(that a tool does not exist), the response ends with one more reasoning item, which shows nothing, and whose seal has:

    for each such item: a digest of what a client sees of it, and all the tokens that it stands for

No id is needed, since SDKs leave ids out or make their own. An item that a client has changed has another digest, and
is rendered as it is now. Arguments of calls count as JSON, however they are spelled: calls whose spelling may change
on the way are carried, too. A reasoning item that comes back without its content or its summary is not changed: clients
leave out what they do not show.

A seal is the 4-byte length of a JSON object, that object, and the tokens in three planes: all their lowest bytes, then
their middle ones, then their highest; a fourth where a token needs one. It holds for one model format: another one
would read the tokens as other text.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, pairwise

from engine import orjson
from engine.formats.base import MessageKind, ModelFormat, RenderedMessage, Tokens, as_tokens
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.items.items import Exact, InputItem, Reasoning, TextPart, parse_items
from responses_app.protocol.items.spelling import canonical, respelled
from responses_app.protocol.prompt.rendering import places_of_echoes, render_items
from responses_app.protocol.sealing import SealBroken

PURPOSE = "reasoning"  # what a seal is for; a form of seal that this version cannot read needs another name here

_LENGTH = 4  # bytes of the JSON's length, big-endian
_PLANES = 3  # that are always written: token ids have some 18 bits
# Fields by which an item is known; a change of any gives another digest.
_SHOWN = "type role call_id name namespace arguments input action operation code output outputs error".split()

Messages = Sequence[RenderedMessage]  # what the model reads for one item


@dataclass(frozen=True, slots=True)
class SealedReasoning:
    """What a seal tells of its own item."""

    content: str  # a digest of what a client sees
    summary: str  # likewise
    exact: Exact  # its tokens

    def opened(self, item: Reasoning) -> Reasoning:
        """Return an item as the model is to read it: exactly, or what a client has made of it."""
        as_it_was = _is(item.content, self.content) and _is(item.summary, self.summary)
        if as_it_was:
            return item.with_exact(self.exact)
        return item.model_copy(update={"content": item.content or item.summary, "id": None})  # the id is another text's


@dataclass(frozen=True, slots=True)
class SealedOthers:
    """What a seal tells of the items before its own: a digest of each, and its tokens."""

    items: Sequence[tuple[str, Exact]]  # in their order, each with a digest of what a client sees of it


class ItemSeals:
    """Makes the seals of one response's items. `seal(place, data)` gives the same for the same, on every worker."""

    def __init__(self, model_format: ModelFormat, *, seal: Callable[[str, bytes], str]) -> None:
        self._format = model_format
        self._seal = seal
        self._messages: dict[int, list[RenderedMessage]] = {}  # what the model reads for each output item, by its index

    def note(self, index: int, message: RenderedMessage) -> None:
        """Remember what the model reads for an output item, or right behind it."""
        self._messages.setdefault(index, []).append(message)

    def of_reasoning(self, item: JsonObject, message: RenderedMessage) -> str:
        """Return what a reasoning item carries: the tokens of its `message`."""
        seen = [_digest(_raw_texts(item.get(name))) for name in ("content", "summary")]
        return self._seal(str(item["id"]), self._written([(seen, (message,))], own=True))

    def of_others(self, item_id: str, output: Sequence[JsonObject], *, objects: bool = False) -> str | None:
        """Return what one more reasoning item is to carry of all other items; None where nothing is to be carried.

        `objects`: clients may read the arguments of calls and write them again.
        """
        # Each is read alone here. What repeats a thought is left out beside it, unless it has tokens of its own.
        echoes = places_of_echoes([_parsed(item) for item in output], ())
        carried: set[str] = set()
        parts = []
        for index, item in enumerate(output):
            seen, messages = seen_of(item), self._messages.get(index, ())
            # An equal item behind one that is carried would be taken for it: they are counted from the last one.
            if seen in carried or index in echoes or not self._comes_back(item, messages, objects):
                carried.add(seen)
                parts.append(([seen], messages))
        return self._seal(item_id, self._written(parts, own=False)) if parts else None

    def _comes_back(self, item: JsonObject, messages: Messages, objects: bool) -> bool:
        """Whether an item that a client gives back is read as what was said: by its own seal, or as it is rendered."""
        if item["type"] == "compaction":
            return True
        # Its seal has its own message only: another one behind it (a note) has to be carried.
        if item["type"] == "reasoning" and "encrypted_content" in item:
            return len(messages) == 1
        spelled = [item]
        if objects and isinstance(item.get("arguments"), str):
            spelled = [{**item, "arguments": each} for each in respelled(str(item["arguments"]))]
        return all(self._is_read_as(each, messages) for each in spelled)

    def _is_read_as(self, item: JsonObject, messages: Messages) -> bool:
        try:
            rendered = render_items(self._format, *parse_items([item], at="output"), parent=None, sampled={})
        except ApiError:  # an item that clients cannot give back as it is
            return False
        return [message.tokens for message in rendered] == [message.tokens for message in messages]

    def _written(self, parts: Iterable[tuple[list[str], Messages]], *, own: bool) -> bytes:
        tokens = as_tokens()
        described: list[object] = []
        for seen, messages in parts:
            described.append(
                [seen, "".join(each.kind.value for each in messages), [len(each.tokens) for each in messages]]
            )
            for each in messages:
                tokens.extend(each.tokens)
        planes = in_planes(tokens)
        head = orjson.dumps({"format": self._format.name, "own": own, "planes": len(planes), "parts": described})
        return b"".join((len(head).to_bytes(_LENGTH, "big"), head, *planes))


def _parsed(item: JsonObject) -> InputItem | None:
    """Return an output item as it is when it comes back; None where clients cannot give it back as it is."""
    try:
        return parse_items([item], at="output")[0][0]
    except ApiError:
        return None


def read_seal(data: bytes) -> SealedReasoning | SealedOthers:
    """Read what `ItemSeals` has sealed. Raises `SealBroken` for content of another version that it cannot read."""
    # The seal is good, so this server wrote it: perhaps a version with another form, which must not end in a 500.
    try:
        return _read(data)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SealBroken(f"its content is not that of a seal: {error}") from error


def _read(data: bytes) -> SealedReasoning | SealedOthers:
    begin = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
    head = orjson.loads(data[_LENGTH:begin])
    tokens = from_planes(data[begin:], head["planes"])
    # Slices of a list that is too short would be shorter, without an error.
    if sum(sum(lengths) for *_, lengths in head["parts"]) != len(tokens):
        raise ValueError("it has other tokens than it says")
    parts = list(_parts(head, tokens))
    if not head["own"]:
        return SealedOthers([(str(seen[0]), exact) for seen, exact in parts])
    # One part with two digests: anything else raises `ValueError`.
    [((content, summary), exact)] = parts
    return SealedReasoning(content, summary, exact)


def _parts(head: JsonObject, tokens: "Tokens[int]") -> Iterator[tuple[list[str], Exact]]:
    position = 0
    for seen, kinds, lengths in head["parts"]:  # type: ignore[attr-defined]
        if any(length < 0 for length in lengths):
            raise ValueError("a length is negative")
        bounds = pairwise(accumulate(lengths, initial=position))
        messages = tuple(
            RenderedMessage(MessageKind(kind), tokens[begin:end])
            for kind, (begin, end) in zip(kinds, bounds, strict=True)
        )
        position += sum(lengths)
        yield seen, Exact(str(head["format"]), messages)


def seen_of(item: Mapping[str, object], *, more: Sequence[str] = ()) -> str:
    """Digest what a client sees of an output item; what its SDK adds to it, or leaves out as null, does not count.

    A reasoning item is known by its seal: its text may come back or not. A function call's output is its client's.
    `more` are further fields that count; what seals have is without them.
    """
    kind = item.get("type") or "message"
    if kind == "reasoning" and item.get("encrypted_content"):
        return _digest((kind, item["encrypted_content"]))
    shown = {
        name: item[name] for name in (*_SHOWN, *more) if name in item and (kind, name) != ("function_call", "output")
    }
    if isinstance(shown.get("arguments"), str):
        shown["arguments"] = canonical(str(shown["arguments"]))
    if shown.get("error") is not None:
        shown["error"] = True  # what it says is the server's own, and APIs word it in ways of their own
    return _digest((_plain({**shown, "type": kind}), _raw_texts(item.get("content"))))


def with_exact_tokens(items: Iterable[JsonObject], sealed: Mapping[int, SealedOthers]) -> Iterator[tuple[int, Exact]]:
    """Find the items that seals tell of; yield their places, with their tokens.

    `sealed` are the seals by the places of their items. A seal tells of items before its own: for each of them, from
    the last one on, that is the nearest which looks like it.
    """
    places: dict[str, list[int]] = {}  # of the items so far that no seal has told of, by what they look like
    for place, item in enumerate(items):
        if place not in sealed:
            places.setdefault(seen_of(item), []).append(place)
            continue
        # The last one first, as `pop` gives the last place: equal items get their own tokens.
        for seen, exact in reversed(sealed[place].items):
            if places.get(seen):
                yield places[seen].pop(), exact


def _is(parts: Sequence[object] | None, digest: str) -> bool:
    """Whether these parts are those of a digest, or were left out."""
    return not parts or _digest([part.text for part in parts if isinstance(part, TextPart)]) == digest


def _raw_texts(content: object) -> list[object]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part.get("text") for part in parts if isinstance(part, dict)]


def _plain(value: object) -> object:
    """Return a value in one spelling: no nulls, keys in order."""
    if isinstance(value, dict):
        return sorted((str(name), _plain(each)) for name, each in value.items() if each is not None)
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _digest(seen: object) -> str:
    return blake2b(repr(seen).encode(), digest_size=12).hexdigest()


def in_planes(tokens: "Tokens[int]") -> list[bytes]:
    """Return tokens byte by byte of their values: slices do in microseconds what a loop over tokens does not."""
    data = _little_endian(tokens).tobytes()
    planes = [data[plane :: tokens.itemsize] for plane in range(tokens.itemsize)]
    # Higher bytes are all zero for any vocabulary of today.
    while len(planes) > _PLANES and not planes[-1].strip(b"\0"):
        planes.pop()
    return planes


def from_planes(data: bytes, planes: int) -> "Tokens[int]":
    """Return the tokens of so many planes, one behind the other. Raises `ValueError` for a number that cannot be."""
    tokens = as_tokens()
    if not 1 <= planes <= tokens.itemsize:
        raise ValueError(f"tokens have no {planes} bytes")
    count = len(data) // planes
    whole = bytearray(count * tokens.itemsize)
    for plane in range(planes):
        whole[plane :: tokens.itemsize] = data[plane * count : (plane + 1) * count]
    tokens.frombytes(bytes(whole))
    return _little_endian(tokens)


def _little_endian(tokens: "Tokens[int]") -> "Tokens[int]":
    if sys.byteorder == "big":
        tokens = tokens[:]
        tokens.byteswap()
    return tokens
