"""A tool loop of GitHub's Copilot CLI: several calls, two of them at once, and a file that is searched and read."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from engine.formats.harmony.encoding import decode_tokens
from tests.clients.copilot.cli import Copilot, installed, provider
from tests.kit.fixtures import module_server
from tests.kit.scripts import Entry, as_history, journal
from tests.kit.server import Server
from tests.kit.waiting import eventually

MODEL = "gpt-oss-20b"
BEGIN = "<|channel|>final<|message|>"


def call(name: str, **arguments: object) -> str:
    """Return a call of one of Copilot's functions, without the token that ends it."""
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(arguments)}"


def bash(command: str) -> str:
    """Return a call of Copilot's shell."""
    return call("bash", command=command, description="Work")


PATCH = """\
*** Begin Patch
*** Update File: greeting.py
@@
 def greet():
-    return "hello"
+    return "good evening"
*** End Patch
"""
SCRIPT: list[Entry] = [
    {
        "when": "[several]",
        "say": "<|channel|>analysis<|message|>One by one.<|end|><|start|>assistant"
        f"{bash('echo one > one.txt; echo first done')}<|call|>",
    },
    {"when": "first done", "say": f"{bash('echo left')}<|end|><|start|>assistant{bash('echo right')}<|call|>"},
    {"when": "right", "say": f"{bash('cat one.txt; echo last done')}<|call|>"},
    {"when": "last done", "say": f"{BEGIN}All four ran.<|return|>"},
    {"when": "[patch]", "say": f"<|channel|>commentary to=functions.apply_patch<|message|>{PATCH}<|call|>"},
    {"when": "greeting.py", "say": f"{BEGIN}It greets in the evening.<|return|>"},
]
PRINTED = ["first done\n", "left\n", "right\n", "one\nlast done\n"]


server = module_server("copilot-loop", script=SCRIPT, model_name=MODEL, journal=True)


@pytest.mark.parametrize("transport", ["websockets", "http"])
async def test_several_calls_in_one_turn(server: Server, tmp_path: Path, transport: str) -> None:
    begin = len(journal(server))
    variables = provider(base_url=server.base_url, model=MODEL, transport=transport)
    copilot = Copilot(installed(), tmp_path, variables)
    turn = await copilot.ask("Do it step by step. [several]")
    assert (turn.exit_code, turn.last_message) == (0, "All four ran."), turn
    assert (copilot.work / "one.txt").read_text() == "one\n"
    await eventually(lambda: len(journal(server)) == begin + 4)
    turns = journal(server)[begin:]
    for earlier, later in pairwise(turns):
        history = as_history(earlier) if transport == "websockets" else earlier["prompt_tokens"]
        assert later["prompt_tokens"][: len(history)] == history
    told = decode_tokens(turns[-1]["prompt_tokens"])
    assert [each for each in PRINTED if each not in told] == []


@pytest.mark.parametrize("transport", ["websockets", "http"])
async def test_a_patch_through_its_grammar(server: Server, tmp_path: Path, transport: str) -> None:
    """Copilot's apply_patch is a custom tool, too."""
    begin = len(journal(server))
    variables = provider(base_url=server.base_url, model=MODEL, transport=transport)
    copilot = Copilot(installed(), tmp_path, variables)
    (copilot.work / "greeting.py").write_text('def greet():\n    return "hello"\n')
    turn = await copilot.ask("Greet in the evening. [patch]")
    assert (turn.exit_code, turn.last_message) == (0, "It greets in the evening."), turn
    assert (copilot.work / "greeting.py").read_text() == 'def greet():\n    return "good evening"\n'
    await eventually(lambda: len(journal(server)) == begin + 2)
    assert f"<|message|>{PATCH}<|call|>" in decode_tokens(journal(server)[-1]["prompt_tokens"])
