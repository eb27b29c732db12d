"""Responses are steered, interrupted and cancelled while they run, over real servers and with the real SDK."""

from pathlib import Path

import pytest
from openai import AsyncOpenAI

from engine.formats.harmony.encoding import encode_harmony
from tests.inprocess.conftest import Connect
from tests.kit.background import get
from tests.kit.clients import Frame, Socket, http_client, text_of
from tests.kit.fixtures import module_server
from tests.kit.inprocess import Server
from tests.kit.laws import assert_laws
from tests.kit.scripts import BEGIN, CALL, GATES, HELLO, WEATHER, Entry, gate, generations, release
from tests.kit.waiting import eventually

THOUGHT = "<|channel|>analysis<|message|>Let me think of it for a while.<|end|><|start|>assistant"
TALK = f"{THOUGHT}{BEGIN}{' '.join(str(number) for number in range(300))}<|return|>"
THOUGHT_CALL = f"{THOUGHT}{CALL}"
HELD_CALL = "g1"  # the gate in front of a call's last token; each of the others is inside the thought of `TALK`


def script(folder: Path) -> list[Entry]:
    """Return what the model says: behind `[talk]` slowly, and behind a gate's text as far as the gate."""

    def held(name: str, text: str, after: int) -> Entry:
        return {"when": gate(name), "say": text, "hang_after": after, "wait_for_file": str(folder / f"gate-{name}")}

    return [
        held(HELD_CALL, THOUGHT_CALL, len(encode_harmony(THOUGHT_CALL)) - 1),
        *(held(name, TALK, 6) for name in GATES if name != HELD_CALL),
        {"when": "[talk]", "say": TALK, "delay": 0.02},
        {"when": "[full]", "fault": "overloaded"},
        {"say": HELLO},
    ]


server = module_server("server", Server, script=script, journal=True)  # speaks slowly, or only so far


async def begin(socket: Socket, text: str = "[talk]", lane: str | None = None, **fields: object) -> list[Frame]:
    """Create a response and read it until the model speaks."""
    await socket.create(text, lane, **fields)
    events = await socket.until("response.created", lane)
    while not events[-1]["type"].endswith(".delta"):
        events.append(await socket.next(lane))
    return events


async def steer(socket: Socket, response_id: str, given: object = "Shorter!") -> None:
    await socket.send({"type": "response.steer", "previous_response_id": response_id, "input": given})


async def steer_held(
    socket: Socket, name: str, *given: object, lane: str | None = None, **fields: object
) -> list[Frame]:
    """Steer a response that waits at a gate, and return its events up to when all was accepted: it ends no sooner."""
    events = await begin(socket, gate(name), lane, **fields)
    for each in given:
        await steer(socket, events[0]["response"]["id"], each)
    for _ in given:
        events += await socket.until("response.steer.accepted", lane)
    return events


def told(events: list[Frame]) -> list[Frame]:
    """Take the connection's own frames out of a lane's; return them."""
    own = [event for event in events if event["type"].startswith(("response.steer.", "response.interrupt."))]
    for event in own:
        events.remove(event)
    return own


@pytest.mark.parametrize(("store", "name"), [(True, "a0"), (False, "a1")])
async def test_a_response_is_steered_by_the_id_that_clients_know(
    server: Server, open_socket: Connect, store: bool, name: str
) -> None:
    socket = await open_socket(server, additional_headers={"Respsite-Dialect": "codex-turn"})
    events = await steer_held(socket, name, "Shorter!", store=store)
    first = events[0]["response"]["id"]
    release(server, name)
    events += await socket.answer()
    assert [each["type"] for each in told(events)] == ["response.steer.accepted"]
    assert events[-1]["response"]["incomplete_details"] == {"reason": "steered"}
    following = (await socket.answer())[-1]["response"]
    assert (following["status"], following["previous_response_id"]) == ("completed", first)


@pytest.mark.parametrize(
    ("lane", "store", "name"), [(None, True, "b0"), (None, False, "b1"), ("a", True, "c0"), ("a", False, "c1")]
)
async def test_a_successor_goes_on_with_the_very_tokens(
    server: Server, socket: Socket, lane: str | None, store: bool, name: str
) -> None:
    settings = {"store": store, "temperature": 0.5, "metadata": {"a": "b"}}
    events = await steer_held(socket, name, "Shorter!", lane=lane, **settings)
    first = events[0]["response"]["id"]
    release(server, name)
    events += await socket.answer(lane)
    [accepted] = told(events)
    assert accepted["type"] == "response.steer.accepted"
    assert accepted.get("stream_id") == lane
    assert accepted["steer"]["previous_response_id"] == first
    assert accepted["steer"]["id"].startswith("steer_")
    assert_laws(events)
    response = events[-1]["response"]
    assert (events[-1]["type"], response["status"]) == ("response.incomplete", "incomplete")
    assert response["incomplete_details"] == {"reason": "steered"}
    assert [item["type"] for item in response["output"]] == ["reasoning"], "what it was saying came to its end"
    after = await socket.answer(lane)
    assert_laws(after)
    created, done = after[0]["response"], after[-1]["response"]
    assert created["previous_response_id"] == first
    assert created["id"] != first
    assert (created["temperature"], created["metadata"], created["store"]) == (0.5, {"a": "b"}, store)
    assert (done["status"], text_of(done)) == ("completed", "Hello there, friend.")
    await eventually(lambda: bool(generations(server, done["id"])))
    [before], [then] = generations(server, first), generations(server, done["id"])
    said = encode_harmony(THOUGHT.removesuffix("<|start|>assistant"))
    history = [*before["prompt_tokens"], *said]
    assert then["prompt_tokens"][: len(history)] == history
    following = await socket.ask("And?", lane, previous_response_id=done["id"], store=store)
    assert text_of(following) == "Hello there, friend."
    if store:
        async with http_client(server) as http:
            assert await get(http, first) == response


async def test_the_sdk_steers(server: Server) -> None:
    client = AsyncOpenAI(base_url=server.base_url, api_key="none")
    kinds: list[str] = []
    async with client, client.responses.connect() as connection:
        await connection.response.create(model="scripted", input=gate("d0"), stream_id="a")
        async for event in connection:
            kinds.append(event.type)
            if event.type == "response.created" and len(kinds) == 1:
                await connection.response.steer(previous_response_id=event.response.id, input="Stop counting.")
            if event.type == "response.steer.accepted":
                release(server, "d0")
            if event.type == "response.completed":
                break
    assert kinds.count("response.created") == 2
    assert kinds.index("response.steer.accepted") < kinds.index("response.incomplete")


async def test_a_response_with_a_call_waits_for_its_output(server: Server, socket: Socket) -> None:
    events = await begin(socket, gate(HELD_CALL), tools=[WEATHER])
    first = events[0]["response"]["id"]
    while events[-1]["type"] != "response.output_item.added" or events[-1]["item"]["type"] != "function_call":
        events.append(await socket.next())
    await steer(socket, first, "In Celsius, please.")
    events += await socket.until("response.steer.accepted")
    release(server, HELD_CALL)
    events += await socket.answer()
    told(events)
    response = events[-1]["response"]
    assert response["status"] == "completed"
    pending = await socket.next()
    call = response["output"][-1]
    stub = {"type": "function_call_output", "call_id": call["call_id"], "name": "get_weather"}
    assert (pending["type"], pending["reason"]) == ("response.steer.pending", "waiting_for_required_input")
    assert pending["required_input"] == [stub]
    assert pending["sequence_number"] == events[-1]["sequence_number"]
    output = {**pending["required_input"][0], "output": "18"}
    done = await socket.ask([output], previous_response_id=first, tools=[WEATHER])
    [prompt] = [entry["prompt_tokens"] for entry in await found(server, done["id"])]
    wanted = encode_harmony("In Celsius, please.")
    assert any(prompt[at : at + len(wanted)] == wanted for at in range(len(prompt)))


async def found(server: Server, response_id: str) -> list[Frame]:
    await eventually(lambda: bool(generations(server, response_id)))
    return generations(server, response_id)


async def test_another_connections_response_is_not_found(server: Server, socket: Socket, open_socket: Connect) -> None:
    events = await begin(socket)
    response_id = events[0]["response"]["id"]
    other = await open_socket(server)
    await steer(other, response_id, [{"role": "user", "content": "x"}])
    refused = await other.next()
    assert refused["error"]["code"] == "response_not_found"
    assert refused["steer"] == {"previous_response_id": response_id, "input": [{"role": "user", "content": "x"}]}
    assert "stream_id" not in refused
    for kind in ("response.interrupt", "response.cancel"):
        await other.send({"type": kind, "response_id": response_id})
        answer = await other.next()
        assert answer["error"]["code"] in ("response_not_found", None)
    await socket.send({"type": "response.cancel", "response_id": response_id})
    assert (await socket.answer())[-1]["response"]["status"] == "cancelled"


@pytest.mark.parametrize("mode", [None, "discard_partial_items"])
async def test_an_interrupt(server: Server, socket: Socket, mode: str | None) -> None:
    events = await begin(socket)
    while events[-1]["type"] != "response.output_text.delta":
        events.append(await socket.next())
    response_id = events[0]["response"]["id"]
    await socket.send(
        {"type": "response.interrupt", "response_id": response_id, **({} if mode is None else {"mode": mode})}
    )
    events += await socket.answer()
    [accepted] = told(events)
    assert accepted["type"] == "response.interrupt.accepted"
    assert accepted["response_id"] == response_id
    assert_laws(events)
    response = events[-1]["response"]
    assert response["incomplete_details"] == {"reason": "interrupted"}
    assert response["usage"]["output_tokens"] > 0
    kinds = [item["type"] for item in response["output"]]
    assert kinds == (["reasoning", "message"] if mode is None else ["reasoning"])
    assert events[-2]["type"] == ("response.output_item.done" if mode is None else "response.output_item.interrupted")
    [before] = await found(server, response_id)
    assert before["finish"] == "abort", "the engine was stopped"
    done = await socket.ask("And?", previous_response_id=response_id)
    [then] = await found(server, done["id"])
    start = encode_harmony("<|start|>assistant")
    kept = encode_harmony(f"{BEGIN}{text_of(response)}<|end|>") if mode is None else []  # a user's message settles it
    history = before["prompt_tokens"][: -len(start)] + (start + kept if kept else [])
    assert then["prompt_tokens"][: len(history)] == history


async def test_cancelling_over_the_socket(server: Server, socket: Socket) -> None:
    events = await begin(socket, lane="a")
    await socket.send({"type": "response.cancel", "response_id": events[0]["response"]["id"]})
    events += await socket.answer("a")
    assert_laws(events)
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.incomplete", "cancelled")
    await socket.send({"type": "response.cancel", "response_id": events[0]["response"]["id"]})
    await socket.send({"type": "response.cancel", "response_id": "resp_nobody"})
    assert (await socket.error())["error"]["param"] == "response_id"
    assert (await socket.ask("Still here", "a"))["status"] == "completed"
