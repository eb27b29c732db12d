"""Codex's apply_patch: a custom tool, whose input is a text that its Lark grammar allows."""

from pathlib import Path

import pytest

from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from responses_app.protocol.errors import JsonObject
from tests.clients.codex.cli import Codex, config, installed
from tests.kit.fixtures import module_server
from tests.kit.scripts import Entry, as_history, journal
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.kit.wiretap import Wiretap

MODEL = "gpt-oss-20b"
PATCH = """\
*** Begin Patch
*** Add File: notes/new.txt
+first line
+second line
*** Update File: greeting.py
@@
 def greet():
-    return "hello"
+    return "good evening"
*** End Patch
"""
HEADER = "<|channel|>commentary to=functions.apply_patch<|message|>"
# No encoder makes these tokens of the patch: only who keeps what was sampled can give them back.
SPELLED_OUT = [token for letter in PATCH for token in encode_harmony(letter)]
BEGIN = encode_harmony(f"<|channel|>analysis<|message|>An edit.<|end|><|start|>assistant{HEADER}")
SCRIPT: list[Entry] = [
    {"when": "[patch]", "tokens": [*BEGIN, *SPELLED_OUT, *encode_harmony("<|call|>")]},
    {"when": "Success. Updated", "say": "<|channel|>final<|message|>It greets in the evening.<|return|>"},
]


server = module_server("codex-patch", script=SCRIPT, model_name=MODEL, journal=True)


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_a_patch_through_its_grammar(server: Server, tmp_path: Path, transport: str) -> None:
    begin = len(journal(server))
    async with Wiretap(server.port) as tap:
        codex = Codex(
            installed(),
            tmp_path,
            config=config(base_url=tap.base_url, model=MODEL, websockets=transport == "websocket"),
        )
        (codex.work / "greeting.py").write_text('def greet():\n    return "hello"\n')
        turn = await codex.ask("Greet in the evening. [patch]")
        frames: list[JsonObject] = tap.frames()
    assert (turn.exit_code, turn.last_message, turn.items("error")) == (0, "It greets in the evening.", []), turn
    assert (codex.work / "notes" / "new.txt").read_text() == "first line\nsecond line\n"
    assert (codex.work / "greeting.py").read_text() == 'def greet():\n    return "good evening"\n'
    (change,) = turn.items("file_change")
    assert sorted(each["kind"] for each in change["changes"]) == ["add", "update"]  # type: ignore[index, union-attr, attr-defined]

    await eventually(lambda: len(journal(server)) == begin + 2)
    call, answer = journal(server)[begin:]
    told = decode_tokens(answer["prompt_tokens"][len(call["prompt_tokens"]) :])
    assert f"<|message|>{PATCH}<|call|>" in told
    assert "Success. Updated" in told
    if transport == "websocket":
        history = as_history(call)
        assert answer["prompt_tokens"][: len(history)] == history
        assert [item["type"] for item in frames[-1]["input"]] == ["custom_tool_call_output"]  # type: ignore[attr-defined]
