"""The Codex CLI compacts at this server: it sends a trigger, gets one item, and goes on from it."""

import json
from pathlib import Path

import pytest

from engine.formats.harmony.encoding import decode_tokens
from tests.clients.codex.cli import Codex, config, installed
from tests.kit.fixtures import module_server
from tests.kit.scripts import Entry, journal
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.kit.wiretap import Wiretap

MODEL = "gpt-oss-20b"
BEGIN = "<|channel|>final<|message|>"
COMMAND = json.dumps({"cmd": "seq 1 4000", "max_output_tokens": 20_000})
CALL = f"<|channel|>commentary to=functions.exec_command <|constrain|>json<|message|>{COMMAND}<|call|>"
SCRIPT: list[Entry] = [
    {"when": "[count]", "say": CALL},
    {"when": "handoff summary", "say": f"{BEGIN}The user had somebody count to 4000.<|return|>"},
    {"when": "3999\n4000", "say": f"{BEGIN}Counted.<|return|>"},
    {"say": f"{BEGIN}To 4000.<|return|>"},
]
# What stands before the conversation has 4,600 tokens, and the command's output 11,000. Codex guesses that these are
# 4,700, so it goes on with them, and compacts before the next turn.
COMPACTS = "model_auto_compact_token_limit = 11500\n"
REMOTELY = '\n[model_providers.respsite.capabilities]\nremote_compaction = "v2"\n'


server = module_server(
    "codex-compaction", script=SCRIPT, model_name=MODEL, journal=True, engine_options={"max_model_len": 131_072}
)


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_a_long_thread_is_compacted_and_goes_on(server: Server, tmp_path: Path, transport: str) -> None:
    program, begin = installed(), len(journal(server))
    async with Wiretap(server.port) as tap:
        provider = config(base_url=tap.base_url, model=MODEL, websockets=transport == "websocket")
        codex = Codex(program, tmp_path, config=COMPACTS + provider + REMOTELY)
        first = await codex.ask("Count, please. [count]")
        assert (first.exit_code, first.last_message) == (0, "Counted."), first
        second = await codex.resume(first.thread_id, "How far?")
        assert (second.exit_code, second.last_message) == (0, "To 4000."), second
        frames = tap.frames()
    await eventually(lambda: len(journal(server)) >= begin + 4)
    _, counted, summed_up, answered = (decode_tokens(entry["prompt_tokens"]) for entry in journal(server)[begin:])
    assert "3999\n4000" in counted
    assert "3999\n4000" in summed_up
    assert "3999\n4000" not in answered
    order = ["Count, please. [count]", "The user had somebody count to 4000.", "How far?"]
    assert [answered.count(each) for each in order] == [1, 1, 1]
    assert sorted(order, key=answered.index) == order
    if transport == "websocket":
        compacting, answering = frames[-2:]
        assert compacting["input"][-1]["type"] == "compaction_trigger"  # type: ignore[index]
        assert [item["type"] for item in answering["input"]].count("compaction") == 1  # type: ignore[attr-defined]
