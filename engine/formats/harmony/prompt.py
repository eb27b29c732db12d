"""Messages → prompt tokens. Rendering is concatenative: a prompt is the sum of its messages and `<|start|>assistant`.

Every message keeps the tokens it was rendered to or sampled as, and a continuation is made of exactly those: another
rendering of the same text (recipient order, `<|constrain|>`, BPE splits) would lose the engine's prefix cache.
"""

from collections.abc import Sequence
from functools import lru_cache

import orjson
from openai_harmony import (
    Message,
    ReasoningEffort,
    RenderOptions,
    Role,
    SystemContent,
    ToolDescription,
    ToolNamespaceConfig,
)

from engine.formats.base import FunctionTool, MessageKind, RenderedMessage, Tokens, ToolNamespace, as_tokens
from engine.formats.harmony.declarations import developer_text
from engine.formats.harmony.encoding import (
    CALL,
    END,
    END_TOKENS,
    ENDOFTEXT,
    MESSAGE,
    RETURN,
    START,
    decode_tokens,
    encode_harmony,
    encode_slices,
    harmony_encoding,
)
from engine.formats.harmony.header import ANALYSIS, COMMENTARY, FINAL
from engine.formats.harmony.parser import MessageCompleted

MAX_REMEMBERED_CHARACTERS = 128 * 1024  # of one developer message
INSTRUCTIONS = "# Instructions\n\n"  # before those that stand in the middle of a conversation
IN_SYSTEM_MESSAGE = ("browser", "python")  # namespaces that the models were trained to find there


@lru_cache(maxsize=64)  # an effort, a day, with or without functions and tools: a handful in use
def render_system(
    *, effort: str, date: str, has_functions: bool, namespaces: tuple[ToolNamespace, ...] = ()
) -> tuple[int, ...]:
    """Render the system message, which gains a line that names their channel where there are functions.

    `effort` is none, low, medium or high; gpt-oss always thinks, at least as much as `low` is. `date` is ISO 8601.
    `namespaces` are those of `IN_SYSTEM_MESSAGE`.
    """
    content = (
        SystemContent.new()
        .with_reasoning_effort(ReasoningEffort("Low" if effort == "none" else effort.capitalize()))
        .with_conversation_start_date(date)
    )
    for namespace in namespaces:
        content = content.with_tools(_as_library(namespace))
    options = RenderOptions(conversation_has_function_tools=has_functions)
    return tuple(harmony_encoding().render(Message.from_role_and_content(Role.SYSTEM, content), options))


def _as_library(namespace: ToolNamespace) -> ToolNamespaceConfig:
    functions = [
        ToolDescription.new(each.name, each.description, parameters=orjson.loads(each.schema) if each.schema else None)
        for each in namespace.functions
    ]
    return ToolNamespaceConfig(name=namespace.name, description=namespace.description or None, tools=functions)


def render_developer(
    *, instructions: str | None, tools: tuple[FunctionTool, ...], namespaces: tuple[ToolNamespace, ...] = ()
) -> Sequence[int]:
    """Render the developer message that carries instructions and tools; empty where there are neither.

    Agents send the same ones in every request, so the latest are remembered.
    """
    if not (instructions or tools or namespaces):
        return ()
    every = (*tools, *(tool for namespace in namespaces for tool in namespace.functions))
    size = len(instructions or "") + sum(len(tool.schema) + len(tool.description) for tool in every)
    if size > MAX_REMEMBERED_CHARACTERS:
        return _render_developer.__wrapped__(instructions, tools, namespaces)
    return _render_developer(instructions, tools, namespaces)


@lru_cache(maxsize=64)  # with MAX_REMEMBERED_CHARACTERS: at most 8 MiB of text and their tokens
def _render_developer(
    instructions: str | None, tools: tuple[FunctionTool, ...], namespaces: tuple[ToolNamespace, ...]
) -> "Tokens[int]":
    return _render("developer", developer_text(instructions, tools, namespaces))


def render_text(role: str, text: str) -> RenderedMessage:
    """Render what a user wrote, or a developer's message in the middle of a conversation."""
    if role == "user":
        return RenderedMessage(MessageKind.USER, _render("user", text))
    return RenderedMessage(MessageKind.OTHER, _render("developer", INSTRUCTIONS + text))


def render_summary(text: str) -> RenderedMessage:
    """Render what stands for an earlier part of the conversation: told by the developer, and no instruction."""
    return RenderedMessage(MessageKind.OTHER, _render("developer", text))


def text_of_message(tokens: "Tokens[int]") -> str:
    """Return the text of a user's message that was rendered here."""
    return decode_tokens(tokens[tokens.index(MESSAGE) + 1 : -1])


def render_assistant(channel: str, text: str) -> RenderedMessage:
    """Render a message of the assistant that was not sampled here."""
    return RenderedMessage(_kind_of(channel), _render(f"assistant<|channel|>{channel}", text))


def render_call(recipient: str, arguments: str, *, freeform: bool = False) -> RenderedMessage:
    """Render a call that was not sampled here, in the order the models are trained on.

    `freeform`: it is text as it is, and said to be what the `python` tool is called with.
    """
    header = f"assistant<|channel|>{COMMENTARY} to={recipient} {'code' if freeform else '<|constrain|>json'}"
    return RenderedMessage(MessageKind.COMMENTARY, _render(header, arguments, end=CALL))


def render_tool_output(name: str, text: str) -> RenderedMessage:
    """Render what the tool `name` (`functions.x`) gave back."""
    return RenderedMessage(MessageKind.OTHER, _render(f"{name} to=assistant<|channel|>{COMMENTARY}", text))


def sampled_message(
    event: MessageCompleted, *, channel: str | None, recipient: str | None, text: str
) -> RenderedMessage:
    """Return a message that the model sampled, as it is fed back: its own tokens, `<|return|>` turned to `<|end|>`.

    Any token that ended the turn becomes the one that belongs there: `<|call|>` behind a call, else `<|end|>`. The last
    token is in no engine's cache, so that costs nothing. A truncated message is ended. A malformed one is
    rendered anew, so that the model reads what the client read.
    """
    if event.repaired:
        if recipient:
            return render_call(recipient, text)
        return render_assistant(channel or FINAL, text)
    kind = MessageKind.COMMENTARY if recipient else _kind_of(channel)
    tokens = as_tokens(event.tokens)
    if tokens[0] != START:
        tokens = as_tokens(generation_start()) + tokens
    if tokens[-1] in (RETURN, CALL, ENDOFTEXT):
        tokens[-1] = CALL if recipient else END
    elif tokens[-1] not in END_TOKENS:
        tokens.append(CALL if recipient else END)
    return RenderedMessage(kind, tokens)


def _kind_of(channel: str | None) -> MessageKind:
    """Return the kind of an assistant's message."""
    kinds = {ANALYSIS: MessageKind.ANALYSIS, COMMENTARY: MessageKind.COMMENTARY}
    return kinds.get(channel or FINAL, MessageKind.FINAL)


@lru_cache(maxsize=1)
def generation_start() -> tuple[int, ...]:
    """Return the tokens that ask the model to go on: `<|start|>assistant`."""
    return tuple(encode_harmony("<|start|>assistant"))


def _render(header: str, text: str, *, end: int = END) -> "Tokens[int]":
    tokens = as_tokens(_header_tokens(header))
    for part in encode_slices(text):
        tokens.extend(part)
    tokens.append(end)
    return tokens


@lru_cache(maxsize=1024)  # role and channel combinations, and the names of tools in use; names are at most 256 long
def _header_tokens(header: str) -> tuple[int, ...]:
    return tuple(encode_harmony(f"<|start|>{header}<|message|>"))
