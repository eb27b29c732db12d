"""GitHub's Copilot CLI against daphne: a coding agent's turns over the WebSocket and over POST."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from tests.clients.copilot.cli import Copilot, installed, provider
from tests.kit.fixtures import module_server
from tests.kit.scripts import Entry, as_history, journal
from tests.kit.server import Server
from tests.kit.wiretap import Wiretap

MODEL = "gpt-oss-20b"
BEGIN = "<|channel|>final<|message|>"
ARGUMENTS = json.dumps({"command": "echo written by the shell | tee note.txt", "description": "Write a note"})
CALL_HEADER = "<|channel|>commentary to=functions.bash <|constrain|>json<|message|>"
CALL = f"<|channel|>analysis<|message|>A shell can do that.<|end|><|start|>assistant{CALL_HEADER}"
# No encoder makes these tokens of the arguments: only who keeps what was sampled can give them back.
SPELLED_OUT = [token for letter in ARGUMENTS for token in encode_harmony(letter)]
SCRIPT: list[Entry] = [
    {"when": "[write]", "tokens": [*encode_harmony(CALL), *SPELLED_OUT, *encode_harmony("<|call|>")]},
    {"when": "written by the shell", "say": f"{BEGIN}The note is written.<|return|>"},
    {"when": "[recall]", "say": f"{BEGIN}You asked for a note.<|return|>"},
]


class Session:
    """One test's Copilot, with a wiretap between it and the shared server."""

    def __init__(self, server: Server, tap: Wiretap, copilot: Copilot, transport: str) -> None:
        self.tap, self.copilot, self.transport = tap, copilot, transport
        self._server, self._begin = server, len(journal(server))

    @property
    def generations(self) -> list[Entry]:
        """What the engine wrote down during this test."""
        return journal(self._server)[self._begin :]


server = module_server("copilot", script=SCRIPT, model_name=MODEL, journal=True)


@pytest.fixture(params=["websockets", "http"])
async def session(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> AsyncIterator[Session]:
    """Copilot over each transport."""
    packages = installed()
    async with Wiretap(server.port) as tap:
        variables = provider(base_url=tap.base_url, model=MODEL, transport=request.param)
        yield Session(server, tap, Copilot(packages, tmp_path, variables), request.param)


async def test_a_turn_with_a_shell_call_and_another_run_that_goes_on(session: Session) -> None:
    turn = await session.copilot.ask("Write a note. [write]")
    assert (turn.exit_code, turn.last_message) == (0, "The note is written."), turn
    assert (session.copilot.work / "note.txt").read_text() == "written by the shell\n"
    call, answer = session.generations
    history, prompt = as_history(call), answer["prompt_tokens"]
    assert history[-1 - len(SPELLED_OUT) : -1] == SPELLED_OUT
    asked = len(call["prompt_tokens"])
    assert prompt[:asked] == call["prompt_tokens"]
    then = decode_tokens(prompt[asked:])
    assert f"{CALL_HEADER}{ARGUMENTS}<|call|>" in then
    assert "written by the shell\n" in then
    if session.transport == "websockets":
        assert prompt[: len(history)] == history
        assert session.tap.requests == ["GET /v1/responses HTTP/1.1"]
        first, second = session.tap.frames()
        assert "previous_response_id" not in first
        assert call["request_id"].startswith(second["previous_response_id"])
        assert [item["type"] for item in second["input"]] == ["function_call_output"]  # type: ignore[attr-defined]
    else:
        assert set(session.tap.requests) == {"POST /v1/responses HTTP/1.1"}

    turn = await session.copilot.ask("What did I ask for? [recall]")
    assert (turn.exit_code, turn.last_message) == (0, "You asked for a note."), turn
    told = decode_tokens(session.generations[-1]["prompt_tokens"])
    order = ["Write a note. [write]", "written by the shell\n", "The note is written.", "What did I ask for?"]
    assert [told.count(each) for each in order] == [1] * len(order)
    assert sorted(order, key=told.index) == order
