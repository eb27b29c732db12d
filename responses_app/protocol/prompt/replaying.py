"""The model's turns in a replayed history: the model reads them again as the tokens that it sampled.

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
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate, groupby, pairwise

from engine import orjson
from engine.formats.base import MessageKind, RenderedMessage, as_tokens
from responses_app.protocol.errors import JsonObject
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
)
from responses_app.protocol.items.multi_agent import is_of_root
from responses_app.protocol.items.programs import program_of
from responses_app.protocol.items.spelling import canonical
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.prompt.sealed_items import from_planes, in_planes, seen_of

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
        object.__setattr__(self, "digests", (_digest(self.text), _digest(self.thought)))
        object.__setattr__(self, "key", _digest(self.calls or self.text) if self.calls or self.text else None)

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
        if not known.thought_length or _digest(self.text[: known.thought_length]) != known.thought:
            return False
        text = self.text[known.thought_length :]
        return not text or known.text in (_digest(text), _digest(text.removeprefix(BETWEEN)))


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


def _digest(seen: object) -> bytes:
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
        # Of a thought that was sealed, its opened item tells whether its client has changed it.
        can_be_known = is_turn and all(map(_is_spoken, items[begin:end]))
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
    return all(_is_exact(item, raw, sampled) for item, raw in zip(items, input_json, strict=True))


def _is_exact(item: InputItem, raw: JsonObject, sampled: Mapping[str, SampledMessage]) -> bool:
    if isinstance(item, SampledInput) and item.exact is not None:
        return True
    known = sampled.get(item.id) if item.id else None
    return known is not None and known.is_replayed_by(raw)


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


def _is_spoken(item: InputItem) -> bool:
    """Whether nothing of an item is a picture or a file: no model here says such, so its client has added it."""
    return all(isinstance(part, TextPart | RefusalPart) for part in _parts(item))
