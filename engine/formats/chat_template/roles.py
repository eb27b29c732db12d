"""Whose the messages of a rendered conversation are, by the signs that families of templates begin them with.

A family that has none of these signs in its vocabulary, or writes them as plain text, does not tell: nothing is found.
"""

import re
from collections.abc import Mapping

from engine.formats.base import Begins, Role, Tokens
from engine.formats.chat_template.vocabulary import Vocabulary
from engine.formats.roles import messages_in

# Behind these stands a name: of ChatML (Qwen and others), Kimi, Llama from 3 on and from 4 on, Gemma, Granite.
_NAMED = (
    *("<|im_start|>", "<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|start_header_id|>", "<|header_start|>"),
    *("<start_of_turn>", "<|start_of_role|>"),
)
_SIGNS: Mapping[str, Role] = {
    # Of GLM and of Phi.
    "<|system|>": "system",
    "<|user|>": "user",
    "<|assistant|>": "assistant",
    "<|observation|>": "tool",
    "<|tool|>": "tool",
    # Of DeepSeek.
    "<｜User｜>": "user",
    "<｜Assistant｜>": "assistant",
    "<｜tool▁outputs▁begin｜>": "tool",
    # Of Mistral.
    "[SYSTEM_PROMPT]": "system",
    "[AVAILABLE_TOOLS]": "system",
    "[INST]": "user",
    "[TOOL_RESULTS]": "tool",
}
# Signs with which a message ends behind which the assistant speaks.
_ENDS = ("[/INST]", "[/TOOL_RESULTS]", "<｜tool▁outputs▁end｜>")
_UNSIGNED = "<｜User｜>"  # where this is a sign, instructions have none: they stand before all messages
_NAMES: Mapping[str, Role] = {
    **dict.fromkeys(("system", "available_tools", "tool_declare"), "system"),
    "developer": "developer",
    "user": "user",
    **dict.fromkeys(("tool", "ipython", "tool_response", "observation", "function"), "tool"),
    **dict.fromkeys(("assistant", "model"), "assistant"),
}
# A name, and whether the output of a tool follows in what is the user's message otherwise, as Qwen has it.
_NAME = re.compile(r"\s*([a-z_]+)(?:\s*(<tool_response>))?")


def template_messages(tokens: "Tokens[int]", vocabulary: Vocabulary, *, whole: bool) -> list[Begins]:
    """Return where messages begin; see `ModelFormat.messages_in`."""
    added, special = vocabulary.added, vocabulary.special
    signs: dict[int, Role | None] = {added[name]: None for name in _NAMED if name in added}
    signs |= {added[name]: role for name, role in _SIGNS.items() if name in added}
    ends = {added[name] for name in _ENDS if name in added}
    signs |= dict.fromkeys(ends, "assistant")

    def named(header: "Tokens[int]") -> Role:
        text = b"".join(map(vocabulary.token_bytes, header)).decode(errors="replace")
        match = _NAME.match(text.lower())
        role = "prompt" if match is None else _NAMES.get(match[1], "prompt")
        return "tool" if role == "user" and match is not None and match[2] else role

    found = messages_in(tokens, signs, named)
    found = [(place + 1, role) if tokens[place] in ends else (place, role) for place, role in found]
    found = [each for each in found if each[0] < len(tokens)]
    if whole and found and found[0][0]:
        first, role = found[0]
        if all(token in special for token in tokens[:first]):  # the sign of the prompt's beginning
            found[0] = (0, role)
        elif _UNSIGNED in added:
            found.insert(0, (0, "system"))
    return found
