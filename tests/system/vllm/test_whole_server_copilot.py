"""Copilot on a real vLLM: a turn with one shell call, over the WebSocket and over POST with server-sent events."""

from pathlib import Path

import pytest

from tests.clients.copilot.cli import SHELL_ALONE, Copilot, installed, provider
from tests.kit.sdk import MODEL
from tests.kit.server import Server
from tests.system.vllm.transcripts import COPILOT_NOTE, COPILOT_PROMPT


@pytest.mark.parametrize("transport", ["websockets", "http"])
async def test_copilot_runs_a_command_and_answers(front_of_server: Server, tmp_path: Path, transport: str) -> None:
    begin = len(front_of_server.output)
    variables = provider(base_url=front_of_server.base_url, model=MODEL, transport=transport)
    copilot = Copilot(installed(), tmp_path, variables)
    turn = await copilot.run(SHELL_ALONE, "--allow-all-tools", "-p", COPILOT_PROMPT)
    assert (turn.exit_code, turn.last_message) == (0, "The note is written."), turn
    assert (copilot.work / "note.txt").read_text() == f"{COPILOT_NOTE}\n"
    logged = front_of_server.output[begin:]
    assert logged.count(f" {'websocket' if transport == 'websockets' else 'sse'} completed input=") == 2
