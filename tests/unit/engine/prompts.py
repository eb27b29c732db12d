"""Prompts for the tests of the demo engine."""

from collections.abc import Mapping

from openai_harmony import Conversation, DeveloperContent, Message, Role, SystemContent, ToolDescription

from engine.formats.harmony.prompt import generation_start, render_call, render_text, render_tool_output
from tests.kit.harmony_library import harmony_encoding


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
    """Return messages of the user."""
    return [token for text in texts for token in render_text("user", text).tokens]


def called(name: str, output: str) -> list[int]:
    """Return a call and its output."""
    return [
        *render_call(f"functions.{name}", "{}").tokens,
        *render_tool_output(f"functions.{name}", output).tokens,
    ]


def prompt(*texts: str, before: list[int] | None = None, after: list[int] | None = None) -> list[int]:
    """Return a prompt with messages of the user."""
    return [*(before or []), *users(*texts), *(after or []), *generation_start()]
