"""`POST /responses` with `stream: true`."""

from itertools import pairwise

from responses_app.extensions.conformance import sources
from responses_app.extensions.conformance.checks import CheckGroup
from responses_app.extensions.conformance.facts import (
    FEW_TOKENS,
    HELLO,
    LONG,
    TOO_LONG,
    called_in_events,
    said,
    streamed,
)
from responses_app.extensions.conformance.shapes import (
    EVENTS,
    TERMINAL,
    Absent,
    Json,
    RuleBroken,
    Skipped,
    expect,
    require,
    text_of,
    whole_response_of,
)
from responses_app.extensions.conformance.talk import NOT_THERE, Talk

STREAMS = CheckGroup("stream", "Responses: streams")


@STREAMS.check("answer", sources.STREAMING)
async def _answer(talk: Talk) -> None:
    """With `stream: true` the answer is `text/event-stream`, and ends with a terminal event."""
    stream = await talk.stream("/responses", talk.body({"input": HELLO, "stream": True}))
    if stream.answer.status in NOT_THERE and talk.model not in stream.answer.told:
        raise Absent(f"POST /responses answered {stream.answer.status}")
    expect(stream.answer.kind == "text/event-stream", f"the content type is {stream.answer.kind!r}")
    last = stream.objects[-1].get("type")
    expect(last in TERMINAL, f"the last event is {last!r}")


@STREAMS.check("names", sources.STREAMING)
async def _names(talk: Talk) -> None:
    """Each event has a line `event:` that says its `type`."""
    stream = await talk.stream("/responses", talk.body({"input": HELLO, "stream": True}))
    for event, told in zip((each for each in stream.events if each.data != "[DONE]"), stream.objects, strict=True):
        expect(event.name == told["type"], f"event: {event.name!r} with the type {told['type']!r}")


@STREAMS.check("shapes", sources.EVENT_TYPE)
async def _shapes(talk: Talk) -> None:
    """Every event is one of the SDK's types, and has the fields that these require."""
    for event in [*await talk.once(streamed), *await talk.once(called_in_events)]:
        kind = event["type"]
        expect(kind in EVENTS, f"an unknown event {kind!r}")
        require(event, EVENTS[kind], kind)


@STREAMS.check("numbers", sources.STREAMING)
async def _numbers(talk: Talk) -> None:
    """`sequence_number` begins with 0, and counts every event."""
    numbers = [event["sequence_number"] for event in await talk.once(streamed)]
    expect(numbers == list(range(len(numbers))), f"{numbers[:40]}")


@STREAMS.check("order", sources.STREAMING)
async def _order(talk: Talk) -> None:
    """`response.created` is first, `response.in_progress` follows, and one terminal event is the last."""
    kinds = [event["type"] for event in await talk.once(streamed)]
    expect(kinds[0] == "response.created", f"the first event is {kinds[0]!r}")
    expect("response.in_progress" in kinds[1:3], f"the stream begins {kinds[:3]}")
    ends = [kind for kind in kinds if kind in TERMINAL]
    expect(ends == kinds[-1:], f"terminal events {ends}, the last one {kinds[-1]!r}")


@STREAMS.check("nesting", sources.STREAMING)
async def _nesting(talk: Talk) -> None:
    """An item is added before its parts, a part before its text, and all end in the opposite order, each once."""
    opened: list[tuple[object, ...]] = []
    for event in await talk.once(streamed):
        kind, item, part = event["type"], event.get("output_index"), event.get("content_index")
        if kind.endswith(".added") and "annotation" not in kind:
            opened.append((item, part if part is not None else event.get("summary_index")))
        elif kind in (
            "response.output_item.done",
            "response.content_part.done",
            "response.reasoning_summary_part.done",
        ):
            key = (item, part if part is not None else event.get("summary_index"))
            expect(opened and opened[-1] == key, f"{kind} of {key} while {opened} is open")
            opened.pop()
        elif kind.endswith(".delta"):
            expect(opened and opened[-1][0] == item, f"{kind} of item {item} while {opened} is open")
    expect(not opened, f"{opened} never ended")


@STREAMS.check("text", sources.STREAMING)
async def _text(talk: Talk) -> None:
    """The deltas of a text are the text of its `done`, of its part, of its item, and of the response."""
    events = await talk.once(streamed)
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    done = "".join(event["text"] for event in events if event["type"] == "response.output_text.done")
    parts = "".join(
        event["part"]["text"]
        for event in events
        if event["type"] == "response.content_part.done" and event["part"]["type"] == "output_text"
    )
    items = text_of({"output": [event["item"] for event in events if event["type"] == "response.output_item.done"]})
    texts = {
        "deltas": deltas,
        "done": done,
        "parts": parts,
        "items": items,
        "response": text_of(events[-1]["response"]),
    }
    expect(deltas and len(set(texts.values())) == 1, f"{texts}")


@STREAMS.check("items", sources.STREAMING)
async def _items(talk: Talk) -> None:
    """The last event's `output` is what the `output_item.done` had, and each item keeps its id and its place."""
    events = await talk.once(streamed)
    done = [event for event in events if event["type"] == "response.output_item.done"]
    expect([event["item"] for event in done] == events[-1]["response"]["output"], "the output has other items")
    added = [event for event in events if event["type"] == "response.output_item.added"]
    for begun, ended in zip(added, done, strict=True):
        places = (begun["output_index"], begun["item"]["id"]), (ended["output_index"], ended["item"]["id"])
        expect(places[0] == places[1], f"an item was added as {places[0]}, and done as {places[1]}")


@STREAMS.check("item_ids", sources.STREAMING)
async def _item_ids(talk: Talk) -> None:
    """Events of an item name the id with which it was added."""
    ids: dict[int, str] = {}
    for event in await talk.once(streamed):
        if event["type"] == "response.output_item.added":
            ids[event["output_index"]] = event["item"]["id"]
        elif "item_id" in event:
            known = ids[event["output_index"]]
            expect(event["item_id"] == known, f"{event['type']} names {event['item_id']!r}, the item is {known!r}")


@STREAMS.check("responses", sources.STREAMING)
async def _responses(talk: Talk) -> None:
    """`created` has an empty response, `in_progress` or `queued`; the last event has all of it, and its usage."""
    events = await talk.once(streamed)
    first, last = whole_response_of(events[0]["response"]), whole_response_of(events[-1]["response"])
    expect(first["status"] in ("in_progress", "queued"), f"created has the status {first['status']!r}")
    expect(first["output"] == [], f"created has the output {first['output']}")
    expect((first["id"], last["status"]) == (last["id"], "completed"), f"ends as {last['id']}, {last['status']!r}")
    expect(isinstance(last["usage"], dict), "the last event has no usage")


@STREAMS.check("cut", sources.STREAMING)
async def _cut(talk: Talk) -> None:
    """A stream that ends at `max_output_tokens` ends with `response.incomplete`, not with `response.completed`."""
    last = (await talk.events(input=LONG, max_output_tokens=FEW_TOKENS))[-1]
    status = last["response"]["status"]
    if (last["type"], status) == ("response.completed", "completed"):
        raise Skipped("the answer was shorter than the bound")
    given = (last["type"], status)
    expect(given == ("response.incomplete", "incomplete"), f"type, status: {given}")


@STREAMS.check("arguments", sources.STREAMING)
async def _arguments(talk: Talk) -> None:
    """The deltas of a call's arguments are those of its `done` and of its item."""
    events: list[Json] = await talk.once(called_in_events)
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    done = [event["arguments"] for event in events if event["type"] == "response.function_call_arguments.done"]
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    given = [item["arguments"] for item in items if item["type"] == "function_call"]
    expect(deltas, "there are no deltas of arguments")
    expect("".join(deltas) == "".join(done) == "".join(given), f"deltas {deltas}, done {done}, items {given}")


@STREAMS.check("reasoning", sources.REASONING_TYPE)
async def _reasoning(talk: Talk) -> None:
    """The deltas of reasoning are the text of its `done`, and of its item."""
    events = await talk.once(streamed)
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.reasoning_text.delta")
    if not deltas:
        raise Skipped("the stream shows no reasoning")
    done = "".join(event["text"] for event in events if event["type"] == "response.reasoning_text.done")
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    parts = (part for item in items if item["type"] == "reasoning" for part in item["content"])
    given = "".join(part["text"] for part in parts)
    expect(deltas == done == given, f"deltas {deltas!r}, done {done!r}, items {given!r}")


@STREAMS.check("obfuscation", sources.STREAMING)
async def _obfuscation(talk: Talk) -> None:
    """With `include_obfuscation: false` no event has `obfuscation`."""
    events = await talk.events(input=HELLO, stream_options={"include_obfuscation": False})
    expect(not any("obfuscation" in event for event in events), "an event has obfuscation")


@STREAMS.check("refused", sources.ERRORS)
async def _refused(talk: Talk) -> None:
    """What is wrong with a request is a 400 also where it asks for a stream."""
    stream = await talk.stream("/responses", talk.body({"input": 7, "stream": True}))
    expect(stream.answer.status in (400, 422), f"answered {stream.answer.status}: {stream.answer.told[:300]}")
    expect(stream.answer.error["message"], "the error has no message")


@STREAMS.check("errors", sources.ERRORS, pain="swallowed-errors")
async def _errors(talk: Talk) -> None:
    """An input that fits no model ends a stream's request with a 4xx, or with `response.failed` or `error`."""
    stream = await talk.stream("/responses", talk.body({"input": "word " * TOO_LONG, "stream": True}))
    if 400 <= stream.answer.status < 500:
        return
    last = stream.objects[-1]
    expect(last.get("type") in ("response.failed", "error"), f"the stream ends with {last.get('type')!r}")


@STREAMS.check("left", sources.STREAMING)
async def _left(talk: Talk) -> None:
    """A client that leaves in the middle of a stream does not keep the server from answering the next one."""
    begun = await talk.stream("/responses", talk.body({"input": LONG, "stream": True}), until=lambda event: True)
    expect(begun.events, f"no event came: {begun.answer.told}")
    await talk.create(input=HELLO)


@STREAMS.check("same", sources.STREAMING)
async def _same(talk: Talk) -> None:
    """A streamed response and one in JSON have the same fields."""
    whole, last = await talk.once(said), (await talk.once(streamed))[-1]["response"]
    expect(set(whole) == set(last), f"only one of them has {sorted(set(whole) ^ set(last))}")


@STREAMS.check("indexes", sources.STREAMING)
async def _indexes(talk: Talk) -> None:
    """Items are added with the indexes 0, 1, 2, and so on."""
    for events in (await talk.once(streamed), await talk.once(called_in_events)):
        found = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
        expect(all(after == before + 1 for before, after in pairwise([-1, *found])), f"{found}")
        if not found:
            raise RuleBroken("no item was added")


@STREAMS.check("json_errors", sources.ERRORS)
async def _json_errors(talk: Talk) -> None:
    """A model that does not exist is a 404 or 400 also where a stream is asked for."""
    body = {"model": "no-such-model", "input": HELLO, "stream": True}
    stream = await talk.stream("/responses", body)
    expect(stream.answer.status in (400, 404), f"answered {stream.answer.status}: {stream.answer.told[:300]}")


@STREAMS.check("obfuscated", sources.STREAMING)
async def _obfuscated(talk: Talk) -> None:
    """With `include_obfuscation: true` the deltas of a text have `obfuscation`."""
    events = await talk.events(input=HELLO, stream_options={"include_obfuscation": True})
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    expect(deltas and all(isinstance(event.get("obfuscation"), str) for event in deltas), "a delta has none")
