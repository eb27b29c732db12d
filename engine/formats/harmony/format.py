"""`HarmonyFormat`: gpt-oss; and its messages as JSON, in the shape of OpenAI's library, from tokens and to tokens.

    {"role": "assistant", "channel": "commentary", "recipient": "functions.f", "content": [{"type": "text", "text": …}]}

Tokens that models have sampled need not be well-formed, so they are read here, and nothing of their text is lost.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.formats.base import (
    Begins,
    Body,
    FunctionTool,
    ItemKind,
    ModelFormat,
    PicturePart,
    PlainKind,
    PlainMessage,
    RenderedMessage,
    Role,
    Tokens,
    ToolNamespace,
    Unanswered,
    UnreadableMessage,
    as_tokens,
    messages_in,
    without_pictures,
)
from engine.formats.harmony import prompt as prompts
from engine.formats.harmony.encoding import (
    ANALYSIS,
    CHANNELS,
    COMMENTARY,
    END_TOKENS,
    FINAL,
    FUNCTIONS,
    MAX_TOKEN,
    MESSAGE,
    NOBODY,
    SPECIAL_TOKENS,
    START,
    STOP_TOKENS,
    decode_tokens,
    encode_harmony_slices,
    encode_text,
    longest_token,
    token_bytes,
)
from engine.formats.harmony.grammar import problem_of_turn, turn_grammar
from engine.formats.harmony.parser import MAX_NAME, TOOL_NAME, HarmonyParser
from engine.types import TurnGrammar, TurnRules

ROLES: Sequence[Role] = ("system", "developer", "user", "assistant")
# `user`, `functions.f`: up to white space or a special token.
_AUTHOR = re.compile(r"\s*([^\s<]*)")
# `to=functions.f`.
_RECIPIENT = re.compile(r"to=([^\s<]+)")
# `<|channel|>analysis`.
_CHANNEL = re.compile(r"<\|channel\|>\s*([^\s<]+)")
# `json`, `<|constrain|>json` at the end of a header.
_CONTENT_TYPE = re.compile(r"(<\|constrain\|>\s*\w+|(?<=\s)\w+)\s*$")

Json = dict[str, Any]


def messages_of(tokens: Iterable[int]) -> list[Json]:
    """Return the messages that these tokens are, which begin with one."""
    messages = []
    for header, content in _cut(tokens):
        message = _header(decode_tokens(header))
        parts = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "sha256": part.digest}
            for part in prompts.content_parts(content)
        ]
        messages.append({**message, "content": parts})
    return messages


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
            return [prompts.render_text("user", _text(message))]
        case "assistant":
            return _of_assistant(message, called)
        case "tool":
            call_id = str(message.get("tool_call_id"))
            name = author.get("name") or called.answer(call_id) or called.latest(call_id)
            if not name:
                raise ValueError("It does not say whose output it is, by a 'name' or by the 'tool_call_id' of a call.")
            return [prompts.render_tool_output(_checked(name), _text(message))]
    raise ValueError("Its 'role' must be one of 'system', 'developer', 'user', 'assistant' and 'tool'.")


def _of_assistant(message: Mapping[str, Any], called: Unanswered[str]) -> list[RenderedMessage]:
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise ValueError("Its 'tool_calls' must be an array of calls.")
    recipient, channel = message.get("recipient"), message.get("channel") or (COMMENTARY if calls else FINAL)
    # A message to the user is an answer that names its reader.
    if recipient is not None and recipient not in NOBODY:
        return [prompts.render_call(_checked(recipient), _text(message))]
    if channel not in CHANNELS:
        raise ValueError(f"Its 'channel' must be one of {', '.join(map(repr, CHANNELS))}.")
    text, thought = _text(message), message.get("reasoning_content") or message.get("reasoning")
    rendered = [prompts.render_assistant(ANALYSIS, thought)] if isinstance(thought, str) else []
    # A message of calls alone says nothing.
    if text or not calls:
        rendered.append(prompts.render_assistant(str(channel), text))
    return [*rendered, *(_call(call, called) for call in calls)]


def _call(call: object, called: Unanswered[str]) -> RenderedMessage:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not (isinstance(call, Mapping) and isinstance(function, Mapping) and isinstance(function.get("name"), str)):
        raise ValueError("Each of its 'tool_calls' must have a 'function' with a 'name'.")
    name = _checked(FUNCTIONS + function["name"])
    called.add(str(call.get("id")), name)
    return prompts.render_call(name, str(function.get("arguments") or ""))


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


def plain_messages(message: RenderedMessage) -> list[PlainMessage]:
    """Return what a message of a chain says, in no format's words."""
    return [
        _plain_message(_header(decode_tokens(header)), prompts.content_parts(content))
        for header, content in _cut(message.tokens)
    ]


def _plain_message(message: Json, parts: Sequence[str | PicturePart]) -> PlainMessage:
    text, recipient = without_pictures(parts), message.get("recipient")
    body: Body = text if all(isinstance(part, str) for part in parts) else parts
    match message["role"]:
        case "user":
            return PlainMessage(PlainKind.USER, body)
        case "system" | "developer":
            instructions = text.removeprefix(prompts.INSTRUCTIONS)
            # A note is a developer's message without the head that instructions have.
            return PlainMessage(PlainKind.NOTE if instructions == text else PlainKind.DEVELOPER, instructions)
        case "tool":
            name = str(message["name"] or "tool")
            return PlainMessage(
                PlainKind.OUTPUT, body, name.removeprefix(FUNCTIONS), hosted=not name.startswith(FUNCTIONS)
            )
    if recipient and recipient not in NOBODY:
        # `code` is how a call with text is marked (`render_call`).
        hosted, is_text = not recipient.startswith(FUNCTIONS), message.get("content_type") == "code"
        return PlainMessage(PlainKind.CALL, text, recipient.removeprefix(FUNCTIONS), hosted=hosted, freeform=is_text)
    kinds = {ANALYSIS: PlainKind.REASONING, COMMENTARY: PlainKind.PREAMBLE}
    return PlainMessage(kinds.get(message.get("channel", ""), PlainKind.ANSWER), text)


# What a header must not have in a name: see `TOOL_NAME`.
_NO_NAME = re.compile(r"[^A-Za-z0-9_.\-]")
_CHANNELS = {ItemKind.REASONING: ANALYSIS, ItemKind.PREAMBLE: COMMENTARY, ItemKind.ANSWER: FINAL}


class HarmonyFormat(ModelFormat):
    """gpt-oss, of any size."""

    name = "harmony"
    stop_tokens = STOP_TOKENS
    vocabulary_name = "harmony"

    def __init__(self, *, sees: bool = False) -> None:
        """`sees`: an engine plays the model, and looks at pictures; no gpt-oss does."""
        self.sees = sees

    def parser(self, functions: Collection[str] | None = ()) -> HarmonyParser:
        return HarmonyParser(functions)

    def grammar(self, rules: TurnRules, behind: Sequence[int] = ()) -> TurnGrammar | None:
        return turn_grammar(rules, behind)

    def problem_of(self, rules: TurnRules, tokens: Sequence[int]) -> str | None:
        return problem_of_turn(rules, tokens, cut=True)

    def frame(
        self,
        *,
        instructions: str | None,
        functions: Sequence[FunctionTool],
        effort: str,
        date: str,
        namespaces: Sequence[ToolNamespace] = (),
    ) -> "Tokens[int]":
        # The models were trained to find these in the system message, and all others in the developer's.
        known = tuple(each for each in namespaces if each.name in prompts.IN_SYSTEM_MESSAGE)
        others = tuple(each for each in namespaces if each.name not in prompts.IN_SYSTEM_MESSAGE)
        frame = as_tokens(
            prompts.render_system(effort=effort, date=date, has_functions=bool(functions), namespaces=known)
        )
        frame.extend(prompts.render_developer(instructions=instructions, tools=tuple(functions), namespaces=others))
        return frame

    def generation_start(self) -> Sequence[int]:
        return prompts.generation_start()

    def wrote(self, first: int) -> bool:
        # A record of another format begins with a number that no vocabulary reaches (`MARK`).
        return first <= MAX_TOKEN

    def render_plain(self, message: PlainMessage) -> RenderedMessage:
        """A name goes into a header, where special tokens would count: what belongs in none becomes `_`."""
        return super().render_plain(replace(message, name=_NO_NAME.sub("_", message.name)[:MAX_NAME]))

    def pictures_of(self, draft: "Tokens[int]") -> Sequence[str]:
        return [digest for _, _, digest in prompts.pictures_in(draft)] if self.sees else ()

    def picture_places(self, prompt: "Tokens[int]") -> Sequence[int]:
        return [begin for begin, _, _ in prompts.pictures_in(prompt)]

    def messages_in(self, tokens: "Tokens[int]", *, whole: bool) -> Sequence[Begins]:
        return messages_in(tokens, {START: None}, role_of)

    def user(self, body: Body) -> RenderedMessage:
        return prompts.render_text("user", body if self.sees else without_pictures(body))

    def developer(self, text: str) -> RenderedMessage:
        return prompts.render_text("developer", text)

    def note(self, text: str) -> RenderedMessage:
        return prompts.render_note(text)

    def said(self, kind: ItemKind, text: str) -> RenderedMessage:
        return prompts.render_assistant(_CHANNELS[kind], text)

    def call(self, name: str, arguments: str, *, hosted: bool = False, freeform: bool = False) -> RenderedMessage:
        return prompts.render_call(name if hosted else FUNCTIONS + name, arguments, freeform=freeform)

    def output(self, name: str, body: Body, *, hosted: bool = False) -> RenderedMessage:
        return prompts.render_tool_output(
            name if hosted else FUNCTIONS + name, body if self.sees else without_pictures(body)
        )

    def late_functions(self, declarations: Sequence[str], *, hosted: bool = False) -> RenderedMessage:
        lines, what = "\n".join(declarations), "tools" if hosted else "functions"
        return self.note(f"# More {what} that can be called, to={'' if hosted else FUNCTIONS}NAME\n\n{lines}")

    def no_such_tool(self, name: str, functions: Collection[str], hosted: Collection[str] = ()) -> RenderedMessage:
        names = ", ".join((*(FUNCTIONS + function for function in functions), *hosted)) or "none"
        return self.output(name, f"Error: this tool does not exist. Available tools: {names}.", hosted=True)

    def text_of(self, tokens: "Tokens[int]") -> str:
        return without_pictures(prompts.content_parts(tokens[tokens.index(MESSAGE) + 1 : -1]))

    def messages_of(self, tokens: "Tokens[int]") -> list[dict[str, Any]]:
        return messages_of(tokens)

    def render_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[RenderedMessage]:
        return render_messages(messages)

    def raw_prompt(self, text: str) -> "Tokens[int]":
        tokens = as_tokens()
        for part in encode_harmony_slices(text):
            tokens.extend(part)
        return tokens

    def is_one_token(self, text: str) -> bool:
        return len(encode_text(text)) == 1

    @property
    def longest_token(self) -> int:
        return longest_token()

    def token_bytes(self, token: int) -> bytes:
        return token_bytes(token)

    def is_token(self, token: int) -> bool:
        return 0 <= token < SPECIAL_TOKENS.stop

    def is_special(self, token: int) -> bool:
        return token >= SPECIAL_TOKENS.start
