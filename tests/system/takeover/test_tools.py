"""A worker is killed while each tool of the server works, and waits for approvals: the others go on.

Only this finds a tool whose call is lost, or made again, with the process that made it; some calls take ten seconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.kit.capabilities import missing
from tests.kit.laws import assert_laws
from tests.kit.redis_server import RedisServer
from tests.kit.sdk import Chat
from tests.kit.server import Server
from tests.unit.tools.cells import CASES, Case, Slow, added, mcp_at
from tests.wire.test_everywhere import INCLUDE, SECRET, House, client_of, two_workers


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
def house(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Two workers."""
    with two_workers(tmp_path_factory.mktemp("everywhere"), redis) as house:
        yield house


@pytest.fixture(scope="module")
def killed(house: House) -> Iterator[Killed]:
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
    return any(missing(mark.args[0]) for mark in case.marks if mark.name == "needs")


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
