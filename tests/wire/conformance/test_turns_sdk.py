"""OpenAI's SDK in the dialect `codex-turn`: whatever becomes of a leg, its turn goes on, and is deleted whole."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.kit.fixtures import two_of
from tests.kit.scripts import BEGIN, CALL
from tests.kit.sdk import PATIENCE, WEATHER
from tests.kit.server import KINDS, Server
from tests.kit.stored import stored

CODEX = {"Respsite-Dialect": "codex-turn"}
SAID = f"{BEGIN}It is warm.<|return|>"
SECRET = "The user's own words"
FAULTS = {"overloaded": openai.RateLimitError, "failed": openai.InternalServerError}
SCRIPT: list[dict[str, Any]] = [
    *({"when": f"[{fault} {way}]", "fault": fault, "times": 1} for fault in FAULTS for way in ("json", "stream")),
    {"when": SECRET, "say": CALL},
    {"say": SAID},
]


class Workers:
    """Two workers on one database, which know nothing of each other but what stands there."""

    def __init__(self, folder: Path, kind: str = "daphne", **settings: Any) -> None:
        settings |= {"script": SCRIPT, "journal": True}
        settings["engine_options"] = {"max_model_len": 4000}
        settings["stream_first_word_ms"] = 20_000  # it is busy where tests run
        self.one, self.other = two_of(folder, kind=kind, model_name="m", **settings)


@pytest.fixture(scope="module", params=KINDS)
def workers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    workers = Workers(tmp_path_factory.mktemp("turns"), request.param)
    with workers.one, workers.other:
        yield workers


@pytest.fixture
def client(workers: Workers) -> Iterator[OpenAI]:
    """An unmodified SDK, as it is made by default but for the header: it tries again twice."""
    with sdk_of(workers.one) as client:
        yield client


def sdk_of(server: Server, **options: Any) -> OpenAI:
    """Return an SDK that speaks the dialect."""
    return OpenAI(base_url=server.base_url, api_key="none", default_headers=CODEX, **{"timeout": PATIENCE, **options})


def begun(client: OpenAI) -> Response:
    """Begin a turn with a call."""
    response = client.responses.create(model="m", input=SECRET, tools=[WEATHER])  # type: ignore[list-item]
    assert response.output[-1].type == "function_call"
    return response


def answering(turn: Response, output: str) -> dict[str, Any]:
    """Return the request that says what came of the turn's call."""
    call_id = turn.output[-1].call_id  # type: ignore[union-attr]
    said = {"type": "function_call_output", "call_id": call_id, "output": output}
    return {"model": "m", "tools": [WEATHER], "previous_response_id": turn.id, "input": [said]}


def gone_on(turn: Response, response: Response) -> None:
    """Hold a response to be the turn's next leg."""
    assert (response.id, response.status, response.output_text) == (turn.id, "completed", "It is warm.")
    assert response.previous_response_id is None


@pytest.mark.parametrize("fault", FAULTS)
def test_the_sdk_s_own_retry_goes_on_behind_a_leg_that_the_engine_refused(client: OpenAI, fault: str) -> None:
    turn = begun(client)
    gone_on(turn, client.responses.create(**answering(turn, f"[{fault} json]")))
    *_, last = client.responses.create(**answering(turn, f"[{fault} stream]"), stream=True)
    assert last.type == "response.completed"
    gone_on(turn, last.response)


def test_a_turn_that_is_deleted_is_gone_everywhere(workers: Workers, client: OpenAI) -> None:
    turn = begun(client)
    gone_on(turn, client.responses.create(**answering(turn, "18")))
    with sdk_of(workers.other, max_retries=0) as other, other.responses.connect() as socket:
        socket.response.create(**answering(turn, "19"))
        while socket.recv().type != "response.completed":
            pass
        client.responses.delete(turn.id)
        for each in (client, other):
            assert_gone(each, turn)
        socket.response.create(**answering(turn, "20"))
        refused = socket.recv()
        assert refused.type == "error"
        assert "previous_response_not_found" in str(refused)
    kept = stored(workers.one, "SELECT input_items, body FROM responses_app_response")
    assert turn.output[-1].call_id not in str(kept)  # type: ignore[union-attr]
    (names,) = stored(workers.one, f"SELECT count(*) FROM responses_app_publicname WHERE name = '{turn.id}'")
    assert names == (0,)


def assert_gone(client: OpenAI, turn: Response) -> None:
    """Hold a turn to be unknown, whatever is asked of it."""
    asked = (
        lambda: client.responses.retrieve(turn.id),
        lambda: client.responses.input_items.list(turn.id),
        lambda: client.responses.retrieve(turn.id, stream=True),
        lambda: client.responses.delete(turn.id),
    )
    for ask in asked:
        with pytest.raises(openai.NotFoundError):
            ask()
    with pytest.raises(openai.BadRequestError, match="not found"):
        client.responses.create(**answering(turn, "20"))
