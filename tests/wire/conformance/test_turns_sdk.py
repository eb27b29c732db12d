"""OpenAI's SDK in the dialect `codex-turn`: whatever becomes of a leg, its turn goes on, and is deleted whole."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.kit.scripts import BEGIN, CALL, journal
from tests.kit.sdk import PATIENCE, WEATHER
from tests.kit.server import KINDS, Server
from tests.kit.stored import stored

CODEX = {"Respsite-Dialect": "codex-turn"}
LEASE = 3  # WORKER_LEASE_SECONDS, where one worker is to take over
SAID = f"{BEGIN}It is warm.<|return|>"
SECRET = "The user's own words"
FAULTS = {"overloaded": openai.RateLimitError, "failed": openai.InternalServerError}
SCRIPT: list[dict[str, Any]] = [
    *({"when": f"[{fault} {way}]", "fault": fault, "times": 1} for fault in FAULTS for way in ("json", "stream")),
    *({"when": f"[{fault} later]", "say": SAID, "fault": fault, "fault_after": 6, "times": 1} for fault in FAULTS),
    {"when": "[hangs]", "say": SAID, "hang_after": 0, "times": 1},
    {"when": "[stays]", "say": SAID, "hang_after": 6},
    {"when": SECRET, "say": CALL},
    {"say": SAID},
]


class Workers:
    """Two workers on one database, which know nothing of each other but what stands there."""

    def __init__(self, folder: Path, kind: str = "daphne", **settings: Any) -> None:
        settings |= {"script": SCRIPT, "journal": True}
        settings["engine_options"] = {"max_model_len": 4000}
        settings["stream_first_word_ms"] = 20_000  # it is busy where tests run
        self.one, self.other = (Server(folder, kind=kind, model_name="m", **settings) for _ in range(2))
        self.other.log = folder / "other.log"


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


@pytest.mark.parametrize("fault", FAULTS)
def test_so_does_the_client_s_behind_a_stream_that_failed(client: OpenAI, fault: str) -> None:
    turn = begun(client)
    asked = answering(turn, f"[{fault} later]")
    *_, last = client.responses.create(**asked, stream=True)
    assert last.type == "response.failed"
    assert client.responses.retrieve(turn.id).status == "failed", "the newest leg, whatever became of it"
    *_, last = client.responses.create(**asked, stream=True)
    assert last.type == "response.completed"
    gone_on(turn, last.response)
    assert client.responses.retrieve(turn.id).status == "completed"


def test_the_sdk_s_own_retry_goes_on_behind_a_leg_that_it_dropped(workers: Workers, client: OpenAI) -> None:
    turn = begun(client)
    patient = client.with_options(timeout=httpx.Timeout(PATIENCE, read=1.0), max_retries=5)
    gone_on(turn, patient.responses.create(**answering(turn, "[hangs]")))
    assert "abort" in {each["finish"] for each in journal(workers.one)}


def test_two_legs_at_once_answer_the_same_calls_once(workers: Workers, client: OpenAI) -> None:
    turn = begun(client)
    once = client.with_options(max_retries=0)
    asked = answering(turn, "18 degrees, at once")

    def ask() -> Response | openai.BadRequestError | openai.ConflictError:
        try:
            return once.responses.create(**asked)
        except (openai.BadRequestError, openai.ConflictError) as error:
            return error

    with ThreadPoolExecutor() as threads:
        came = [each.result() for each in [threads.submit(ask) for _ in range(4)]]
    answered = [each for each in came if isinstance(each, Response)]
    assert answered
    for each in answered:
        gone_on(turn, each)
    refused = [each for each in came if not isinstance(each, Response)]
    assert {each.code for each in refused} <= {"previous_response_in_progress"}
    first, *others = (each["prompt_tokens"] for each in journal(workers.one)[-len(answered) :])
    assert all(each == first for each in others), "no output is read twice"


def test_a_leg_that_was_cancelled_is_passed_over(client: OpenAI) -> None:
    turn = begun(client)
    running = client.responses.create(**answering(turn, "[stays]"), background=True)
    assert running.id == turn.id
    with pytest.raises(openai.ConflictError):
        client.with_options(max_retries=0).responses.create(**answering(turn, "18"))
    assert client.responses.cancel(turn.id).status == "cancelled"
    gone_on(turn, client.responses.create(**answering(turn, "18")))


def test_a_request_that_comes_again_is_read_once(workers: Workers, client: OpenAI) -> None:
    turn = begun(client)
    asked = answering(turn, "18 degrees, twice")
    for _ in range(2):
        gone_on(turn, client.responses.create(**asked))
    first, second = (each["prompt_tokens"] for each in journal(workers.one)[-2:])
    assert first == second
    user = {"role": "user", "content": "And tomorrow?"}
    new = client.responses.create(**{**asked, "input": [*asked["input"], user]})
    assert new.id != turn.id
    assert new.previous_response_id == turn.id


def test_a_call_that_comes_back_completed_is_its_result_in_this_dialect_alone(client: OpenAI) -> None:
    plain = client.with_options(default_headers={"Respsite-Dialect": "openai"})
    turn = begun(plain)
    echo: Any = {"model": "m", "previous_response_id": turn.id, "input": [turn.output[-1].to_dict()]}
    assert echo["input"][0]["status"] == "completed"
    with pytest.raises(openai.BadRequestError, match="No tool output found for function call"):
        plain.responses.create(**echo)
    turn = begun(client)
    echo |= {"previous_response_id": turn.id, "input": [turn.output[-1].to_dict()]}
    gone_on(turn, client.responses.create(**echo))


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


def test_behind_a_worker_that_died_another_one_goes_on(folder: Path) -> None:
    """Until the dead worker is known to be dead, its leg runs: the SDK waits."""
    workers = Workers(folder, worker_lease_seconds=LEASE)
    with workers.one, workers.other, sdk_of(workers.one) as client, sdk_of(workers.other, max_retries=10) as other:
        turn = begun(client)
        stream = client.responses.create(**answering(turn, "[stays]"), stream=True)
        for event in stream:
            if event.type == "response.output_text.delta":
                break
        workers.one.kill()
        with pytest.raises(openai.APIConnectionError):
            list(stream)
        gone_on(turn, other.responses.create(**answering(turn, "18")))
