"""`HarmonyFormat`: gpt-oss. What a channel and a recipient mean is decided in `_item_of`, and nowhere else."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.formats.base import (
    Begins,
    Body,
    FunctionTool,
    ItemEnded,
    ItemKind,
    ItemStarted,
    ModelFormat,
    RenderedMessage,
    Text,
    Tokens,
    Told,
    ToolNamespace,
    TurnEvent,
    TurnParser,
    as_tokens,
    without_pictures,
)
from engine.formats.harmony.encoding import (
    END_TOKENS,
    MAX_TOKEN,
    MESSAGE,
    SPECIAL_TOKENS,
    START,
    STOP_TOKENS,
    encode_harmony_slices,
    encode_text,
    longest_token,
    token_bytes,
)
from engine.formats.harmony.grammar import problem_of_turn, turn_grammar
from engine.formats.harmony.messages import (
    MAX_NAME,
    TOOL_NAME,
    content_parts,
    messages_of,
    pictures_in,
    render_messages,
    role_of,
)
from engine.formats.harmony.parser import (
    ANALYSIS,
    COMMENTARY,
    FINAL,
    FUNCTIONS,
    HarmonyEvent,
    HarmonyStream,
    Header,
    MessageCompleted,
)
from engine.formats.harmony.prompt import (
    IN_SYSTEM_MESSAGE,
    generation_start,
    render_assistant,
    render_call,
    render_developer,
    render_note,
    render_system,
    render_text,
    render_tool_output,
    render_user,
    sampled_message,
)
from engine.formats.roles import messages_in
from engine.types import TurnGrammar, TurnRules

_TURN_ENDS = frozenset(STOP_TOKENS)  # a grammar lets any of them end a call
# What a header must not have in a name: see `TOOL_NAME`.
_NO_NAME = re.compile(r"[^A-Za-z0-9_.\-]")
_CHANNELS = {ItemKind.REASONING: ANALYSIS, ItemKind.PREAMBLE: COMMENTARY, ItemKind.ANSWER: FINAL}


class HarmonyParser(TurnParser):
    """Reads one generation of a Harmony model."""

    def __init__(self, functions: Collection[str] | None) -> None:
        self._functions = functions
        self._stream = HarmonyStream()  # what reads tokens; it knows no items
        self._header = Header(None, None)  # of the open message
        self._texts: list[str] = []  # of the open message: a malformed one is rendered anew

    @property
    def repairs(self) -> int:  # type: ignore[override]
        """How many messages were malformed."""
        return self._stream.repairs

    def feed(self, token_ids: Iterable[int]) -> list[TurnEvent]:
        events = self._stream.feed(token_ids)
        if len(events) == 1 and isinstance(text := events[0], Text):  # nearly always
            self._texts.append(text.text)
            return [text]
        return self._read(events)

    def close(self) -> list[TurnEvent]:
        return self._read(self._stream.close())

    def is_end(self, token: int) -> bool:
        return token in END_TOKENS

    def _read(self, events: Iterable[HarmonyEvent]) -> list[TurnEvent]:
        read: list[TurnEvent] = []
        for event in events:
            if isinstance(event, Text):
                self._texts.append(event.text)
                read.append(event)
            elif isinstance(event, Header):
                self._header = event
                self._texts.clear()
                read.append(self._item_of(event.channel, event.recipient))
            else:
                read.append(self._ended(event))
        return read

    def _ended(self, event: MessageCompleted) -> ItemEnded:
        channel, recipient = self._header.channel, self._header.recipient
        # The texts are needed only to write a malformed message anew.
        message = sampled_message(
            event, channel=channel, recipient=recipient, text="".join(self._texts) if event.repaired else ""
        )
        return ItemEnded(
            message,
            # Preambles count as reasoning, too: they are not part of the answer.
            reasoning_tokens=event.content_tokens if channel in (ANALYSIS, COMMENTARY) else 0,
            truncated=event.truncated,
            # A call that the generation was cut in has no end token, and waits for nothing.
            called=recipient is not None and bool(event.tokens) and event.tokens[-1] in _TURN_ENDS,
        )

    def _item_of(self, channel: str | None, recipient: str | None) -> ItemStarted:
        """Decide what a message is. A call is a call on any channel: models do call on `analysis`.

        A function is named with its prefix, any one: clients declare functions in ways that a server does not see. A
        declared one is known without the prefix, too. Every other recipient is a tool of the server's.
        """
        if recipient is not None:
            name = recipient.removeprefix(FUNCTIONS)
            is_prefixed = name != recipient and TOOL_NAME.fullmatch(name) is not None
            if self._functions is not None and (name in self._functions or is_prefixed):
                return ItemStarted(ItemKind.CALL, name)
            return ItemStarted(ItemKind.HOSTED_CALL, recipient)
        if channel == ANALYSIS:
            return ItemStarted(ItemKind.REASONING)
        return ItemStarted(ItemKind.PREAMBLE if channel == COMMENTARY else ItemKind.ANSWER)


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
        known = tuple(each for each in namespaces if each.name in IN_SYSTEM_MESSAGE)
        others = tuple(each for each in namespaces if each.name not in IN_SYSTEM_MESSAGE)
        frame = as_tokens(render_system(effort=effort, date=date, has_functions=bool(functions), namespaces=known))
        frame.extend(render_developer(instructions=instructions, tools=tuple(functions), namespaces=others))
        return frame

    def generation_start(self) -> Sequence[int]:
        return generation_start()

    def wrote(self, first: int) -> bool:
        # A record of another format begins with a number that no vocabulary reaches (`MARK`).
        return first <= MAX_TOKEN

    def told(self, message: Told) -> RenderedMessage:
        """A name goes into a header, where special tokens would count: what belongs in none becomes `_`."""
        return super().told(replace(message, name=_NO_NAME.sub("_", message.name)[:MAX_NAME]))

    def pictures_of(self, draft: "Tokens[int]") -> Sequence[str]:
        return [digest for _, _, digest in pictures_in(draft)] if self.sees else ()

    def picture_places(self, prompt: "Tokens[int]") -> Sequence[int]:
        return [begin for begin, _, _ in pictures_in(prompt)]

    def messages_in(self, tokens: "Tokens[int]", *, whole: bool) -> Sequence[Begins]:
        return messages_in(tokens, {START: None}, role_of)

    def user(self, body: Body) -> RenderedMessage:
        return render_user(self._seen(body))

    def _seen(self, body: Body) -> Body:
        return body if self.sees else without_pictures(body)

    def developer(self, text: str) -> RenderedMessage:
        return render_text("developer", text)

    def note(self, text: str) -> RenderedMessage:
        return render_note(text)

    def said(self, kind: ItemKind, text: str) -> RenderedMessage:
        return render_assistant(_CHANNELS[kind], text)

    def call(self, name: str, arguments: str, *, hosted: bool = False, freeform: bool = False) -> RenderedMessage:
        return render_call(name if hosted else FUNCTIONS + name, arguments, freeform=freeform)

    def output(self, name: str, body: Body, *, hosted: bool = False) -> RenderedMessage:
        return render_tool_output(name if hosted else FUNCTIONS + name, self._seen(body))

    def late_functions(self, declarations: Sequence[str], *, hosted: bool = False) -> RenderedMessage:
        lines, what = "\n".join(declarations), "tools" if hosted else "functions"
        return self.note(f"# More {what} that can be called, to={'' if hosted else FUNCTIONS}NAME\n\n{lines}")

    def no_such_tool(self, name: str, functions: Collection[str], hosted: Collection[str] = ()) -> RenderedMessage:
        names = ", ".join((*(FUNCTIONS + function for function in functions), *hosted)) or "none"
        return self.output(name, f"Error: this tool does not exist. Available tools: {names}.", hosted=True)

    def text_of(self, tokens: "Tokens[int]") -> str:
        return without_pictures(content_parts(tokens[tokens.index(MESSAGE) + 1 : -1]))

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
