"""Webhooks by real servers and a real receiver, which checks what it gets with OpenAI's SDK."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, BadRequestError, NotFoundError, OpenAI
from openai.types.responses import Response

from responses_app.resources.webhooks.sender import TESTS_A_MINUTE
from tests.kit.batches import batch_of, line
from tests.kit.databases import postgres_url
from tests.kit.fixtures import module_server
from tests.kit.redis_server import RedisServer
from tests.kit.sdk import sdk_of
from tests.kit.server import Server, manage
from tests.kit.stored import change
from tests.kit.webhook_receiver import ReceiverThread

SECONDS = 30.0  # that a receiver may take, on a machine that is busy; a dead worker's claim runs out 5 s later
SETTINGS: Any = {"engine": "demo", "webhook_allowed_hosts": "127.0.0.1", "webhook_seconds": SECONDS}


server = module_server("webhooks", **SETTINGS)


@pytest.fixture
def large(tmp_path: Path, redis: RedisServer) -> Iterator[Server]:
    """Return a server on PostgreSQL, with Redis."""
    with Server(tmp_path, **SETTINGS, database_url=postgres_url(tmp_path, manage), redis_url=redis.url) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with sdk_of(server, max_retries=0) as client:
        yield client
        for each in client.webhooks.list():
            client.webhooks.delete(each.id)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[ReceiverThread]:
    receiver = ReceiverThread(tmp_path / "receiver")
    yield receiver
    receiver.kill()


def test_the_sdk_makes_changes_and_deletes_endpoints(client: OpenAI) -> None:
    made = client.webhooks.create(name="mine", url="http://127.0.0.1:9/", event_types=["response.completed"])
    assert made.signing_secret.startswith("whsec_")
    found = client.webhooks.retrieve(made.id)
    assert found.to_dict() == {key: value for key, value in made.to_dict().items() if key != "signing_secret"}
    assert [each.id for each in client.webhooks.list(limit=1)] == [made.id]
    kinds: Any = ["response.failed", "batch.completed"]
    changed = client.webhooks.update(made.id, name="ours", event_types=kinds)
    assert (changed.name, changed.url, changed.event_types) == ("ours", made.url, kinds)
    off = client.webhooks.update(made.id, extra_body={"status": "disabled"})
    assert off.to_dict()["status"] == "disabled"
    types = client.webhooks.event_types.list()
    assert {"response.completed", "response.action_required", "batch.expired"} <= set(types.data)
    assert client.webhooks.delete(made.id).deleted
    with pytest.raises(NotFoundError) as gone:
        client.webhooks.retrieve(made.id)
    assert gone.value.code == "webhook_endpoint_not_found"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"url": "https://169.254.169.254/latest"}, "url"),
        ({"url": "https://10.0.0.1/"}, "url"),
        ({"url": "https://[::1]/"}, "url"),
        ({"url": "http://93.184.216.34/"}, "url"),
        ({"url": "ftp://127.0.0.1/"}, "url"),
        ({"url": "https://user:password@127.0.0.1/"}, "url"),
        ({"url": "https://127.0.0.1:99999/"}, "url"),
        ({"event_types": ["video.completed"]}, "event_types[0]"),
        ({"event_types": []}, "event_types"),
        ({"name": ""}, "name"),
    ],
)
def test_what_nothing_can_be_sent_to_is_refused(client: OpenAI, fields: dict[str, object], param: str) -> None:
    given = {"name": "mine", "url": "http://127.0.0.1:9/", "event_types": ["response.completed"], **fields}
    with pytest.raises(BadRequestError) as refused:
        client.post("/webhook_endpoints", body=given, cast_to=object)
    assert refused.value.param == param


def test_events_arrive_signed_with_each_secret_of_a_rotation(client: OpenAI, receiver: ReceiverThread) -> None:
    made = client.webhooks.create(name="mine", url=receiver.url, event_types=["response.completed"])
    old = made.signing_secret
    receiver.knows(old)
    receiver.start()
    tested = client.webhooks.test(made.id, event_type="response.completed")
    assert (tested.status_code, tested.success, tested.webhook_endpoint_id) == (200, True, made.id)
    response = client.responses.create(input="hi", background=True)
    client.responses.create(input="in the foreground nothing is told")
    _, told = receiver.wait_for(2)
    assert (told["kind"], told["type"]) == ("ResponseCompletedWebhookEvent", "response.completed")
    assert (told["id"], told["data"]) == (told["header"], {"id": response.id})
    rotated = client.webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
    assert client.webhooks.test(made.id, event_type="response.failed").status_code == 200  # with the old secret
    receiver.knows(rotated.signing_secret)
    assert client.webhooks.test(made.id, event_type="response.failed").status_code == 200  # with the new one
    client.webhooks.rotate_secret(made.id)
    refused = client.webhooks.test(made.id, event_type="response.failed")
    assert (refused.status_code, refused.success) == (401, False)
    assert [each["secret"] for each in receiver.received] == [old, old, old, rotated.signing_secret]


KINDS = ["response.completed", "response.action_required"]


def called(client: OpenAI, receiver: ReceiverThread, mode: str) -> Response:
    """Have the receiver listen, and return a response that calls a function of its client's."""
    endpoint = {"name": "x", "url": receiver.url, "event_types": KINDS}
    made: Any = client.post("/webhook_endpoints", body=endpoint, cast_to=object)
    receiver.knows(made["signing_secret"])
    receiver.start()
    tool: Any = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}
    asked: Any = {"input": "call f", "background": True, "tools": [tool], "tool_choice": "required"}
    return client.responses.create(**asked, extra_headers={"Respsite-Tool-Mode": mode})


def test_a_call_that_waits_for_its_client_is_told_behind_the_end(client: OpenAI, receiver: ReceiverThread) -> None:
    asked = called(client, receiver, "complete")
    assert [each["type"] for each in receiver.wait_for(2)] == KINDS
    assert receiver.received[1]["data"] == {"id": asked.id, "required_action": {"type": "function_call"}}


def test_a_response_that_waits_for_outputs_says_so_before_its_end(client: OpenAI, receiver: ReceiverThread) -> None:
    asked = called(client, receiver, "wait")
    (told,) = receiver.wait_for(1)
    assert (told["type"], told["data"]) == (KINDS[1], {"id": asked.id, "required_action": {"type": "function_call"}})
    waiting = client.responses.retrieve(asked.id)
    assert waiting.status == "in_progress"
    assert client.responses.cancel(asked.id).status == "cancelled"


def test_tests_of_a_project_are_bounded(tmp_path: Path) -> None:
    # A server of its own, that knows of no other tests.
    server = Server(tmp_path, engine="demo", webhook_allowed_hosts="127.0.0.1")
    with server, sdk_of(server, max_retries=0) as client:
        made = client.webhooks.create(name="x", url="http://127.0.0.1:9/", event_types=["response.completed"])
        codes = []
        began = time.monotonic()
        while "rate_limit_exceeded" not in codes:
            with pytest.raises(APIStatusError) as refused:
                client.webhooks.test(made.id, event_type="response.completed")
            codes.append(refused.value.code)
            assert set(codes) <= {"webhook_test_failed", "rate_limit_exceeded"}
            # As many as may be in each minute that this took.
            assert len(codes) <= (TESTS_A_MINUTE + 1) * (1 + (time.monotonic() - began) // 60)
        assert codes.count("webhook_test_failed") >= TESTS_A_MINUTE
        assert 0 < int(refused.value.response.headers["retry-after"]) <= 60


def test_the_end_of_a_batch_is_told(client: OpenAI, receiver: ReceiverThread) -> None:
    made = client.webhooks.create(name="mine", url=receiver.url, event_types=["batch.completed", "batch.failed"])
    receiver.knows(made.signing_secret)
    receiver.start()
    good = batch_of(client, [line("a", input="hi")])
    (told,) = receiver.wait_for(1)
    assert (told["kind"], told["data"]) == ("BatchCompletedWebhookEvent", {"id": good.id})
    assert client.batches.retrieve(good.id).status == "completed"
    bad = batch_of(client, [b"{"])
    assert [each["data"]["id"] for each in receiver.wait_for(2)] == [good.id, bad.id]
    assert receiver.received[1]["type"] == "batch.failed"


@pytest.mark.parametrize("on", ["server", "large"])
def test_nothing_is_lost_where_the_worker_is_killed(
    on: str, request: pytest.FixtureRequest, receiver: ReceiverThread
) -> None:
    server: Server = request.getfixturevalue(on)
    with sdk_of(server, max_retries=0) as client:
        killed_around_deliveries(client, server, receiver)


def killed_around_deliveries(client: OpenAI, server: Server, receiver: ReceiverThread) -> None:
    """Kill a worker before a delivery, and in its middle: the event comes all the same, and its second time is told."""
    made = client.webhooks.create(name="mine", url=receiver.url, event_types=["response.completed"])
    receiver.knows(made.signing_secret)
    # Between commit and delivery: nobody listens yet.
    first = client.responses.create(input="one", background=True)
    while client.responses.retrieve(first.id).status != "completed":
        pass
    kill_and_wait_long(server)
    hold = receiver.folder / "hold"
    hold.touch()
    receiver.start()
    server.start()
    # In the middle of a delivery: the receiver has it, and has not answered.
    (told,) = receiver.wait_for(1)
    kill_and_wait_long(server)
    hold.unlink()
    server.start()
    again = receiver.wait_for(2)[1]
    assert again["id"] == told["id"] == again["header"]
    assert told["data"] == {"id": first.id}
    client.webhooks.delete(made.id)


def kill_and_wait_long(server: Server) -> None:
    """Kill a worker, and let the time be over in which nobody else may send what it was sending, or has tried to."""
    server.kill()
    past = "'2020-01-01 00:00:00'"
    change(server, f"UPDATE responses_app_webhookendpoint SET leased_until = {past}, paused_until = {past}")
