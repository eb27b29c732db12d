"""What happens in the hours Codex works: several commands, a user who says no, an interrupt, a server that dies."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from engine.formats.harmony.encoding import decode_tokens
from tests.clients.codex.app_server import AppServer
from tests.clients.codex.cli import TURN_SECONDS, Codex, config, installed
from tests.kit.scripts import Entry, as_history, journal
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.kit.wiretap import Wiretap

MODEL = "gpt-oss-20b"
BEGIN = "<|channel|>final<|message|>"
HEADER = "<|channel|>commentary to=functions.exec_command <|constrain|>json<|message|>"
SPAWN = "<|channel|>commentary to=functions.multi_agent_v1.spawn_agent <|constrain|>json<|message|>"


def call(command: str) -> str:
    """Return a call of Codex's shell, without the token that ends it."""
    return HEADER + json.dumps({"cmd": command})


def script(gate: Path) -> list[Entry]:
    """Return what the model says. Until `gate` exists, it does not get far with `[restart]`."""
    first, second = call("echo one > one.txt; echo first done"), call("cat one.txt; echo second done")
    both = f"{call('echo left')}<|end|><|start|>assistant{call('echo right')}<|call|>"
    long = f"{BEGIN}This takes long, and is said to its end.<|return|>"
    said = {"last done": "All four ran.", "rejected by user": "Then I leave it.", "[after": "I am here again."}
    return [
        {
            "when": "[several]",
            "say": f"<|channel|>analysis<|message|>One by one.<|end|><|start|>assistant{first}<|call|>",
        },
        {"when": "first done", "say": f"{second}<|call|>"},
        {"when": "second done", "say": both},
        {"when": "right", "say": f"{call('echo last done')}<|call|>"},
        *[{"when": when, "say": f"{BEGIN}{text}<|return|>"} for when, text in said.items()],
        {"when": "[refuse]", "say": f"{call('rm -r precious')}<|call|>"},
        {"when": "[hang]", "say": long, "hang_after": 5},
        {"when": "[delegate]", "say": f"{SPAWN}{json.dumps({'message': 'Look at it. [delegated]'})}<|call|>"},
        {"when": "[delegated]", "say": f"{BEGIN}I have looked.<|return|>"},
        *[  # a sub-agent that has ended before the next prompt is told of behind the call's output
            {"when": when, "say": f"{BEGIN}Somebody is on it.<|return|>"} for when in ("agent_id", "I have looked.")
        ],
        {"when": "[restart]", "say": long, "hang_after": 5, "wait_for_file": str(gate)},
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that says what these tests need."""
    with scripted(tmp_path_factory.mktemp("codex-long") / "server") as started:
        yield started


def scripted(folder: Path) -> Server:
    """Return a server, not yet started, that plays the script."""
    return Server(folder, script=script(folder / "gate"), model_name=MODEL, journal=True)


@pytest.fixture(params=["websocket", "sse"])
def codex(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Codex:
    """Codex over each transport."""
    provider = config(base_url=server.base_url, model=MODEL, websockets=request.param == "websocket")
    return Codex(installed(), tmp_path, config=provider)


@pytest.fixture
async def editor(codex: Codex) -> AsyncIterator[AppServer]:
    """An editor whose user allows nothing."""
    async with AppServer(codex, decision="decline") as started:
        yield started


def texts(server: Server, begin: int) -> list[str]:
    """Return the prompts of the generations since the journal had `begin` entries."""
    return [decode_tokens(entry["prompt_tokens"]) for entry in journal(server)[begin:]]


async def test_several_commands_in_one_turn(server: Server, codex: Codex) -> None:
    begin = len(journal(server))
    turn = await codex.ask("Do it step by step. [several]")
    assert (turn.exit_code, turn.last_message, turn.items("error")) == (0, "All four ran.", []), turn
    commands = turn.items("command_execution")
    printed = ["first done\n", "one\nsecond done\n", "left\n", "right\n", "last done\n"]
    assert sorted(str(each["aggregated_output"]) for each in commands) == sorted(printed)
    assert {each["exit_code"] for each in commands} == {0}
    assert (codex.work / "one.txt").read_text() == "one\n"
    await eventually(lambda: len(journal(server)) == begin + 5)
    turns = journal(server)[begin:]
    for earlier, later in pairwise(turns):
        history = as_history(earlier) if codex.websockets else earlier["prompt_tokens"]
        assert later["prompt_tokens"][: len(history)] == history
    assert all(each in decode_tokens(turns[-1]["prompt_tokens"]) for each in printed)


async def test_a_user_refuses_a_command(server: Server, codex: Codex, editor: AppServer) -> None:
    begin = len(journal(server))
    precious = codex.work / "precious"
    precious.mkdir()
    await editor.begin("Tidy up. [refuse]")
    assert await editor.end() == "completed"
    assert ["rm -r precious" in str(approval["command"]) for approval in editor.approvals] == [True]
    assert precious.exists()
    assert editor.said() == ["Then I leave it."]
    assert [each for each in editor.problems if "metadata" in str(each)] == []
    assert texts(server, begin)[-1].count("rejected by user") == 1


async def test_a_turn_is_interrupted_and_the_thread_goes_on(server: Server, editor: AppServer) -> None:
    begin = len(journal(server))
    turn = await editor.begin("Take your time. [hang]")
    await eventually(lambda: "This" in editor.deltas)
    await editor.interrupt(turn)
    assert await editor.end() == "interrupted"
    await eventually(lambda: [entry["finish"] for entry in journal(server)[begin:]] == ["abort"])
    await editor.begin("Are you there? [after]")
    assert await editor.end() == "completed"
    assert editor.said()[-1] == "I am here again."
    told = texts(server, begin)[-1]
    assert [told.count(each) for each in ("[hang]", "[after]")] == [1, 1]


@pytest.mark.parametrize("websockets", [True, False], ids=["websocket", "sse"])
async def test_a_turn_goes_on_after_the_servers_death(folder: Path, tmp_path: Path, websockets: bool) -> None:
    """The stream breaks in the middle of a word; Codex connects to the next process, and asks again."""
    with scripted(folder) as mortal:
        async with Wiretap(mortal.port) as tap:
            patient = config(base_url=tap.base_url, model=MODEL, websockets=websockets, retries=8)
            codex = Codex(installed(), tmp_path, config=patient)
            running = asyncio.create_task(codex.ask("Say it all. [restart]"))
            await eventually(lambda: running.done() or tap.answered('"delta":"This"'), timeout=TURN_SECONDS)
            mortal.kill()
            (folder / "gate").touch()
            await asyncio.to_thread(mortal.start)
            turn = await running
        assert (turn.exit_code, turn.last_message) == (0, "This takes long, and is said to its end."), turn
        (whole,) = [entry for entry in journal(mortal) if entry["finish"] != "abort"]
        assert decode_tokens(whole["prompt_tokens"]).count("Say it all. [restart]") == 1


async def test_a_sub_agent_does_a_part(server: Server, editor: AppServer) -> None:
    """Codex's tools for that are a namespace: the model calls `multi_agent_v1.spawn_agent`."""
    begin = len(journal(server))
    await editor.begin("Let another one look. [delegate]")
    assert await editor.end() == "completed"
    assert editor.said()[-1] == "Somebody is on it."
    await eventually(lambda: any("[delegated]<|end|>" in text for text in texts(server, begin)))
