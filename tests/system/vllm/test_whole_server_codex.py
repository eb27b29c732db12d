"""Codex on a real vLLM: a turn with a shell call, and one with a patch, over the WebSocket and over POST."""

import json
from pathlib import Path

import pytest

from tests.clients.codex.cli import Codex, config, installed
from tests.kit.sdk import MODEL
from tests.kit.server import Server
from tests.system.vllm.transcripts import CODEX_NOTE, CODEX_PATCH_PROMPT, CODEX_PROMPT

pytestmark = pytest.mark.parametrize("websockets", [True, False], ids=["websocket", "sse"])


def codex_in(folder: Path, front: Server, *, websockets: bool) -> Codex:
    """Return a Codex that asks the server."""
    return Codex(installed(), folder, config=config(base_url=front.base_url, model=MODEL, websockets=websockets))


async def test_codex_runs_a_command_and_answers(front_of_server: Server, tmp_path: Path, websockets: bool) -> None:
    codex = codex_in(tmp_path, front_of_server, websockets=websockets)
    turn = await codex.ask(CODEX_PROMPT)
    assert (turn.exit_code, turn.last_message) == (0, "The note is written."), turn
    (command,) = turn.items("command_execution")
    assert command["exit_code"] == 0
    assert (codex.work / "note.txt").read_text() == f"{CODEX_NOTE}\n"
    transport = "websocket" if websockets else "sse"
    assert f" {transport} completed input=" in front_of_server.output
    assert json.dumps(turn.events).count('"turn.completed"') == 1


async def test_codex_applies_a_patch_that_ends_as_its_grammar_says(
    front_of_server: Server, tmp_path: Path, websockets: bool
) -> None:
    codex = codex_in(tmp_path, front_of_server, websockets=websockets)
    turn = await codex.ask(CODEX_PATCH_PROMPT)
    assert (turn.exit_code, turn.last_message) == (0, "The note is written."), turn
    (change,) = turn.items("file_change")
    assert change["status"] == "completed"
    assert (codex.work / "note.txt").read_text() == "written by a patch\n"
