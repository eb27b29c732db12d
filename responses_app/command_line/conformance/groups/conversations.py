"""Conversations."""

from responses_app.command_line.conformance.asking import sources
from responses_app.command_line.conformance.asking.checks import Group
from responses_app.command_line.conformance.asking.facts import HELLO, said
from responses_app.command_line.conformance.asking.shapes import ITEM_LIST, Json, finished, require
from responses_app.command_line.conformance.asking.talk import Talk, good
from responses_app.command_line.conformance.asking.verdicts import expect

GROUP = Group("conversations", "Conversations")
ITEM = {"type": "message", "role": "user", "content": HELLO}


async def _made(talk: Talk, **fields: object) -> Json:
    body: Json = good(await talk.there("POST", "/conversations", fields))
    return body


async def _items(talk: Talk, conversation: Json, query: str = "?order=asc") -> Json:
    answer = await talk.there("GET", f"/conversations/{conversation['id']}/items{query}")
    return require(good(answer), ITEM_LIST, "the list")


@GROUP.check("made", sources.CONVERSATIONS)
async def _create(talk: Talk) -> None:
    """`POST /conversations` makes a conversation with `id`, `object`, `created_at` and its `metadata`."""
    made = await _made(talk, metadata={"key": "value"})
    shape = {"id": str, "object": str, "created_at": int, "metadata": dict}
    require(made, shape, "the conversation")
    expect((made["object"], made["metadata"]) == ("conversation", {"key": "value"}), f"{made}")


@GROUP.check("changed", sources.CONVERSATIONS)
async def _changed(talk: Talk) -> None:
    """`POST /conversations/{id}` changes the metadata, and `GET` answers them."""
    made = await _made(talk)
    path = f"/conversations/{made['id']}"
    good(await talk.there("POST", path, {"metadata": {"key": "other"}}))
    read = good(await talk.ask("GET", path))
    expect((read["id"], read["metadata"]) == (made["id"], {"key": "other"}), f"{read}")


@GROUP.check("deleted", sources.CONVERSATIONS)
async def _deleted(talk: Talk) -> None:
    """`DELETE /conversations/{id}` deletes a conversation: then it is a 404."""
    made = await _made(talk)
    path = f"/conversations/{made['id']}"
    body = good(await talk.there("DELETE", path))
    given = (body["id"], body["object"], body["deleted"])
    expect(given == (made["id"], "conversation.deleted", True), f"{body}")
    answer = await talk.ask("GET", path)
    expect(answer.status == 404, f"answered {answer.status}")


@GROUP.check("items", sources.CONVERSATIONS)
async def _conversation_items(talk: Talk) -> None:
    """Items can be added to a conversation, listed, read and deleted, each by its id."""
    made = await _made(talk, items=[ITEM])
    path = f"/conversations/{made['id']}/items"
    added = require(good(await talk.there("POST", path, {"items": [ITEM]})), ITEM_LIST, "the list")
    [item] = added["data"]
    listed = await _items(talk, made)
    expect([each["id"] for each in listed["data"]][1:] == [item["id"]], "the list does not end with the new item")
    read = good(await talk.ask("GET", f"{path}/{item['id']}"))
    expect(read["id"] == item["id"], f"{read}")
    good(await talk.ask("DELETE", f"{path}/{item['id']}"))
    listed = await _items(talk, made)
    expect(len(listed["data"]) == 1, "the item is still listed")


@GROUP.check("continued", sources.STATE, pain="unusable-state")
async def _continued(talk: Talk) -> None:
    """A response with `conversation` adds its input and its output to the conversation, for any client to read."""
    made = await _made(talk)
    first = finished(await talk.create(input=HELLO, conversation=made["id"]))
    expect((first.get("conversation") or {}).get("id") == made["id"], f"conversation is {first.get('conversation')}")
    second = finished(await talk.create(input=HELLO, conversation={"id": made["id"]}))
    tokens = (first["usage"]["input_tokens"], second["usage"]["input_tokens"])
    expect(tokens[1] > tokens[0], f"the same input has {tokens[0]} tokens, and later {tokens[1]}")
    roles = [item.get("role") for item in (await _items(talk, made))["data"] if item["type"] == "message"]
    expect(roles == ["user", "assistant"] * 2, f"the conversation has messages of {roles}")


@GROUP.check("in_stream", sources.STATE)
async def _in_stream(talk: Talk) -> None:
    """A streamed response is added to its conversation, too."""
    made = await _made(talk)
    await talk.events(input=HELLO, conversation=made["id"])
    kinds = [item["type"] for item in (await _items(talk, made))["data"]]
    expect(kinds.count("message") == 2, f"the conversation has {kinds}")


@GROUP.check("with_previous", sources.CREATE)
async def _with_previous(talk: Talk) -> None:
    """`conversation` and `previous_response_id` cannot be used together: 400."""
    await _made(talk)
    first, made = await talk.once(said), await _made(talk)
    body = talk.body({"input": HELLO, "conversation": made["id"], "previous_response_id": first["id"]})
    error = await talk.refused(body)
    expect(error["message"], "the error has no message")


@GROUP.check("unknown", sources.CONVERSATIONS)
async def _unknown(talk: Talk) -> None:
    """A conversation that nobody made is a 404, with an error."""
    answer = await talk.ask("GET", "/conversations/conv_nobody")
    expect(answer.status == 404, f"answered {answer.status}")
    expect(answer.error["message"], "the error has no message")


@GROUP.check("pages", sources.CONVERSATIONS)
async def _pages(talk: Talk) -> None:
    """Items are listed in pages by `limit` and `after`."""
    made = await _made(talk, items=[ITEM, ITEM, ITEM])
    first = await _items(talk, made, "?order=asc&limit=2")
    rest = await _items(talk, made, f"?order=asc&limit=2&after={first['last_id']}")
    expect((len(first["data"]), first["has_more"]) == (2, True), f"the first page: {first}")
    expect((len(rest["data"]), rest["has_more"]) == (1, False), f"the second page: {rest}")
