"""What the model said, in a history that comes back: it reads its turns again as the tokens that it sampled.

Clients of every API may keep their histories, and send them whole. They give back the assistant's text and its calls,
whose ids were made here and cannot be guessed; many leave its thoughts out. So a turn is known by its calls (their ids,
names and arguments, in order), or, where it has none, by its text:

    turn with calls    all that was sampled for it: its thoughts too
    turn of text       its text as it was sampled, without thoughts: the same text may be said elsewhere; nothing, where
                       its text is not that of one answer alone (preambles are text, too)

A turn that its client has changed is rendered as the client sent it. A turn with calls counts as unchanged

    without its text or its thoughts
    with its thought, letter by letter, as its text or before its text (`SeenTurn.is_replay`)
    with the same arguments in another spelling of JSON, or with more that are null or false (`items.spelling`)

`chat.messages` and `messages.blocks` find the turns of their APIs' messages. Clients of the Responses API send back
items one by one; here all items between two inputs are a turn (`turns_of_items`). `runs.plan.history` looks for it
in `runs.known_turns`.

Items may carry their tokens themselves. Where a request asks for `reasoning.encrypted_content`, each reasoning item has
in its `encrypted_content` a seal with:

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
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate, groupby, pairwise

from engine import orjson
from engine.formats.base import MessageKind, ModelFormat, RenderedMessage, Tokens, as_tokens
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.items.calls import call_of, ran_in_container
from responses_app.protocol.items.items import (
    Exact,
    InputItem,
    Message,
    Part,
    Reasoning,
    RefusalPart,
    SampledInput,
    SampledMessage,
    TextPart,
    parse_items,
)
from responses_app.protocol.items.offers import is_of_root, program_of
from responses_app.protocol.items.spelling import canonical, respelled
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.prompt.rendering import places_of_echoes, render_items
from responses_app.protocol.sealing import SealBroken

SEAL_PURPOSE = "reasoning"  # what a seal is for; a form of seal that this version cannot read needs another name here

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
    parts = list(_sealed_parts(head, tokens))
    if not head["own"]:
        return SealedOthers([(str(seen[0]), exact) for seen, exact in parts])
    # One part with two digests: anything else raises `ValueError`.
    [((content, summary), exact)] = parts
    return SealedReasoning(content, summary, exact)


def _sealed_parts(head: JsonObject, tokens: "Tokens[int]") -> Iterator[tuple[list[str], Exact]]:
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


BETWEEN = "\n\n"  # two messages of the model, or two thoughts, that are one text

_DIGEST_BYTES = 16  # 128 bits: nobody finds a text of the same digest
# What this server's tools have done in a turn, as one item with its output.
_HOSTED = frozenset(
    "code_interpreter_call file_search_call image_generation_call mcp_call mcp_list_tools web_search_call".split()
)
_READ_OF_HOSTED = ("server_label", "queries", "results", "revised_prompt")  # beside what `seen_of` looks at


@dataclass(frozen=True, slots=True)
class KnownTurn:
    """A turn as it was sampled, with digests of its text and its thought."""

    text: bytes  # a digest
    thought: bytes  # a digest
    exact: Exact  # its tokens as they were sampled
    thought_length: int  # in characters

    def as_bytes(self) -> bytes:
        """Write it, for `from_bytes`: the 4-byte length of a JSON array, that array, and the tokens in planes."""
        tokens = as_tokens()
        for message in self.exact.messages:
            tokens.extend(message.tokens)
        kinds = "".join(message.kind.value for message in self.exact.messages)
        lengths = [len(message.tokens) for message in self.exact.messages]
        planes = in_planes(tokens)
        digests = self.text.hex(), self.thought.hex()
        head = orjson.dumps([self.exact.format, kinds, lengths, len(planes), *digests, self.thought_length])
        return b"".join((len(head).to_bytes(4, "big"), head, *planes))

    @classmethod
    def from_bytes(cls, data: bytes) -> "KnownTurn":
        """Read what `as_bytes` wrote. Raises `ValueError` for what another version wrote."""
        begin = 4 + int.from_bytes(data[:4], "big")
        name, kinds, lengths, planes, text, thought, thought_length = orjson.loads(data[4:begin])
        tokens = from_planes(data[begin:], planes)
        bounds = pairwise(accumulate(lengths, initial=0))
        messages = tuple(
            RenderedMessage(MessageKind(kind), tokens[first:last])
            for kind, (first, last) in zip(kinds, bounds, strict=True)
        )
        return cls(bytes.fromhex(text), bytes.fromhex(thought), Exact(name, messages), thought_length)


@dataclass(frozen=True, slots=True)
class SeenTurn:
    """A turn as its client sees it."""

    text: str
    thought: str
    calls: tuple[tuple[str, str, str], ...]  # id, name, and arguments or input
    key: bytes | None = field(init=False)  # what the turn is known by; None where it says nothing
    digests: tuple[bytes, bytes] = field(init=False)  # of its text and its thought

    def __post_init__(self) -> None:
        """Compute the key and the digests, once: what they are of may be long."""
        object.__setattr__(self, "digests", (_turn_digest(self.text), _turn_digest(self.thought)))
        object.__setattr__(self, "key", _turn_digest(self.calls or self.text) if self.calls or self.text else None)

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
        return KnownTurn(*self.digests, exact, len(self.thought))

    def is_replay(self, known: KnownTurn) -> bool:
        """Whether nothing of it was changed; text and thoughts of a message with calls may be left out."""
        if not self.calls:
            return True  # known by its text; a thought of it is an item of its own
        text, thought = self.digests
        has_same_text = not self.text or text == known.text or self._has_thought_in_text(known)
        return has_same_text and (not self.thought or thought == known.thought)

    def _has_thought_in_text(self, known: KnownTurn) -> bool:
        """Whether its text is the thought, followed by the text, if any: some clients write both into one text."""
        if not known.thought_length or _turn_digest(self.text[: known.thought_length]) != known.thought:
            return False
        text = self.text[known.thought_length :]
        return not text or known.text in (_turn_digest(text), _turn_digest(text.removeprefix(BETWEEN)))


def keys_of(turns: Iterable[SeenTurn]) -> list[bytes]:
    """Return what turns are known by, in their order."""
    return [turn.key for turn in turns if turn.key is not None]


@dataclass(frozen=True, slots=True)
class PlacedTurn:
    """A turn, and which items it is."""

    seen: SeenTurn
    begin: int  # the place of its first item
    end: int  # and that behind its last one; the same where it has none


def sampled_items(
    items: Sequence[InputItem], turns: Iterable[PlacedTurn], recall: Callable[[bytes], KnownTurn | None]
) -> list[InputItem]:
    """Return items of which those of known turns are read as they were sampled; `recall` finds turns by their keys."""
    # A copy: the request stays as it was read.
    sampled = list(items)
    for place, exact in _found(items, turns, recall):
        item = sampled[place]
        assert isinstance(item, SampledInput), "the assistant's items are sampled ones"
        sampled[place] = item.with_exact(exact)
    return sampled


def _found(
    items: Sequence[InputItem], turns: Iterable[PlacedTurn], recall: Callable[[bytes], KnownTurn | None]
) -> Iterator[tuple[int, Exact]]:
    """Yield what items were sampled as, by their places: the first one of a turn with calls stands for all of it."""
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


def _turn_digest(seen: object) -> bytes:
    return blake2b(repr(seen).encode(), digest_size=_DIGEST_BYTES).digest()


_NOTHING = SeenTurn("", "", ())


def turn_of_output(output: Sequence[JsonObject]) -> SeenTurn:
    """Return a whole response as a client of the Responses API sees it; an empty turn where it is not one turn."""
    return _seen(output, map(_text, output)) if all(map(_is_of_turn, output)) else _NOTHING


def turns_of_items(
    items: Sequence[InputItem],
    input_json: Sequence[JsonObject],
    *,
    parent: ChainLink | None,
    sampled: Mapping[str, SampledMessage],
) -> list[PlacedTurn]:
    """Return the turns among items that are not known whole: as long a work as they are.

    The chain of `parent` has its own calls as they were sampled; `sampled` has what is known of items by their ids.
    """
    turns: list[PlacedTurn] = []
    begin = 0
    for is_turn, group in groupby(input_json, key=_is_of_turn):
        raws = list(group)
        end = begin + len(raws)
        # Of a thought that was sealed, its opened item tells whether its client has changed it. No model here says a
        # picture or a file: where one is, its client has added it.
        parts = [part for item in items[begin:end] for part in _parts(item)] if is_turn else []
        can_be_known = is_turn and all(isinstance(part, TextPart | RefusalPart) for part in parts)
        seen = _seen(raws, map(_text_of_item, items[begin:end])) if can_be_known else _NOTHING
        if seen.key is not None and not _is_there(seen, items[begin:end], raws, parent, sampled):
            turns.append(PlacedTurn(seen, begin, end))
        begin = end
    return turns


def _is_there(
    seen: SeenTurn,
    items: Sequence[InputItem],
    input_json: Sequence[JsonObject],
    parent: ChainLink | None,
    sampled: Mapping[str, SampledMessage],
) -> bool:
    """Whether a turn is read as it was sampled without being looked for."""
    if parent is not None and any(parent.has_call(call_id) for call_id, *_ in seen.calls if call_id):
        return True
    # A call may be known by its id, and the thoughts before it be left out.
    if seen.calls and not any(isinstance(item, Reasoning) for item in items):
        return False
    for item, raw in zip(items, input_json, strict=True):
        is_exact = isinstance(item, SampledInput) and item.exact is not None
        known = sampled.get(item.id) if item.id and not is_exact else None
        if not is_exact and (known is None or not known.is_replayed_by(raw)):
            return False
    return True


def _is_of_turn(raw: JsonObject) -> bool:
    """Whether an item may be part of a turn of the model, with nothing of its client's in between."""
    kind = raw.get("type")
    if kind == "message":
        may_be = raw.get("role") == "assistant"
    else:
        may_be = kind == "reasoning" or kind in _HOSTED or (call_of(raw) is not None and not ran_in_container(raw))
    return may_be and is_of_root(raw) and program_of(raw) is None


def _seen(items: Sequence[JsonObject], texts: Iterable[str]) -> SeenTurn:
    """Return what a client sees of the items of a turn, whose texts are `texts`."""
    said, thoughts, calls = [], [], []
    for item, text in zip(items, texts, strict=True):
        match item["type"]:
            case "message":
                said.append((text, item.get("phase")))
            case "reasoning":
                thoughts.append(text)
            case "mcp_list_tools":
                pass  # the model does not read it
            case kind:
                calls.append(_seen_call(item, str(kind)))
    if any(call_id for call_id, *_ in calls):
        text = BETWEEN.join(text for text, _ in said if text)
        return SeenTurn(text, BETWEEN.join(filter(None, thoughts)), tuple(calls))
    # Nothing else in it was made here, and cannot be guessed: only one answer is known by itself.
    answers = [text for text, phase in said if phase != "commentary"]
    return SeenTurn(answers[0], "", ()) if len(answers) == len(said) == 1 and not calls else _NOTHING


def _seen_call(item: JsonObject, kind: str) -> tuple[str, str, str]:
    call = call_of(item)
    if call is None:
        # What the server called: clients leave the ids of such items out.
        return "", kind, seen_of(item, more=_READ_OF_HOSTED)
    if kind == "function_call":
        return call.id, call.called, canonical(str(item.get("arguments")))
    if kind == "custom_tool_call":
        return call.id, call.called, str(item.get("input"))
    return call.id, call.called, seen_of(item)


def _text(item: JsonObject) -> str:
    """Return what a message or a thought says; also what the model refused, which no client gives back as a text."""
    content = item.get("content")
    parts = content if isinstance(content, list) else ()
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in parts if isinstance(part, dict))


def _text_of_item(item: InputItem) -> str:
    return "".join(
        part.text if isinstance(part, TextPart) else part.refusal
        for part in _parts(item)
        if isinstance(part, TextPart | RefusalPart)
    )


def _parts(item: InputItem) -> Sequence[Part]:
    return (item.content or ()) if isinstance(item, Message | Reasoning) else ()
