"""State: stored responses and those that continue them, background responses, and conversations."""

import asyncio

from responses_app.extensions.conformance import sources
from responses_app.extensions.conformance.checks import CheckGroup
from responses_app.extensions.conformance.facts import (
    ASK_WEATHER,
    HELLO,
    LONG,
    WEATHER,
    call_of,
    called,
    output_of,
    said,
)
from responses_app.extensions.conformance.shapes import (
    COMPACTION,
    ITEM_LIST,
    TERMINAL,
    Absent,
    Json,
    RuleBroken,
    Skipped,
    expect,
    finished,
    require,
    response_of,
)
from responses_app.extensions.conformance.talk import NOT_THERE, HttpAnswer, ServerSentEvent, Talk, good

STATE = CheckGroup("state", "Responses: state")
FAR = "a-response-that-nobody-made"
CONNECTIONS = 8
ROOM = 8  # tokens by which two ways to write the same turn may differ
MARK = "the word is marmalade"


def _unknown(answer: HttpAnswer) -> Json:
    """Return the error of an id that nobody knows."""
    expect(answer.status == 404, f"answered {answer.status}: {answer.told[:300]}")
    return answer.error


async def _two_inputs(talk: Talk) -> Json:
    """A stored response to two messages."""
    items = [{"role": "user", "content": MARK}, {"role": "user", "content": HELLO}]
    return finished(await talk.create(input=items, store=True))


async def _items(talk: Talk, response: Json, query: str = "") -> Json:
    answer = await talk.there("GET", f"/responses/{response['id']}/input_items{query}")
    return require(good(answer), ITEM_LIST, "the list")


async def readable(talk: Talk) -> str:
    """The path of a stored response, which can be read. Raises `Absent` where nothing can be read by its id."""
    made = await talk.once(said)
    path = f"/responses/{made['id']}"
    answer = await talk.ask("GET", path)
    if answer.status in NOT_THERE and made["id"] not in answer.told:
        raise Absent(f"GET /responses/{{id}} answered {answer.status}")
    good(answer)
    return path


@STATE.check("stored", sources.CREATE)
async def _stored(talk: Talk) -> None:
    """A request with `store: true` is answered."""
    await talk.create(input=HELLO, store=True)


@STATE.check("kept", sources.RETRIEVE)
async def _kept(talk: Talk) -> None:
    """`GET /responses/{id}` answers a stored response as it was made."""
    path, made = await talk.once(readable), await talk.once(said)
    read = response_of(good(await talk.ask("GET", path)))
    differing = [name for name in made if read.get(name) != made[name]]
    expect(not differing, f"other values of {differing}")


@STATE.check("connections", sources.STATE, pain="state-in-dicts")
async def _connections(talk: Talk) -> None:
    """A stored response is known on every connection, and so to every process of the server.

    Each request of these checks has a connection of its own.
    """
    path = await talk.once(readable)
    answers = await asyncio.gather(*(talk.ask("GET", path) for _ in range(CONNECTIONS)))
    statuses = [answer.status for answer in answers]
    expect(set(statuses) == {200}, f"{CONNECTIONS} connections got {statuses}")


@STATE.check("unknown", sources.RETRIEVE)
async def _get_unknown(talk: Talk) -> None:
    """`GET /responses/{id}` answers 404 with an error for an id that nobody made."""
    await talk.once(readable)
    _unknown(await talk.ask("GET", f"/responses/resp_{FAR}"))


@STATE.check("deleted", sources.DELETE)
async def _deleted(talk: Talk) -> None:
    """`DELETE /responses/{id}` deletes a response: then it is a 404, also to a second one."""
    made = await talk.create(input=HELLO, store=True)
    path = f"/responses/{made['id']}"
    answer = await talk.there("DELETE", path)
    expect(answer.status == 200, f"answered {answer.status}: {answer.told[:300]}")
    await talk.once(readable)
    _unknown(await talk.ask("GET", path))
    _unknown(await talk.ask("DELETE", path))


@STATE.check("not_stored", sources.CREATE)
async def _not_stored(talk: Talk) -> None:
    """A response with `store: false` cannot be read."""
    made = await talk.create(input=HELLO, store=False)
    await talk.once(readable)
    _unknown(await talk.ask("GET", f"/responses/{made['id']}"))


@STATE.check("continued", sources.STATE)
async def _continued(talk: Talk) -> None:
    """`previous_response_id` continues a response: it is named, and its turns are part of the input."""
    first = await talk.once(said)
    second = finished(await talk.create(input=HELLO, previous_response_id=first["id"]))
    named = second.get("previous_response_id")
    expect(named == first["id"], f"previous_response_id is {named!r}")
    tokens = (first["usage"]["input_tokens"], second["usage"]["input_tokens"])
    expect(tokens[1] > tokens[0], f"the same input has {tokens[0]} tokens alone, and {tokens[1]} behind a turn")


@STATE.check("continued_in_stream", sources.STATE, pain="parent-while-streaming")
async def _continued_in_stream(talk: Talk) -> None:
    """A stream continues as JSON does: the turns of the previous response are in its input."""
    first = await talk.once(said)
    events = await talk.events(input=HELLO, previous_response_id=first["id"])
    tokens = (first["usage"]["input_tokens"], events[-1]["response"]["usage"]["input_tokens"])
    expect(tokens[1] > tokens[0], f"the same input has {tokens[0]} tokens alone, and {tokens[1]} behind a turn")


@STATE.check("named_in_stream", sources.STATE)
async def _named_in_stream(talk: Talk) -> None:
    """Every response in a stream names the previous one by the id that the request had."""
    first = await talk.once(said)
    events = await talk.events(input=HELLO, previous_response_id=first["id"])
    named = {event["response"].get("previous_response_id") for event in events if "response" in event}
    expect(named == {first["id"]}, f"previous_response_id is {named}")


@STATE.check("continues_a_stream", sources.STATE, pain="parent-while-streaming")
async def _continues_a_stream(talk: Talk) -> None:
    """A response that was streamed can be read and continued by its id."""
    first = (await talk.events(input=HELLO, store=True))[-1]["response"]
    second = await talk.create(input=HELLO, previous_response_id=first["id"])
    expect(second["usage"]["input_tokens"] > first["usage"]["input_tokens"], "its turns are not in the input")


@STATE.check("forked", sources.STATE)
async def _forked(talk: Talk) -> None:
    """A response can be continued more than once, each time from the same point."""
    first = await talk.once(said)
    asked = {"input": HELLO, "previous_response_id": first["id"]}
    branches = await asyncio.gather(talk.create(**asked), talk.create(**asked))
    tokens = [branch["usage"]["input_tokens"] for branch in branches]
    expect(tokens[0] == tokens[1], f"the same input has {tokens} tokens")


@STATE.check("instructions", sources.CREATE)
async def _instructions(talk: Talk) -> None:
    """`instructions` are not inherited from the previous response."""
    first = await talk.create(input=HELLO, instructions="Answer in upper case.", store=True)
    second = await talk.create(input=HELLO, previous_response_id=first["id"])
    expect(second.get("instructions") is None, f"instructions are {second.get('instructions')!r}")


@STATE.check("unknown_previous", sources.WEBSOCKET)
async def _unknown_previous(talk: Talk) -> None:
    """A previous response that nobody made is an error with the code `previous_response_not_found`."""
    error = await talk.refused(talk.body({"input": HELLO, "previous_response_id": f"resp_{FAR}"}), statuses=(400, 404))
    expect(error.get("code") == "previous_response_not_found", f"the error is {error}")


@STATE.check("unstored_previous", sources.STATE)
async def _unstored_previous(talk: Talk) -> None:
    """A response that was not stored cannot be continued over HTTP."""
    made = await talk.create(input=HELLO, store=False)
    error = await talk.refused(talk.body({"input": HELLO, "previous_response_id": made["id"]}), statuses=(400, 404))
    expect(error["message"], "the error has no message")


@STATE.check("second_turn", sources.FUNCTIONS, pain="second-turn")
async def _second_turn(talk: Talk) -> None:
    """The output of a call, with `previous_response_id`, continues the response that made the call."""
    first = await talk.once(called)
    items = [output_of(call) for call in first["output"] if call["type"] == "function_call"]
    second = await talk.create(input=items, previous_response_id=first["id"], tools=[WEATHER], tool_choice="none")
    finished(second)


@STATE.check("second_turn_in_stream", sources.FUNCTIONS, pain="second-turn")
async def _second_turn_in_stream(talk: Talk) -> None:
    """The same in a stream."""
    first = await talk.once(called)
    items = [output_of(call) for call in first["output"] if call["type"] == "function_call"]
    asked = {"input": items, "previous_response_id": first["id"], "tools": [WEATHER], "tool_choice": "none"}
    finished((await talk.events(**asked))[-1]["response"])


@STATE.check("orphan_output", sources.FUNCTIONS)
async def _orphan_output(talk: Talk) -> None:
    """The output of a call that nobody made is a 400."""
    first = await talk.once(said)
    orphan = output_of({"call_id": "call_nobody"})
    error = await talk.refused(talk.body({"input": [orphan], "previous_response_id": first["id"]}))
    expect(error["message"], "the error has no message")


@STATE.check("reasoning_kept", sources.REASONING, pain="dropped-reasoning")
async def _reasoning_kept(talk: Talk) -> None:
    """What the model reasoned before a call is in the input of the turn with the call's output."""
    first = await talk.once(called)
    usage = first["usage"]
    if not usage["output_tokens_details"]["reasoning_tokens"] > ROOM:
        raise Skipped("the model did not reason before the call")
    items = [output_of(call) for call in first["output"] if call["type"] == "function_call"]
    second = await talk.create(input=items, previous_response_id=first["id"], tools=[WEATHER])
    tokens, whole = second["usage"]["input_tokens"], usage["input_tokens"] + usage["output_tokens"]
    expect(tokens >= whole - ROOM, f"the first turn has {whole} tokens, and the input of the second {tokens}")


@STATE.check("cache_kept", sources.CACHING, pain="dropped-reasoning")
async def _cache_kept(talk: Talk) -> None:
    """Where a server reports cached tokens, a turn with a call's output finds the prompt of the turn before it."""
    text = f"{' '.join(['The weather report is long today.'] * 300)} {ASK_WEATHER}"
    asked = {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "get_weather"}, "store": True}
    first = finished(await talk.create(input=text, **asked))
    again = await talk.create(input=text, **asked)
    cached = again["usage"]["input_tokens_details"]["cached_tokens"]
    if not cached:
        raise Skipped("the same request again has no cached tokens: the server reports none")
    items = [output_of(call) for call in first["output"] if call["type"] == "function_call"]
    second = await talk.create(input=items, previous_response_id=first["id"], tools=[WEATHER])
    found = second["usage"]["input_tokens_details"]["cached_tokens"]
    expect(found >= cached, f"the same request again has {cached} cached tokens, the next turn {found}")


@STATE.check("input_items", sources.INPUT_ITEMS)
async def _input_items(talk: Talk) -> None:
    """`GET /responses/{id}/input_items` lists the input, each item with its `id` and `type`, the last one first."""
    response = await talk.once(_two_inputs)
    listed = await _items(talk, response)
    expect(listed["object"] == "list" and not listed["has_more"], f"object, has_more: {listed}")
    texts = [item["content"][0]["text"] for item in listed["data"]]
    expect(texts == [HELLO, MARK], f"the items say {texts}")
    ids = [item["id"] for item in listed["data"]]
    expect((listed["first_id"], listed["last_id"]) == (ids[0], ids[-1]), "first_id and last_id are others")


@STATE.check("input_items_order", sources.INPUT_ITEMS)
async def _input_items_order(talk: Talk) -> None:
    """With `order=asc` the input items come in their order."""
    response = await talk.once(_two_inputs)
    up, down = await _items(talk, response, "?order=asc"), await _items(talk, response, "?order=desc")
    expect(up["data"] == down["data"][::-1], "the two orders have other items")


@STATE.check("input_items_pages", sources.INPUT_ITEMS)
async def _input_items_pages(talk: Talk) -> None:
    """With `limit` and `after` the input items come in pages, and `has_more` says whether more follow."""
    response = await talk.once(_two_inputs)
    whole = await _items(talk, response)
    first = await _items(talk, response, "?limit=1")
    rest = await _items(talk, response, f"?limit=1&after={first['last_id']}")
    expect(first["data"] + rest["data"] == whole["data"], "the pages have other items than the whole list")
    expect((first["has_more"], rest["has_more"]) == (True, False), f"{first['has_more']}, {rest['has_more']}")


@STATE.check("input_tokens", sources.INPUT_TOKENS)
async def _input_tokens(talk: Talk) -> None:
    """`POST /responses/input_tokens` counts an input as `usage` of a response does."""
    asked = {"model": talk.model, "input": HELLO}
    counted = good(await talk.there("POST", "/responses/input_tokens", asked))
    expect(counted["object"] == "response.input_tokens", f"object is {counted['object']!r}")
    used = (await talk.once(said))["usage"]["input_tokens"]
    expect(counted["input_tokens"] == used, f"{counted['input_tokens']} counted, {used} in usage")


@STATE.check("compacted", sources.COMPACT)
async def _compacted(talk: Talk) -> None:
    """`POST /responses/compact` answers items, among them a `compaction`, that can be the input of a response."""
    items = [{"role": "user", "content": MARK}, {"role": "user", "content": HELLO}]
    answer = await talk.there("POST", "/responses/compact", {"model": talk.model, "input": items})
    body = require(good(answer), COMPACTION, "the compaction")
    expect(body["object"] == "response.compaction", f"object is {body['object']!r}")
    found = [item for item in body["output"] if item["type"] == "compaction"]
    expect(found and found[0]["encrypted_content"], f"the output has {[item['type'] for item in body['output']]}")
    finished(await talk.create(input=[*body["output"], {"role": "user", "content": HELLO}]))


@STATE.check("read_call", sources.RETRIEVE)
async def _read_call(talk: Talk) -> None:
    """A stored call is read as it was made."""
    await talk.once(readable)
    made = await talk.once(called)
    answer = await talk.ask("GET", f"/responses/{made['id']}")
    expect(call_of(response_of(good(answer))) == call_of(made), "the call differs")


@STATE.check("listed_output", sources.INPUT_ITEMS, pain="unusable-state")
async def _listed_output(talk: Talk) -> None:
    """The output of a call that a response was given is among its input items, with its `call_id`."""
    first = await talk.once(called)
    items = [output_of(call) for call in first["output"] if call["type"] == "function_call"]
    second = await talk.create(input=items, previous_response_id=first["id"], store=True)
    listed = await _items(talk, second, "?limit=100")
    found = [item.get("call_id") for item in listed["data"] if item["type"] == "function_call_output"]
    if items[0]["call_id"] not in found:
        raise RuleBroken(f"the input items are {[item['type'] for item in listed['data']]}")


BACKGROUND = CheckGroup("background", "Responses: background")
RUNNING = ("queued", "in_progress")
POLL_SECONDS = 0.2


async def _ended(talk: Talk, response: Json) -> Json:
    """Ask for a response until it has ended."""
    while response["status"] in RUNNING:
        await asyncio.sleep(POLL_SECONDS)
        response = response_of(good(await talk.there("GET", f"/responses/{response['id']}")))
    return response


@BACKGROUND.check("begun", sources.BACKGROUND)
async def _begun(talk: Talk) -> None:
    """`background: true` is answered at once with a response that is `queued` or `in_progress`."""
    response = await talk.create(input=LONG, background=True, store=True)
    if response.get("background") is not True and response["status"] not in RUNNING:
        raise Absent(f"the answer came with the status {response['status']!r}, and not in the background")
    expect(response["status"] in RUNNING, f"the status is {response['status']!r}")
    expect(response["output"] == [], "it has output already")


@BACKGROUND.check("polled", sources.BACKGROUND)
async def _polled(talk: Talk) -> None:
    """`GET /responses/{id}` answers a background response until it is complete, with its output."""
    response = await _ended(talk, await talk.create(input=HELLO, background=True, store=True))
    expect(response["status"] in ("completed", "incomplete"), f"{response['status']!r}: {response.get('error')}")
    expect(response["output"], "it has no output")


@BACKGROUND.check("cancelled", sources.CANCEL)
async def _cancelled(talk: Talk) -> None:
    """`POST /responses/{id}/cancel` ends a background response, which stays `cancelled`; a second one is the same."""
    longer = LONG.replace("3000", "10000")  # so that it still runs when the second request arrives
    made = await talk.create(input=longer, background=True, store=True)
    path = f"/responses/{made['id']}"
    answer = await talk.there("POST", f"{path}/cancel")
    if (await talk.ask("GET", path)).json["status"] in ("completed", "incomplete"):
        raise Skipped("it was complete before it could be cancelled")
    first = response_of(good(answer))
    expect(first["status"] == "cancelled", f"the status is {first['status']!r}")
    second = response_of(good(await talk.ask("POST", f"{path}/cancel")))
    read = response_of(good(await talk.ask("GET", path)))
    given = (second["status"], read["status"])
    expect(given == ("cancelled", "cancelled"), f"cancelled again, and read: {given}")


@BACKGROUND.check("cancel_other", sources.CANCEL)
async def _cancel_other(talk: Talk) -> None:
    """A response that was not made in the background cannot be cancelled: 400."""
    response = await talk.once(said)
    answer = await talk.ask("POST", f"/responses/{response['id']}/cancel")
    if answer.status in NOT_THERE:
        raise Absent(f"answered {answer.status}")
    expect(answer.status == 400, f"answered {answer.status}: {answer.told[:300]}")
    expect(answer.error["message"], "the error has no message")


@BACKGROUND.check("resumed", sources.BACKGROUND)
async def _resumed(talk: Talk) -> None:
    """A stream that was left is resumed by `GET ?stream=true&starting_after=N`, with the events behind N."""
    body = talk.body({"input": HELLO, "background": True, "store": True, "stream": True})

    def third(event: ServerSentEvent) -> bool:
        return event.json.get("sequence_number") == 2

    begun = await talk.stream("/responses", body, until=third)
    events = begun.objects
    response_id = events[0]["response"]["id"]
    path = f"/responses/{response_id}?stream=true&starting_after="
    rest = await talk.stream(f"{path}2")
    if rest.answer.status in NOT_THERE or rest.answer.kind != "text/event-stream":
        raise Absent(f"GET with stream=true was answered with {rest.answer.status} and {rest.answer.kind!r}")
    numbers = [event["sequence_number"] for event in (*events, *rest.objects)]
    expect(numbers == list(range(len(numbers))), f"both parts have the numbers {numbers[:40]}")
    expect(rest.objects[-1]["type"] in TERMINAL, f"the last event is {rest.objects[-1]['type']!r}")
    again = await talk.stream(f"{path}2")
    expect(again.objects == rest.objects, "read again, the stream has other events")


@BACKGROUND.check("replayed", sources.RETRIEVE)
async def _replayed(talk: Talk) -> None:
    """The whole stream of a background response that has ended can be read once more."""
    body = talk.body({"input": HELLO, "background": True, "store": True, "stream": True})
    live = (await talk.stream("/responses", body)).objects
    stream = await talk.stream(f"/responses/{live[0]['response']['id']}?stream=true")
    if stream.answer.status in NOT_THERE or stream.answer.kind != "text/event-stream":
        raise Absent(f"answered {stream.answer.status} with {stream.answer.kind!r}")
    kinds = [event["type"] for event in stream.objects]
    expect(kinds == [event["type"] for event in live], f"the events were {kinds[:20]}")


@BACKGROUND.check("unstored", sources.BACKGROUND)
async def _unstored(talk: Talk) -> None:
    """With `store: false` a background response is kept for some minutes, so that it can be polled."""
    answer = await talk.ask("POST", "/responses", talk.body({"input": HELLO, "background": True, "store": False}))
    if answer.status == 400:
        raise Absent(f"refused: {answer.error['message']}")
    response = await _ended(talk, response_of(good(answer)))
    expect(response["status"] in ("completed", "incomplete"), f"{response['status']!r}: {response.get('error')}")
    expect(response["store"] is False, f"its `store` is {response['store']!r}")


CONVERSATIONS = CheckGroup("conversations", "Conversations")
ITEM = {"type": "message", "role": "user", "content": HELLO}


async def _made(talk: Talk, **fields: object) -> Json:
    body: Json = good(await talk.there("POST", "/conversations", fields))
    return body


async def _conversation_items(talk: Talk, conversation: Json, query: str = "?order=asc") -> Json:
    answer = await talk.there("GET", f"/conversations/{conversation['id']}/items{query}")
    return require(good(answer), ITEM_LIST, "the list")


@CONVERSATIONS.check("made", sources.CONVERSATIONS)
async def _create(talk: Talk) -> None:
    """`POST /conversations` makes a conversation with `id`, `object`, `created_at` and its `metadata`."""
    made = await _made(talk, metadata={"key": "value"})
    shape = {"id": str, "object": str, "created_at": int, "metadata": dict}
    require(made, shape, "the conversation")
    expect((made["object"], made["metadata"]) == ("conversation", {"key": "value"}), f"{made}")


@CONVERSATIONS.check("changed", sources.CONVERSATIONS)
async def _changed(talk: Talk) -> None:
    """`POST /conversations/{id}` changes the metadata, and `GET` answers them."""
    made = await _made(talk)
    path = f"/conversations/{made['id']}"
    good(await talk.there("POST", path, {"metadata": {"key": "other"}}))
    read = good(await talk.ask("GET", path))
    expect((read["id"], read["metadata"]) == (made["id"], {"key": "other"}), f"{read}")


@CONVERSATIONS.check("deleted", sources.CONVERSATIONS)
async def _conversation_deleted(talk: Talk) -> None:
    """`DELETE /conversations/{id}` deletes a conversation: then it is a 404."""
    made = await _made(talk)
    path = f"/conversations/{made['id']}"
    body = good(await talk.there("DELETE", path))
    given = (body["id"], body["object"], body["deleted"])
    expect(given == (made["id"], "conversation.deleted", True), f"{body}")
    answer = await talk.ask("GET", path)
    expect(answer.status == 404, f"answered {answer.status}")


@CONVERSATIONS.check("items", sources.CONVERSATIONS)
async def _item_paths(talk: Talk) -> None:
    """Items can be added to a conversation, listed, read and deleted, each by its id."""
    made = await _made(talk, items=[ITEM])
    path = f"/conversations/{made['id']}/items"
    added = require(good(await talk.there("POST", path, {"items": [ITEM]})), ITEM_LIST, "the list")
    [item] = added["data"]
    listed = await _conversation_items(talk, made)
    expect([each["id"] for each in listed["data"]][1:] == [item["id"]], "the list does not end with the new item")
    read = good(await talk.ask("GET", f"{path}/{item['id']}"))
    expect(read["id"] == item["id"], f"{read}")
    good(await talk.ask("DELETE", f"{path}/{item['id']}"))
    listed = await _conversation_items(talk, made)
    expect(len(listed["data"]) == 1, "the item is still listed")


@CONVERSATIONS.check("continued", sources.STATE, pain="unusable-state")
async def _conversation_continued(talk: Talk) -> None:
    """A response with `conversation` adds its input and its output to the conversation, for any client to read."""
    made = await _made(talk)
    first = finished(await talk.create(input=HELLO, conversation=made["id"]))
    expect((first.get("conversation") or {}).get("id") == made["id"], f"conversation is {first.get('conversation')}")
    second = finished(await talk.create(input=HELLO, conversation={"id": made["id"]}))
    tokens = (first["usage"]["input_tokens"], second["usage"]["input_tokens"])
    expect(tokens[1] > tokens[0], f"the same input has {tokens[0]} tokens, and later {tokens[1]}")
    roles = [item.get("role") for item in (await _conversation_items(talk, made))["data"] if item["type"] == "message"]
    expect(roles == ["user", "assistant"] * 2, f"the conversation has messages of {roles}")


@CONVERSATIONS.check("in_stream", sources.STATE)
async def _in_stream(talk: Talk) -> None:
    """A streamed response is added to its conversation, too."""
    made = await _made(talk)
    await talk.events(input=HELLO, conversation=made["id"])
    kinds = [item["type"] for item in (await _conversation_items(talk, made))["data"]]
    expect(kinds.count("message") == 2, f"the conversation has {kinds}")


@CONVERSATIONS.check("with_previous", sources.CREATE)
async def _with_previous(talk: Talk) -> None:
    """`conversation` and `previous_response_id` cannot be used together: 400."""
    await _made(talk)
    first, made = await talk.once(said), await _made(talk)
    body = talk.body({"input": HELLO, "conversation": made["id"], "previous_response_id": first["id"]})
    error = await talk.refused(body)
    expect(error["message"], "the error has no message")


@CONVERSATIONS.check("unknown", sources.CONVERSATIONS)
async def _unknown_conversation(talk: Talk) -> None:
    """A conversation that nobody made is a 404, with an error."""
    answer = await talk.ask("GET", "/conversations/conv_nobody")
    expect(answer.status == 404, f"answered {answer.status}")
    expect(answer.error["message"], "the error has no message")


@CONVERSATIONS.check("pages", sources.CONVERSATIONS)
async def _pages(talk: Talk) -> None:
    """Items are listed in pages by `limit` and `after`."""
    made = await _made(talk, items=[ITEM, ITEM, ITEM])
    first = await _conversation_items(talk, made, "?order=asc&limit=2")
    rest = await _conversation_items(talk, made, f"?order=asc&limit=2&after={first['last_id']}")
    expect((len(first["data"]), first["has_more"]) == (2, True), f"the first page: {first}")
    expect((len(rest["data"]), rest["has_more"]) == (1, False), f"the second page: {rest}")
