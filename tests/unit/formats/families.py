"""Two small families of models with chat templates, and their tokenizers' folders: made here, nothing is downloaded.

    python -m tests.unit.formats.families FOLDER

The vocabularies are byte-level BPEs of 256 bytes and a few words, with the special tokens of the family; the templates
are ours, in the form of the family. What is between two special tokens is encoded by the longest pieces.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORDS = (
    *("Hello", " Hello", " world", "user", "assistant", "system", "name", "arguments", "parameters", "function", '":'),
    *("\n\n", "  ", "tool", " the", " answer", "ing", " is", "response", "yes", "no"),
)
QWEN_TEMPLATE = """
{%- macro calls(message) -%}
{%- for call in message.tool_calls -%}
{{- '\\n' if not loop.first or message.content }}<tool_call>⏎{"name": "{{ call.function.name }}", "arguments": \
{{ call.function.arguments | tojson }}}⏎</tool_call>
{%- endfor -%}
{%- endmacro -%}
{%- if tools or messages[0].role == 'system' -%}
<|im_start|>system⏎{{ messages[0].content if messages[0].role == 'system' }}
{%- if tools %}⏎⏎# Tools⏎<tools>{% for tool in tools %}⏎{{ tool | tojson }}{% endfor %}⏎</tools>{% endif -%}
<|im_end|>⏎
{%- endif -%}
{%- set last = namespace(user=-1) -%}
{%- for message in messages if message.role == 'user' %}{% set last.user = messages.index(message) %}{% endfor -%}
{%- for message in messages -%}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) -%}
<|im_start|>{{ message.role }}⏎{{ message.content }}<|im_end|>⏎
{%- elif message.role == 'assistant' -%}
<|im_start|>assistant⏎
{%- if message.reasoning_content and loop.index0 > last.user -%}
<think>⏎{{ message.reasoning_content.strip('\\n') }}⏎</think>⏎⏎
{%- endif -%}
{{ message.content }}{% if message.tool_calls %}{{ calls(message) }}{% endif %}<|im_end|>⏎
{%- elif message.role == 'tool' -%}
<|im_start|>user⏎<tool_response>⏎{{ message.content }}⏎</tool_response><|im_end|>⏎
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant⏎
{%- if enable_thinking is defined and not enable_thinking %}<think>⏎⏎</think>⏎⏎{% endif -%}
{%- endif -%}
"""
LLAMA_TEMPLATE = """
{%- macro head(role) -%}<|start_header_id|>{{ role }}<|end_header_id|>⏎⏎{%- endmacro -%}
<|begin_of_text|>{{ head('system') }}Today Date: {{ date_string }}⏎⏎
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- if tools %}⏎⏎Tools:{% for tool in tools %}⏎{{ tool | tojson }}{% endfor %}{% endif %}<|eot_id|>
{%- for message in (messages[1:] if messages[0].role == 'system' else messages) -%}
{%- if message.tool_calls -%}
{{ head('assistant') }}{{ message.content }}
{%- for call in message.tool_calls -%}
{{ '; ' if not loop.first }}{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}
{%- endfor -%}<|eot_id|>
{%- elif message.role == 'tool' -%}{{ head('ipython') }}{{ message.content | tojson }}<|eot_id|>
{%- else -%}{{ head(message.role) }}{{ message.content }}<|eot_id|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ head('assistant') }}{% endif -%}
"""


def _merges(word: bytes, spelled: list[str]) -> list[tuple[str, str]]:
    """Return the merges that make a word of its bytes, from the left."""
    letters = [spelled[byte] for byte in word]
    return [("".join(letters[:end]), letters[end]) for end in range(1, len(letters))]


def _vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the ordinary tokens, bytes first and then words, and the merges that make words."""
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    spelled = [chr(byte if byte in itself else next(others)) for byte in range(256)]
    pieces = [*(bytes((byte,)) for byte in range(256)), *(word.encode() for word in WORDS)]
    vocabulary = {"".join(spelled[byte] for byte in piece): token for token, piece in enumerate(pieces)}
    merges = list(dict.fromkeys(pair for word in WORDS for pair in _merges(word.encode(), spelled)))
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    return vocabulary, merges


VOCABULARY, MERGES = _vocabulary()
FIRST_WORD = 256  # id: those before it are single bytes


@dataclass(frozen=True, slots=True)
class Family:
    """A family: its special tokens, of which `end` ends a turn, and its template."""

    name: str
    special: tuple[str, ...]
    added: tuple[str, ...]
    end: str
    template: str

    @property
    def chat_template(self) -> str:
        """The template as the tokenizer's folder has it; ours have a sign for a line's end, which nothing trims."""
        return self.template.strip().replace("⏎", r"{{ '\n' }}")

    @property
    def ids(self) -> dict[str, int]:
        return {name: len(VOCABULARY) + place for place, name in enumerate((*self.special, *self.added))}

    def tokenizer(self) -> dict[str, Any]:
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        return {
            "version": "1.0",
            "added_tokens": [
                {"id": token, "content": name, "special": name in self.special, **flags}
                for name, token in self.ids.items()
            ],
            "normalizer": None,
            "pre_tokenizer": level,
            "post_processor": None,
            "decoder": level,
            "model": {"type": "BPE", "vocab": VOCABULARY, "merges": [list(pair) for pair in MERGES]},
        }

    @property
    def size(self) -> int:
        return len(VOCABULARY) + len(self.ids)

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": self.end,
            "chat_template": self.chat_template,
            "clean_up_tokenization_spaces": False,
        }
        (folder / "tokenizer.json").write_text(json.dumps(self.tokenizer(), ensure_ascii=False), encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


QWEN = Family(
    "qwen",
    ("<|im_start|>", "<|im_end|>"),
    ("<think>", "</think>", "<tool_call>", "</tool_call>"),
    "<|im_end|>",
    QWEN_TEMPLATE,
)
LLAMA = Family(
    "llama",
    ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"),
    (),
    "<|eot_id|>",
    LLAMA_TEMPLATE,
)

if __name__ == "__main__":
    for each in (QWEN, LLAMA):
        each.write(Path(sys.argv[1]) / each.name)
