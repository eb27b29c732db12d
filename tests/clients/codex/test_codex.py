"""The Codex CLI against daphne: a coding agent's turns over the WebSocket and over POST with server-sent events."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from responses_app.protocol.errors import JsonObject
from tests.clients.codex.cli import TURN_SECONDS, Codex, config, installed
from tests.kit.fixtures import module_server
from tests.kit.scripts import Entry, as_history, generations
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.kit.wiretap import Wiretap
from tests.project.test_readme import ADDRESS, blocks

MODEL = "gpt-oss-20b"
BEGIN = "<|channel|>final<|message|>"
COMMAND = "echo written by the shell | tee note.txt"
ARGUMENTS = json.dumps({"cmd": COMMAND})
CALL_HEADER = "<|channel|>commentary to=functions.exec_command <|constrain|>json<|message|>"
CALL = f"<|channel|>analysis<|message|>A shell can do that.<|end|><|start|>assistant{CALL_HEADER}"
# No encoder makes these tokens of the arguments: only who keeps what was sampled can give them back.
SPELLED_OUT = [token for letter in ARGUMENTS for token in encode_harmony(letter)]
CALL_OF_LATE = f'{CALL}{{"cmd": "echo late in the turn | tee late.txt"}}<|call|>'
SCRIPT: list[Entry] = [
    {"when": "[write websocket]", "tokens": [*encode_harmony(CALL), *SPELLED_OUT, *encode_harmony("<|call|>")]},
    {"when": "[write sse]", "say": f"{CALL}{ARGUMENTS}<|call|>"},
    {"when": "[write late]", "say": CALL_OF_LATE},
    {"when": "late in the turn", "fault": "overloaded", "times": 1},
    {"when": "late in the turn", "say": f"{BEGIN}The late note is written.<|return|>"},
    {"when": "written by the shell", "say": f"{BEGIN}The note is written.<|return|>"},
    {"when": "[recall]", "say": f"{BEGIN}You asked for a note.<|return|>"},
    {"when": "[full websocket]", "fault": "overloaded", "times": 1},
    {"when": "[full sse]", "fault": "overloaded", "times": 1},
    {"when": "[full", "say": f"{BEGIN}There is room again.<|return|>"},
    {"when": "[broken websocket]", "fault": "failed", "times": 1},
    {"when": "[broken sse]", "fault": "failed", "times": 1},
    {"when": "[broken", "say": f"{BEGIN}It is whole again.<|return|>"},
    {"when": "[hang]", "say": f"{BEGIN}This takes long.<|return|>", "hang_after": 5},
]
LOGGED = re.compile(r"response (resp_\w+) (\w+) (\w+) input=(\d+) ")


@dataclass(frozen=True)
class Logged:
    """A response as the server's log tells of it."""

    id: str
    transport: str
    status: str
    input_tokens: str

    @property
    def is_warm_up(self) -> bool:
        """Whether nothing was to be generated."""
        return self.input_tokens == "0"


class Session:
    """One test's Codex, with a wiretap between it and the shared server."""

    def __init__(self, server: Server, tap: Wiretap, codex: Codex, transport: str) -> None:
        self.tap, self.codex, self.transport = tap, codex, transport
        self._server = server
        self._begin = len(server.output)

    @property
    def logged(self) -> list[Logged]:
        """The responses of this test that ended, oldest first."""
        return [Logged(*found) for found in LOGGED.findall(self._server.output[self._begin :])]

    async def turns(self, *statuses: str) -> list[Entry]:
        """Return what the engine wrote down of this test's responses: they had these statuses.

        They came over the test's transport. Warm-ups are not turns.
        """
        await eventually(lambda: len(self._turns()) >= len(statuses))
        turns = self._turns()
        assert [(each.transport, each.status) for each in turns] == [(self.transport, each) for each in statuses]
        return [self._generation(each) for each in turns]

    def _turns(self) -> list[Logged]:
        return [each for each in self.logged if not each.is_warm_up]

    def _generation(self, response: Logged) -> Entry:
        (found,) = generations(self._server, response.id)
        return found


server = module_server("codex", script=SCRIPT, model_name=MODEL, journal=True)


@pytest.fixture(params=["websocket", "sse"])
async def session(
    request: pytest.FixtureRequest, codex_program: Path, server: Server, tmp_path: Path
) -> AsyncIterator[Session]:
    """Codex with websockets on, and with websockets off."""
    async with Wiretap(server.port) as tap:
        provider = config(base_url=tap.base_url, model=MODEL, websockets=request.param == "websocket")
        yield Session(server, tap, Codex(codex_program, tmp_path, config=provider), request.param)


@pytest.fixture(scope="session")
def codex_program() -> Path:
    """The installed CLI."""
    return installed()


only_websocket = pytest.mark.parametrize("session", ["websocket"], indirect=True)


async def write_the_note(session: Session) -> str:
    """Let Codex do a turn with one shell call, and return its thread."""
    turn = await session.codex.ask(f"Write a note. [write {session.transport}]")
    assert turn.exit_code == 0, turn
    assert turn.last_message == "The note is written."
    assert turn.items("error") == []  # Codex's warnings, such as of a model that it knows nothing about
    (command,) = turn.items("command_execution")
    assert (command["exit_code"], command["aggregated_output"]) == (0, "written by the shell\n")
    assert (session.codex.work / "note.txt").read_text() == "written by the shell\n"
    return turn.thread_id


def kinds_of_input(frame: JsonObject) -> list[object]:
    """Return the types of a frame's input items."""
    assert isinstance(frame["input"], list)
    return [item["type"] for item in frame["input"]]


def assert_continued(call: Entry, answer: Entry) -> None:
    """The second prompt is the first, what was sampled, and the shell's output, token by token."""
    history = as_history(call)
    assert answer["prompt_tokens"][: len(history)] == history
    assert "written by the shell" in decode_tokens(answer["prompt_tokens"][len(history) :])


@only_websocket
async def test_a_turn_with_a_shell_call_over_one_websocket(session: Session) -> None:
    await write_the_note(session)
    call, answer = await session.turns("completed", "completed")
    assert session.tap.upgrades == 1
    assert [each.is_warm_up for each in session.logged] == [True, False, False]

    warm_up, first, second = session.tap.frames()
    assert [frame.get("generate", True) for frame in (warm_up, first, second)] == [False, True, True]
    parents = [None, *(each.id for each in session.logged[:2])]
    assert [frame.get("previous_response_id") for frame in (warm_up, first, second)] == parents
    assert kinds_of_input(second) == ["function_call_output"]

    (patcher,) = [tool for tool in first["tools"] if tool.get("name") == "apply_patch"]  # type: ignore[attr-defined]
    assert (patcher["type"], patcher["format"]["syntax"]) == ("custom", "lark")
    assert first["reasoning"]["effort"] == "medium"  # type: ignore[index]
    assert session.tap.sent("GET /v1/models?client_version=")
    assert session.tap.sent("\r\nauthorization: Bearer none\r\n")

    (base_prompt,) = warm_up["input"][0]["content"]  # type: ignore[index]
    assert base_prompt["text"] in decode_tokens(call["prompt_tokens"])
    assert base_prompt["text"] not in [part["text"] for item in first["input"] for part in item["content"]]  # type: ignore[attr-defined]
    assert call["sampled_tokens"][-1 - len(SPELLED_OUT) : -1] == SPELLED_OUT
    assert_continued(call, answer)


async def test_a_conversation_is_resumed(session: Session) -> None:
    thread = await write_the_note(session)
    assert session.tap.upgrades == (session.transport == "websocket")
    turn = await session.codex.resume(thread, "What did I ask for? [recall]")
    assert (turn.exit_code, turn.last_message) == (0, "You asked for a note."), turn
    assert turn.thread_id == thread

    first, answer, resumed = await session.turns("completed", "completed", "completed")
    assert_continued(first, answer)
    beginning = first["prompt_tokens"]
    assert resumed["prompt_tokens"][: len(beginning)] == beginning
    rest = decode_tokens(resumed["prompt_tokens"][len(beginning) :])
    told = [CALL_HEADER, ARGUMENTS, "\nwritten by the shell\n", "The note is written.", "What did I ask for?"]
    assert [rest.count(each) for each in told] == [1] * len(told)
    assert sorted(told, key=rest.index) == told


@pytest.mark.parametrize("websockets", [False, True], ids=["sse", "websocket"])
async def test_a_leg_that_was_refused_goes_on_in_the_dialect_of_one_id_a_turn(
    codex_program: Path, tmp_path: Path, *, websockets: bool
) -> None:
    """The engine has no room when the tool's output comes: Codex sends it once more, under the turn's id."""
    with Server(tmp_path / "server", script=SCRIPT, model_name=MODEL, responses_dialect="codex-turn") as server:
        provider = config(base_url=server.base_url, model=MODEL, websockets=websockets)
        codex = Codex(codex_program, tmp_path, config=provider)
        turn = await codex.ask("Write a note. [write late]")
        assert (turn.exit_code, turn.last_message) == (0, "The late note is written."), turn
        assert len(turn.items("command_execution")) == 1
        again = await codex.resume(turn.thread_id, "Once more. [recall]")
        assert again.last_message == "You asked for a note.", again


@pytest.mark.parametrize(("trouble", "answer"), [("full", "There is room again."), ("broken", "It is whole again.")])
async def test_a_turn_is_tried_again_after_a_failure(session: Session, trouble: str, answer: str) -> None:
    turn = await session.codex.ask(f"Try it. [{trouble} {session.transport}]")
    assert (turn.exit_code, turn.last_message) == (0, answer), turn
    failed, retried = await session.turns("failed", "completed")
    assert failed["prompt_tokens"] == retried["prompt_tokens"]


async def test_the_generation_ends_when_codex_is_killed(session: Session) -> None:
    running = asyncio.create_task(session.codex.ask("Take your time. [hang]"))
    await eventually(lambda: running.done() or session.tap.answered('"delta":"This"'), timeout=TURN_SECONDS)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (hung,) = await session.turns("cancelled")
    assert hung["finish"] == "abort"


@pytest.mark.parametrize("readme", [block for block in blocks("toml") if "model_providers" in block])
async def test_the_readmes_config_works(
    readme: str, codex_program: Path, daphne_server: Server, tmp_path: Path
) -> None:
    assert ADDRESS in readme
    assert "supports_websockets = true" in readme
    codex = Codex(codex_program, tmp_path, config=readme.replace(ADDRESS, f"127.0.0.1:{daphne_server.port}"))
    turn = await codex.ask("count to 5")
    assert (turn.exit_code, turn.last_message, turn.items("error")) == (0, "1 2 3 4 5", []), turn


async def test_an_answer_of_the_users_own_schema(codex_program: Path, daphne_server: Server, tmp_path: Path) -> None:
    schema = tmp_path / "trip.json"
    properties = {"city": {"type": "string"}, "by": {"enum": ["rail", "road"]}}
    wanted = {"type": "object", "properties": properties, "required": ["city", "by"], "additionalProperties": False}
    schema.write_text(json.dumps(wanted))
    provider = config(base_url=daphne_server.base_url, model="demo", websockets=True)
    codex = Codex(codex_program, tmp_path, config=provider)
    turn = await codex.ask("Plan a trip to Paris", "--output-schema", schema)
    assert (turn.exit_code, turn.items("error")) == (0, []), turn
    trip = json.loads(str(turn.last_message))
    assert sorted(trip) == ["by", "city"]
    assert trip["by"] in ("rail", "road")
