"""Harmony messages as JSON, in the shape of OpenAI's library: tokens → messages, and messages → tokens.

    {"role": "assistant", "channel": "commentary", "recipient": "functions.f", "content": [{"type": "text", "text": …}]}

Tokens that models have sampled need not be well-formed, so they are read here, and nothing of their text is lost.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from engine.formats.base import (
    Body,
    Picture,
    RenderedMessage,
    Role,
    Told,
    ToldKind,
    UnreadableMessage,
    without_pictures,
)
from engine.formats.harmony.encoding import END_TOKENS, MESSAGE, PICTURE, START, decode_tokens
from engine.formats.harmony.parser import ANALYSIS, CHANNELS, COMMENTARY, FINAL, FUNCTIONS, NOBODY
from engine.formats.harmony.prompt import INSTRUCTIONS, render_assistant, render_call, render_text, render_tool_output
from engine.unanswered import Unanswered

ROLES: Sequence[Role] = ("system", "developer", "user", "assistant")
MAX_NAME = 256  # characters
# What a header may have as a name: nothing that could be a special token or end the name.
TOOL_NAME = re.compile(rf"[A-Za-z0-9_.\-]{{1,{MAX_NAME}}}")
# `user`, `functions.f`: up to white space or a special token.
_AUTHOR = re.compile(r"\s*([^\s<]*)")
# `to=functions.f`.
_RECIPIENT = re.compile(r"to=([^\s<]+)")
# `<|channel|>analysis`.
_CHANNEL = re.compile(r"<\|channel\|>\s*([^\s<]+)")
# `json`, `<|constrain|>json` at the end of a header.
_CONTENT_TYPE = re.compile(r"(<\|constrain\|>\s*\w+|(?<=\s)\w+)\s*$")
MAX_DIGEST = 64  # tokens: one a character at most
_DIGEST = re.compile(r"[0-9a-f]{64}")

Json = dict[str, Any]


def messages_of(tokens: Iterable[int]) -> list[Json]:
    """Return the messages that these tokens are, which begin with one."""
    messages = []
    for header, content in _cut(tokens):
        message = _header(decode_tokens(header))
        messages.append({**message, "content": [_shown(part) for part in content_parts(content)]})
    return messages


def _shown(part: str | Picture) -> Json:
    if isinstance(part, Picture):
        return {"type": "image", "sha256": part.digest}
    return {"type": "text", "text": part}


def content_parts(content: Sequence[int]) -> list[str | Picture]:
    """Return the texts and the pictures that the tokens of a message's content are, one at least."""
    parts: list[str | Picture] = []
    done = 0
    for begin, end, digest in pictures_in(content):
        if begin > done:
            parts.append(decode_tokens(content[done:begin]))
        parts.append(Picture(digest))
        done = end
    if done < len(content) or not parts:
        parts.append(decode_tokens(content[done:]))
    return parts


def pictures_in(tokens: Sequence[int]) -> Iterator[tuple[int, int, str]]:
    """Yield where pictures stand among tokens, from and to, and their digests.

    A model may have sampled the sign of a picture in any place: what is not a picture is text.
    """
    done = 0
    for begin, end in pairwise(_places(tokens, PICTURE)):
        # The end of one picture is not the beginning of the next.
        if begin >= done and end - begin <= MAX_DIGEST + 1:
            digest = decode_tokens(tokens[begin + 1 : end])
            if _DIGEST.fullmatch(digest):
                yield begin, end + 1, digest
                done = end + 1


def _places(tokens: Sequence[int], token: int) -> Iterator[int]:
    # `index` searches in C; a loop over a prompt of 100,000 tokens would take far longer.
    place = -1
    with suppress(ValueError):
        while True:
            place = tokens.index(token, place + 1)
            yield place


def _cut(tokens: Iterable[int]) -> list[tuple[list[int], list[int]]]:
    """Divide tokens into messages: the tokens of each one's header and those of its content.

    A header that is not complete is not a message: a prompt ends with one, which the model is to go on with.
    """
    cut: list[tuple[list[int], list[int]]] = []
    in_header = False
    for token in tokens:
        if token == START:
            # Text before the first message belongs to none, and is left out.
            cut.append(([], []))
            in_header = True
        elif token == MESSAGE and in_header:
            in_header = False
        elif token not in END_TOKENS and cut:
            cut[-1][0 if in_header else 1].append(token)
    return cut[:-1] if in_header else cut


def _header(text: str) -> Json:
    match = _AUTHOR.match(text)
    author = match[1] if match else ""
    recipient, channel = _RECIPIENT.search(text), _CHANNEL.search(text)
    rest = _CHANNEL.sub("", _RECIPIENT.sub("", text.removeprefix(author)))
    content_type = _CONTENT_TYPE.search(rest)
    named = author not in ROLES  # a tool is the author by its name
    fields = {
        "channel": channel and channel[1],
        "recipient": recipient and recipient[1],
        "content_type": content_type and content_type[1].strip(),
    }
    message: Json = {"role": "tool" if named else author, "name": author if named else None}
    return message | {name: value for name, value in fields.items() if value}


def role_of(header: Iterable[int]) -> Role:
    """Return whose a message is; a tool is the author by its name. `header` are the tokens behind `<|start|>`."""
    match = _AUTHOR.match(decode_tokens(header))
    author = match[1] if match else ""
    return next((role for role in ROLES if role == author), "tool" if author else "prompt")


def render_messages(messages: Sequence[Mapping[str, Any]]) -> list[RenderedMessage]:
    """Render messages in the shape of Harmony's library, or of Chat Completions.

    Those of the system and of developers are left out: the present request says what counts now. Raises
    `UnreadableMessage`.
    """
    rendered: list[RenderedMessage] = []
    called = Unanswered[str]()  # the names of what was called in the shape of Chat Completions
    for index, message in enumerate(messages):
        try:
            rendered += _render(message, called)
        except ValueError as problem:
            raise UnreadableMessage(index, str(problem)) from None
    return rendered


def _render(message: Mapping[str, Any], called: Unanswered[str]) -> list[RenderedMessage]:
    author = message.get("author")
    # Harmony's library has the author as an object of its own; Chat Completions has its fields in the message.
    author = author if isinstance(author, Mapping) else message
    match author.get("role"):
        case "system" | "developer":
            return []
        case "user":
            called.next_turn()
            return [render_text("user", _text(message))]
        case "assistant":
            return _of_assistant(message, called)
        case "tool":
            call_id = str(message.get("tool_call_id"))
            name = author.get("name") or called.answer(call_id) or called.latest(call_id)
            if not name:
                raise ValueError("It does not say whose output it is, by a 'name' or by the 'tool_call_id' of a call.")
            return [render_tool_output(_checked(name), _text(message))]
    raise ValueError("Its 'role' must be one of 'system', 'developer', 'user', 'assistant' and 'tool'.")


def _of_assistant(message: Mapping[str, Any], called: Unanswered[str]) -> list[RenderedMessage]:
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise ValueError("Its 'tool_calls' must be an array of calls.")
    recipient, channel = message.get("recipient"), message.get("channel") or (COMMENTARY if calls else FINAL)
    # A message to the user is an answer that names its reader.
    if recipient is not None and recipient not in NOBODY:
        return [render_call(_checked(recipient), _text(message))]
    if channel not in CHANNELS:
        raise ValueError(f"Its 'channel' must be one of {', '.join(map(repr, CHANNELS))}.")
    text, thought = _text(message), message.get("reasoning_content") or message.get("reasoning")
    rendered = [render_assistant(ANALYSIS, thought)] if isinstance(thought, str) else []
    # A message of calls alone says nothing.
    if text or not calls:
        rendered.append(render_assistant(str(channel), text))
    return [*rendered, *(_call(call, called) for call in calls)]


def _call(call: object, called: Unanswered[str]) -> RenderedMessage:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not (isinstance(call, Mapping) and isinstance(function, Mapping) and isinstance(function.get("name"), str)):
        raise ValueError("Each of its 'tool_calls' must have a 'function' with a 'name'.")
    name = _checked(FUNCTIONS + function["name"])
    called.add(str(call.get("id")), name)
    return render_call(name, str(function.get("arguments") or ""))


def _checked(name: object) -> str:
    """Return the name of a tool. It goes into a header, where special tokens would count."""
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise ValueError("The name of a tool has up to 256 letters, digits, '_', '-' and '.'.")
    return name


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            raise ValueError("Its 'content' must be text: a string, or parts that have a 'text'.")
        texts.append(text)
    return "".join(texts)


def told_of(message: RenderedMessage) -> list[Told]:
    """Return what a message of a chain says, in no format's words."""
    return [_told(_header(decode_tokens(header)), content_parts(content)) for header, content in _cut(message.tokens)]


def _told(message: Json, parts: Sequence[str | Picture]) -> Told:
    text, recipient = without_pictures(parts), message.get("recipient")
    body: Body = text if all(isinstance(part, str) for part in parts) else parts
    match message["role"]:
        case "user":
            return Told(ToldKind.USER, body)
        case "system" | "developer":
            instructions = text.removeprefix(INSTRUCTIONS)
            # A note is a developer's message without the head that instructions have.
            return Told(ToldKind.NOTE if instructions == text else ToldKind.DEVELOPER, instructions)
        case "tool":
            name = str(message["name"] or "tool")
            return Told(ToldKind.OUTPUT, body, name.removeprefix(FUNCTIONS), hosted=not name.startswith(FUNCTIONS))
    if recipient and recipient not in NOBODY:
        # `code` is how a call with text is marked (`render_call`).
        hosted, is_text = not recipient.startswith(FUNCTIONS), message.get("content_type") == "code"
        return Told(ToldKind.CALL, text, recipient.removeprefix(FUNCTIONS), hosted=hosted, freeform=is_text)
    kinds = {ANALYSIS: ToldKind.REASONING, COMMENTARY: ToldKind.PREAMBLE}
    return Told(kinds.get(message.get("channel", ""), ToldKind.ANSWER), text)
