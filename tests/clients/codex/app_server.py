"""`codex app-server`: what editors drive Codex with. It asks before commands, and a turn of it can be interrupted."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from responses_app.protocol.errors import JsonObject
from tests.clients.codex.cli import TURN_SECONDS, Codex

MAX_LINE_BYTES = 16 * 1024 * 1024


class AppServer:
    """Use it as `async with AppServer(codex) as editor`: one thread, whose approvals are all answered with `decision`.

    It speaks JSON-RPC, a message a line. `approvals` are the requests for one, `finished` the items that ended,
    `deltas` what the model says as it comes.
    """

    def __init__(self, codex: Codex, *, decision: str) -> None:
        self.approvals: list[JsonObject] = []
        self.finished: list[JsonObject] = []
        self.problems: list[JsonObject] = []
        self.deltas: list[object] = []
        self._codex = codex
        self._decision = decision
        self._ids = itertools.count()
        self._answers: dict[object, asyncio.Future[JsonObject]] = {}
        self._thread: object = None
        self._ended: asyncio.Future[JsonObject] | None = None

    async def __aenter__(self) -> "AppServer":
        self._process = await _start(self._codex.program, self._codex.work, self._codex.environ)
        self._reading = asyncio.create_task(self._read())
        await self._ask("initialize", {"clientInfo": {"name": "tests", "title": None, "version": "1"}})
        await self._tell({"method": "initialized"})
        policy = {"approvalPolicy": "untrusted", "sandbox": "danger-full-access", "cwd": str(self._codex.work)}
        self._thread = (await self._ask("thread/start", policy))["thread"]["id"]  # type: ignore[index]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._reading

    async def begin(self, prompt: str) -> str:
        """Begin a turn, and return its id."""
        self._ended = asyncio.get_running_loop().create_future()
        text = {"type": "text", "text": prompt, "text_elements": []}
        answer = await self._ask("turn/start", {"threadId": self._thread, "input": [text]})
        return str(answer["turn"]["id"])  # type: ignore[index]

    async def end(self) -> object:
        """Wait until the turn that runs has ended, and return its status."""
        assert self._ended is not None
        return (await asyncio.wait_for(self._ended, TURN_SECONDS))["status"]

    async def interrupt(self, turn: str) -> None:
        """Stop a turn, as a user does with Escape."""
        await self._ask("turn/interrupt", {"threadId": self._thread, "turnId": turn})

    def said(self) -> list[object]:
        """Return the model's messages, oldest first."""
        return [item["text"] for item in self.finished if item["type"] == "agentMessage"]

    async def _ask(self, method: str, params: object) -> JsonObject:
        number = next(self._ids)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._tell({"id": number, "method": method, "params": params})
        return await asyncio.wait_for(self._answers[number], TURN_SECONDS)

    async def _tell(self, message: JsonObject) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        await self._process.stdin.drain()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            message = json.loads(line)
            if "method" not in message:
                self._answers[message["id"]].set_result(message.get("result") or message)
            elif "id" in message:
                self.approvals.append(message["params"])
                await self._tell({"id": message["id"], "result": {"decision": self._decision}})
            else:
                self._notice(message["method"], message["params"])

    def _notice(self, method: str, params: JsonObject) -> None:
        if params.get("threadId", self._thread) != self._thread:
            return  # of a sub-agent, which has a thread of its own
        if method == "item/completed":
            self.finished.append(params["item"])  # type: ignore[arg-type]
        elif method == "item/agentMessage/delta":
            self.deltas.append(params["delta"])
        elif method in ("error", "warning", "configWarning"):
            self.problems.append(params)
        elif method == "turn/completed" and self._ended is not None:
            self._ended.set_result(params["turn"])  # type: ignore[arg-type]


async def _start(program: Path, work: Path, environ: Mapping[str, str]) -> Process:
    return await asyncio.create_subprocess_exec(
        program, "app-server", cwd=work, env=environ, stdin=PIPE, stdout=PIPE, stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True, limit=MAX_LINE_BYTES,
    )  # fmt: skip
