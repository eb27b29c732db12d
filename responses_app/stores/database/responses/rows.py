"""What the store keeps ⇄ rows of the database. Token ids and lengths stand there as little-endian 32-bit numbers."""

import json
import sys
import time
from array import array
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from engine import orjson
from engine.formats.base import MessageKind, RenderedMessage, as_tokens
from responses_app.kit.clock import utc
from responses_app.kit.kept import writes_lines
from responses_app.kit.sql import Row
from responses_app.kit.table import can_be_known
from responses_app.limits.suspects import Stage
from responses_app.models import ChatChoice, Response, json_text
from responses_app.models.pictures import Picture
from responses_app.protocol.chat.completion import StoredChat
from responses_app.protocol.ids import milliseconds_of
from responses_app.protocol.items.items import SampledMessage
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.stores.base import AcceptedResponse, StoredResponse, WorkerState
from responses_app.stores.database.response_sql import claim_row
from responses_app.stores.database.responses.membership import made_in_playground


def pack(numbers: Sequence[int]) -> bytes:
    """Return unsigned 32-bit numbers as bytes."""
    # "I" has 4 bytes on every platform that CPython runs on today, in the machine's own order.
    packed = array("I", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(*blobs: bytes) -> "array[int]":
    """Return the numbers that were packed, those of all blobs together."""
    numbers = as_tokens()
    for blob in blobs:
        numbers.frombytes(blob)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def second_of(response_id: str) -> int:
    """Return the Unix second in which a response was made that may be gone: its `created_at`, as its id tells it."""
    return (milliseconds_of(response_id) or 0) // 1000


def time_value(connection: BaseDatabaseWrapper, seconds: float) -> object:
    """Return a time in Unix seconds as the database's driver takes it."""
    return connection.ops.adapt_datetimefield_value(utc(seconds))


def database_time(cursor: CursorWrapper) -> float:
    """Return the time of the database's clock, in Unix seconds; SQLite's is this machine's."""
    if cursor.db.vendor != "postgresql":
        return time.time()
    cursor.execute("SELECT EXTRACT(EPOCH FROM clock_timestamp())")
    return float(cursor.fetchone()[0])


def accepted_row(connection: BaseDatabaseWrapper, accepted: AcceptedResponse) -> Row:
    """Return the row of a response that has not ended."""
    request = None if accepted.request is None else json_text(accepted.request)
    row = _response_row(connection, accepted)
    # `size` is what limits count: all that the row holds, also the request while it is kept.
    changes = {
        "worker": accepted.claim.worker,
        "request": request,
        "request_name": accepted.request_name,
        "size": row["size"] + _bytes(request or ""),
    }
    return row | changes


def returned_row(connection: BaseDatabaseWrapper, accepted: AcceptedResponse) -> Row:
    """Return the row of a response that is nobody's now."""
    return {**accepted_row(connection, accepted), "worker": ""}


def stored_row(connection: BaseDatabaseWrapper, stored: StoredResponse) -> Row:
    """Return the row of a response that has ended."""
    usage: Mapping[str, Any] = stored.response.get("usage") or {}
    row = _response_row(connection, stored)
    own = len(stored.link.own.tokens) + len(stored.link.own.lengths) if stored.link else 0
    size = row["size"] + 4 * (own + sum(len(item.message.tokens) for item in stored.sampled)) + len(stored.log)
    if stored.chat is not None and (chat := stored.chat.chat) is not None:
        size += _bytes(json_text(chat.messages)) + _bytes(json_text(chat.metadata))
    return row | {
        "size": size,
        "input_tokens": usage.get("input_tokens", 0),
        "cached_tokens": usage.get("input_tokens_details", {}).get("cached_tokens", 0),
        "output_tokens": usage.get("output_tokens", 0),
        "first_token_ms": stored.first_token_ms,
        "duration_ms": stored.duration_ms,
    }


def part_row(project: str, link: ChainLink) -> Row:
    """Return a link's own part of its chain."""
    return {
        "id": link.response_id,
        "project": project,
        "parent_id": link.parent.response_id if link.parent else None,
        "started_on": link.started_on,
        "calls": calls_text(link),
        "kinds": link.own.kinds,
        "lengths": pack(link.own.lengths),
        "tokens": pack(link.own.tokens),
        "settles": link.own.settles,
        "ends_final": link.own.ends_final,
    }


def calls_text(link: ChainLink) -> str:
    """Return the calls of a link as JSON: names by ids, and under "", never the id of a call, what else it knows."""
    further = {
        "awaited": link.awaited,
        "late_tools": link.late_tools,
        "tool_items": link.tool_items,
        "states": link.states,
    }
    kept = {**link.calls, "": {name: value for name, value in further.items() if value}}
    if not kept[""]:
        del kept[""]
    return json_text(kept) if kept else "{}"


def read_calls(text: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Return what `calls_text` wrote: the calls, and the rest, which older versions did not keep."""
    # Nearly always: not worth a parser.
    if text == "{}":
        return {}, {}
    calls = orjson.loads_kept(text)
    return calls, calls.pop("", {})


def sampled_rows(stored: StoredResponse) -> Iterator[Row]:
    """Yield a response's items with their tokens."""
    for item in stored.sampled:
        yield {
            "id": item.id,
            "project": stored.project,
            "response_id": stored.response["id"],
            "fingerprint": item.fingerprint,
            "kind": item.message.kind.value,
            "tokens": pack(item.message.tokens),
        }


def choice_rows(connection: BaseDatabaseWrapper, stored: StoredResponse) -> Iterator[Row]:
    """Yield what a response is as a choice of a chat completion."""
    choice = stored.chat
    if choice is not None:
        chat = choice.chat or StoredChat(messages=())
        yield {
            "id": stored.response["id"],
            "project": stored.project,
            "first_id": choice.first or stored.response["id"],
            "place": choice.place,
            "choices": choice.count,
            "created_at": time_value(connection, stored.response["created_at"]),
            "model": stored.response["model"],
            "metadata": json_text(chat.metadata),
            "form": json_text(chat.form.as_json()),
            "messages": json_text(chat.messages),
        }


def log_rows(stored: StoredResponse) -> Iterator[Row]:
    """Yield a response's whole log, as one part."""
    if stored.log:
        yield {"response_id": stored.response["id"], "position": 0, "data": stored.log}


def worker_row(connection: BaseDatabaseWrapper, worker: WorkerState, *, seen_at: float) -> Row:
    """Return the row of a server process."""
    return {
        "id": worker.id,
        "started_at": time_value(connection, worker.started_at),
        "seen_at": time_value(connection, seen_at),
        "connections": worker.connections,
        "in_flight": worker.in_flight,
    }


def response_of(body: str, status: str) -> ResponseObject:
    """Return a response object of its row: the body of one that has begun still says queued."""
    response: ResponseObject = orjson.loads_kept(body) | {"status": status}
    return response


def sampled_item(item_id: str, fingerprint: str, kind: str, tokens: bytes) -> SampledMessage:
    """Return the item that a row holds."""
    return SampledMessage(item_id, fingerprint, RenderedMessage(MessageKind(kind), unpack(tokens)))


def _response_row(connection: BaseDatabaseWrapper, response: AcceptedResponse | StoredResponse) -> dict[str, Any]:
    """Return what is the same in all rows of responses."""
    body = response.response
    body_text, input_text = json_text(body), json_text(response.input_items)
    return {
        "id": body["id"],
        "project": response.project,
        "status": body["status"],
        "model": body["model"],
        "created_at": time_value(connection, body["created_at"]),
        "body": body_text,
        "input_items": input_text,
        "background": bool(body.get("background")),
        "transport": response.transport,
        "playground": made_in_playground(body),
        "key_id": response.key_id,
        "previous_response_id": _known_id(body.get("previous_response_id")),
        "conversation_id": _known_id((body.get("conversation") or {}).get("id")),
        "worker": "",
        **claim_row(response.claim),
        "suspicion": Stage.INNOCENT.value,
        "request_name": "",
        "request": None,
        "size": _bytes(body_text) + _bytes(input_text),
        "input_tokens": 0,
        "cached_tokens": 0,
        "output_tokens": 0,
        "first_token_ms": None,
        "duration_ms": None,
    }


def _known_id(value: object) -> str:
    """Return an id, or nothing where it cannot be one of ours."""
    return value if isinstance(value, str) and can_be_known(value) else ""


def _bytes(text: str) -> int:
    # `isascii` costs nothing, and spares a copy of a long body.
    return len(text) if text.isascii() else len(text.encode())


@writes_lines(Response)
def _lines(row: Response, head: Mapping[str, Any], using: str) -> Iterator[str]:
    yield json_text({"response": row.body, "input_items": row.input_items})
    for choice in ChatChoice.objects.using(using).filter(pk=row.pk, place=0):
        yield json_text({"chat_completion": choice.pk, "metadata": choice.metadata, "messages": choice.messages})
    for picture in Picture.objects.using(using).filter(uses__owner=row.pk).order_by("pk").iterator(chunk_size=1):
        about = {"of_response": row.pk, "sha256": picture.digest, "media_type": picture.media_type}
        yield json.dumps({"picture": about, "base64": b64encode(picture.data).decode()})
