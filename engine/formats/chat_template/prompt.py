"""Messages as this format keeps them in a chain, and the prompt that they are rendered to.

    messages ── record() ──> records ── conversation_of() ──> a conversation ── vLLM ──> tokens ── spliced() ──> prompt

Records: what was said, as JSON, and beside it the tokens it was sampled as. A chat template renders a conversation as a
whole, so a message has no tokens of its own. It is kept as a record, in an array of the same kind as tokens, where all
other parts of the server take it for a message like any other:

    MARK, words of JSON, tokens, the JSON (4 bytes of UTF-8 a word, spaces at its end), the tokens

What has pictures in it has `parts` in place of a `text`: texts, and `{"image": DIGEST}`.

A word of JSON is about what a token is, so the length of a record is an estimate of its message's. No token has the
number of `MARK`, so a record is never taken for the tokens of another format. The JSON of a message that was sampled
says of which vocabulary its tokens are: a model with another one reads its text alone.

How much a model is to think is told to its template. Templates of families that think by default (Qwen3, GLM, …) know
`enable_thinking`, those of others (DeepSeek, Granite) `thinking`; some know `reasoning_effort`. A template looks at no
variable that it does not know.

A conversation is in the shape of Chat Completions:

    frame, developer's messages before all others     one system message, and the tools
    reasoning, answers, calls of the model in a row   one message of the assistant
    the output of a tool                              a tool's message, with the id of the earliest call it may answer

A rendered prompt goes on with the very tokens that were sampled, wherever it says the same. What a model has sampled,
and its text encoded again, are often different tokens of the same bytes; from the first difference on an engine's
prefix cache finds nothing. So in a new rendering each turn's sampled tokens take the place of what has exactly their
bytes. Where the rendering says anything else (a template that drops old reasoning, or writes a call's JSON in its own
way), it stays as it is.

White space with which a turn begins may be one token there with the line end before it, which the template wrote and
the prompt of that turn ended with. Then the line end is a token again.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from engine import orjson
from engine.formats.base import (
    Body,
    FunctionTool,
    MessageKind,
    PicturePart,
    PlainKind,
    PlainMessage,
    RenderedMessage,
    Tokens,
    ToolNamespace,
    Unanswered,
    as_tokens,
    parts_of,
    without_pictures,
)
from engine.formats.chat_template.vocabulary import Sight
from engine.types import ChatPrompt

MARK = 0xF0C4A701  # a record of the first version; far above any vocabulary
_HEAD = 3  # words before the JSON: `MARK`, how many words of JSON, how many tokens

Saying = dict[str, Any]  # "is": what it is, and its fields


class Record(NamedTuple):
    """A message as it was said, and its tokens, if it was sampled here."""

    said: Saying  # what `record` was given
    sampled: "Tokens[int]"  # none where it was not sampled here

    def sampled_in(self, vocabulary: str) -> "Tokens[int]":
        """Return the tokens, where they are those of a vocabulary (its fingerprint)."""
        return self.sampled if self.said.get("of") == vocabulary else as_tokens()


def record(said: Saying, sampled: Sequence[int] = (), *, vocabulary: str = "") -> "Tokens[int]":
    """Write a record; `vocabulary` is the fingerprint of that of its tokens."""
    text = orjson.dumps({**said, "of": vocabulary} if sampled else said)
    # Filled up to whole words; JSON may end with spaces.
    text += b" " * (-len(text) % 4)
    words = as_tokens()
    words.frombytes(text)
    if sys.byteorder == "big":
        # Words are little-endian in every record, whatever machine wrote it.
        words.byteswap()
    written = as_tokens((MARK, len(words), len(sampled)))
    written.extend(words)
    written.extend(sampled)
    return written


def is_record(tokens: "Tokens[int]") -> bool:
    """Whether this begins with a record."""
    return len(tokens) >= _HEAD and tokens[0] == MARK


def records(draft: "Tokens[int]") -> Iterator[Record]:
    """Read the records that stand behind each other. Raises `ValueError` for what is not one."""
    start = 0
    while start < len(draft):
        if not is_record(draft[start : start + _HEAD]):
            raise ValueError("a conversation has something in it that is not a record")
        text = start + _HEAD
        # The two counts of the head say where the JSON and the tokens end.
        tokens = text + draft[start + 1]
        end = tokens + draft[start + 2]
        words = draft[text:tokens]
        if sys.byteorder == "big":
            words.byteswap()
        yield Record(orjson.loads(words.tobytes()), draft[tokens:end])
        start = end


def said_body(body: Body) -> Saying:
    """Return the fields of a record that say a body."""
    match parts_of(body):
        case [str(text)]:
            return {"text": text}
        case parts:
            return {"parts": [{"image": part.digest} if isinstance(part, PicturePart) else part for part in parts]}


def body_of(said: Saying) -> Body:
    """Return the body that the fields of a record say."""
    if "parts" not in said:
        return str(said.get("text", ""))
    return [part if isinstance(part, str) else PicturePart(part["image"]) for part in said["parts"]]


def pictures_in(draft: "Tokens[int]") -> list[str]:
    """Return the digests of the pictures in records."""
    # Most have none, and it takes milliseconds to read a thousand; JSON never has this within a text.
    if sys.byteorder == "little" and b'"parts"' not in draft.tobytes():
        return []
    return [part.digest for each in records(draft) for part in body_of(each.said) if isinstance(part, PicturePart)]


_TOLD = {"user": PlainKind.USER, "reasoning": PlainKind.REASONING, "call": PlainKind.CALL, "output": PlainKind.OUTPUT}


def plain_messages(message: RenderedMessage) -> list[PlainMessage]:
    """Return what a message of a chain says, in no format's words."""
    return [_plain_message(each.said, message.kind) for each in records(message.tokens)]


def _plain_message(said: Saying, kind: MessageKind) -> PlainMessage:
    match said["is"]:
        case "system":
            meaning = PlainKind.NOTE if said.get("note") else PlainKind.DEVELOPER
        case "answer":
            meaning = PlainKind.PREAMBLE if kind is MessageKind.COMMENTARY else PlainKind.ANSWER
        case other:
            meaning = _TOLD[other]
    flags = {flag: bool(said.get(flag)) for flag in ("hosted", "freeform")}
    return PlainMessage(meaning, body_of(said), said.get("name", ""), **flags)


NONE = "none"
_WITHOUT_THOUGHTS: Mapping[str, Any] = {"enable_thinking": False, "thinking": False}


def template_kwargs(effort: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a template is told of an effort: none, low, medium or high. `own` is what an operator adds to it.

    An operator's word counts before the effort's, but not before a request that wants no thoughts.
    """
    return {"reasoning_effort": effort, **own, **(_WITHOUT_THOUGHTS if effort == NONE else {})}


FREEFORM = "freeform_text"  # the one parameter of a tool that takes text as it is

Json = dict[str, Any]
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


@dataclass(slots=True)
class ChatConversation(ChatPrompt):
    """A conversation that is to be rendered."""

    sampled: list[list[int]] = field(default_factory=list)  # tokens of the assistant's messages that were sampled here
    pictures: int = 0  # in the messages


def frame_of(
    instructions: str | None,
    functions: Sequence[FunctionTool],
    effort: str,
    day: str,
    namespaces: Sequence[ToolNamespace],
    *,
    kwargs: Mapping[str, Any],
) -> Saying:
    """Return what a frame's record says; `kwargs` are what an operator tells the template."""
    tools = [_tool(each, each.name) for each in functions]
    # A namespace without functions is itself called, with text.
    for namespace in namespaces:
        own = namespace.functions or (FunctionTool("", namespace.description, "", freeform=True),)
        # `python.` without a function's name becomes `python`.
        tools += [_tool(each, f"{namespace.name}.{each.name}".rstrip(".")) for each in own]
    return {
        "is": "frame",
        "instructions": instructions or "",
        "tools": tools,
        "kwargs": template_kwargs(effort, kwargs),
        "date": day,
    }


def _tool(function: FunctionTool, name: str) -> Json:
    schema: object = {"type": "object", "properties": {}}
    if function.freeform:
        schema = {"type": "object", "properties": {FREEFORM: {"type": "string"}}, "required": [FREEFORM]}
    elif function.schema:
        schema = orjson.loads(function.schema)
    return {"type": "function", "function": {"name": name, "description": function.description, "parameters": schema}}


def conversation_of(said: Iterable[Record], *, vocabulary: str, sight: Sight | None = None) -> ChatConversation:
    """Return the conversation that records tell; its sampled tokens are those of a vocabulary (its fingerprint).

    `sight` says how pictures stand in it; without one they are left out of it.
    """
    writer = _Writer(vocabulary, sight)
    for each in said:
        writer.add(each)
    return writer.finished()


class _Writer:
    def __init__(self, vocabulary: str, sight: Sight | None) -> None:
        self._vocabulary = vocabulary
        self._sight = sight
        self._made = ChatConversation()
        self._unanswered = Unanswered[str]()  # the ids of calls, by the names that they called
        self._calls = 0  # so far; their ids are numbered by it
        self._tokens: list[int] = []  # of the assistant's message that is being written
        self._is_whole = False  # all its parts were sampled here

    def add(self, each: Record) -> None:
        match each.said["is"]:
            case "frame":
                self._frame(each.said)
            case "user":
                self._message({"role": "user", "content": self._content(each.said)})
            case "system":
                self._system(each.said["text"])
            case "output":
                # The earliest call of that name: outputs carry no ids in a chain.
                # An output without a call takes the id of the latest one.
                call_id = self._unanswered.answer(each.said["name"]) or f"call_{self._calls}"
                self._message(
                    {
                        "role": "tool",
                        "tool_call_id": call_id,
                        "name": each.said["name"],
                        "content": self._content(each.said),
                    }
                )
            case "reasoning" | "answer" | "call":
                self._assistant(each)

    def finished(self) -> ChatConversation:
        self._close()
        return self._made

    def _frame(self, said: Saying) -> None:
        year, month, day = said["date"].split("-")
        self._made.tools = said["tools"]
        # Names of tokens have nothing in them that JSON would write in another way.
        if self._sight is not None and self._sight.name in (declared := orjson.dumps(said["tools"]).decode()):
            self._made.tools = orjson.loads(self._sight.plain(declared))
        # As templates of Llama 3 write the date: 26 Jul 2024.
        named = f"{day} {_MONTHS[int(month) - 1]} {year}"
        self._made.template_kwargs = {"date_string": named, **said["kwargs"]}
        if said["instructions"]:
            self._system(said["instructions"])

    def _system(self, text: str) -> None:
        """Add instructions; many templates take a system message at the beginning only, and one."""
        messages, text = self._made.messages, self._plain(text)
        if len(messages) == 1 and messages[0]["role"] == "system":
            messages[0]["content"] += f"\n\n{text}"
        else:
            self._message({"role": "system", "content": text})

    def _message(self, message: Json) -> None:
        self._close()
        self._made.messages.append(message)

    def _content(self, said: Saying) -> str:
        body = body_of(said)
        if self._sight is None:
            return without_pictures(body)
        self._made.pictures += sum(isinstance(part, PicturePart) for part in body)
        return self._sight.written(body)

    def _plain(self, text: str) -> str:
        return text if self._sight is None else self._sight.plain(text)

    def _assistant(self, each: Record) -> None:
        kind, messages = each.said["is"], self._made.messages
        message = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        if message is None or not _takes(message, kind):
            message = {"role": "assistant", "content": ""}
            self._message(message)
            self._is_whole = True
        sampled = each.sampled_in(self._vocabulary)
        self._tokens.extend(sampled)
        # One part that was not sampled spoils the row: the tokens of the others are not next to each other.
        self._is_whole = self._is_whole and len(sampled) > 0
        text = self._plain(each.said["text"])
        if kind == "answer":
            message["content"] = text
        elif kind == "reasoning":
            # Templates read one name or the other.
            message["reasoning"] = message["reasoning_content"] = text
        else:
            message.setdefault("tool_calls", []).append(self._call(each.said))

    def _call(self, said: Saying) -> Json:
        self._calls += 1
        call_id = f"call_{self._calls}"
        self._unanswered.add(said["name"], call_id)
        arguments = arguments_of(said["text"], freeform=said.get("freeform", False))
        return {
            "id": call_id,
            "type": "function",
            "function": {"name": said["name"], "arguments": self._plain(orjson.dumps(arguments).decode())},
        }

    def _close(self) -> None:
        """End the assistant's message, if one is open."""
        if self._tokens and self._is_whole:
            self._made.sampled.append(self._tokens)
        self._tokens, self._is_whole = [], False


def _takes(message: Json, kind: str) -> bool:
    """Whether an assistant's message still takes this: reasoning comes first, then the answer, then calls."""
    if kind == "call":
        return True
    # Behind an answer or a call there is no place for reasoning or another answer.
    if "tool_calls" in message or message["content"]:
        return False
    return kind == "answer" or "reasoning" not in message


def arguments_of(text: str, *, freeform: bool) -> Json:
    """Return the arguments of a call as an object, which templates want; what is not JSON is kept as a text in one."""
    if freeform:
        return {FREEFORM: text}
    try:
        arguments = orjson.loads(text) if text.strip() else {}
    except orjson.JSONDecodeError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"malformed": text}


def spliced(rendered: Sequence[int], turns: Sequence[Sequence[int]], pieces: Sequence[bytes]) -> "Tokens[int]":
    """Return a rendering with the sampled tokens of its turns in it, in their order.

    `pieces` are the bytes of every token (`Vocabulary.unmistakable`). The bytes of the prompt stay the same.
    """
    # Tokens outside the vocabulary have no bytes, so nothing can be compared.
    if not turns or max(rendered, default=0) >= len(pieces):
        return as_tokens(rendered)
    # The text as bytes; `ends` are the places in it at which tokens end, and the next ones begin.
    parts = [pieces[token] for token in rendered]
    text = b"".join(parts)
    ends = list(accumulate(map(len, parts), initial=0))
    places = {end: place for place, end in enumerate(ends)}  # of a token that begins there, by its first byte
    prompt, done = as_tokens(), 0
    for turn in turns:
        content = b"".join([pieces[token] for token in turn]) if max(turn) < len(pieces) else b""
        # Turns stand there in their order, so each is looked for behind the one before; one that is not there is left.
        begin = _place_of(text, content, ends[done], places) if content else None
        # See the module's docstring: white space at the beginning of a turn may be one token with the line end before
        # it.
        before = b""  # of the token that is split
        if begin is None and content[:1].isspace():
            begin = _place_of(text, content, ends[done], places, splits=True)
            # The token within which the turn begins: what it has before the turn has to become a token of its own.
            before = b"" if begin is None else text[ends[bisect_right(ends, begin) - 1] : begin]
        if begin is None or (before and before not in pieces):
            continue
        prompt.extend(rendered[done : places[begin - len(before)]])
        prompt.extend([pieces.index(before)] if before else ())
        prompt.extend(turn)
        done = places[begin + len(content)]
    prompt.extend(rendered[done:])
    return prompt


def _place_of(text: bytes, content: bytes, start: int, places: dict[int, int], *, splits: bool = False) -> int | None:
    """Return where something is said, from the beginning of a token to the end of one; `splits`: or from within one."""
    # A found place counts where tokens begin and end there: a token is never cut.
    begin = text.find(content, start)
    while begin >= 0:
        if (splits or begin in places) and begin + len(content) in places:
            return begin
        begin = text.find(content, begin + 1)
    return None
