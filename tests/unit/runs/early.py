"""A model that writes several calls in one turn, and a tool whose reads tell how often it was written to before."""

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from engine.formats.base import FunctionTool, ItemEnded, ToolNamespace, TurnEvent
from engine.types import FinishReason, GenerationRequest, TokenChunk
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.offers import Offer, OfferedTool
from responses_app.protocol.tiers import QueueBounds
from responses_app.runs.plan.turns import FairTurns
from responses_app.tools.base import BaseTool, ToolCall, ToolFailed, ToolResult, ToolUse
from tests.kit.fakes import FakeStore, Site, run_settings
from tests.kit.plain_format import STOP, PlainFormat, PlainParser
from tests.unit.runs.test_several_models import ByteEngine

WIKI: JsonObject = {
    "type": "mcp",
    "server_label": "wiki",
    "server_url": "https://mcp.example/",
    "require_approval": "never",
}
FUNCTIONS = ("read", "write", "ask")


class Wiki(BaseTool):
    """Its `read` says how often `write` was called before, fails at `bad`, and reports on `long` work."""

    kinds: ClassVar = ("mcp",)

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []  # all that were begun
        self.written: list[str] = []
        self.running = 0
        self.most = 0  # calls at once
        self.cancelled = 0
        self.holds: dict[str, asyncio.Event] = {}  # reads that wait, by what they read
        self.seen = asyncio.Event()  # a call has begun

    async def offer(self, use: ToolUse) -> Offer:
        tools = [
            OfferedTool(
                name=f"wiki.{name}",
                item="mcp_call",
                server="wiki",
                tool=name,
                asks=name == "ask",
                repeatable=name == "read",
                reads=name != "write",  # where the user is asked, that changes nothing
            )
            for name in FUNCTIONS
        ]
        return Offer(ToolNamespace("wiki", "", tuple(FunctionTool(name, "", "{}") for name in FUNCTIONS)), tools)

    async def call(self, call: ToolCall) -> ToolResult:
        self.calls.append((call.tool, call.arguments))
        self.seen.set()
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await (self._write(call) if call.tool == "write" else self._read(call))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def _write(self, call: ToolCall) -> ToolResult:
        await asyncio.sleep(0)
        self.written.append(call.arguments)
        await asyncio.sleep(0)
        return ToolResult(f"wrote {call.arguments}", {"output": "done"})

    async def _read(self, call: ToolCall) -> ToolResult:
        if "long" in call.arguments:
            call.report({"progress": 0.5})
        if call.arguments in self.holds:
            await self.holds[call.arguments].wait()
        for _ in range(3):
            await asyncio.sleep(0)
        if "bad" in call.arguments:
            raise ToolFailed(f"no {call.arguments}")
        text = f"{call.arguments} behind {self.written}"
        return ToolResult(text, {"output": text})


class OnwardParser(PlainParser):
    """Reads on behind a call that ends with its line: only the turn's end says that the model waits."""

    def feed(self, token_ids: Iterable[int]) -> list[TurnEvent]:
        events: list[TurnEvent] = []
        for token in token_ids:
            told = super().feed([token])
            if token != STOP:
                self._called = False
                told = [replace(each, called=False) if isinstance(each, ItemEnded) else each for each in told]
            events += told
        return events


class OnwardFormat(PlainFormat):
    def parser(self, functions: Collection[str] | None = ()) -> OnwardParser:
        return OnwardParser()


class OnwardEngine(ByteEngine):
    """Gives a byte at a time, behind what of its turn stands in the prompt: also to who guesses what it says next."""

    def __init__(self, turns: Sequence[str]) -> None:
        super().__init__(turns)
        self.guess_fails: Exception | None = None

    @property
    def guesses(self) -> list[GenerationRequest]:
        """What it was asked beside the turns."""
        return [request for request in self.requests if request.request_id.endswith("-early")]

    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenChunk]:  # type: ignore[override]
        self.requests.append(request)
        number = int(re.findall(r"-(\d+)", request.request_id)[-1])
        said = self.encode(str(self.turns[min(number, len(self.turns) - 1)][0]))
        prompt = list(request.prompt_token_ids)
        done = next(count for count in range(len(said) - 1, -1, -1) if prompt[len(prompt) - count :] == said[:count])
        if request in self.guesses and self.guess_fails is not None:
            raise self.guess_fails
        self.running += 1
        try:
            for token in said[done:]:
                yield TokenChunk(token_ids=[token], finish_reason=FinishReason.STOP if token == STOP else None)
                await asyncio.sleep(0)
        finally:
            self.running -= 1


class OnwardSite(Site):
    engine: OnwardEngine

    def __init__(
        self,
        turns: Sequence[str],
        wiki: Wiki,
        early: str = "predicted",
        *,
        store: FakeStore | None = None,
        max_running: int = 0,
        worker: str = "",
    ) -> None:
        super().__init__(
            OnwardEngine(turns),
            store or FakeStore(),
            run_settings(server_tool_early=early),
            model_format=OnwardFormat(),
            tools=[wiki],
            turns=FairTurns(max_running=max_running, bounds=QueueBounds(10)),
            worker=worker,
        )

    def count(self, how: str) -> float:
        """Return how many calls that began early have come to this."""
        return self.metrics.early_calls.at("fake", how).value


def turn(*lines: str) -> str:
    """Return what a model says that says these lines: calls, thoughts, an answer."""
    return "\n".join(lines) + "\0"


def read(what: str) -> str:
    return f"server.wiki.read({what})"


def write(what: str) -> str:
    return f"server.wiki.write({what})"
