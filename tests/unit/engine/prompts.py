"""Prompts for the tests of the demo engine."""

import json
from collections.abc import Mapping, Sequence

from openai_harmony import Conversation, DeveloperContent, Message, Role, SystemContent, ToolDescription

from engine.backends.demo.replies import reply_to
from engine.backends.demo.tools import DemoAnswer, DemoCall
from engine.backends.simulated import PromptTranscript
from engine.formats.base import FunctionTool, Tokens, ToolNamespace
from engine.formats.harmony.format import HarmonyFormat
from engine.formats.harmony.prompt import generation_start, render_call, render_text, render_tool_output
from tests.kit.harmony import harmony_encoding

HARMONY = HarmonyFormat()


def declare(**functions: Mapping[str, object] | None) -> list[int]:
    """Return a system and a developer message that declare functions, as Harmony renders them."""
    tools = [ToolDescription.new(name, f"Says {name}", parameters=schema) for name, schema in functions.items()]
    content = DeveloperContent.new().with_instructions("Be kind.").with_function_tools(tools)
    messages = [
        Message.from_role_and_content(Role.SYSTEM, SystemContent.new()),
        Message.from_role_and_content(Role.DEVELOPER, content),
    ]
    return list(harmony_encoding().render_conversation(Conversation.from_messages(messages)))


def users(*texts: str) -> list[int]:
    return [token for text in texts for token in render_text("user", text).tokens]


def called(name: str, output: str) -> list[int]:
    return [*render_call(f"functions.{name}", "{}").tokens, *render_tool_output(f"functions.{name}", output).tokens]


def prompt(*texts: str, before: list[int] | None = None, after: list[int] | None = None) -> list[int]:
    return [*(before or []), *users(*texts), *(after or []), *generation_start()]


def reply_with(asked: str, namespaces: Sequence[ToolNamespace], *outputs: tuple[str, str]) -> DemoAnswer | DemoCall:
    """Return the reply to a user who offers tools of the server, behind what those gave back."""
    return reply_to(PromptTranscript(prompt_with(asked, namespaces, *outputs)))


def prompt_with(
    asked: str, namespaces: Sequence[ToolNamespace], *outputs: tuple[str, str], functions: Sequence[FunctionTool] = ()
) -> "Tokens[int]":
    """Return a prompt with tools of the server and of the client, calls of the server's, and what they gave back."""
    frame = {"instructions": None, "effort": "low", "date": "2026-01-01"}
    tokens = HARMONY.frame(**frame, functions=functions, namespaces=namespaces)
    tokens.extend(HARMONY.user(asked).tokens)
    for name, output in outputs:
        tokens.extend(HARMONY.call(name, "{}", hosted=True, freeform=name == "python").tokens)
        tokens.extend(HARMONY.output(name, output, hosted=True).tokens)
    tokens.extend(generation_start())
    return tokens


def answer(token_ids: Sequence[int]) -> str:
    return answer_of(reply_to(PromptTranscript(token_ids)))


def answer_of(reply: DemoAnswer | DemoCall) -> str:
    assert isinstance(reply, DemoAnswer), reply
    return reply.text


def call_of(reply: DemoAnswer | DemoCall) -> tuple[str, object, bool]:
    """Return the name of the tool that is called, the arguments, and whether the server runs it."""
    assert isinstance(reply, DemoCall), reply
    return reply.name, json.loads(reply.arguments), reply.hosted
