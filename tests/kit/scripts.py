"""What the scripted servers of the transport tests say. An entry is chosen by a word in the last message."""

import json
from pathlib import Path
from typing import Any

from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from tests.kit.server import Server

LIMIT = 64 * 1024  # bytes of a message and of a body, on the main server

BEGIN = "<|channel|>final<|message|>"
HELLO = f"{BEGIN}Hello there, friend.<|return|>"
LONG = f"{BEGIN}{' '.join(str(number) for number in range(300))}<|return|>"
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>'
FIRST_CALL = CALL.replace("<|call|>", "<|end|>")
TWICE = f"{FIRST_CALL}<|start|>assistant{CALL}"  # a model that calls in parallel
SPOKEN = 3  # tokens of BEGIN
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}

CALLS = {  # what the model calls the client's tools with
    "crm.find": '{"name":"Ada"}',
    "sql": "SELECT 1",
    "local_shell": '{"command":["ls"]}',
    "shell": '{"commands":["ls"]}',
    "apply_patch": '{"type":"delete_file","path":"a"}',
    "tool_search": '{"query":"weather"}',
}

GATES = tuple(f"{letter}{number}" for letter in "abcdefgh" for number in range(2))

Entry = dict[str, Any]


def call_of(name: str, text: str) -> str:
    """Return how a call of the client's tool is said."""
    return f"<|channel|>commentary to=functions.{name}<|message|>{text}<|call|>"


def gate(name: str) -> str:
    """Return the text that is answered once `release(server, name)` was called; each test uses names of its own."""
    assert name in GATES
    return f"[gate {name}]"


def release(server: Server, name: str) -> None:
    """Let the answers to `gate(name)` go on."""
    (server.folder / f"gate-{name}").touch()


LABELS = ("yes", "No", "3", "perhaps")  # what an answer may begin with that is a label, or is none


def main_script(folder: Path) -> list[Entry]:
    """Return the script of a server that answers everything."""
    gates = [
        {
            "when": gate(name),
            "say": HELLO,
            "hang_after": SPOKEN + 1,
            "wait_for_file": str(folder / f"gate-{name}"),
        }
        for name in GATES
    ]
    return [
        *gates,
        {"when": "[hang]", "say": LONG, "hang_after": SPOKEN + 5},
        {"when": "[silence]", "say": HELLO, "hang_after": 0},
        {"when": "[pauses]", "say": f"{BEGIN}So.<|return|>", "delay": 0.25},
        {"when": "[die]", "say": LONG, "fault": "unavailable", "fault_after": SPOKEN + 5},
        {"when": "[crash]", "say": LONG, "fault": "crash", "fault_after": SPOKEN + 5},
        {"when": "[break]", "say": LONG, "fault": "failed", "fault_after": SPOKEN + 5},
        {"when": "[away]", "fault": "unavailable"},
        {"when": "[full]", "fault": "overloaded"},
        {"when": "[no]", "fault": "failed"},
        {"when": "[weather]", "say": CALL},
        {"when": "[think]", "say": f"<|channel|>analysis<|message|>Hm, Paris.<|end|><|start|>assistant{CALL}"},
        {"when": "[twice]", "say": TWICE, "hang_after": len(encode_harmony(FIRST_CALL)) + 3},
        {"when": "[end of text]", "say": f"{BEGIN}That is all.<|endoftext|>"},
        {"when": "[weird]", "say": "<|channel|>weird<|message|>text here<|return|>"},
        {"when": "[undeclared]", "say": CALL.replace("get_weather", "somewhere.else")},
        *({"when": f"[call {name}]", "say": call_of(name, text)} for name, text in CALLS.items()),
        {"when": "[long]", "say": LONG},
        *({"when": f"[says {word}]", "say": f"<|channel|>final<|message|>{word}<|return|>"} for word in LABELS),
        *(
            {"when": f"[asked: {fault}]", "say": "<|channel|>final<|message|>yes", "fault": fault, "fault_after": 3}
            for fault in ("unavailable", "overloaded")
        ),
        {"say": HELLO},
    ]


def flood_script(folder: Path) -> list[Entry]:
    """Return the main script and `[flood]`: some 10 MB of events, as fast as the engine can."""
    begin, word, end = encode_harmony(BEGIN), encode_harmony(" word"), encode_harmony("<|return|>")
    flood = {"when": "[flood]", "tokens": [*begin, *(word * 40_000), *end]}
    return [flood, *main_script(folder)]


def journal(server: Server) -> list[Entry]:
    """Return what the engine wrote down of the generations that ended, oldest first."""
    file = server.folder / "journal.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]  # behind the last line break one is being written


def generations(server: Server, response_id: str) -> list[Entry]:
    return [entry for entry in journal(server) if entry["request_id"].startswith(response_id)]


def aborted_prompts(server: Server) -> list[str]:
    """Return the prompts of the generations that were aborted, as text."""
    return [decode_tokens(entry["prompt_tokens"]) for entry in journal(server) if entry["finish"] == "abort"]


def was_aborted(server: Server, response_id: str) -> bool:
    """Say whether the engine was told to abort a response's generation."""
    return [entry["finish"] for entry in generations(server, response_id)] == ["abort"]


def as_history(entry: Entry) -> list[int]:
    """Return a generation's prompt and answer as the next turn has to begin: its final token becomes `<|end|>`."""
    tokens: list[int] = [*entry["prompt_tokens"], *entry["sampled_tokens"]]
    if tokens[-1] == RETURN:
        tokens[-1] = END
    return tokens


RETURN, END = 200002, 200007
