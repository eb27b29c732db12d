"""White space between items: what of it an item's text begins with, and what a chat template writes by itself.

    <think>⏎Hm.⏎</think>⏎⏎Hello.⏎<tool_call>…        the line ends shown here belong to the template

A chat template writes these line ends anew around a text that it is given. Any more white space is the item's own, and
its text keeps it: so the next rendering says what was sampled, byte by byte, and the sampled tokens are found in it.
White space with nothing behind it but a tag, or a call, is no item's text.
"""

from dataclasses import dataclass

SPACE = " \t\r\n"
LINE = "\n"
_LINES_BEHIND_THOUGHT = 2


@dataclass(slots=True)
class Gap:
    """White space that came where an item may begin, until it is known which one does."""

    text: str = ""
    is_behind_thought: bool = False
    is_behind_call: bool = False  # then an answer is a message of its own, and the gap before it is dropped

    def take(self, text: str) -> str:
        """Take the white space with which a text begins; return the rest of it."""
        rest = text.lstrip(SPACE)
        self.text += text[: len(text) - len(rest)]
        return rest

    def before_answer(self) -> str:
        """Return what an answer that begins here begins with."""
        if self.is_behind_call:
            return ""
        text = self.text
        for _ in range(_LINES_BEHIND_THOUGHT if self.is_behind_thought else 0):
            text = text.removeprefix(LINE)
        return text

    def before_thought(self) -> str:
        """Return what a thought that begins here begins with."""
        return self.text.removeprefix(LINE)
