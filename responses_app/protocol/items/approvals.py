"""Approvals of calls of MCP servers' tools: asked for in one response, answered in the input of a later one."""

from collections.abc import Iterable, Sequence

from responses_app.protocol.errors import ApiError, JsonObject, conflict, invalid_request
from responses_app.protocol.items.offers import ApprovedCall


def approved_calls(own: Sequence[JsonObject], earlier: Iterable[JsonObject]) -> list[ApprovedCall]:
    """Return the calls that a request's own items approve, and that were not made yet.

    `earlier` are the items of the chain and of the conversation, the request's own among them. Raises `ApiError` for an
    answer to a request that is not there.
    """
    answers = [(index, item) for index, item in enumerate(own) if item.get("type") == "mcp_approval_response"]
    if not answers:
        return []
    asked: dict[str, JsonObject] = {}
    made: set[object] = set()
    for item in earlier:
        if item.get("type") == "mcp_approval_request":
            asked[str(item.get("id"))] = item
        elif item.get("type") == "mcp_call":
            made.add(item.get("approval_request_id"))
    calls: dict[str, ApprovedCall] = {}
    for index, answer in answers:
        request_id = str(answer.get("approval_request_id"))
        if request_id not in asked:
            param = f"input[{index}].approval_request_id"
            raise invalid_request(
                f"No approval request found with id '{request_id[:256]}' ('{param}'). Continue the response that asked "
                "with 'previous_response_id', or send its items before the answer.",
                param=param,
            )
        if answer.get("approve") is True and request_id not in made:
            calls[request_id] = _call(request_id, asked[request_id])
        else:
            calls.pop(request_id, None)
    return list(calls.values())


def approval_in_use(request_id: str, response_id: str) -> ApiError:
    """Another response, which runs, makes the call that a request for approval is about (409)."""
    message = (
        f"The approval request '{request_id[:80]}' is answered already: response '{response_id[:80]}' makes its call "
        "now. Wait for that response, and continue it."
    )
    return conflict(message, param="input", code="approval_in_use")


def unanswered(chain: Iterable[JsonObject], own: Iterable[JsonObject]) -> list[JsonObject]:
    """Return the requests for approval of a chain that its user has gone on without answering.

    `chain` are the items that it keeps, `own` those of the request that continues it.
    """
    asked: dict[object, JsonObject] = {}
    answered: set[object] = set()
    for item in (*chain, *own):
        if item.get("type") == "mcp_approval_request":
            asked[item.get("id")] = item
        elif item.get("type") in ("mcp_approval_response", "mcp_call"):
            answered.add(item.get("approval_request_id"))
    return [item for request_id, item in asked.items() if request_id not in answered]


def taken_as_refused(request: JsonObject) -> JsonObject:
    """Return what a chain keeps of a request that was not answered: so the model is told of it once."""
    return {"type": "mcp_approval_response", "approval_request_id": request.get("id"), "approve": False}


def _call(request_id: str, asked: JsonObject) -> ApprovedCall:
    return ApprovedCall(
        request_id=request_id,
        server=str(asked.get("server_label") or ""),
        tool=str(asked.get("name") or ""),
        arguments=str(asked.get("arguments") or ""),
    )
