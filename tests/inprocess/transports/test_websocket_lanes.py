"""Lanes of one connection: side by side, each in order; what they remember, forget and hand on."""

import httpx
import pytest

from tests.inprocess.conftest import Connect
from tests.kit.clients import Frame, Socket, read_error_frame
from tests.kit.inprocess import Server
from tests.kit.scripts import as_history, gate, generations, release

GONE = {"status": 400, "code": "previous_response_not_found", "param": "previous_response_id"}


async def assert_gone(socket: Socket, response: Frame, lane: str | None = None) -> None:
    """Check that a response cannot be continued."""
    await socket.create("And?", lane, previous_response_id=response["id"])
    message = read_error_frame(await socket.error(lane), **GONE)
    assert message == f"Previous response with id '{response['id']}' not found."


def assert_continues(server: Server, child: Frame, parent: Frame) -> None:
    """Check that a response was sampled from exactly the tokens of its parent, and more."""
    history = as_history(generations(server, parent["id"])[-1])
    assert generations(server, child["id"])[0]["prompt_tokens"][: len(history)] == history


@pytest.mark.parametrize("store", [True, False])
async def test_a_deleted_response_is_not_continued_on_its_own_connection(
    server: Server, socket: Socket, http: httpx.AsyncClient, store: bool
) -> None:
    first = await socket.ask("Hello", "a")
    second = await socket.ask("Hello", previous_response_id=first["id"])
    assert (await http.delete(f"/responses/{first['id']}")).status_code == 200
    await socket.create(gate("h1" if store else "h0"))
    await socket.until("response.output_text.delta")
    await socket.create("And?", previous_response_id=second["id"], store=store)  # bound to what is in memory now
    await socket.ask("Other lanes get a word in", "b")
    assert (await http.delete(f"/responses/{second['id']}")).status_code == 200
    release(server, "h1" if store else "h0")
    await socket.answer()
    read_error_frame(await socket.error(), **GONE)
    for response in (first, second):
        for lane in (None, "a"):
            await assert_gone(socket, response, lane)
        assert (await http.get(f"/responses/{response['id']}")).status_code == 404


async def test_lanes_run_side_by_side_and_name_themselves_in_every_frame(server: Server, socket: Socket) -> None:
    await socket.create(gate("a0"), "slow")
    await socket.until("response.output_text.delta", "slow")
    await socket.ask("Hello", "fast")
    await socket.ask("Hello")
    release(server, "a0")
    await socket.answer("slow")
    by_response: dict[str, str | None] = {
        frame["response"]["id"]: frame.get("stream_id") for frame in socket.frames("response.created")
    }
    assert list(by_response.values()) == ["slow", "fast", None]
    assert {frame.get("stream_id") for frame in socket.log} == {"slow", "fast", None}
    for frame in socket.log:
        if "response" in frame:
            assert frame.get("stream_id") == by_response[frame["response"]["id"]]


async def test_a_lane_is_first_in_first_out(server: Server, socket: Socket) -> None:
    await socket.create(gate("a1"), "one", metadata={"n": "0"})
    for number in range(1, 5):
        await socket.create("Hello", "one", metadata={"n": str(number)})
    await socket.ask("Hello", "other")  # by now the server has read all of them
    assert len(socket.frames("response.created")) == 2
    release(server, "a1")
    answers = [await socket.answer("one") for _ in range(5)]
    assert [answer[0]["response"]["metadata"]["n"] for answer in answers] == list("01234")
    for answer in answers:  # one after the other, never woven into each other
        assert answer[0]["type"] == "response.created"
        assert answer[-1]["response"]["id"] == answer[0]["response"]["id"]
        assert [event["sequence_number"] for event in answer] == list(range(len(answer)))


async def test_continuations_may_be_sent_before_their_parents_have_ended(server: Server, socket: Socket) -> None:
    """Several creates in one breath on one lane, the parent's id being known from `response.created`."""
    await socket.create(gate("b0"), store=False)
    parent = (await socket.until("response.created"))[0]["response"]
    await socket.create("And?", store=False, previous_response_id=parent["id"])
    release(server, "b0")
    assert (await socket.answer())[-1]["type"] == "response.completed"
    child = (await socket.answer())[-1]["response"]
    assert_continues(server, child, parent)


async def test_a_chain_that_is_not_stored_lives_in_its_connection(
    server: Server, socket: Socket, open_socket: Connect
) -> None:
    first = await socket.ask("One", store=False)
    second = await socket.ask("Two", store=False, previous_response_id=first["id"])
    third = await socket.ask("Three", store=False, previous_response_id=second["id"])
    assert third["previous_response_id"] == second["id"]
    assert third["store"] is False
    assert_continues(server, second, first)
    assert_continues(server, third, second)
    await assert_gone(socket, first, "elsewhere")  # the lane has moved on
    await assert_gone(await open_socket(server), third)
    fourth = await socket.ask("Four", store=False, previous_response_id=third["id"])
    assert_continues(server, fourth, third)


@pytest.mark.parametrize("bad", ["[break]", 5, [{"type": "function_call_output", "call_id": "no", "output": ""}]])
async def test_a_failed_continuation_on_the_same_lane_evicts_its_parent(socket: Socket, bad: object) -> None:
    parent = await socket.ask("One", "lane", store=False)
    await socket.create(bad, "lane", store=False, previous_response_id=parent["id"])
    assert (await socket.answer("lane"))[-1]["type"] in ("response.failed", "error")
    await assert_gone(socket, parent, "lane")
    await assert_gone(socket, parent, "fork")


@pytest.mark.parametrize("trouble", ["[full]", "[away]", "[die]"])
async def test_a_parent_stays_while_trying_again_can_help(server: Server, socket: Socket, trouble: str) -> None:
    parent = await socket.ask("One", "lane", store=False)
    for _ in range(2):
        await socket.create(trouble, "lane", store=False, previous_response_id=parent["id"])
        created, *_, failed = await socket.answer("lane")
        assert (created["type"], failed["type"]) == ("response.created", "response.failed")
        assert failed["headers"] == {"retry-after": failed["headers"]["retry-after"]}
        assert int(failed["headers"]["retry-after"]) >= 1
        assert "ry again in" in failed["response"]["error"]["message"]
    child = await socket.ask("Two", "lane", store=False, previous_response_id=parent["id"])
    assert_continues(server, child, parent)


async def test_an_evicted_response_that_was_stored_is_found_in_the_store(server: Server, socket: Socket) -> None:
    parent = await socket.ask("One")
    await socket.create(5, previous_response_id=parent["id"])
    await socket.error()
    assert_continues(server, await socket.ask("Two", previous_response_id=parent["id"]), parent)


async def test_a_stored_chain_goes_on_over_any_transport(
    server: Server, socket: Socket, open_socket: Connect, http: httpx.AsyncClient
) -> None:
    first = await socket.ask("One")
    second = await (await open_socket(server)).ask("Two", previous_response_id=first["id"])
    body = {"input": "Three", "previous_response_id": second["id"]}
    third = (await http.post("/responses", json=body)).json()
    fourth = await socket.ask("Four", "lane", previous_response_id=third["id"])
    for child, parent in ((second, first), (third, second), (fourth, third)):
        assert child["previous_response_id"] == parent["id"]
        assert_continues(server, child, parent)


@pytest.mark.parametrize("fields", [{"stream": False}, {"stream": True}, {"background": True}, {"background": False}])
async def test_stream_and_background_mean_nothing_here(socket: Socket, fields: Frame) -> None:
    response = await socket.ask("Hello", store=False, **fields)
    assert response["background"] is False
