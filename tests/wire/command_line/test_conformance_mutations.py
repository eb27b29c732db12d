"""Each check of `respsite conformance` notices what it is for: a server that does it wrong fails it."""

import asyncio
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import aiohttp
import pytest

from responses_app.command_line.endpoint import RemoteServer
from responses_app.extensions.conformance.checks import Result, run_checks
from responses_app.extensions.conformance.program import GROUPS, chosen
from responses_app.extensions.conformance.shapes import CheckVerdict
from responses_app.extensions.conformance.talk import Server as Asked
from tests.kit.fixtures import module_server
from tests.kit.sdk import MODEL
from tests.kit.server import Server
from tests.wire.command_line.mutating import Json, Mutation, answered, changed, mutating_server, replaced

CREATE = "POST /v1/responses"
CHAT = "POST /v1/chat/completions"
MESSAGES = "POST /v1/messages"


def results_of(url: str, names: Sequence[str]) -> list[Result]:

    async def run() -> list[Result]:
        async with aiohttp.ClientSession() as session:
            asked = Asked(session, RemoteServer(url), MODEL, 30)
            return await run_checks(asked, GROUPS, chosen(names), at_once=4, tell=lambda result: None)

    return asyncio.run(run())


def said(kind: str) -> Any:
    """Return what changes the first output item of a type in an answer."""

    def of(change: Any) -> Any:
        return lambda body: [change(item) for item in body.get("output", ()) if item["type"] == kind][:1]

    return of


def numbered(events: list[Json]) -> list[Json]:
    return [{**event, "sequence_number": event.get("sequence_number", 0) + 1} for event in events]


def twice(events: list[Json]) -> list[Json]:
    return [*events, events[-1]]


def flat(events: list[Json]) -> list[Json]:
    """Tell errors of a WebSocket as a stream of events does."""
    return [{**event["error"], "type": "error"} if event["type"] == "error" else event for event in events]


def as_completed(events: list[Json]) -> list[Json]:
    return [
        {**event, "type": "response.completed"} if event["type"] == "response.incomplete" else event for event in events
    ]


def has_harmony(asked: str, body: Any) -> Any:
    """Break over text that looks like Harmony's: the request names a model that is not there."""
    return {**body, "model": "broken"} if "<|start|>" in str(body) else body


def has_ids(path: str, body: Any) -> Any:
    """Look items up by their ids, and find none: the request names a model that is not there."""
    items = body.get("input")
    return {**body, "model": "broken"} if isinstance(items, list) and any("id" in item for item in items) else body


def has_other_tools(path: str, status: int, body: Any) -> bool:
    return any(tool["type"] != "function" for tool in body.get("tools", ()))


def cut_short(path: str, body: Any) -> Any:
    """Read the beginning of an input alone."""
    return {**body, "input": body["input"][:100]} if isinstance(body.get("input"), str) else body


def without(name: str) -> Any:
    return lambda path, body: {key: value for key, value in body.items() if key != name}


def in_chat(change: Any) -> Any:
    """Return what changes the message of a chat."""
    return lambda body: change(body["choices"][0]["message"])


def created(change: Any) -> Mutation:
    """Change answers to creates."""
    return Mutation(answer=answered(CREATE, change))


def event(kind: str, change: Any) -> Mutation:
    """Change events of a type."""
    return Mutation(events=changed(kind, change))


# What is done wrong, and which checks have to say so.
EVERY_SECOND = cycle((False, True))
MUTATIONS: dict[str, tuple[Mutation, list[str]]] = {
    "no list of models": (
        Mutation(answer=answered("GET /v1/models", lambda b: b.update(object="models"))), ["models.list"],
    ),
    "a model of no owner": (Mutation(answer=answered("GET /v1/models/", lambda b: b.pop("owned_by"))), ["models.one"]),
    "plain text": (Mutation(headers=lambda h: {**h, "content-type": "text/plain"}), ["json.answer"]),
    "a field that is missing": (created(lambda b: b.pop("incomplete_details")), ["json.shape"]),
    "one id for all": (created(lambda b: b.update(id="resp_1")), ["json.ids"]),
    "an error in a good answer": (created(lambda b: b.update(error={})), ["json.status"]),
    "no end's time": (created(lambda b: b.pop("completed_at", 0)), ["json.completed_at"]),
    "text without annotations": (
        created(said("message")(lambda item: item["content"][0].pop("annotations"))), ["json.message"],
    ),
    "a wrong sum": (created(lambda b: b["usage"].update(total_tokens=1)), ["json.usage"]),
    "cut and called complete": (
        created(lambda b: b.update(status="completed", incomplete_details=None, usage={
            **b["usage"], "output_tokens": 999})),
        ["json.cut"],
    ),
    "metadata forgotten": (Mutation(request=without("metadata")), ["json.echo"]),
    "tools forgotten": (created(lambda b: b.update(tools=[])), ["json.echo_tools"]),
    "no request id": (
        Mutation(headers=lambda h: {name: value for name, value in h.items() if name != "x-request-id"}),
        ["json.request_id"],
    ),
    "nulls refused": (
        Mutation(answer=replaced(400, {"error": {"message": "null"}}, by=lambda path, status, body: path == CREATE)),
        ["json.answer"],
    ),
    "streams as JSON": (Mutation(headers=lambda h: {**h, "content-type": "application/json"}), ["stream.answer"]),
    "events without names": (Mutation(named=False), ["stream.names", "messages.events"]),
    "numbers from 1": (Mutation(events=numbered), ["stream.numbers", "websocket.order"]),
    "two ends": (Mutation(events=twice), ["stream.order"]),
    "no in_progress": (event("response.in_progress", lambda e: False), ["stream.order", "websocket.order"]),
    "deltas without logprobs": (
        event("response.output_text.delta", lambda e: e.pop("logprobs")), ["stream.shapes", "websocket.shapes"],
    ),
    "an event of its own": (
        event("response.in_progress", lambda e: e.update(type="response.working")), ["stream.shapes"],
    ),
    "a part that never ends": (event("response.content_part.done", lambda e: False), ["stream.nesting"]),
    "another text at the end": (event("response.output_text.done", lambda e: e.update(text="no")), ["stream.text"]),
    "another id in deltas": (
        event("response.output_text.delta", lambda e: e.update(item_id="msg_no")), ["stream.item_ids"],
    ),
    "an empty end": (event("response.completed", lambda e: e["response"].update(output=[])), ["stream.items"]),
    "no usage at the end": (
        event("response.completed", lambda e: e["response"].update(usage=None)), ["stream.responses"],
    ),
    "incomplete called completed": (Mutation(events=as_completed), ["stream.cut"]),
    "arguments that differ": (
        event("response.function_call_arguments.done", lambda e: e.update(arguments="{}")), ["stream.arguments"],
    ),
    "an error swallowed": (Mutation(request=cut_short), ["stream.errors", "errors.too_long"]),
    "the parent lost in streams": (
        Mutation(request=lambda path, body: {**body, "previous_response_id": None} if body.get("stream") else body),
        ["state.continued_in_stream"],
    ),
    "the parent lost": (
        Mutation(request=without("previous_response_id")), ["state.continued", "state.unknown_previous"],
    ),
    "another code": (
        Mutation(answer=replaced(400, {"error": {"message": "not found", "code": "not_found"}},
                                 by=lambda path, status, body: status == 400)),
        ["state.unknown_previous"],
    ),
    "state of one process": (
        Mutation(
            answer=replaced(
                404,
                {"error": {"message": "resp_ not found"}},
                by=lambda path, status, body: path.startswith("GET /v1/responses/resp_") and next(EVERY_SECOND),
            )
        ),
        ["state.connections"],
    ),
    "nothing deleted": (Mutation(path=lambda path: path.replace("DELETE", "GET")), ["state.deleted"]),
    "one order for all": (
        Mutation(path=lambda path: path.replace("order=asc", "order=desc")), ["state.input_items_order"],
    ),
    "stored against the client's will": (Mutation(request=without("store")), ["state.not_stored"]),
    "a call's output dropped": (
        Mutation(answer=answered("GET /v1/responses/", lambda b: b.update(data=b.get("data", [])[:0]))),
        ["state.listed_output"],
    ),
    "a turn that cannot go on": (
        Mutation(answer=replaced(500, {"error": {"message": "boom"}},
                                 by=lambda path, status, body: body.get("previous_response_id") is not None)),
        ["state.second_turn"],
    ),
    "a conversation that forgets": (
        Mutation(request=without("conversation")), ["conversations.continued", "conversations.in_stream"],
    ),
    "resumed from the start": (
        Mutation(path=lambda path: path.replace("starting_after=2", "starting_after=0")), ["background.resumed"],
    ),
    "cancelled and not": (
        Mutation(answer=answered("POST /v1/responses/resp_", lambda b: b.update(status="in_progress"))),
        ["background.cancelled"],
    ),
    "in the foreground": (created(lambda b: b.update(status="completed")), ["background.begun"]),
    "a parser that breaks": (
        Mutation(request=has_harmony, answer=replaced(500, {"error": {"message": "HarmonyError"}},
                                                      by=lambda path, status, body: status == 404)),
        ["items.harmony_text", "items.harmony_output", "chat.harmony_text", "messages.harmony_text"],
    ),
    "ids looked up": (Mutation(request=has_ids), ["items.replayed", "items.foreign_ids"]),
    "a name with its namespace": (
        created(said("function_call")(lambda call: call.update(name="functions.a"))),
        ["tools.arguments", "tools.namespace"],
    ),
    "broken arguments": (
        created(said("function_call")(lambda item: item.update(arguments='{"city": "Pa'))), ["tools.arguments"],
    ),
    "a choice that is ignored": (Mutation(request=without("tool_choice")), ["tools.allowed", "tools.undeclared"]),
    "a patch as a function": (
        created(said("apply_patch_call")(lambda item: item.update(type="function_call"))), ["tools.apply_patch"],
    ),
    "functions alone": (
        Mutation(answer=replaced(400, {"error": {"message": "tool type is not supported"}}, by=has_other_tools)),
        ["tools.custom", "tools.others_declared"],
    ),
    "a format that is ignored": (
        Mutation(request=without("text")), ["structured.schema", "structured.in_stream", "structured.bad_schema"],
    ),
    "errors of a framework": (
        Mutation(answer=replaced(400, {"detail": "bad"}, by=lambda path, status, body: status == 400)),
        ["errors.shape", "errors.no_json", "errors.type", "chat.errors", "messages.errors"],
    ),
    "a traceback": (
        Mutation(answer=replaced(500, b"Internal Server Error", by=lambda path, status, body: status == 400)),
        ["errors.refused"],
    ),
    "frames without their lane": (
        Mutation(events=lambda events: [{**event, "stream_id": None} for event in events]), ["websocket.lane"],
    ),
    "errors without a status": (Mutation(events=flat), ["websocket.unknown_previous", "websocket.no_json"]),
    "binary frames": (Mutation(binary=True), ["websocket.upgrade"]),
    "a connection that forgets": (
        Mutation(request=lambda path, body: {**body, "previous_response_id": None} if "type" in body else body),
        ["websocket.continued", "websocket.unknown_previous"],
    ),
    "a chat without its end": (
        Mutation(events=lambda events: [*events[:-1], {**events[-1], "stop": True}]), ["chat.chunks"],
    ),
    "chunks without choices": (
        Mutation(events=lambda events: [{key: event[key] for key in event if key != "choices"} for event in events]),
        ["chat.chunks"],
    ),
    "a chat's broken call": (
        Mutation(answer=answered(CHAT, in_chat(lambda m: m.get("tool_calls") and m["tool_calls"][0]["function"].update(
            arguments="{")))),
        ["chat.call"],
    ),
    "a chat cut and called complete": (
        Mutation(answer=answered(CHAT, lambda b: b["choices"][0].update(finish_reason="tool_calls"))), ["chat.cut"],
    ),
    "a message that does not stop": (event("message_stop", lambda e: False), ["messages.order"]),
    "blocks that do not stop": (event("content_block_stop", lambda e: False), ["messages.order"]),
    "a call without input": (
        Mutation(answer=answered(MESSAGES, lambda b: [block.update(input={}) for block in b.get("content", ())])),
        ["messages.call"],
    ),
    "errors of another API": (
        Mutation(answer=replaced(400, {"error": {"message": "x", "type": "invalid_request_error"}},
                                 by=lambda path, status, body: status == 400)),
        ["messages.errors"],
    ),
}  # fmt: skip


# So slow that no answer is complete before it is cancelled.
slow_server = module_server("slow", engine_options={"tokens_per_second": 20})


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_is_done_wrong_is_noticed(request: pytest.FixtureRequest, name: str) -> None:
    mutation, names = MUTATIONS[name]
    server = request.getfixturevalue("slow_server" if names == ["background.cancelled"] else "daphne_server")
    with mutating_server(server, mutation) as url:
        for check in names:
            [result] = results_of(url, [check])
            assert (result.check.name, result.verdict) == (check, CheckVerdict.FAILED), result.came
            assert result.came
            assert result.exchanges


def test_what_is_passed_on_is_right(daphne_server: Server) -> None:
    """The server in between changes nothing by itself."""
    names = sorted({name for _, names in MUTATIONS.values() for name in names})
    with mutating_server(daphne_server, Mutation()) as url:
        results = results_of(url, names)
    # On a busy machine the demo engine may have answered before it is cancelled, and then the check says so.
    wrong = {result.check.name: result.came for result in results if result.verdict is not CheckVerdict.PASSED}
    assert wrong.keys() <= {result.check.name for result in results if result.verdict is CheckVerdict.SKIPPED}
    assert wrong.keys() <= {"background.cancelled"}
