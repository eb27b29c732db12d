"""The two families without a vLLM: their templates rendered by jinja2, their texts encoded by the longest pieces."""

import json
import re
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment

from engine.formats.chat_template.format import ChatTemplateFormat, FamilyTraits
from engine.formats.chat_template.reader import CallStyle
from engine.formats.chat_template.vocabulary import vocabulary_of
from engine.types import ChatPrompt
from tests.unit.formats.families import FIRST_WORD, LLAMA, QWEN, WORDS, Family

STYLES = {"qwen": CallStyle.HERMES, "llama": CallStyle.JSON}


class Renderer:
    """Renders as vLLM does; `chats` are the conversations so far."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.chats: list[ChatPrompt] = []
        environment = Environment(keep_trailing_newline=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(family.chat_template)
        self._added = family.ids
        self._ids = {**{word: FIRST_WORD + place for place, word in enumerate(WORDS)}, **self._added}
        words = sorted(self._ids, key=len, reverse=True)
        self._words = re.compile("|".join(map(re.escape, words)))

    def __call__(self, chat: ChatPrompt) -> Sequence[int]:
        self.chats.append(chat)
        text = self._template.render(
            messages=[_with_objects(message) for message in chat.messages],
            tools=chat.tools,
            add_generation_prompt=True,
            **chat.template_kwargs,
        )
        return self.encode(text)

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = []
        done = 0
        for found in self._words.finditer(text):
            tokens += text[done : found.start()].encode()
            tokens.append(self._ids[found[0]])
            done = found.end()
        return tokens + list(text[done:].encode())


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {"function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls}


def format_of(family: Family, **traits: Any) -> tuple[ChatTemplateFormat, Renderer]:
    renderer = Renderer(family)
    own = FamilyTraits(STYLES[family.name], **{"thinks": family is QWEN, **traits})
    made = ChatTemplateFormat(
        lambda: vocabulary_of(family.tokenizer(), [{"eos_token": family.end}]), renderer, lambda _: own
    )
    return made, renderer


FAMILIES = (QWEN, LLAMA)
