"""Every tool of the server through OpenAI's SDK, in every way in which a response can be had, on several workers.

Two workers on one database, with Redis and a host of containers, whose searches are of two kinds. What is asked of one
is continued at the other one. A third worker is killed while its tools work, and the others go on.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response

from tests.kit.laws import assert_laws
from tests.kit.redis_server import RedisServer
from tests.kit.sandboxes import host_process
from tests.kit.sdk import PATIENCE, Chat, sdk_of
from tests.kit.server import Server
from tests.unit.tools.cells import CASES, Case, Counterparts, Slow, added, counterparts, mcp_at

pytestmark = pytest.mark.any_database
INCLUDE: Any = ["code_interpreter_call.outputs", "file_search_call.results", "reasoning.encrypted_content"]
LEASE = 3  # WORKER_LEASE_SECONDS
SECRET = "a-secret-token"
NOISE = ("Traceback", "was never", "Task was destroyed")


@dataclass(frozen=True)
class House:
    """The workers that live, a client of each, and what their tools talk to."""

    workers: list[Server]
    clients: list[OpenAI]
    there: Counterparts
    settings: dict[str, object]

    def fields(self, case: Case, turn: int) -> dict[str, Any]:
        """Return a request."""
        return {"model": "demo", "input": case.asked[turn], "tools": case.tools(self.there), "include": INCLUDE}

    def both(self, case: Case) -> tuple[OpenAI, OpenAI]:
        """Return the clients of the worker that has the first turn, and of the one that has the second."""
        return self.clients[case.first], self.clients[case.first if case.alone else 1 - case.first]


@pytest.fixture(scope="module")
def house(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Two workers."""
    folder = tmp_path_factory.mktemp("everywhere")
    # Its path is short, as that of a socket has to be.
    with counterparts() as there, TemporaryDirectory() as short, host_process(Path(short)):
        hosts = f"{short}/socket"
        shared: dict[str, object] = {"redis_url": redis.url, "worker_lease_seconds": LEASE, "sandbox_hosts": hosts}
        workers = [Server(folder, **shared, **there.settings(ddgs=each)) for each in (False, True)]  # type: ignore[arg-type]
        for name, worker in zip("ab", workers, strict=True):
            worker.log = folder / f"{name}.log"
        with workers[0], workers[1]:
            clients = [client_of(worker) for worker in workers]
            store = clients[0].vector_stores.create()
            handbook = ("handbook.md", b"# Holidays\nEverybody has 30 days a year.")
            clients[0].vector_stores.files.upload_and_poll(vector_store_id=store.id, file=handbook)
            there.store_ids.append(store.id)
            yield House(workers, clients, there, shared)
            for client in clients:
                client.close()
        assert [noise for worker in workers for noise in NOISE if noise in worker.output] == []
        assert [worker.log for worker in workers if SECRET in worker.output] == []


def client_of(server: Server) -> OpenAI:
    """Return the SDK, which tries nothing again."""
    return sdk_of(server)


# The ways. Each has two turns of a chain and returns what came of them.


def at_once(house: House, case: Case) -> list[Response]:
    """Stored, and continued on the other worker by its id."""
    one, other = house.both(case)
    first = one.responses.create(**house.fields(case, 0))
    return [first, other.responses.create(previous_response_id=first.id, **house.fields(case, 1))]


def streamed(house: House, case: Case) -> list[Response]:
    """The same, streamed: the events of each call are OpenAI's, in their order."""
    ended: list[Response] = []
    for turn, client in enumerate(house.both(case)):
        previous: Any = ended[-1].id if ended else openai.omit
        with client.responses.stream(previous_response_id=previous, **house.fields(case, turn)) as stream:
            kinds = [event.type for event in stream if event.type.startswith(f"response.{case.item}")]
            ended.append(stream.get_final_response())
        once = [f"response.{case.item}{'_' if name.split('.')[1:] else '.'}{name}" for name in case.events]
        assert [kind for place, kind in enumerate(kinds) if kind != kinds[place - 1] or not place] == once * case.calls
    return ended


def not_stored(house: House, case: Case) -> list[Response]:
    """Not stored: the other worker gets the items back."""
    one, other = house.both(case)
    first = one.responses.create(store=False, **house.fields(case, 0))
    again = house.fields(case, 1)
    said = [{"role": "user", "content": text} for text in case.asked]
    again["input"] = [said[0], *(item.to_dict() for item in first.output), said[1]]
    with pytest.raises(openai.NotFoundError):
        other.responses.retrieve(first.id)
    return [first, other.responses.create(store=False, **again)]


def in_the_background(house: House, case: Case) -> list[Response]:
    """In the background, and looked for on the other worker."""
    ended: list[Response] = []
    for turn, client in enumerate(house.both(case)):
        previous: Any = ended[-1].id if ended else openai.omit
        response = client.responses.create(background=True, previous_response_id=previous, **house.fields(case, turn))
        assert response.status == "queued"
        elsewhere = house.both(case)[1 - turn].responses
        deadline = time.monotonic() + PATIENCE
        while response.status in ("queued", "in_progress"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
            response = elsewhere.retrieve(response.id, include=INCLUDE)
        ended.append(response)
    return ended


def over_the_websocket(house: House, case: Case) -> list[Response]:
    """Over one WebSocket, where nothing is stored."""
    one, _ = house.both(case)
    with one.responses.connect() as connection:
        chat = Chat(connection)
        return [chat.ask(store=False, **house.fields(case, turn)) for turn in (0, 1)]


WAYS: list[Callable[[House, Case], list[Response]]] = [
    at_once,
    streamed,
    not_stored,
    in_the_background,
    over_the_websocket,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("case", [pytest.param(case, id=name, marks=case.marks) for name, case in CASES.items()])
def test_a_tool_works_in_every_way(house: House, case: Case, way: Callable[[House, Case], list[Response]]) -> None:
    for turn, response in enumerate(way(house, case)):
        assert response.status == "completed"
        case.check(response, turn)


# A worker is killed.


@dataclass
class Killed:
    """What a worker had under way when it was killed: events so far, and the streams that go on at another worker."""

    streams: dict[str, Any] = field(default_factory=dict)
    events: dict[str, list[Any]] = field(default_factory=dict)
    requests: dict[str, Response] = field(default_factory=dict)  # for approval, by the way they were asked
    kept: Response | None = None


SLOW = {f"{name}: {slow.until}: {slow.asked}": (case, slow) for name, case in CASES.items() for slow in case.slow}
TRANSPORTS = ("HTTP", "the WebSocket")
ANSWERS = {"approved": True, "refused": False}
PYTHON = "interpreter"


@pytest.fixture(scope="module")
def killed(house: House, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    """A third worker, which speaks slowly and has been killed: what works there is followed from another one."""
    settings = {**house.settings, **house.there.settings(ddgs=False)}
    folder = house.workers[0].folder
    third = Server(folder, engine_options='{"tokens_per_second": 100}', **settings)  # type: ignore[arg-type]
    third.log = folder / "c.log"
    state, follower = Killed(), house.clients[1]
    with third, client_of(third) as client:
        for transport in TRANSPORTS:
            for answer in ANSWERS:
                state.requests[f"{answer} over {transport}"] = ask_for_approval(house, client, transport)
        if not skipped(CASES[PYTHON]):
            state.kept = client.responses.create(**house.fields(CASES[PYTHON], 0))
        for name, (case, slow) in SLOW.items():
            if skipped(case):
                continue
            asked = {**house.fields(case, 0), "input": slow.asked}
            response = client.responses.create(background=True, **asked)
            state.streams[name] = stream = follower.responses.retrieve(response.id, stream=True, include=INCLUDE)
            events = state.events[name] = [next(stream)]
            while events[-1].type != slow.until:
                events.append(next(stream))
        third.kill()
        assert "Traceback" not in third.output
        yield state


def skipped(case: Case) -> bool:
    """Whether this machine cannot have the tool."""
    return any(mark.args[0] for mark in case.marks)


@pytest.mark.parametrize(
    ("name", "case", "slow"),
    [pytest.param(name, case, slow, id=name, marks=case.marks) for name, (case, slow) in SLOW.items()],
)
def test_another_worker_goes_on_with_what_a_dead_one_was_calling(
    killed: Killed, name: str, case: Case, slow: Slow
) -> None:
    events = [*killed.events[name], *killed.streams[name]]
    assert_laws([event.to_dict() for event in events])
    assert events[-1].type == "response.completed"
    slow.check(events[-1].response)


@pytest.mark.parametrize("case", [pytest.param(CASES[PYTHON], marks=CASES[PYTHON].marks)])
def test_variables_outlive_the_worker_that_asked_for_them(house: House, killed: Killed, case: Case) -> None:
    assert killed.kept is not None
    after = house.clients[0].responses.create(previous_response_id=killed.kept.id, **house.fields(case, 1))
    case.check(after, 1)
    assert case.calls_of(after)[0].container_id == case.calls_of(killed.kept)[0].container_id


# Approvals.


def asking(house: House) -> list[Any]:
    """Return the declaration of a server whose calls are to be approved."""
    return mcp_at("http", require_approval="always", authorization=SECRET)(house.there)


def ask_for_approval(house: House, client: OpenAI, transport: str) -> Response:
    """Let the model call what needs approval."""
    fields: dict[str, Any] = {
        "input": "call add with 2",
        "tools": asking(house),
    }
    if transport == "HTTP":
        response = client.responses.create(model="demo", **fields)
    else:
        with client.responses.connect() as connection:
            response = Chat(connection).ask(**fields)
    assert response.output[-1].type == "mcp_approval_request"
    return response


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("answer", ANSWERS)
def test_what_a_dead_worker_asked_is_answered_at_another(
    house: House, killed: Killed, transport: str, answer: str
) -> None:
    asked = killed.requests[f"{answer} over {transport}"]
    request = asked.output[-1]
    given: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": ANSWERS[answer]}
    fields: dict[str, Any] = {"input": [given], "tools": asking(house)}
    if transport == "HTTP":
        done = house.clients[1].responses.create(model="demo", previous_response_id=asked.id, **fields)
    else:
        with house.clients[1].responses.connect() as connection:
            done = Chat(connection).ask(previous_response_id=asked.id, **fields)
    calls = [item for item in done.output if item.type == "mcp_call"]
    if answer == "refused":
        assert calls == []
        assert "did not approve this call" in done.output_text
        return
    added(done, 1)
    assert SECRET not in asked.to_json() + done.to_json()
    assert calls[0].approval_request_id == request.id
    again = house.clients[0].responses.create(model="demo", previous_response_id=done.id, **fields)
    assert [item.type for item in again.output if item.type == "mcp_call"] == [], "it was approved once"
    with pytest.raises(openai.BadRequestError, match="No approval request found"):
        house.clients[0].responses.create(model="demo", **fields)


async def test_by_the_agents_sdk_with_a_history_that_it_carries(house: House) -> None:
    from agents import Agent, OpenAIResponsesModel, Runner, WebSearchTool, set_tracing_disabled  # takes seconds

    set_tracing_disabled(True)
    tool = WebSearchTool(search_context_size="low", user_location={"type": "approximate", "city": "Bern"})
    asked, page = CASES["SearXNG"].asked[0], house.there.web.url("/turtles")
    async with AsyncOpenAI(base_url=house.workers[0].base_url, api_key="none") as client:
        agent = Agent(name="searcher", model=OpenAIResponsesModel("demo", client), tools=[tool])
        first = await Runner.run(agent, asked)
        assert [type(item).__name__ for item in first.new_items].count("ToolCallItem") == 2
        again = Runner.run_streamed(agent, [*first.to_input_list(), {"role": "user", "content": asked}])
        seen = {event.data.type async for event in again.stream_events() if event.type == "raw_response_event"}
    assert "response.output_text.annotation.added" in seen
    assert page in first.final_output
    assert page in again.final_output
