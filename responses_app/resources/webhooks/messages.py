"""Webhooks as data: which events there are, what a message of one says, and how it is signed.

A message tells an id and nothing of what is in the object: its receiver retrieves that. It is signed as Standard
Webhooks says (https://www.standardwebhooks.com), which `webhooks.unwrap` of OpenAI's SDKs checks.

    webhook-id: evt_…                      the same at each attempt, so a receiver knows what it has had
    webhook-timestamp: 1793048400          of this attempt
    webhook-signature: v1,… v1,…           HMAC-SHA256 over "id.timestamp.body", one for each secret that is good now
"""

import base64
import hmac
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Literal, get_args

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.json_text import dumps

EventName = Literal[
    "response.completed",
    "response.failed",
    "response.incomplete",
    "response.cancelled",
    "response.action_required",
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
    "vector_store.file.completed",
    "vector_store.file.failed",
]
EVENT_TYPES: tuple[EventName, ...] = get_args(EventName)
ACTION_REQUIRED: EventName = "response.action_required"
# What a response that ends with such an item waits for: its client continues it with an output, or an approval.
ACTIONS = frozenset(
    (
        *("function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "computer_call"),
        *("tool_search_call", "mcp_approval_request"),
    )
)
_SECRET_BYTES = 32
_SECRET_START = "whsec_"
_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class WebhookMessage:
    """What is to be told of an object."""

    id: str  # "evt_…", the `webhook-id`
    type: EventName
    data: JsonObject  # the object's id, and at most what kind of answer it waits for

    def body(self, created_at: int) -> str:
        """Return the JSON that is sent; `created_at` is in Unix seconds."""
        event = {"id": self.id, "object": "event", "created_at": created_at, "type": self.type, "data": self.data}
        return dumps(event).decode()


def message(type_: EventName, object_id: str, *, mark: str = "", **more: object) -> WebhookMessage:
    """Return what an object's event says. `mark` tells apart events of one type that an object has several times.

    The id is made of these alone: a transaction that is tried again tells the same event, not another one.
    """
    told_apart = "\0".join((type_, object_id, mark)).encode("utf-8", "surrogatepass")
    digest = blake2b(told_apart, digest_size=_ID_BYTES, person=b"respsite webhook").hexdigest()
    return WebhookMessage(f"evt_{digest}", type_, {"id": object_id, **more})


def event_of(kind: str, status: object) -> EventName | None:
    """Return the event of an object of this kind that has come to this status; None where nothing is told of it."""
    return next((name for name in EVENT_TYPES if name == f"{kind}.{status}"), None)


def messages_of_response(response: Mapping[str, object]) -> Sequence[WebhookMessage]:
    """Return what an ended response in the background tells: how it ended, and whether it waits for its client.

    One in the foreground tells nothing, as with OpenAI: its client has the answer.
    """
    name, response_id = event_of("response", response["status"]), str(response["id"])
    if name is None or not response.get("background"):
        return ()
    messages = [message(name, response_id)]
    action = next(iter(required_actions(response.get("output"))), None)
    if response["status"] == "completed" and action is not None:
        messages.append(message(ACTION_REQUIRED, response_id, required_action={"type": action}))
    return messages


def message_of_wait(response_id: str, output: object, call_ids: Collection[str], *, wait: str) -> WebhookMessage:
    """Return what a response tells that waits in the middle for what came of these calls. `wait` tells its waits apart.

    Once some of the calls have their outputs it is the same wait, with the same id: also on another worker.
    """
    items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    action = next(item["type"] for item in items if item.get("call_id") in call_ids)
    return message(ACTION_REQUIRED, response_id, mark=wait, required_action={"type": action})


def required_actions(output: object) -> Sequence[str]:
    """Return the types of those items of an output that a client has to answer."""
    items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    answered = {item.get("call_id") for item in items if str(item.get("type", "")).endswith("_output")}
    return [
        item["type"]
        for item in items
        if item.get("type") in ACTIONS and item.get("execution") != "server" and item.get("call_id", "") not in answered
    ]


def new_secret(random: bytes) -> str:
    """Return a secret of 32 random bytes, as receivers are given it."""
    assert len(random) == _SECRET_BYTES, "a secret has 256 bits"
    return _SECRET_START + base64.b64encode(random).decode()


def secret_hint(secret: str) -> str:
    """Return what tells a secret apart from others, and does not help to guess it."""
    return f"{_SECRET_START}…{secret[-4:]}"


def signed_headers(event_id: str, body: str, secrets: Sequence[str], *, at: int) -> dict[str, str]:
    """Return the headers of one attempt, signed with each secret. `at` is in Unix seconds."""
    content = f"{event_id}.{at}.{body}".encode()
    keys = (base64.b64decode(secret.removeprefix(_SECRET_START)) for secret in secrets)
    signatures = (base64.b64encode(hmac.new(key, content, sha256).digest()).decode() for key in keys)
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
