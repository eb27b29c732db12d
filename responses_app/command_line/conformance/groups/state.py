"""Stored responses, and those that continue them."""

import asyncio

from responses_app.command_line.conformance.asking import sources
from responses_app.command_line.conformance.asking.checks import Group
from responses_app.command_line.conformance.asking.facts import (
    ASK_WEATHER,
    HELLO,
    WEATHER,
    call_of,
    called,
    output_of,
    said,
)
from responses_app.command_line.conformance.asking.shapes import (
    COMPACTION,
    ITEM_LIST,
    Json,
    finished,
    require,
    response_of,
)
from responses_app.command_line.conformance.asking.talk import NOT_THERE, Answer, Talk, good
from responses_app.command_line.conformance.asking.verdicts import Absent, Failed, Skipped, expect

GROUP = Group("state", "Responses: state")
FAR = "a-response-that-nobody-made"
CONNECTIONS = 8
ROOM = 8  # tokens by which two ways to write the same turn may differ
MARK = "the word is marmalade"


def _unknown(answer: Answer) -> Json:
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


@GROUP.check("stored", sources.CREATE)
async def _stored(talk: Talk) -> None:
    """A request with `store: true` is answered."""
    await talk.create(input=HELLO, store=True)


@GROUP.check("kept", sources.RETRIEVE)
async def _kept(talk: Talk) -> None:
    """`GET /responses/{id}` answers a stored response as it was made."""
    path, made = await talk.once(readable), await talk.once(said)
    read = response_of(good(await talk.ask("GET", path)))
    differing = [name for name in made if read.get(name) != made[name]]
    expect(not differing, f"other values of {differing}")


@GROUP.check("connections", sources.STATE, pain="state-in-dicts")
async def _connections(talk: Talk) -> None:
    """A stored response is known on every connection, and so to every process of the server.

    Each request of these checks has a connection of its own.
    """
    path = await talk.once(readable)
    answers = await asyncio.gather(*(talk.ask("GET", path) for _ in range(CONNECTIONS)))
    statuses = [answer.status for answer in answers]
    expect(set(statuses) == {200}, f"{CONNECTIONS} connections got {statuses}")


@GROUP.check("unknown", sources.RETRIEVE)
async def _get_unknown(talk: Talk) -> None:
    """`GET /responses/{id}` answers 404 with an error for an id that nobody made."""
    await talk.once(readable)
    _unknown(await talk.ask("GET", f"/responses/resp_{FAR}"))


@GROUP.check("deleted", sources.DELETE)
async def _deleted(talk: Talk) -> None:
    """`DELETE /responses/{id}` deletes a response: then it is a 404, also to a second one."""
    made = await talk.create(input=HELLO, store=True)
    path = f"/responses/{made['id']}"
    answer = await talk.there("DELETE", path)
    expect(answer.status == 200, f"answered {answer.status}: {answer.told[:300]}")
    await talk.once(readable)
    _unknown(await talk.ask("GET", path))
    _unknown(await talk.ask("DELETE", path))


@GROUP.check("not_stored", sources.CREATE)
async def _not_stored(talk: Talk) -> None:
    """A response with `store: false` cannot be read."""
    made = await talk.create(input=HELLO, store=False)
    await talk.once(readable)
    _unknown(await talk.ask("GET", f"/responses/{made['id']}"))


@GROUP.check("continued", sources.STATE)
async def _continued(talk: Talk) -> None:
    """`previous_response_id` continues a response: it is named, and its turns are part of the input."""
    first = await talk.once(said)
    second = finished(await talk.create(input=HELLO, previous_response_id=first["id"]))
    named = second.get("previous_response_id")
    expect(named == first["id"], f"previous_response_id is {named!r}")
    tokens = (first["usage"]["input_tokens"], second["usage"]["input_tokens"])
    expect(tokens[1] > tokens[0], f"the same input has {tokens[0]} tokens alone, and {tokens[1]} behind a turn")


@GROUP.check("continued_in_stream", sources.STATE, pain="parent-while-streaming")
async def _continued_in_stream(talk: Talk) -> None:
    """A stream continues as JSON does: the turns of the previous response are in its input."""
    first = await talk.once(said)
    events = await talk.events(input=HELLO, previous_response_id=first["id"])
    tokens = (first["usage"]["input_tokens"], events[-1]["response"]["usage"]["input_tokens"])
    expect(tokens[1] > tokens[0], f"the same input has {tokens[0]} tokens alone, and {tokens[1]} behind a turn")


@GROUP.check("named_in_stream", sources.STATE)
async def _named_in_stream(talk: Talk) -> None:
    """Every response in a stream names the previous one by the id that the request had."""
    first = await talk.once(said)
    events = await talk.events(input=HELLO, previous_response_id=first["id"])
    named = {event["response"].get("previous_response_id") for event in events if "response" in event}
    expect(named == {first["id"]}, f"previous_response_id is {named}")


@GROUP.check("continues_a_stream", sources.STATE, pain="parent-while-streaming")
async def _continues_a_stream(talk: Talk) -> None:
    """A response that was streamed can be read and continued by its id."""
    first = (await talk.events(input=HELLO, store=True))[-1]["response"]
    second = await talk.create(input=HELLO, previous_response_id=first["id"])
    expect(second["usage"]["input_tokens"] > first["usage"]["input_tokens"], "its turns are not in the input")


@GROUP.check("forked", sources.STATE)
async def _forked(talk: Talk) -> None:
    """A response can be continued more than once, each time from the same point."""
    first = await talk.once(said)
    asked = {"input": HELLO, "previous_response_id": first["id"]}
    branches = await asyncio.gather(talk.create(**asked), talk.create(**asked))
    tokens = [branch["usage"]["input_tokens"] for branch in branches]
    expect(tokens[0] == tokens[1], f"the same input has {tokens} tokens")


@GROUP.check("instructions", sources.CREATE)
async def _instructions(talk: Talk) -> None:
    """`instructions` are not inherited from the previous response."""
    first = await talk.create(input=HELLO, instructions="Answer in upper case.", store=True)
    second = await talk.create(input=HELLO, previous_response_id=first["id"])
    expect(second.get("instructions") is None, f"instructions are {second.get('instructions')!r}")


@GROUP.check("unknown_previous", sources.WEBSOCKET)
async def _unknown_previous(talk: Talk) -> None:
    """A previous response that nobody made is an error with the code `previous_response_not_found`."""
    error = await talk.refused(talk.body({"input": HELLO, "previous_response_id": f"resp_{FAR}"}), statuses=(400, 404))
    expect(error.get("code") == "previous_response_not_found", f"the error is {error}")


@GROUP.check("unstored_previous", sources.STATE)
async def _unstored_previous(talk: Talk) -> None:
    """A response that was not stored cannot be continued over HTTP."""
    made = await talk.create(input=HELLO, store=False)
    error = await talk.refused(talk.body({"input": HELLO, "previous_response_id": made["id"]}), statuses=(400, 404))
    expect(error["message"], "the error has no message")


@GROUP.check("second_turn", sources.FUNCTIONS, pain="second-turn")
async def _second_turn(talk: Talk) -> None:
    """The output of a call, with `previous_response_id`, continues the response that made the call."""
    first = await talk.once(called)
    items = [output_of(call) for call in first["output"] if call["type"] == "function_call"]
    second = await talk.create(input=items, previous_response_id=first["id"], tools=[WEATHER], tool_choice="none")
    finished(second)


@GROUP.check("second_turn_in_stream", sources.FUNCTIONS, pain="second-turn")
async def _second_turn_in_stream(talk: Talk) -> None:
    """The same in a stream."""
    first = await talk.once(called)
    items = [output_of(call) for call in first["output"] if call["type"] == "function_call"]
    asked = {"input": items, "previous_response_id": first["id"], "tools": [WEATHER], "tool_choice": "none"}
    finished((await talk.events(**asked))[-1]["response"])


@GROUP.check("orphan_output", sources.FUNCTIONS)
async def _orphan_output(talk: Talk) -> None:
    """The output of a call that nobody made is a 400."""
    first = await talk.once(said)
    orphan = output_of({"call_id": "call_nobody"})
    error = await talk.refused(talk.body({"input": [orphan], "previous_response_id": first["id"]}))
    expect(error["message"], "the error has no message")


@GROUP.check("reasoning_kept", sources.REASONING, pain="dropped-reasoning")
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


@GROUP.check("cache_kept", sources.CACHING, pain="dropped-reasoning")
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


@GROUP.check("input_items", sources.INPUT_ITEMS)
async def _input_items(talk: Talk) -> None:
    """`GET /responses/{id}/input_items` lists the input, each item with its `id` and `type`, the last one first."""
    response = await talk.once(_two_inputs)
    listed = await _items(talk, response)
    expect(listed["object"] == "list" and not listed["has_more"], f"object, has_more: {listed}")
    texts = [item["content"][0]["text"] for item in listed["data"]]
    expect(texts == [HELLO, MARK], f"the items say {texts}")
    ids = [item["id"] for item in listed["data"]]
    expect((listed["first_id"], listed["last_id"]) == (ids[0], ids[-1]), "first_id and last_id are others")


@GROUP.check("input_items_order", sources.INPUT_ITEMS)
async def _input_items_order(talk: Talk) -> None:
    """With `order=asc` the input items come in their order."""
    response = await talk.once(_two_inputs)
    up, down = await _items(talk, response, "?order=asc"), await _items(talk, response, "?order=desc")
    expect(up["data"] == down["data"][::-1], "the two orders have other items")


@GROUP.check("input_items_pages", sources.INPUT_ITEMS)
async def _input_items_pages(talk: Talk) -> None:
    """With `limit` and `after` the input items come in pages, and `has_more` says whether more follow."""
    response = await talk.once(_two_inputs)
    whole = await _items(talk, response)
    first = await _items(talk, response, "?limit=1")
    rest = await _items(talk, response, f"?limit=1&after={first['last_id']}")
    expect(first["data"] + rest["data"] == whole["data"], "the pages have other items than the whole list")
    expect((first["has_more"], rest["has_more"]) == (True, False), f"{first['has_more']}, {rest['has_more']}")


@GROUP.check("input_tokens", sources.INPUT_TOKENS)
async def _input_tokens(talk: Talk) -> None:
    """`POST /responses/input_tokens` counts an input as `usage` of a response does."""
    asked = {"model": talk.model, "input": HELLO}
    counted = good(await talk.there("POST", "/responses/input_tokens", asked))
    expect(counted["object"] == "response.input_tokens", f"object is {counted['object']!r}")
    used = (await talk.once(said))["usage"]["input_tokens"]
    expect(counted["input_tokens"] == used, f"{counted['input_tokens']} counted, {used} in usage")


@GROUP.check("compacted", sources.COMPACT)
async def _compacted(talk: Talk) -> None:
    """`POST /responses/compact` answers items, among them a `compaction`, that can be the input of a response."""
    items = [{"role": "user", "content": MARK}, {"role": "user", "content": HELLO}]
    answer = await talk.there("POST", "/responses/compact", {"model": talk.model, "input": items})
    body = require(good(answer), COMPACTION, "the compaction")
    expect(body["object"] == "response.compaction", f"object is {body['object']!r}")
    found = [item for item in body["output"] if item["type"] == "compaction"]
    expect(found and found[0]["encrypted_content"], f"the output has {[item['type'] for item in body['output']]}")
    finished(await talk.create(input=[*body["output"], {"role": "user", "content": HELLO}]))


@GROUP.check("read_call", sources.RETRIEVE)
async def _read_call(talk: Talk) -> None:
    """A stored call is read as it was made."""
    await talk.once(readable)
    made = await talk.once(called)
    answer = await talk.ask("GET", f"/responses/{made['id']}")
    expect(call_of(response_of(good(answer))) == call_of(made), "the call differs")


@GROUP.check("listed_output", sources.INPUT_ITEMS, pain="unusable-state")
async def _listed_output(talk: Talk) -> None:
    """The output of a call that a response was given is among its input items, with its `call_id`."""
    first = await talk.once(called)
    items = [output_of(call) for call in first["output"] if call["type"] == "function_call"]
    second = await talk.create(input=items, previous_response_id=first["id"], store=True)
    listed = await _items(talk, second, "?limit=100")
    found = [item.get("call_id") for item in listed["data"] if item["type"] == "function_call_output"]
    if items[0]["call_id"] not in found:
        raise Failed(f"the input items are {[item['type'] for item in listed['data']]}")
