"""Batches of Anthropic's API, as its SDK asks for them."""

from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic, BadRequestError, NotFoundError
from anthropic.types.messages import MessageBatch

from tests.kit.batches import SECONDS
from tests.kit.fixtures import module_server
from tests.kit.inprocess import Server
from tests.kit.scripts import gate, main_script, release
from tests.kit.waiting import looks

server = module_server("messages", Server, batch_max_lines=50, engine_options={"tokens_per_second": 2000})


def client_of(server: Server) -> Anthropic:
    return Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=30)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Anthropic]:
    with client_of(server) as client:
        yield client


def request(custom_id: str, text: str = "Say hello.", **params: object) -> Any:
    """Return a request of a batch."""
    message = {"role": "user", "content": text}
    return {"custom_id": custom_id, "params": {"model": "demo", "max_tokens": 5000, "messages": [message], **params}}


def ended(client: Anthropic, batch: MessageBatch) -> MessageBatch:
    """Return a batch once it has ended."""
    for _ in looks(SECONDS):
        now = client.messages.batches.retrieve(batch.id)
        if now.processing_status == "ended":
            return now
    raise AssertionError(now)


def test_from_its_requests_to_its_results(client: Anthropic) -> None:
    requests = [request("good"), request("bad", temperature=99), request("unknown", model="none")]
    made = client.messages.batches.create(requests=requests)
    assert (made.type, made.processing_status, made.results_url) == ("message_batch", "in_progress", None)
    assert made.request_counts.processing == 3
    assert (made.expires_at - made.created_at).total_seconds() == 24 * 3600
    batch = ended(client, made)
    assert batch.ended_at is not None
    assert batch.request_counts.model_dump() == {
        "processing": 0,
        "succeeded": 1,
        "errored": 2,
        "canceled": 0,
        "expired": 0,
    }
    results = {each.custom_id: each.result for each in client.messages.batches.results(batch.id)}
    assert sorted(results) == ["bad", "good", "unknown"]
    good, bad, unknown = results["good"], results["bad"], results["unknown"]
    assert good.type == "succeeded"
    assert good.message.content[0].type == "text"
    assert bad.type == "errored"
    assert bad.error.error.type == "invalid_request_error"
    assert unknown.type == "errored"
    assert unknown.error.error.type == "not_found_error"
    assert client.messages.batches.delete(batch.id).type == "message_batch_deleted"
    with pytest.raises(NotFoundError):
        client.messages.batches.retrieve(batch.id)


held_server = module_server("held_messages", Server, script=main_script, model="demo")


def test_a_cancelled_one(held_server: Server) -> None:
    with client_of(held_server) as client:
        made = client.messages.batches.create(requests=[request(str(n), gate("a0")) for n in range(40)])
        with pytest.raises(BadRequestError, match="under way"):
            client.messages.batches.delete(made.id)
        cancelled = client.messages.batches.cancel(made.id)
        assert (cancelled.processing_status, cancelled.cancel_initiated_at is not None) == ("canceling", True)
        release(held_server, "a0")
        batch = ended(client, made)
        kinds = [each.result.type for each in client.messages.batches.results(batch.id)]
        assert len(kinds) == 40
        assert kinds.count("canceled") == batch.request_counts.canceled > 0
        assert kinds.count("succeeded") == batch.request_counts.succeeded


def test_lists(client: Anthropic) -> None:
    made = [client.messages.batches.create(requests=[request("a")]).id for _ in range(3)]
    page = client.messages.batches.list(limit=2)
    assert ([each.id for each in page.data], page.has_more) == ([made[2], made[1]], True)
    assert [each.id for each in page.get_next_page().data][:1] == [made[0]]
    before = client.messages.batches.list(limit=1, before_id=made[0])
    assert ([each.id for each in before.data], before.has_more) == ([made[1]], True)


@pytest.mark.parametrize(
    ("requests", "names"),
    [
        ([], "requests"),
        ([{"custom_id": "a"}], r"requests\[0\].params"),
        ([request("a"), request("a")], r"requests\[1\].custom_id"),
        ([request("a b")], r"requests\[0\].custom_id"),
        ([request(str(number)) for number in range(51)], "requests"),
    ],
    ids=["none", "no-params", "doubled", "id", "too-many"],
)
def test_a_create_that_is_wrong(client: Anthropic, requests: Any, names: str) -> None:
    with pytest.raises(BadRequestError, match=names):
        client.messages.batches.create(requests=requests)
