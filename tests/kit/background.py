"""Background responses over HTTP, and servers for them."""

from pathlib import Path

import httpx

from responses_app.protocol.requests import resources
from tests.kit.clients import Frame, ready
from tests.kit.oracle import validate_response
from tests.kit.scripts import main_script
from tests.kit.server import Server
from tests.kit.waiting import PATIENCE, eventually

RUNNING, WAITING = 2, 3  # at most
ANSWER = "Here I am."


def new_server(folder: Path, **settings: object) -> Server:
    """Return a server of its own, not started; `[dumb NAME]` says nothing until `speak(NAME)` was called."""
    dumb = [
        {
            "when": f"[dumb {name}]",
            "say": f"<|channel|>final<|message|>{ANSWER}<|return|>",
            "hang_after": 0,
            "wait_for_file": str(folder / f"speak-{name}"),
        }
        for name in "abcdef"
    ]
    limits = {"background_max_running": RUNNING, "background_max_queued": WAITING, "worker_lease_seconds": 5}
    return Server(folder, script=[*dumb, *main_script(folder)], journal=True, **{**limits, **settings})  # type: ignore[arg-type]


def speak(server: Server, name: str) -> None:
    """Let the answers to `[dumb name]` go on."""
    (server.folder / f"speak-{name}").touch()


async def is_idle(server: Server) -> bool:
    """Say whether nothing runs and nothing waits."""
    said = await ready(server)
    return bool(said["responses_in_flight"] == said["background_queued"] == 0)


async def begin(http: httpx.AsyncClient, text: str, **fields: object) -> Frame:
    """Create a background response."""
    answer = await http.post("/responses", json={"input": text, "background": True, **fields})
    assert answer.status_code == 200, answer.text
    response: Frame = answer.json()
    validate_response(response)
    assert response["status"] == "queued"
    return response


async def get(http: httpx.AsyncClient, response_id: str) -> Frame:
    answer = await http.get(f"/responses/{response_id}")
    assert answer.status_code == 200, answer.text
    response: Frame = answer.json()
    validate_response(response)
    return response


async def cancel(http: httpx.AsyncClient, *responses: Frame) -> list[Frame]:
    """Cancel responses, the last one first: none gets a turn by that."""
    return [(await http.post(f"/responses/{response['id']}/cancel")).json() for response in reversed(responses)]


async def until(http: httpx.AsyncClient, response_id: str, *statuses: str, timeout: float = PATIENCE) -> Frame:
    """Wait until a response has one of these states, and return it. One that has ended otherwise is not waited for."""
    found: list[Frame] = []

    async def is_there() -> bool:
        found[:] = [await get(http, response_id)]
        return found[0]["status"] not in resources.RUNNING or found[0]["status"] in statuses

    try:
        await eventually(is_there, timeout=timeout)
    except AssertionError:
        raise AssertionError(f"{found[0]} was not {' or '.join(statuses)} within {timeout:g} s") from None
    assert found[0]["status"] in statuses, found[0]
    return found[0]
