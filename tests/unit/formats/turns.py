"""Turns of the two families, well-formed and mangled: texts, tags, calls and ends in any order."""

from collections.abc import Mapping

from hypothesis import strategies as st

from tests.unit.formats.families import LLAMA, QWEN, Family
from tests.unit.formats.rendering import Renderer

_CALLS = ('{"name": "%s", "%s": {"a": 1}}', '{"name": "%s", "%s": {}}')
_NAMES = ("f", "get_weather", "python", "server.undeclared", "undeclared")
_PIECES: Mapping[str, tuple[str, ...]] = {
    QWEN.name: (
        *("<think>\nHm, the answer.\n</think>\n\n", "<think>", "\n</think>\n\n", "<tool_call>", "\n</tool_call>"),
        *(f"<tool_call>\n{call % (name, 'arguments')}\n</tool_call>" for call in _CALLS for name in _NAMES),
        '<tool_call>{"arguments": {}, "name": "f"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"freeform_text": "ls"}}</tool_call>',
    ),
    LLAMA.name: (
        *(call % (name, "parameters") for call in _CALLS for name in _NAMES),
        *("<|python_tag|>", "; ", '{"parameters": {}, "name": "f"}', '{"answer": 42}', '{"name": '),
    ),
}
_TEXTS = st.sampled_from(["Hello", " world", "\n", "  ", "\n\n", "Grüße 👍🏽", '{"', "}", "<", "é" * 3, "\\"])


def family_turns(family: Family) -> st.SearchStrategy[list[int]]:
    """Return what draws the tokens of one turn; one in eight ends in the middle of a character, or goes on."""
    encode = Renderer(family).encode
    pieces = st.lists(st.sampled_from(_PIECES[family.name]) | _TEXTS, max_size=6).map("".join)
    ends = st.sampled_from([[family.ids[family.end]]] * 6 + [[0xC3], [family.ids[family.end], *b"more"]])
    return st.builds(lambda said, end: [*encode(said), *end], pieces, ends)
