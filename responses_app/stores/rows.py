"""What the store keeps ⇄ rows of the database. Token ids and lengths stand there as little-endian 32-bit numbers."""

import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from engine.harmony.prompt import MessageKind, RenderedMessage, as_tokens
from responses_app import models
from responses_app.protocol.chain import ChainLink, LinkTokens, link_of
from responses_app.protocol.items import SampledItem
from responses_app.stores.base import StoredResponse


def pack(numbers: Sequence[int]) -> bytes:
    """Return unsigned 32-bit numbers as bytes."""
    packed = array("I", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(blob: bytes) -> "array[int]":
    """Return the numbers that were packed."""
    numbers = as_tokens()
    numbers.frombytes(blob)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def response_row(stored: StoredResponse) -> models.Response:
    """Return the row that clients retrieve."""
    response: dict[str, Any] = stored.response
    return models.Response(
        id=response["id"],
        project=stored.project,
        status=response["status"],
        model=response["model"],
        created_at=datetime.fromtimestamp(response["created_at"], UTC),
        body=response,
        input_items=stored.input_items,
    )


def part_row(project: str, link: ChainLink) -> models.ChainPart:
    """Return a link's own part of its chain."""
    return models.ChainPart(
        id=link.response_id,
        project=project,
        parent_id=link.parent.response_id if link.parent else None,
        started_on=link.started_on,
        calls=link.calls,
        kinds=link.own.kinds,
        lengths=pack(link.own.lengths),
        tokens=pack(link.own.tokens),
        settles=link.own.settles,
        ends_final=link.own.ends_final,
    )


def sampled_rows(stored: StoredResponse) -> Iterator[models.SampledItem]:
    """Yield a response's items with their tokens."""
    for item in stored.sampled:
        yield models.SampledItem(
            id=item.id,
            project=stored.project,
            response_id=stored.response["id"],
            fingerprint=item.fingerprint,
            kind=item.message.kind.value,
            tokens=pack(item.message.tokens),
        )


def sampled_item(item_id: str, fingerprint: str, kind: str, tokens: bytes) -> SampledItem:
    """Return the item that a row holds."""
    return SampledItem(item_id, fingerprint, RenderedMessage(MessageKind(kind), unpack(tokens)))


def chain_of(rows: Sequence[Sequence[Any]]) -> ChainLink | None:
    """Return the last link of the chain that these rows (`chain_sql.chain_rows`) make up."""
    link: ChainLink | None = None
    for response_id, _, started_on, calls, kinds, lengths, tokens, settles, ends_final, _ in rows:
        own = LinkTokens(
            kinds=kinds,
            lengths=unpack(lengths),
            tokens=unpack(tokens),
            settles=bool(settles),
            ends_final=bool(ends_final),
        )
        link = link_of(
            link,
            response_id=response_id,
            started_on=started_on,
            own=own,
            calls=_calls(calls),
        )
    return link


def _calls(text: str) -> dict[str, str]:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # a lone surrogate, which is an escape here; a client's id may have one
        return json.loads(text)
