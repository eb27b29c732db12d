"""The WebSocket of responses."""

from responses_app.extensions.conformance import sources
from responses_app.extensions.conformance.checks import CheckGroup
from responses_app.extensions.conformance.facts import (
    ASK_WEATHER,
    FORCE_WEATHER,
    HELLO,
    WEATHER,
    call_of,
    output_of,
    said,
)
from responses_app.extensions.conformance.shapes import (
    EVENTS,
    TERMINAL,
    Json,
    RuleBroken,
    expect,
    finished,
    require,
    response_of,
)
from responses_app.extensions.conformance.talk import Talk, WebSocketTalk, socket

WEBSOCKET = CheckGroup("websocket", "Responses: WebSocket")
MOST_LANES = 32
UNKNOWN = "resp_a-response-that-nobody-made"
LANE = "lane-1"


async def made_by_frames(talk: Talk) -> list[Json]:
    """The events of a response that was made over a WebSocket."""
    async with socket(talk) as line:
        return await line.create(input=HELLO)


async def _answered(line: WebSocketTalk, **fields: object) -> Json:
    """Return the response to a create, complete."""
    last = (await line.create(**fields))[-1]
    if last["type"] == "error":
        raise RuleBroken(f"{last}")
    return finished(response_of(last["response"]))


def _error(frames: list[Json], *, code: str = "", status: int = 400) -> Json:
    """Return an error frame, in the shape that clients read: a status beside the error."""
    frame = frames[-1]
    expect(frame["type"] == "error", f"instead of an error came {frame['type']!r}")
    require(frame, {"error": dict, "status": int}, "the error frame")
    require(frame["error"], {"type": str, "message": str}, "the error")
    expect(frame["status"] == status, f"the status is {frame['status']}")
    expect(not code or frame["error"].get("code") == code, f"the code is {frame['error'].get('code')!r}")
    return frame


@WEBSOCKET.check("upgrade", sources.WEBSOCKET, pain="no-websocket")
async def _upgrade(talk: Talk) -> None:
    """`GET /responses` is upgraded to a WebSocket, on which a `response.create` is answered with events."""
    async with socket(talk) as line:
        frames = await line.create(input=HELLO)
    expect(frames[-1]["type"] in TERMINAL, f"the last frame is {frames[-1]['type']!r}")


@WEBSOCKET.check("of_codex", sources.CODEX, pain="no-websocket")
async def _of_codex(talk: Talk) -> None:
    """The frames of Codex are taken: a warm-up with `stream` and `client_metadata`, and the turn that continues it."""
    common = {"stream": True, "store": False, "tools": [WEATHER], "client_metadata": {"turn_id": ""}}
    item = {"type": "message", "id": "msg_foreign", "role": "developer", "content": "Be brief."}
    async with socket(talk) as line:
        warm = await _answered(line, input=[item], generate=False, **common)
        second = [{"type": "message", "id": "msg_other", "role": "user", "content": HELLO}]
        await _answered(line, input=second, previous_response_id=warm["id"], **common)


@WEBSOCKET.check("shapes", sources.EVENT_TYPE)
async def _shapes(talk: Talk) -> None:
    """The frames are the events of a stream: the same types, with the same fields."""
    for event in await talk.once(made_by_frames):
        expect(event["type"] in EVENTS, f"an unknown event {event['type']!r}")
        require(event, EVENTS[event["type"]], event["type"])


@WEBSOCKET.check("order", sources.WEBSOCKET)
async def _order(talk: Talk) -> None:
    """`response.created` is first, `response.in_progress` follows, and the numbers count every event."""
    events = await talk.once(made_by_frames)
    kinds = [event["type"] for event in events]
    expect(kinds[:2] == ["response.created", "response.in_progress"], f"it begins {kinds[:3]}")
    numbers = [event["sequence_number"] for event in events]
    expect(numbers == list(range(len(numbers))), f"{numbers[:40]}")
    expect(not any("stream_id" in event for event in events), "events without a lane name a stream_id")


@WEBSOCKET.check("again", sources.WEBSOCKET)
async def _again(talk: Talk) -> None:
    """A connection takes one response after another."""
    async with socket(talk) as line:
        first, second = await _answered(line, input=HELLO), await _answered(line, input=HELLO)
    expect(first["id"] != second["id"], "both have the same id")


@WEBSOCKET.check("continued", sources.WEBSOCKET)
async def _continued(talk: Talk) -> None:
    """The connection keeps its latest response also with `store: false`, so that it can be continued."""
    async with socket(talk) as line:
        first = await _answered(line, input=HELLO, store=False)
        second = await _answered(line, input=HELLO, store=False, previous_response_id=first["id"])
    tokens = (first["usage"]["input_tokens"], second["usage"]["input_tokens"])
    expect(tokens[1] > tokens[0], f"the same input has {tokens[0]} tokens alone, and {tokens[1]} behind a turn")


@WEBSOCKET.check("stored", sources.WEBSOCKET)
async def _stored(talk: Talk) -> None:
    """A response that was stored over HTTP can be continued."""
    first = await talk.once(said)
    async with socket(talk) as line:
        second = await _answered(line, input=HELLO, previous_response_id=first["id"])
    expect(second.get("previous_response_id") == first["id"], f"it names {second.get('previous_response_id')!r}")


@WEBSOCKET.check("second_turn", sources.WEBSOCKET, pain="second-turn")
async def _second_turn(talk: Talk) -> None:
    """The output of a call continues the response on the same connection, with `store: false`."""
    async with socket(talk) as line:
        first = await _answered(line, input=ASK_WEATHER, store=False, **FORCE_WEATHER)
        call_of(first)
        items = [output_of(call) for call in first["output"] if call["type"] == "function_call"]
        asked = {"tools": [WEATHER], "tool_choice": "none", "store": False}
        await _answered(line, input=items, previous_response_id=first["id"], **asked)


@WEBSOCKET.check("warm_up", sources.WEBSOCKET)
async def _warm_up(talk: Talk) -> None:
    """With `generate: false` a response without output comes, whose id the next turn can continue."""
    async with socket(talk) as line:
        warm = await _answered(line, input=HELLO, generate=False, store=False)
        expect(warm["output"] == [], f"the output is {warm['output']}")
        second = await _answered(line, input=HELLO, previous_response_id=warm["id"], store=False)
    expect(second["output"], "the next turn has no output")


@WEBSOCKET.check("lane", sources.WEBSOCKET)
async def _lane(talk: Talk) -> None:
    """Every event of a response whose create has a `stream_id` has it, too."""
    async with socket(talk) as line:
        events = await line.create(input=HELLO, stream_id=LANE)
    lanes = {event.get("stream_id") for event in events}
    expect(lanes == {LANE}, f"the events have stream_id {lanes}")


@WEBSOCKET.check("lanes", sources.WEBSOCKET)
async def _lanes(talk: Talk) -> None:
    """Lanes are answered beside each other: each has a response of its own, in the order of its own numbers."""
    names = [f"lane-{number}" for number in range(4)]
    async with socket(talk) as line:
        for name in names:
            await line.begin(input=HELLO, stream_id=name)
        events = await line.events(ends=len(names))
    for name in names:
        own = [event for event in events if event.get("stream_id") == name]
        numbers = [event.get("sequence_number") for event in own]
        expect(own and numbers == list(range(len(own))), f"{name} has the numbers {numbers[:20]}")


@WEBSOCKET.check("queue", sources.WEBSOCKET)
async def _queue(talk: Talk) -> None:
    """A second create on a lane waits until the first one has ended; it is not refused."""
    async with socket(talk) as line:
        for _ in range(2):
            await line.begin(input=HELLO)
        events = await line.events(ends=2)
    marks = [event["type"] for event in events if event["type"] in ("response.created", *TERMINAL)]
    expect(marks[0] == marks[2] == "response.created", f"they came as {marks}")
    expect("error" not in marks, f"{events[-1]}")


@WEBSOCKET.check("fork", sources.WEBSOCKET)
async def _fork(talk: Talk) -> None:
    """The latest response of a lane can be continued on another one."""
    async with socket(talk) as line:
        first = await _answered(line, input=HELLO, store=False)
        await _answered(line, input=HELLO, store=False, previous_response_id=first["id"], stream_id=LANE)
        await _answered(line, input=HELLO, store=False, previous_response_id=first["id"])


@WEBSOCKET.check("unknown_previous", sources.WEBSOCKET)
async def _unknown_previous(talk: Talk) -> None:
    """An unknown `previous_response_id` is an error frame with status 400 and its code; the connection goes on."""
    async with socket(talk) as line:
        frames = await line.create(input=HELLO, previous_response_id=UNKNOWN)
        _error(frames, code="previous_response_not_found")
        await _answered(line, input=HELLO)


@WEBSOCKET.check("lane_name", sources.WEBSOCKET)
async def _lane_name(talk: Talk) -> None:
    """A `stream_id` that is not a name is an error with the code `invalid_stream_id`; the connection goes on."""
    async with socket(talk) as line:
        for name in ("", "two words", "x" * 257):
            _error(await line.create(input=HELLO, stream_id=name), code="invalid_stream_id")
        await _answered(line, input=HELLO)


@WEBSOCKET.check("many_lanes", sources.WEBSOCKET)
async def _many_lanes(talk: Talk) -> None:
    """The 33rd lane of a connection is an error with the code `websocket_stream_limit_reached`."""
    async with socket(talk) as line:
        for number in range(MOST_LANES):
            await line.create(input=HELLO, generate=False, store=False, stream_id=f"lane-{number}")
        frames = await line.create(input=HELLO, generate=False, store=False, stream_id="one-more")
        frame = _error(frames, code="websocket_stream_limit_reached")
        expect(frame.get("stream_id") == "one-more", f"the error's stream_id is {frame.get('stream_id')!r}")


@WEBSOCKET.check("no_json", sources.WEBSOCKET)
async def _no_json(talk: Talk) -> None:
    """A frame that is no JSON, and one of an unknown type, are errors with status 400; the connection goes on."""
    async with socket(talk) as line:
        for frame in ("{", "[]", '"text"', '{"type": "no.such.type"}', "{}"):
            await line.send(frame)
            _error(await line.events())
        await _answered(line, input=HELLO)


@WEBSOCKET.check("bad_field", sources.WEBSOCKET)
async def _bad_field(talk: Talk) -> None:
    """A create that is wrong is an error with status 400, with its lane; other lanes go on."""
    async with socket(talk) as line:
        await line.begin(input=HELLO, stream_id="good")
        await line.begin(input=7, stream_id="bad")
        events = await line.events(ends=2)
    of = {name: [event for event in events if event.get("stream_id") == name] for name in ("good", "bad")}
    _error(of["bad"])
    expect(of["good"][-1]["type"] in ("response.completed", "response.incomplete"), f"{of['good'][-1]}")


@WEBSOCKET.check("model", sources.WEBSOCKET)
async def _model(talk: Talk) -> None:
    """A model that does not exist is an error with status 404 or 400."""
    async with socket(talk) as line:
        await line.send({"type": "response.create", "model": "no-such-model", "input": HELLO})
        frames = await line.events()
    _error(frames, status=404 if frames[-1].get("status") == 404 else 400)


@WEBSOCKET.check("steer", sources.STEERING)
async def _steer(talk: Talk) -> None:
    """`response.steer` for an unknown response is answered with `response.steer.failed`, which gives it back."""
    async with socket(talk) as line:
        await line.send({"type": "response.steer", "previous_response_id": UNKNOWN, "input": HELLO})
        frame = (await line.events())[-1]
    require(frame, {"error": dict, "steer": dict}, "the frame")
    given = (frame["type"], frame["steer"].get("previous_response_id"), frame["steer"].get("input"))
    expect(given == ("response.steer.failed", UNKNOWN, HELLO), f"type, previous_response_id, input: {given}")


@WEBSOCKET.check("ping", sources.WEBSOCKET)
async def _ping(talk: Talk) -> None:
    """A ping is answered with a pong."""
    async with socket(talk, autoping=False) as line:
        await line.ping()
