"""Every tool of the server through OpenAI's SDK, in every way in which a response can be had, on several workers.

Two workers on one database, with Redis and a host of containers, whose searches are of two kinds. What is asked of one
is continued at the other one. `tests/system/takeover/test_tools.py` has a third one killed while its tools work.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response

from tests.kit.redis_server import RedisServer
from tests.kit.sandboxes import host_process
from tests.kit.sdk import PATIENCE, Chat, sdk_of
from tests.kit.server import Server
from tests.unit.tools.cells import CASES, Case, Counterparts, counterparts

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


@contextmanager
def two_workers(folder: Path, redis: RedisServer) -> Iterator[House]:
    """Run two workers of a folder, a host of containers, and what the tools talk to."""
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


@pytest.fixture(scope="module")
def house(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Two workers."""
    with two_workers(tmp_path_factory.mktemp("everywhere"), redis) as house:
        yield house


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
