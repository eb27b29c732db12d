"""The page of a response: what was asked and answered, what it cost, and what stands before and after it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString

from responses_app.admin.formats import (
    NONE,
    ago,
    conversation_link,
    in_bytes,
    milliseconds,
    moment,
    pill,
    response_link,
)
from responses_app.admin.text import Clipped, Room, pretty, visible
from responses_app.admin.transcript import MAX_ITEMS, Block, Transcript, as_list
from responses_app.models import ChainPart, Response

BULKY = ("body", "input_items", "request")
LARGEST = 8 << 20  # bytes of a response that a page reads; larger ones can be downloaded
MAX_NEXT = 10  # of the responses that continue this one
MAX_READ_ON = 3  # of them whose input is read for outputs of this one's calls
TURNS = 10  # before this one, where they are asked for
RAW = 60_000  # characters of raw JSON on the page

Facts = list[tuple[str, str | SafeString]]
_ASKED = (
    "max_output_tokens max_tool_calls parallel_tool_calls temperature top_p presence_penalty frequency_penalty "
    "top_logprobs truncation service_tier tool_choice prompt_cache_key safety_identifier user"
).split()
_USUAL = {
    **{"parallel tool calls": True, "temperature": 1.0, "top p": 1.0, "presence penalty": 0.0},
    **{"frequency penalty": 0.0, "top logprobs": 0, "truncation": "disabled", "tool choice": "auto"},
    **{"service tier": "default", "text format": "text", "verbosity": "medium"},
}


@dataclass(slots=True)
class Turn:
    """A response's part of the conversation; `left_out` counts its first items, which only the JSON has."""

    response_id: str
    created_at: datetime
    current: bool
    blocks: list[Block] = field(default_factory=list)
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What comes before and after: `next` continue this response, `deleted` are ids of those that did and are gone."""

    previous: Response | None
    next: Sequence[Response]
    deleted: Sequence[str]
    more: bool


def response_page(response: Response, *, turns: str = "") -> dict[str, Any]:
    """Return what the template of the page needs. `turns`, if not empty, adds the turns before."""
    near = _neighbours(response)
    fits = response.size <= LARGEST
    if fits:
        response.refresh_from_db(fields=["body", "input_items"])
    body = _dict(response.body) if fits else {}
    room = Room()
    transcript = Transcript(room)
    conversation = [_turn(transcript, each) for each in _ancestors(response)] if turns else []
    instructions = room.clip(body["instructions"]) if isinstance(body.get("instructions"), str) else None
    if fits:
        conversation.append(_turn(transcript, response, current=True))
        _read_on(transcript, near)
    return {
        "title": "Response",
        "response": response,
        "pill": pill(response.status),
        "fits": fits,
        "instructions": instructions,
        "conversation": conversation,
        "near": near,
        "gone_before": "" if near.previous else visible(response.previous_response_id),
        "can_show_turns": bool(near.previous and not turns),
        "turns": TURNS,
        "problem": _problem(body),
        "figures": _figures(response, body),
        "facts": _facts(response, near),
        "asked": _asked(body),
        "tools": _tools(body),
        "raw": _raw(body, response.input_items) if fits else [],
    }


def _turn(transcript: Transcript, response: Response, *, current: bool = False) -> Turn:
    turn = Turn(response.pk, response.created_at, current)
    for items in (response.input_items, _dict(response.body).get("output")):
        turn.left_out += max(0, len(as_list(items)) - MAX_ITEMS)
        turn.blocks += transcript.read(items)
    return turn


def _ancestors(response: Response) -> list[Response]:
    """Return the responses before this one, oldest first, as far as they are kept and not too large."""
    found: list[Response] = []
    previous = response.previous_response_id
    while previous and len(found) < TURNS:
        known = Response.objects.defer("request").filter(pk=previous, size__lte=LARGEST // TURNS).first()
        if known is None:
            break
        found.insert(0, known)
        previous = known.previous_response_id
    return found


def _neighbours(response: Response) -> Neighbours:
    light = Response.objects.defer(*BULKY)
    following = list(ChainPart.objects.filter(parent_id=response.pk).order_by("pk").values_list("pk", flat=True)[:11])
    ids = [*following[:MAX_NEXT], *filter(None, [response.previous_response_id])]
    known = {each.pk: each for each in light.filter(pk__in=ids)} if ids else {}
    return Neighbours(
        previous=known.get(response.previous_response_id),
        next=[known[pk] for pk in following[:MAX_NEXT] if pk in known],
        deleted=[pk for pk in following[:MAX_NEXT] if pk not in known],
        more=len(following) > MAX_NEXT,
    )


def _read_on(transcript: Transcript, near: Neighbours) -> None:
    """Find outputs of this response's calls in the input of those that continue it."""
    if not transcript.unanswered():
        return
    small = [each.pk for each in near.next if each.size <= LARGEST // MAX_READ_ON][:MAX_READ_ON]
    for pk, items in Response.objects.filter(pk__in=small).order_by("pk").values_list("pk", "input_items"):
        transcript.read_answers(items, pk)


def _problem(body: dict[str, Any]) -> tuple[str, str] | None:
    """Return why it ended as it did: a title and a sentence."""
    error, incomplete = body.get("error"), body.get("incomplete_details")
    if isinstance(error, dict):
        return f"Failed: {visible(error.get('code') or 'error')}", visible(error.get("message") or "")[:2_000]
    if isinstance(incomplete, dict):
        reason = visible(incomplete.get("reason") or "unknown reason")
        return "Incomplete", f"The answer was cut short: {reason.replace('_', ' ')}."[:2_000]
    return None


def _figures(response: Response, body: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the numbers that stand at the top: a name, a value, a remark."""
    cached = f"{response.cached_tokens:,} cached" if response.cached_tokens else ""
    seconds = ((response.duration_ms or 0) - (response.first_token_ms or 0)) / 1_000
    reasoning = _dict(_dict(body.get("usage")).get("output_tokens_details")).get("reasoning_tokens")
    thought = f"{reasoning:,} reasoning" if isinstance(reasoning, int) and reasoning else ""
    rate = f"{response.output_tokens / seconds:,.0f} tokens/s" if seconds > 0 and response.first_token_ms else ""
    return [
        ("Tokens in", f"{response.input_tokens:,}", cached),
        ("Tokens out", f"{response.output_tokens:,}", thought),
        ("First token", milliseconds(response.first_token_ms), ""),
        ("Duration", milliseconds(response.duration_ms), rate),
    ]


def _facts(response: Response, near: Neighbours) -> Facts:
    previous = response.previous_response_id
    before: str | SafeString = response_link(previous) if near.previous else f"{visible(previous)} (not kept)"
    age = ago(response.created_at, datetime.now(UTC))
    facts: Facts = [
        ("Created", format_html("{} UTC, {}", moment(response.created_at), age)),
        ("Model", visible(response.model)),
        ("Transport", visible(response.transport) or NONE),
        ("Background", "yes" if response.background else "no"),
        ("Project", visible(response.project)),
        ("Size", in_bytes(response.size)),
    ]
    facts += [("Worker", visible(response.worker))] if response.worker else []
    facts += [("Conversation", conversation_link(response.conversation_id))] if response.conversation_id else []
    facts += [("Continues", before)] if previous else []
    return facts


def _asked(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the settings of the request that are not the usual ones."""
    reasoning, text = _dict(body.get("reasoning")), _dict(body.get("text"))
    asked = {
        "reasoning effort": reasoning.get("effort"),
        "reasoning summary": reasoning.get("summary"),
        "text format": _dict(text.get("format")).get("type"),
        "verbosity": text.get("verbosity"),
        **{name.replace("_", " "): body.get(name) for name in _ASKED},
        **{f"metadata {key}": value for key, value in list(_dict(body.get("metadata")).items())[:16]},
    }
    told = ((name, value) for name, value in asked.items() if value is not None and value != _USUAL.get(name))
    return [(visible(name)[:80], _short(value)) for name, value in told]


def _short(value: object) -> str:
    return visible(value if isinstance(value, str) else pretty(value))[:200]


def _tools(body: dict[str, Any]) -> list[str]:
    """Return the names of the tools that the model was offered."""
    tools = [_dict(tool) for tool in as_list(body.get("tools"))]
    names = [visible(tool.get("name") or tool.get("server_label") or tool.get("type") or "?")[:80] for tool in tools]
    return [*names[:50], *([f"and {len(names) - 50} more"] if len(names) > 50 else [])]


def _raw(body: object, input_items: object) -> list[tuple[str, Clipped]]:
    room = Room()
    return [
        ("Response object", room.clip(pretty(body), shown=RAW, folded=0)),
        ("Input items", room.clip(pretty(input_items), shown=RAW, folded=0)),
    ]


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
