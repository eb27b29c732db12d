"""One request that ends whichever worker takes it, as real processes: two die of it, and no third one.

Only this finds that a worker's last request is not known any more once it is dead, or that the supervisor takes workers
that serve, and die, for ones that cannot start. Whom a death is blamed on: `tests/unit/test_suspects.py`.
"""

from collections.abc import Iterator

import httpx
import pytest

from responses_app.protocol.errors import ENDS_WORKERS, JsonObject
from tests.kit.served import Supervised

KILLED = "was ended by SIGKILL"


pytestmark = pytest.mark.each_database


@pytest.fixture(scope="module")
def served(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """Two workers, whose engine takes its time."""
    folder = tmp_path_factory.mktemp("deadly")
    options = {"tokens_per_second": 50}
    with Supervised(folder, workers=2, engine_options=options) as server:
        yield server
        assert server.is_running
        assert "cannot start" not in server.output
        assert "Traceback" not in server.output


def answer(served: Supervised, path: str, body: JsonObject | None = None) -> JsonObject | None:
    """Return what a request is answered with; None where its worker died, or the next one does not serve yet.

    The supervisor has seen by then that a worker is dead: a client that sends it again at once may be faster.
    """
    deaths = served.output.count(KILLED)
    try:
        sent = httpx.request("GET" if body is None else "POST", f"{served.base_url}{path}", json=body, timeout=60)
    except httpx.TransportError:
        served.wait_for_line(KILLED, count=deaths + 1)
        return None
    told: JsonObject = sent.json()
    is_starting = sent.status_code == 503 and "request_ends_workers" not in sent.text
    return None if is_starting else told


def answered(served: Supervised, path: str, body: JsonObject | None = None) -> JsonObject:
    found: list[JsonObject] = []

    def asks() -> bool:
        told = answer(served, path, body)
        found.extend([] if told is None else [told])
        return told is not None

    served.wait_for(asks)
    return found[0]


@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
def test_a_request_that_its_client_sends_again_ends_two_workers(served: Supervised, path: str) -> None:
    before = served.output.count(KILLED)
    text = f"deadly to read {path}"
    deadly = {"model": "demo", "input": text, "messages": [{"role": "user", "content": text}]}
    refused = answered(served, path, {key: deadly[key] for key in ("model", "input" if "resp" in path else "messages")})
    assert refused["error"]["code"] == "request_ends_workers"  # type: ignore[index]
    assert served.output.count(KILLED) == before + 2
    assert answered(served, "/responses", {"input": "Hi"})["status"] == "completed"


def test_a_response_that_is_taken_over_ends_two_workers_and_those_beside_it_none(served: Supervised) -> None:
    before = served.output.count(KILLED)
    innocents = [
        answered(served, "/responses", {"input": f"count to {n}", "background": True}) for n in range(200, 203)
    ]
    deadly = answered(served, "/responses", {"input": "deadly to run", "background": True})
    served.wait_for(lambda: answered(served, f"/responses/{deadly['id']}")["status"] == "in_progress")
    (served.folder / "deadly").touch()

    def ended(response: JsonObject) -> bool:
        return answered(served, f"/responses/{response['id']}")["status"] not in ("queued", "in_progress")

    for response in (deadly, *innocents):
        served.wait_for(lambda response=response: ended(response))  # type: ignore[misc]
    ends = [answered(served, f"/responses/{response['id']}") for response in (deadly, *innocents)]
    assert [end["status"] for end in ends] == ["failed", *["completed"] * 3]
    assert ends[0]["error"] == ENDS_WORKERS
    assert served.output.count(KILLED) == before + 2
    refused = answered(served, "/responses", {"input": "deadly to run", "background": True})
    assert refused["error"]["code"] == "request_ends_workers"  # type: ignore[index]
