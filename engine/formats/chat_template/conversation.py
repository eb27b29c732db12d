"""Records → the conversation that vLLM renders, in the shape of Chat Completions.

frame, developer's messages before all others     one system message, and the tools
reasoning, answers, calls of the model in a row   one message of the assistant
the output of a tool                              a tool's message, with the id of the earliest call it may answer
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from engine.formats.base import FunctionTool, ToolNamespace
from engine.formats.chat_template.efforts import template_kwargs
from engine.formats.chat_template.records import Record, Saying
from engine.types import ChatPrompt

FREEFORM = "freeform_text"  # the one parameter of a tool that takes text as it is

Json = dict[str, Any]
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


@dataclass(slots=True)
class Conversation(ChatPrompt):
    """What is to be rendered. `sampled` are the tokens of the assistant's messages that were sampled here, in order."""

    sampled: list[list[int]] = field(default_factory=list)


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
    for namespace in namespaces:
        own = namespace.functions or (FunctionTool("", namespace.description, "", freeform=True),)
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
    return {
        "type": "function",
        "function": {"name": name, "description": function.description, "parameters": schema},
    }


def conversation_of(said: Iterable[Record], *, vocabulary: str) -> Conversation:
    """Return the conversation that records tell; its sampled tokens are those of a vocabulary (its fingerprint)."""
    writer = _Writer(vocabulary)
    for each in said:
        writer.add(each)
    return writer.finished()


class _Writer:
    def __init__(self, vocabulary: str) -> None:
        self._vocabulary = vocabulary
        self._made = Conversation()
        self._unanswered: list[tuple[str, str]] = []  # the names and ids of calls
        self._calls = 0
        self._tokens: list[int] = []  # of the assistant's message that is being written
        self._is_whole = False  # all its parts were sampled here

    def add(self, each: Record) -> None:
        match each.said["is"]:
            case "frame":
                self._frame(each.said)
            case "user":
                self._message({"role": "user", "content": each.said["text"]})
            case "system":
                self._system(each.said["text"])
            case "output":
                self._output(each.said)
            case "reasoning" | "answer" | "call":
                self._assistant(each)

    def finished(self) -> Conversation:
        self._close()
        return self._made

    def _frame(self, said: Saying) -> None:
        year, month, day = said["date"].split("-")
        self._made.tools = said["tools"]
        named = f"{day} {_MONTHS[int(month) - 1]} {year}"
        self._made.template_kwargs = {"date_string": named, **said["kwargs"]}
        if said["instructions"]:
            self._system(said["instructions"])

    def _system(self, text: str) -> None:
        """Add instructions; many templates take a system message at the beginning only, and one."""
        messages = self._made.messages
        if len(messages) == 1 and messages[0]["role"] == "system":
            messages[0]["content"] += f"\n\n{text}"
        else:
            self._message({"role": "system", "content": text})

    def _message(self, message: Json) -> None:
        self._close()
        self._made.messages.append(message)

    def _output(self, said: Saying) -> None:
        place = next((at for at, (name, _) in enumerate(self._unanswered) if name == said["name"]), None)
        call_id = f"call_{self._calls}" if place is None else self._unanswered.pop(place)[1]
        self._message({"role": "tool", "tool_call_id": call_id, "name": said["name"], "content": said["text"]})

    def _assistant(self, each: Record) -> None:
        kind, messages = each.said["is"], self._made.messages
        message = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        if message is None or not _takes(message, kind):
            message = {"role": "assistant", "content": ""}
            self._message(message)
            self._is_whole = True
        sampled = each.sampled_in(self._vocabulary)
        self._tokens.extend(sampled)
        self._is_whole = self._is_whole and len(sampled) > 0
        if kind == "answer":
            message["content"] = each.said["text"]
        elif kind == "reasoning":
            message["reasoning"] = message["reasoning_content"] = each.said["text"]
        else:
            message.setdefault("tool_calls", []).append(self._call(each.said))

    def _call(self, said: Saying) -> Json:
        self._calls += 1
        call_id = f"call_{self._calls}"
        self._unanswered.append((said["name"], call_id))
        arguments = arguments_of(said["text"], freeform=said.get("freeform", False))
        return {
            "id": call_id,
            "type": "function",
            "function": {"name": said["name"], "arguments": orjson.dumps(arguments).decode()},
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
