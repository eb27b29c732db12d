"""Codex on a real vLLM: a turn with one shell call, over the WebSocket and over POST with server-sent events."""

import json
from pathlib import Path

import pytest

from tests.codex.cli import Codex, config, installed
from tests.conformance.sdk import MODEL
from tests.server import Server
from tests.vllm.transcripts import CODEX_NOTE, CODEX_PROMPT


@pytest.mark.parametrize("websockets", [True, False], ids=["websocket", "sse"])
async def test_codex_runs_a_command_and_answers(front_of_server: Server, tmp_path: Path, websockets: bool) -> None:
    provider = config(base_url=front_of_server.base_url, model=MODEL, websockets=websockets)
    codex = Codex(installed(), tmp_path, config=provider)
    turn = await codex.ask(CODEX_PROMPT)
    assert (turn.exit_code, turn.last_message) == (0, "The note is written."), turn
    (command,) = turn.items("command_execution")
    assert command["exit_code"] == 0
    assert (codex.work / "note.txt").read_text() == f"{CODEX_NOTE}\n"
    transport = "websocket" if websockets else "sse"
    assert f" {transport} completed input=" in front_of_server.output
    assert json.dumps(turn.events).count('"turn.completed"') == 1
