"""Background responses."""

import asyncio

from responses_app.command_line.conformance.asking import sources
from responses_app.command_line.conformance.asking.checks import Group
from responses_app.command_line.conformance.asking.facts import HELLO, LONG, said
from responses_app.command_line.conformance.asking.shapes import TERMINAL, Json, response_of
from responses_app.command_line.conformance.asking.talk import NOT_THERE, Event, Talk, good
from responses_app.command_line.conformance.asking.verdicts import Absent, Skipped, expect

GROUP = Group("background", "Responses: background")
RUNNING = ("queued", "in_progress")
POLL_SECONDS = 0.2


async def _ended(talk: Talk, response: Json) -> Json:
    """Ask for a response until it has ended."""
    while response["status"] in RUNNING:
        await asyncio.sleep(POLL_SECONDS)
        response = response_of(good(await talk.there("GET", f"/responses/{response['id']}")))
    return response


@GROUP.check("begun", sources.BACKGROUND)
async def _begun(talk: Talk) -> None:
    """`background: true` is answered at once with a response that is `queued` or `in_progress`."""
    response = await talk.create(input=LONG, background=True, store=True)
    if response.get("background") is not True and response["status"] not in RUNNING:
        raise Absent(f"the answer came with the status {response['status']!r}, and not in the background")
    expect(response["status"] in RUNNING, f"the status is {response['status']!r}")
    expect(response["output"] == [], "it has output already")


@GROUP.check("polled", sources.BACKGROUND)
async def _polled(talk: Talk) -> None:
    """`GET /responses/{id}` answers a background response until it is complete, with its output."""
    response = await _ended(talk, await talk.create(input=HELLO, background=True, store=True))
    expect(response["status"] in ("completed", "incomplete"), f"{response['status']!r}: {response.get('error')}")
    expect(response["output"], "it has no output")


@GROUP.check("cancelled", sources.CANCEL)
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


@GROUP.check("cancel_other", sources.CANCEL)
async def _cancel_other(talk: Talk) -> None:
    """A response that was not made in the background cannot be cancelled: 400."""
    response = await talk.once(said)
    answer = await talk.ask("POST", f"/responses/{response['id']}/cancel")
    if answer.status in NOT_THERE:
        raise Absent(f"answered {answer.status}")
    expect(answer.status == 400, f"answered {answer.status}: {answer.told[:300]}")
    expect(answer.error["message"], "the error has no message")


@GROUP.check("resumed", sources.BACKGROUND)
async def _resumed(talk: Talk) -> None:
    """A stream that was left is resumed by `GET ?stream=true&starting_after=N`, with the events behind N."""
    body = talk.body({"input": HELLO, "background": True, "store": True, "stream": True})

    def third(event: Event) -> bool:
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


@GROUP.check("replayed", sources.RETRIEVE)
async def _replayed(talk: Talk) -> None:
    """The whole stream of a background response that has ended can be read once more."""
    body = talk.body({"input": HELLO, "background": True, "store": True, "stream": True})
    live = (await talk.stream("/responses", body)).objects
    stream = await talk.stream(f"/responses/{live[0]['response']['id']}?stream=true")
    if stream.answer.status in NOT_THERE or stream.answer.kind != "text/event-stream":
        raise Absent(f"answered {stream.answer.status} with {stream.answer.kind!r}")
    kinds = [event["type"] for event in stream.objects]
    expect(kinds == [event["type"] for event in live], f"the events were {kinds[:20]}")


@GROUP.check("unstored", sources.BACKGROUND)
async def _unstored(talk: Talk) -> None:
    """With `store: false` a background response is kept for some minutes, so that it can be polled."""
    answer = await talk.ask("POST", "/responses", talk.body({"input": HELLO, "background": True, "store": False}))
    if answer.status == 400:
        raise Absent(f"refused: {answer.error['message']}")
    response = await _ended(talk, response_of(good(answer)))
    expect(response["status"] in ("completed", "incomplete"), f"{response['status']!r}: {response.get('error')}")
    expect(response["store"] is False, f"its `store` is {response['store']!r}")
