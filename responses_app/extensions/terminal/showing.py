"""What a terminal shows of a response's events: thoughts dimmed, calls as they grow, the text, figures at the end."""

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console

from responses_app.command_line.endpoint import message_of
from responses_app.management.terminal import printable

Event = dict[str, Any]
THOUGHT, TOOL, FIGURES, TROUBLE = "dim italic", "cyan", "dim", "red"
QUIET_ITEMS = ("message", "reasoning", "compaction")  # shown by their text alone
SHORT = 0.2  # seconds of a stream that say nothing of its pace
MAX_SHOWN = 2000  # characters of what a tool of the server gave back


class Plain:
    """A view of the text alone: for pipes."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._is_open = False  # the last line has not ended

    def show(self, event: Event) -> None:
        """Write what is new in the answer."""
        if event["type"] in ("response.output_text.delta", "response.refusal.delta"):
            self._write(event["delta"])
            self._is_open = True

    def end(self) -> None:
        """End the last line."""
        if self._is_open:
            self._write("\n")
            self._is_open = False


class Vivid:
    """A view of everything: for people. What one kind of text ends, and another begins, is on lines of its own."""

    def __init__(self, console: Console, *, reasoning: bool, timed: bool = True) -> None:
        self._console = console
        self._reasoning = reasoning
        self._timed = timed
        self._kind = ""  # of the text that stands last; "" at the beginning of a line
        self._began = time.monotonic()
        self._first: float | None = None  # seconds until the first thing that was said
        self._shows = {
            "response.output_text.delta": self._text,
            "response.refusal.delta": self._text,
            "response.reasoning_text.delta": self._thought,
            "response.reasoning_summary_text.delta": self._thought,
            "response.function_call_arguments.delta": self._call,
            "response.custom_tool_call_input.delta": self._call,
            "response.mcp_call_arguments.delta": self._call,
            "response.code_interpreter_call_code.delta": self._call,
            "response.shell_call_command.delta": self._call,
            "response.shell_call_output_content.delta": self._printed,
            "response.output_item.added": self._item,
            "response.output_item.done": self._item_done,
        }

    def show(self, event: Event) -> None:
        """Show an event."""
        if self._first is None and event["type"].endswith(".delta"):
            self._first = time.monotonic() - self._began
        if show := self._shows.get(event["type"]):
            show(event)
        if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
            response = event["response"]
            self.end()
            if response["status"] == "failed":
                self._console.print(printable(f"failed: {message_of(response)}"), style=TROUBLE)
            elif response["status"] != "completed":
                reason = (response.get("incomplete_details") or {}).get("reason") or response["status"]
                self._console.print(printable(f"ended early: {reason}"), style=TROUBLE)
            self._console.print(printable(self._figures(response)), style=FIGURES)

    def end(self) -> None:
        """End the last line."""
        if self._kind:
            self._console.print()
            self._kind = ""

    def _text(self, event: Event) -> None:
        self._put("text", event["delta"])

    def _thought(self, event: Event) -> None:
        if self._reasoning:
            self._put("thought", event["delta"], THOUGHT)

    def _call(self, event: Event) -> None:
        self._put("call", event["delta"], TOOL)

    def _printed(self, event: Event) -> None:
        self._put("output", "".join(event["delta"].values()), FIGURES)

    def _item(self, event: Event) -> None:
        item = event["item"]
        if item["type"] not in QUIET_ITEMS:
            self.end()
            self._put("call", f"→ {item['type']} {item.get('name') or ''}".rstrip() + " ", TOOL)

    def _item_done(self, event: Event) -> None:
        item = event["item"]
        logs = [each.get("logs", "") for each in item.get("outputs") or () if each.get("type") == "logs"]
        output = str(item.get("output") or "") if item["type"] == "mcp_call" else "".join(logs)
        if output:
            self._put("output", output.rstrip()[:MAX_SHOWN], FIGURES)
        if item.get("error"):
            self._put("output", f"failed: {message_of(item['error'])}", TROUBLE)
        if item["type"] not in QUIET_ITEMS:
            self.end()

    def _put(self, kind: str, text: str, style: str = "") -> None:
        if self._kind not in ("", kind):
            self._console.print()
        self._kind = kind
        self._console.print(printable(text), style=style or None, end="")

    def _figures(self, response: Event) -> str:
        usage = response.get("usage") or {}
        seconds = time.monotonic() - self._began
        figures = [response["id"]]
        if self._timed:
            figures.append(f"{seconds:.1f} s")
        if self._timed and self._first is not None:
            figures.append(f"first token {self._first * 1000:.0f} ms")
        if tokens := usage.get("output_tokens"):
            # The pace is that behind the first token.
            streamed = seconds - (self._first or 0)
            pace = f", {tokens / streamed:.0f}/s" if self._timed and streamed > SHORT else ""
            figures.append(f"{tokens} tokens{pace}")
        if cached := (usage.get("input_tokens_details") or {}).get("cached_tokens"):
            figures.append(f"{cached} of {usage['input_tokens']} input tokens cached")
        return " · ".join(figures)
