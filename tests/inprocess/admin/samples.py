"""Rows for the admin to show: an agent's loop with reasoning and calls, and thousands of responses over some days."""

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from responses_app.models import ChainPart, Response, Worker
from responses_app.resources.conversations.model import Conversation, ConversationItem

Item = dict[str, Any]


def said(text: str) -> Item:
    """What a user says."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def answered(text: str, *, phase: str = "final_answer") -> Item:
    """What the model says."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        **{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": phase},
        "content": content,
    }


def thought(text: str) -> Item:
    """What the model thinks."""
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def called(call_id: str, name: str, arguments: str) -> Item:
    """A call of a function."""
    fields = {"id": f"fc_{call_id}", "call_id": call_id, "name": name, "arguments": arguments, "status": "completed"}
    return {"type": "function_call", **fields}


def gave(call_id: str, output: object) -> Item:
    """A call's output."""
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def response(
    number: int,
    *,
    asked: Sequence[object] = (),
    output: Sequence[object] = (),
    after: str = "",
    part: bool = True,
    body: Item | None = None,
    **columns: Any,
) -> Response:
    """Keep a response, with its part of the chain; `body` adds to its object, `columns` are of its row."""
    response_id = columns.pop("id", f"resp_{number:032x}")
    row: dict[str, Any] = {
        **{"status": "completed", "model": "gpt-oss-120b", "created_at": datetime.now(UTC), "transport": "websocket"},
        **{"input_tokens": 1200, "cached_tokens": 800, "output_tokens": 340, "first_token_ms": 180},
        **{"duration_ms": 2400, "size": 900},
        **columns,
    }
    row.setdefault("chat_id", _chat_of(after) or response_id)
    told = {
        **{"id": response_id, "object": "response", "status": row["status"], "output": list(output)},
        **{"created_at": int(row["created_at"].timestamp()), "usage": None},
        **(body or {}),
    }
    kept = Response(
        id=response_id, body=told, input_items=list(asked), previous_response_id=after, **{"project": "default", **row}
    )
    kept.save(force_insert=True)
    if part:
        ChainPart.objects.create(
            id=response_id, parent_id=after or None, started_on="2026-11-21", kinds="", lengths=b"", tokens=b"",
            settles=False, ends_final=True,
        )  # fmt: skip
    return kept


def _chat_of(response_id: str) -> str:
    return Response.objects.filter(pk=response_id).values_list("chat_id", flat=True).first() or ""


REASONING = (
    "The user wants to know which of the two cities is warmer. I have a function for the weather, so I call it once "
    "for each of them.\n\nBoth calls are independent: they can go out together."
)
ANSWER = (
    "Rome is warmer today: 24 °C and sunny, against 18 °C with light rain in Paris.\n\n"
    "If you want to be outside, go to Rome. In Paris, take an umbrella."
)
PARIS, ROME = ("call_paris0001", '{"city": "Paris", "unit": "celsius"}'), ("call_rome00002", '{"city": "Rome"}')


def agent_loop() -> tuple[Response, Response, Conversation]:
    """Keep two turns of an agent: one that calls two functions, one that gets their outputs and answers."""
    now = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=4)
    tools = [{"type": "function", "name": name} for name in ("get_weather", "get_forecast", "search_places")]
    settings = {
        "instructions": "You are a travel assistant. Use the functions; never guess the weather.",
        "tools": tools,
        "reasoning": {"effort": "high"},
        "metadata": {"trip": "autumn"},
        "usage": {"output_tokens_details": {"reasoning_tokens": 210}},
    }
    shared: dict[str, Any] = {"conversation_id": "conv_1", "body": settings}
    asked = [said("Is it warmer in Paris or in Rome today?")]
    calls = [called(call_id, "get_weather", arguments) for call_id, arguments in (PARIS, ROME)]
    looks = [thought(REASONING), answered("I look both up.", phase="commentary"), *calls]
    first = response(1, asked=asked, output=looks, created_at=now, **shared)
    weather = zip((PARIS, ROME), ('"celsius": 18, "sky": "light rain"', '"celsius": 24, "sky": "sunny"'), strict=True)
    given = [gave(call_id, f"{{{told}}}") for (call_id, _), told in weather]
    says, later = [thought("24 is more than 18."), answered(ANSWER)], now + timedelta(seconds=7)
    second = response(2, asked=given, output=says, after=first.pk, created_at=later, **shared)
    conversation = Conversation.objects.create(
        id="conv_1", created_at=now, title="A trip in autumn", head=second.pk, next_position=20
    )
    items = [(item, row) for row in (first, second) for item in (*row.input_items, *row.body["output"])]
    ConversationItem.objects.bulk_create(
        ConversationItem(
            conversation_id="conv_1", item_id=f"item_{position}", position=position, item=item, response_id=row.pk,
            created_at=row.created_at,
        )
        for position, (item, row) in enumerate(items, 1)
    )  # fmt: skip
    return first, second, conversation


def workers(now: datetime) -> None:
    """Keep three workers, one of them dead."""
    for number, (age, connections, in_flight) in enumerate([(2, 64, 11), (4, 38, 6), (900, 3, 1)]):
        began, seen = now - timedelta(hours=7), now - timedelta(seconds=age)
        held = {"connections": connections, "in_flight": in_flight}
        Worker.objects.create(id=f"worker_{number:032x}", started_at=began, seen_at=seen, **held)


def many(count: int, *, days: float = 7.0, padding: int = 0, seed: int = 1) -> None:
    """Keep responses over the last days, more of them in the daytime, each with `padding` more bytes of text."""
    now = datetime.now(UTC).replace(microsecond=0)
    Response.objects.bulk_create(_rows(count, now, days, "x" * padding, random.Random(seed)), batch_size=1_000)


def _rows(count: int, now: datetime, days: float, text: str, chance: random.Random) -> Iterator[Response]:
    statuses, weights = ("completed", "failed", "incomplete", "cancelled"), (92, 3, 4, 1)
    for number in range(count):
        share = number / count
        at = now - timedelta(days=days * (1 - share) ** 1.2)
        if at.hour < 7 and chance.random() < 0.6:
            at -= timedelta(hours=8)
        status = chance.choices(statuses, weights)[0]
        tokens = int(chance.lognormvariate(7.5, 0.9))
        yield Response(
            id=f"resp_{0xABC000000 + number:032x}",
            status=status,
            model=chance.choice(["gpt-oss-120b", "gpt-oss-120b", "gpt-oss-20b"]),
            created_at=at,
            body={
                **{"id": f"resp_{0xABC000000 + number:032x}", "status": status, "output": [], "text": text},
                **{"created_at": int(at.timestamp()), "usage": None},
            },
            background=number % 9 == 0,
            transport=chance.choice(["websocket", "sse", "http"]),
            size=len(text) + 400,
            input_tokens=tokens,
            cached_tokens=int(tokens * chance.random()),
            output_tokens=int(chance.lognormvariate(5.6, 0.8)),
            first_token_ms=None if status == "failed" else int(chance.lognormvariate(5.4, 0.6)),
            duration_ms=int(chance.lognormvariate(8, 0.7)),
        )
